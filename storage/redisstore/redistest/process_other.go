//go:build !linux

package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// startBound starts a command. Outside Linux, it outlives this process if that is killed.
func startBound(cmd *exec.Cmd) error { return cmd.Start() }

// Signal numbers differ between systems, and package syscall lacks some names. The program kill knows
// them.
func pause(p *os.Process) error { return signal(p, "-STOP") }

func resume(p *os.Process) error { return signal(p, "-CONT") }

func signal(p *os.Process, name string) error {
	return exec.Command("kill", name, strconv.Itoa(p.Pid)).Run()
}

// isPaused returns an error unless the process is stopped.
func isPaused(pid int) error {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return err
	}
	if !strings.HasPrefix(strings.TrimSpace(string(state)), "T") {
		return fmt.Errorf("state %s, want T", state)
	}
	return nil
}
