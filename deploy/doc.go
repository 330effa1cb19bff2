// Package deploy has the files that run Limitkeeper: the unit of systemd, the configuration of the image, and the manifests for
// Compose and Kubernetes. Its Go files are only tests.
package deploy
