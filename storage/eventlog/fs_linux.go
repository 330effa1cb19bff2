package eventlog

import (
	"errors"
	"os"
	"syscall"
)

// syncData syncs the content of a file, and the metadata needed to read it. The file may be closed
// during the call.
func syncData(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = c.Control(func(fd uintptr) {
		for failed = syscall.EINTR; failed == syscall.EINTR; {
			failed = syscall.Fdatasync(int(fd))
		}
	})
	return errors.Join(err, failed)
}
