// Package e2e tests the built binary: the output and the exit codes of its commands, the data after a kill, hostile load,
// and that no secret is in a file or log. It has only tests.
package e2e
