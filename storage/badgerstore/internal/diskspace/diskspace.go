// Package diskspace watches the free space on the disk of a store. Below min_free the store refuses counts and new
// resources. Checkpoints, images and changes of resources go on above half of min_free, because only history that is in an
// image can be removed. The other half is for the memtables and compactions that Badger has begun by then: Badger
// writes them through mapped files, and a write to a mapped file on a full disk ends the process with SIGBUS.
package diskspace

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"

	"github.com/limitkeeper/limitkeeper/core"
)

// OpeningNeeds is the number of bytes that opening a store needs: a memtable (16 MiB), value log and statistics (3 MiB),
// and small files.
const OpeningNeeds = 24 << 20

// MinSize is the smallest min_free in bytes: half of it has room for a memtable.
const MinSize = 32 << 20

// DefaultSize is the default of min_free on a large disk, in bytes. Tests make it smaller.
var DefaultSize int64 = 256 << 20

// ErrFull means that less than min_free, or half of it, is free on the disk.
var ErrFull = errors.New("the disk is full")

// NoRoom reports whether err means that the disk, or the disk quota of the user, is full.
func NoRoom(err error) bool {
	return errors.Is(err, ErrFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Watch watches the disk of an open store. Its methods may be called concurrently.
type Watch struct {
	Space func(dir string) (free, size uint64, err error) // the function Space; tests change it before the first call

	dir     string // of the store
	log     *slog.Logger
	minFree atomic.Int64
	full    atomic.Bool
}

// Open returns a watch for the disk of a directory. minFree is in bytes; 0 means the default. The error is [ErrFull]
// when the disk has no room to open a store.
func Open(dir string, minFree int64, log *slog.Logger) (*Watch, error) {
	w := &Watch{Space: Space, dir: dir, log: log}
	if err := w.Need(OpeningNeeds, "a start"); err != nil {
		return nil, err
	}
	w.SetMinFree(minFree)
	return w, nil
}

// None returns a watch without min_free, for a store that is not open.
func None(dir string) *Watch { return &Watch{Space: Space, dir: dir} }

// SetMinFree changes min_free, in bytes; 0 means the default.
func (w *Watch) SetMinFree(bytes int64) {
	if bytes <= 0 {
		_, size, _ := w.Space(w.dir) // 0 after an error
		bytes = max(MinSize, min(DefaultSize, int64(size/8)))
	}
	w.minFree.Store(bytes)
	w.Check()
}

// MinFree returns min_free in bytes.
func (w *Watch) MinFree() int64 { return w.minFree.Load() }

// Enough is the number of free bytes with which a full store takes counts again, and below which the store removes the
// oldest history: min_free and a quarter. With min_free alone, the store would soon be full again.
func (w *Watch) Enough() int64 { return w.MinFree() + w.MinFree()/4 }

// Full reports whether the disk is full: the store then refuses counts and new resources.
func (w *Watch) Full() bool { return w.full.Load() }

// Check asks the file system for its free space, and logs when the disk becomes full or has room again. The line for the
// end of an error state is a warning, here and elsewhere, so that logs without Info have it, too.
func (w *Watch) Check() {
	free, _, err := w.Space(w.dir)
	if err != nil {
		return
	}
	few, before, wanted := fewInodes(w.dir), w.Full(), w.MinFree()
	if before {
		wanted = w.Enough()
	}
	full := few || free < uint64(wanted)
	switch {
	case w.full.Swap(full) == full:
	case full:
		w.log.Error("the disk is full: requests are refused until space is free; if another program takes the rest, this process may end: then make room and start it again",
			"dir", w.dir, "min_free", w.MinFree(), "few_inodes", few)
	default:
		w.log.Warn("the disk has free space again: requests are counted", "dir", w.dir)
	}
}

// Ready returns [ErrFull] when less than half of min_free is free. Then the store must not write to Badger.
func (w *Watch) Ready() error {
	err := w.Need(uint64(w.MinFree()/2), "a change of the database")
	if errors.Is(err, ErrFull) {
		return core.Logged(err)
	}
	return nil
}

// Need returns [ErrFull] with advice when fewer bytes than a thing needs are free.
func (w *Watch) Need(bytes uint64, thing string) error {
	free, _, err := w.Space(w.dir)
	if err == nil && free < bytes {
		err = fmt.Errorf("%w: %d MiB are free, and %s needs %d MiB: make room", ErrFull, free>>20, thing, (bytes+1<<20-1)>>20)
	}
	return err
}
