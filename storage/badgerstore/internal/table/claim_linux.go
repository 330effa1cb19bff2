package table

import (
	"errors"
	"hash/fnv"
	"os"
	"syscall"
)

// Claims reports whether [Claim] takes a lock on this system.
const Claims = true

// Claim takes the lock on a directory that Badger takes too, until release is called. It returns [ErrInUse] while another
// process, or another caller in this one, has the lock.
func Claim(dir string) (release func(), err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return func() { _ = file.Close() }, nil
	}
	_ = file.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, ErrInUse
	}
	return nil, err
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
