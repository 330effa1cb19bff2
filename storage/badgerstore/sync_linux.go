package badgerstore

import (
	"os"
	"syscall"
)

// syncData brings to the disk what was written to a file and what is needed to read it.
func syncData(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR {
			return err
		}
	}
}
