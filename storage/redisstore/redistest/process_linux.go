package redistest

import (
	"errors"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
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

// isPaused returns an error unless all threads of the process are stopped.
func isPaused(pid int) error {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOWAIT|unix.WNOHANG, nil)
	if err == nil && info.Signo == 0 {
		err = errors.New("the process is not stopped")
	}
	return err
}
