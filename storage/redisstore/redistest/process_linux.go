package redistest

import (
	"os/exec"
	"syscall"
)

// endWithParent makes the kernel kill a command when the thread ends that has started it.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
