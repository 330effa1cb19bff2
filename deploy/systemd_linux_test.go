package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// maxExposure is the largest exposure of the unit in tenths, as systemd-analyze security computes it, from 0 to 100.
const maxExposure = "20"

// systemd understands each line of the unit, and finds the service well confined.
func TestUnit(t *testing.T) {
	unit := filepath.Join(t.TempDir(), "limitkeeper.service")
	text := strings.ReplaceAll(readFile(t, "systemd/limitkeeper.service"), "/usr/bin/limitkeeper", binary) // verify wants it to exist
	must(t, os.WriteFile(unit, []byte(text), 0o600))
	if out, err := exec.Command("systemd-analyze", "verify", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold="+maxExposure, unit).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

// The service starts with the user, the environment, the capabilities and the directories of the unit, and the rest of the disk
// read-only. It tells systemd when it is ready, reloads, and ends. From nothing to the first refusal.
func TestUnitServes(t *testing.T) {
	t.Parallel()
	root, ok := onMachine(t, func(root string) {
		install(t, root, strings.ReplaceAll(readFile(t, "systemd/Caddyfile"), ".example.com", ".localhost"))
	})
	if !ok {
		return
	}
	setting := func(name string) string {
		t.Helper()
		_, value, ok := strings.Cut(readFile(t, "systemd/limitkeeper.service"), "\n"+name+"=")
		if !ok {
			t.Fatalf("the unit has no %s", name)
		}
		value, _, _ = strings.Cut(value, "\n")
		return value
	}
	if setting("AmbientCapabilities") != "CAP_NET_BIND_SERVICE" || setting("ProtectSystem") != "strict" || setting("Type") != "notify" {
		t.Fatal("the unit has other settings than this test")
	}
	state, runtime := "/var/lib/"+setting("StateDirectory"), "/run/"+setting("RuntimeDirectory")
	m := &machine{
		t: t, root: root, uid: 64001, caps: []uintptr{unix.CAP_NET_BIND_SERVICE}, sites: "https://%s.localhost",
		env: append(strings.Fields(setting("Environment")), "HOME="+state, "NOTIFY_SOCKET="+runtime+"/notify"),
	}
	m.createDirs(state, runtime)
	m.mountRoot(state, runtime)
	ready := m.listenNotify(runtime + "/notify")

	m.serveUpstream()
	stop := m.start(strings.Fields(setting("ExecStart"))...)
	ready()
	m.firstRefusal("limitkeeper", "account", "create", "default", "--json", "--config", "/etc/limitkeeper/Caddyfile")
	if _, err := m.output(strings.Fields(setting("ExecReload"))...); err != nil {
		t.Error(err)
	}
	ready()
	for url, want := range map[string]int{
		"http://127.0.0.1:8081/functions/v1/health/ready": 200, "http://127.0.0.1:8081/metrics": 200, "http://127.0.0.1:8081/": 404,
	} {
		if got := m.status(url); got != want {
			t.Errorf("%s: got %d, want %d", url, got, want)
		}
	}
	stop()
}
