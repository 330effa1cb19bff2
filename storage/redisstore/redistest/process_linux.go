package redistest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// forks runs functions on one thread that lives as long as this process. The kernel sends Pdeathsig when
// the thread ends that started the child, and Go ends threads at any time.
var forks = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// startBound starts a command that ends with this process, even if that is killed.
func startBound(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	forks() <- func() { started <- cmd.Start() }
	return <-started
}

func pause(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// isPaused returns an error unless all threads of the process are stopped.
func isPaused(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	if len(threads) == 0 {
		return errEnded
	}
	for _, path := range threads {
		fields, err := stat(path)
		if err != nil {
			return err
		}
		if state := string(fields[0]); state != "T" {
			return fmt.Errorf("state %s, want T", state)
		}
	}
	return nil
}

// stat returns the fields of a stat file from the third on. The second is the name in parentheses, which
// may contain any character.
func stat(path string) ([][]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) == 0 {
		return nil, fmt.Errorf("%s: %q", path, text)
	}
	return fields, nil
}
