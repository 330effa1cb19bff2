package eventlog

import (
	"errors"
	"hash/fnv"
	"os"
	"syscall"
)

// syncData makes the content of a file durable, and the metadata needed to read it. The
// file may be closed meanwhile.
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

// Boot returns a number for the time since the machine was started, 0 when that is unknown.
// The kernel draws it at each start.
func Boot() uint64 {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(id)
	return h.Sum64()
}
