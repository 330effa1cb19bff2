//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package table

import (
	"errors"
	"os"
	"syscall"
)

// Claim locks a directory until release is called. It returns [ErrInUse] while another process, or another caller in this
// one, has the lock.
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
