package eventlog

import (
	"errors"
	"hash/fnv"
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

// Boot returns a number that identifies the current boot of the machine, 0 when unknown. The kernel
// chooses a random number at each boot.
func Boot() uint64 {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(id)
	return h.Sum64()
}
