package reserve

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"
)

// Badger writes its memtables, tables and value log through shared mappings of files that it has created with
// ftruncate, without blocks. On a full disk, a write to such a page raises SIGBUS, which ends the process. Badger has no
// hook between ftruncate and the mapping. A check of free space before a commit is too early: a compaction writes for a
// second, and another program fills 256 MiB in a tenth of a second. With only such checks, TestDiskFilledFast died in 6 of
// 6 runs; with the allocation in none of 6.
//
// So this file allocates each file when it is mapped: golang.org/x/sys/unix calls mmap through a variable.
// TestMappedFilesAreAllocated fails when another version of that package works differently.

// mapper is the variable through which [unix.Mmap] maps.
//
//go:linkname mapper golang.org/x/sys/unix.mapper
var mapper *struct {
	sync.Mutex
	_    map[*byte][]byte
	mmap func(addr, length uintptr, prot, flags, fd int, offset int64) (uintptr, error)
}

// reserves has the reserve of each open store, by the path of its directory without symbolic links.
var reserves sync.Map

func init() {
	mmap := mapper.mmap
	mapper.mmap = func(addr, length uintptr, prot, flags, fd int, offset int64) (uintptr, error) {
		mapFile := func() (uintptr, error) { return mmap(addr, length, prot, flags, fd, offset) }
		if prot&unix.PROT_WRITE == 0 || flags&unix.MAP_SHARED == 0 {
			return mapFile()
		}
		r := reserveOf(fd)
		if r == nil {
			return mapFile()
		}
		if err := r.allocateFor(fd, int64(length)); err != nil {
			return 0, err
		}
		return r.mapWith(mapFile)
	}
}

// reserveOf returns the reserve of the open store that a file belongs to, nil for any other file.
func reserveOf(fd int) *Reserve {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil
	}
	if r, ok := reserves.Load(filepath.Dir(name)); ok {
		return r.(*Reserve)
	}
	return nil
}

// mapWith maps a file. At the limit of mappings of the process, mapWith waits: after an error Badger would end the
// process for a memtable, or leave the file of a table behind. While the store is being opened, mapWith returns
// the error instead.
func (r *Reserve) mapWith(mmap func() (uintptr, error)) (uintptr, error) {
	for {
		at, err := mmap()
		wait := err == unix.ENOMEM && !r.Opening.Load()
		switch {
		case r.unmapped.Swap(wait) == wait:
		case wait:
			r.log.Error("the database waits: the process can map no more files: raise vm.max_map_count or the limit of memory", "dir", r.dir)
		default:
			r.log.Warn("files are mapped again", "dir", r.dir)
		}
		if !wait {
			return at, err
		}
		time.Sleep(WaitForRoom)
	}
}

// ServeMappings makes each file in the directory be allocated when Badger maps it, until end is called.
func (r *Reserve) ServeMappings() (end func(), err error) {
	dir, err := filepath.Abs(r.dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	reserves.Store(dir, r)
	return func() { reserves.CompareAndDelete(dir, r) }, nil
}

// ExtendManifest allocates blocks after the end of the MANIFEST. On a full disk, Badger could write a part of a change
// there, and would drop all later changes at the next start.
func (r *Reserve) ExtendManifest() {
	path := filepath.Join(r.dir, badger.ManifestFilename)
	var s syscall.Stat_t
	if syscall.Stat(path, &s) != nil || s.Blocks*512 >= s.Size+manifestAhead/2 {
		return
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	_ = r.allocateHelped(manifestAhead, func() error { return allocateAhead(int(file.Fd()), s.Size, manifestAhead) })
}

// allocate allocates the first n bytes of a file. A shorter file grows to n bytes.
func allocate(fd int, n int64) error { return fallocate(fd, 0, 0, n) }

// allocateAhead allocates n bytes of a file from an offset on. The file keeps its length.
func allocateAhead(fd int, offset, n int64) error {
	return fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, offset, n)
}

func fallocate(fd int, mode uint32, offset, n int64) error {
	for {
		if err := syscall.Fallocate(fd, mode, offset, n); err != syscall.EINTR {
			return err
		}
	}
}

// allocated returns the number of allocated bytes of a file, at most its size.
func allocated(file *os.File) int64 {
	var s syscall.Stat_t
	if syscall.Fstat(int(file.Fd()), &s) != nil {
		return 0
	}
	return min(s.Size, s.Blocks*512)
}
