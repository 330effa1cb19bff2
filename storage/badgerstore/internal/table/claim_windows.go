package table

import (
	"path/filepath"
	"syscall"
)

// sharingViolation is the error of CreateFile for a file that is open and not shared.
const sharingViolation = syscall.Errno(32)

// Claim opens the file LOCK in a directory, and does not share it until release is called. It returns [ErrInUse] while another
// process, or another caller in this one, has it open.
func Claim(dir string) (release func(), err error) {
	name, err := syscall.UTF16PtrFromString(filepath.Join(dir, "LOCK"))
	if err != nil {
		return nil, err
	}
	file, err := syscall.CreateFile(name, syscall.GENERIC_READ, 0, nil, syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if err == sharingViolation {
		return nil, ErrInUse
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = syscall.CloseHandle(file) }, nil
}
