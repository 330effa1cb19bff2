package badgerstore

import (
	"slices"

	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// Sizes in the files of the event log. They are unexported constants of eventlog.
const (
	segmentData   = 4096    // the offset of the first block
	blockOverhead = 21      // bytes of a block without its records
	defaultAhead  = 1 << 20 // bytes written ahead
)

// hookedFS calls functions around the operations of a file system.
type hookedFS struct {
	eventlog.FS
	before func(fsOp) error // its error is the result of the operation
	after  func(fsOp)
}

// fsOp is an operation: open, rename, link, remove, write, truncate, sync or syncdir.
type fsOp struct {
	kind string
	path string
	data []byte // the bytes of a write
	at   int64  // the offset of a write, or the size of a truncate
}

// isBlock reports whether the operation writes a block, and not a header, a status or preallocated zeros.
func (op *fsOp) isBlock() bool {
	return op.kind == "write" && op.at >= segmentData && !allZero(op.data)
}

// do runs an operation between the calls of before and after.
func (h *hookedFS) do(op fsOp, fn func() error) error {
	if h.before != nil {
		if err := h.before(op); err != nil {
			return err
		}
	}
	err := fn()
	if h.after != nil {
		h.after(op)
	}
	return err
}

func (h *hookedFS) Open(path string, flags int) (f eventlog.File, err error) {
	err = h.do(fsOp{kind: "open", path: path}, func() error {
		f, err = h.FS.Open(path, flags)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &hookedFile{f, h, path}, nil
}

func (h *hookedFS) Rename(from, to string) error {
	return h.do(fsOp{kind: "rename", path: to}, func() error { return h.FS.Rename(from, to) })
}

func (h *hookedFS) Link(from, to string) error {
	return h.do(fsOp{kind: "link", path: to}, func() error { return h.FS.(interface{ Link(from, to string) error }).Link(from, to) })
}

func (h *hookedFS) Remove(path string) error {
	return h.do(fsOp{kind: "remove", path: path}, func() error { return h.FS.Remove(path) })
}

func (h *hookedFS) SyncDir(dir string) error {
	return h.do(fsOp{kind: "syncdir", path: dir}, func() error { return h.FS.SyncDir(dir) })
}

type hookedFile struct {
	eventlog.File
	h    *hookedFS
	path string
}

func (f *hookedFile) WriteAt(b []byte, at int64) (n int, err error) {
	err = f.h.do(fsOp{"write", f.path, b, at}, func() error {
		n, err = f.File.WriteAt(b, at)
		return err
	})
	return n, err
}

func (f *hookedFile) Truncate(size int64) error {
	return f.h.do(fsOp{kind: "truncate", path: f.path, at: size}, func() error { return f.File.Truncate(size) })
}

func (f *hookedFile) Sync() error {
	return f.h.do(fsOp{kind: "sync", path: f.path}, f.File.Sync)
}

// The failpoints of the event log. Their numbers follow the failpoints of the store.
const (
	failRotate  = failpoints + iota // a segment is about to get its name
	failWrite                       // a block is about to be written
	failWritten                     // a block is in the file
	failSynced                      // a segment is synced
	allFailpoints
)

// stepped makes the event log call the failpoint function of the options, too.
func stepped(o Options) Options {
	reached, below := o.failpoint, o.fs
	if below == nil {
		below = eventlog.OS
	}
	o.fs = &hookedFS{
		FS: below,
		before: func(op fsOp) error {
			if op.kind == "rename" {
				reached(failRotate)
			} else if op.isBlock() {
				reached(failWrite)
			}
			return nil
		},
		after: func(op fsOp) {
			if op.isBlock() {
				reached(failWritten)
			} else if op.kind == "sync" {
				reached(failSynced)
			}
		},
	}
	return o
}

func allZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }
