package deploy

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
)

// manifest has the parts of the manifests that make a container.
type manifest struct {
	Kind string
	Data map[string]string
	Spec struct {
		Template struct {
			Spec struct {
				SecurityContext struct{ RunAsUser uint32 }
				Containers      []struct {
					Ports []struct {
						Name          string
						ContainerPort int
					}
					StartupProbe, LivenessProbe, ReadinessProbe probe
					VolumeMounts                                []struct {
						MountPath string
						ReadOnly  bool
					}
				}
			}
		}
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string }
}

// The container of a manifest serves with the Caddyfile of its ConfigMap, as its user, with a root directory that is read-only. Each
// probe passes. From nothing to the first refusal, behind an ingress that ends TLS.
func TestBadgerContainer(t *testing.T) { testContainer(t, "kubernetes/badger.yaml") }

// TestRedisContainer is TestBadgerContainer on a Redis with a password.
func TestRedisContainer(t *testing.T) { testContainer(t, "kubernetes/redis.yaml") }

func testContainer(t *testing.T, file string) {
	t.Parallel()
	var caddyfile string
	var workload manifest
	for _, doc := range documents(t, file) {
		text, err := json.Marshal(doc)
		must(t, err)
		var m manifest
		must(t, json.Unmarshal(text, &m))
		switch m.Kind {
		case "ConfigMap":
			caddyfile = m.Data["Caddyfile"]
		case "StatefulSet", "Deployment":
			workload = m
		}
	}
	root, ok := onMachine(t, func(root string) { install(t, root, caddyfile) })
	if !ok {
		return
	}
	_, img := parseDockerfile(t)
	pod := workload.Spec.Template.Spec
	container := pod.Containers[0]
	m := &machine{
		t: t, root: root, uid: pod.SecurityContext.RunAsUser, sites: "http://%s.example.com:8080",
		env: append(img.env, "REDIS_PASSWORD=secret"), hosts: []string{"redis.default.svc", "upstream.default.svc"},
	}
	var writable []string
	for _, mount := range container.VolumeMounts {
		if !mount.ReadOnly {
			writable = append(writable, mount.MountPath)
		}
	}
	m.createDirs(writable...)
	m.mountRoot(writable...)
	redis := exec.Command("redis-server", "--requirepass", "secret", "--save", "", "--dir", t.TempDir())
	must(t, redis.Start())
	t.Cleanup(func() { _ = redis.Process.Kill(); _ = redis.Wait() })
	m.serveUpstream()
	stop := m.start(append(img.entrypoint, img.cmd...)...)
	for _, p := range []probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
		url := ""
		for _, port := range container.Ports {
			if port.Name == p.HTTPGet.Port {
				url = fmt.Sprintf("http://127.0.0.1:%d%s", port.ContainerPort, p.HTTPGet.Path)
			}
		}
		m.await(url, func() bool { return m.status(url) == 200 })
	}
	m.firstRefusal("limitkeeper", "account", "create", "default", "--json")
	stop()
}
