package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// stranger is the id of a user without any files.
const stranger = 65534

// A directory that the user of the process may not use is one line that names the directory
// and the command that helps.
func TestPermissions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run the binary as another user")
	}
	dir, err := os.MkdirTemp("", "limitkeeper-permissions-") // that of the test is closed to the other user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(dir, 0o755))
	text, err := os.ReadFile(binary)
	must(err)
	program := filepath.Join(dir, "limitkeeper")
	must(os.WriteFile(program, text, 0o755))
	must(os.Chmod(program, 0o755))
	mkdir := func(name string, owner int, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		must(os.Mkdir(path, 0o700))
		must(os.Chown(path, owner, owner))
		must(os.Chmod(path, mode))
	}
	mkdir("home", stranger, 0o700)
	mkdir("closed", 0, 0o700)
	mkdir("readonly", stranger, 0o500)
	mkdir("mixed", stranger, 0o700)
	mkdir("mixed/eventlog", 0, 0o700)
	for _, tc := range []struct{ store, want string }{
		{"closed/below", "permission denied: name a directory that user 65534 can write to, or make it: install -d -m 700 -o 65534 %s"},
		{"closed", "permission denied: run as its owner, or first run chown -R 65534 %[1]s && chmod 700 %[1]s"},
		{"readonly", "permission denied: run as its owner, or first run chown -R 65534 %[1]s && chmod 700 %[1]s"},
		{"mixed", "operation not permitted: run as its owner, or first run chown -R 65534 %[1]s && chmod 700 %[1]s"},
	} {
		path := filepath.Join(dir, tc.store)
		config := fmt.Sprintf(`{"admin": {"disabled": true}, "apps": {"limitkeeper": {"store": {"module": "badger", "dir": %q}}}}`, path)
		ctx, cancel := context.WithTimeout(t.Context(), patience) // a store that opens is served
		cmd := exec.CommandContext(ctx, program, "run", "--config", "-")
		cmd.Dir, cmd.Env, cmd.Stdin = dir, append(os.Environ(), "HOME="+filepath.Join(dir, "home")), strings.NewReader(config)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
		out, err := cmd.CombinedOutput()
		cancel()
		want := "start: open the store in " + path + ": " + fmt.Sprintf(tc.want, path) + `"`
		if err == nil || !strings.Contains(strings.ReplaceAll(string(out), `\u0026`, "&"), want) {
			t.Errorf("%s: got %v, want %q in\n%s", tc.store, err, want, out)
		}
	}
}
