package diskspace

import "syscall"

// readOnly is the flag ST_RDONLY of statfs(2).
const readOnly = 1

// Space returns the free bytes and the size of the file system of a directory. It returns syscall.EROFS for a read-only
// file system.
func Space(dir string) (free, size uint64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	if s.Flags&readOnly != 0 {
		return 0, 0, syscall.EROFS
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), nil
}

// leastInodes is the number of inodes that must be free, for memtables, tables and segments of the store.
const leastInodes = 64

// fewInodes reports whether the file system of a directory has fewer than leastInodes free. It is false for file
// systems without a limit of inodes: they report 0 inodes in all.
func fewInodes(dir string) bool {
	var s syscall.Statfs_t
	return syscall.Statfs(dir, &s) == nil && s.Files > 0 && s.Ffree < leastInodes
}
