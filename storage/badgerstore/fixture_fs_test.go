package badgerstore

import (
	"slices"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// Names and headers of the files of the event log, as internal/eventlog has them.
const (
	segmentData   = 4096    // the offset of the first block
	blockOverhead = 19      // bytes of a block beside its records
	defaultAhead  = 1 << 20 // bytes written ahead
)

// hookedFS calls functions around the operations of a file system.
type hookedFS struct {
	eventlog.FS
	before func(fsOp) error // may make it fail
	after  func(fsOp)
}

// fsOp is an operation: open, rename, remove, write, truncate, sync or syncdir.
type fsOp struct {
	kind string
	path string
	data []byte // that are written
	at   int64  // where
}

// isBlock reports whether a block is written, and not a header, a status or room.
func (op *fsOp) isBlock() bool {
	return op.kind == "write" && op.at >= segmentData && !allZero(op.data)
}

// do runs fn with the functions around it.
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

// The steps of the event log. Their numbers follow the steps of the store.
const (
	failRotate  = failpoints + iota // a segment is about to get its name
	failWrite                       // a block is about to be written
	failWritten                     // it is in the file
	failSynced                      // a segment is on the disk
	allFailpoints
)

// stepped lets the step function of options know the steps of the event log too.
func stepped(o Options) Options {
	step, below := o.failpoint, o.fs
	if below == nil {
		below = eventlog.OS
	}
	o.fs = &hookedFS{
		FS: below,
		before: func(op fsOp) error {
			if op.kind == "rename" {
				step(failRotate)
			} else if op.isBlock() {
				step(failWrite)
			}
			return nil
		},
		after: func(op fsOp) {
			if op.isBlock() {
				step(failWritten)
			} else if op.kind == "sync" {
				step(failSynced)
			}
		},
	}
	return o
}

func allZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }
