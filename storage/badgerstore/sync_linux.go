package badgerstore

import (
	"os"
	"syscall"
)

// syncData brings to the disk what was written to a file and what is needed to read it.
// The file may be closed meanwhile.
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
	return firstOf(err, failed)
}
