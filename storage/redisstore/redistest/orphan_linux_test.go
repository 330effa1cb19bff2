package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const orphanEnv = "REDISTEST_ORPHAN"

// A server does not outlive its test process, even if that is killed.
func TestOrphan(t *testing.T) {
	if os.Getenv(orphanEnv) != "" {
		s := Start(t)
		fmt.Printf("orphan %d %s\n", s.process.Load().Pid, s.Dir())
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOrphan$")
	cmd.Env = append(os.Environ(), orphanEnv+"=yes")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.String() != "signal: killed" {
		t.Fatalf("the test process: %v, want it killed\n%s", err, out)
	}
	_, line, _ := strings.Cut(string(out), "orphan ")
	fields := strings.Fields(line)
	if len(fields) != 2 {
		t.Fatalf("no server was started: %s", out)
	}
	t.Cleanup(func() { _ = os.RemoveAll(fields[1]) })
	await(t, "end of the server", nil, func() error { return isGone(fields[0]) })
}

// isGone returns an error while a process runs. A zombie counts as gone.
func isGone(pid string) error {
	if _, err := strconv.Atoi(pid); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil || strings.Contains(string(status), "\nState:\tZ") {
		return nil
	}
	return fmt.Errorf("process %s runs: %s", pid, status)
}
