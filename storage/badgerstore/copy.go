package badgerstore

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// The checkpoint copy is a copy of all tables. Each scrub writes the bytes that it has verified to a draft. A whole
// draft replaces the copy of the previous scrub. [Rebuild] restores the copy, and replays the event log from the
// position of the copy on, so the store keeps the segments behind that position. When these segments or the copy take
// room that requests need, the store removes the copy.
const (
	copyDir  = "copy"
	draftDir = "copy-draft" // a copy that is being written

	noCopy = math.MaxInt64 // the position when there is no copy
)

// copyTries is the number of attempts to begin a copy while Badger changes the tables, one a second.
const copyTries = 60

// copyPosition returns the position of the event log from which on the copy in the directory of a store needs the
// log, noCopy when there is no copy.
func copyPosition(dir string) int64 { return positionOf(filepath.Join(dir, copyDir)) }

// positionOf is copyPosition for the directory of a copy or of a draft.
func positionOf(path string) int64 {
	mark, err := table.ReadMark(path)
	if err != nil || mark.Position == 0 {
		return noCopy
	}
	return mark.Position
}

// copyOrDraft returns the path of the copy in the directory of a store. It returns the path of the draft when only
// the draft is whole: the process was killed before it renamed the draft.
func copyOrDraft(dir string) string {
	if draft := filepath.Join(dir, draftDir); copyPosition(dir) == noCopy && positionOf(draft) != noCopy {
		return draft
	}
	return filepath.Join(dir, copyDir)
}

// resumeCopy finds the copy of an earlier process. A whole draft becomes the copy if there is none and if the event
// log still has all segments from the position of the draft on. Any other draft is removed.
func (s *Store) resumeCopy() error {
	all, path := s.events.Segments(), copyOrDraft(s.dir)
	if path != filepath.Join(s.dir, copyDir) && len(all) > 0 && all[0].Base <= positionOf(path) {
		if err := renameDraft(s.dir); err != nil {
			return err
		}
	}
	s.retention.copied.Store(copyPosition(s.dir))
	return os.RemoveAll(filepath.Join(s.dir, draftDir))
}

// renameDraft puts the draft in the place of the copy.
func renameDraft(dir string) error {
	return firstOf(removeCopy(dir), os.Rename(filepath.Join(dir, draftDir), filepath.Join(dir, copyDir)), eventlog.OS.SyncDir(dir))
}

// copyTables verifies the tables and writes a new copy. It returns false when no copy was written: then the caller
// verifies the tables.
func (c *scrubbing) copyTables() (verified bool, err error) {
	s := c.s
	if !s.db.WasReplayable() || !s.roomForCopy() {
		return false, nil
	}
	defer func() {
		if !verified {
			err = firstOf(err, s.cancelCopy())
		}
	}()
	draft, err := c.newCopy()
	if draft == nil || err != nil {
		return false, err
	}
	defer draft.Close()
	dir := filepath.Join(s.dir, draftDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return false, err
	}
	whole, err := draft.Write(dir, func(n int) bool {
		return c.pause(n) && s.retention.copied.Load() != noCopy
	})
	if err != nil || !whole {
		return false, err
	}
	return true, s.replaceCopy(draft.Position())
}

// newCopy begins a copy, and tries again while Badger changes the tables. It returns nil after copyTries attempts, and
// when the scrub has to stop.
func (c *scrubbing) newCopy() (*table.Copy, error) {
	for range copyTries {
		draft, err := c.s.beginCopy()
		if !errors.Is(err, table.ErrChanging) {
			return draft, err
		}
		if !c.rest(time.Second) {
			break
		}
	}
	return nil, nil
}

// beginCopy begins a copy. From then on the event log keeps the segments that the copy needs. The caller
// calls replaceCopy or cancelCopy, also after an error.
func (s *Store) beginCopy() (*table.Copy, error) {
	s.retention.running.Lock()
	position := s.flushed.Load()
	s.retention.copied.CompareAndSwap(noCopy, position)
	s.retention.running.Unlock()
	return s.db.NewCopy(position) // waits for Badger
}

// replaceCopy puts the draft in the place of the copy. If dropCopy was called since beginCopy, it removes the draft.
func (s *Store) replaceCopy(position int64) error {
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	if s.retention.copied.Load() == noCopy {
		return os.RemoveAll(filepath.Join(s.dir, draftDir))
	}
	err := renameDraft(s.dir)
	s.retention.copied.Store(copyPosition(s.dir))
	return err
}

// cancelCopy removes the draft, and keeps the copy of the previous scrub.
func (s *Store) cancelCopy() error {
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	if s.retention.copied.Load() != noCopy {
		s.retention.copied.Store(copyPosition(s.dir))
	}
	return os.RemoveAll(filepath.Join(s.dir, draftDir))
}

// roomForCopy reports whether the disk has room for another copy of the tables. Without room it removes the copy of
// the previous scrub, and checks again.
func (s *Store) roomForCopy() bool {
	size, err := tableBytes(s.dir)
	if err != nil {
		return false
	}
	roomy := func() bool {
		free, err := s.freeSpace()
		return err == nil && free >= 2*uint64(s.reserve.MinFree())+size
	}
	if roomy() {
		return true
	}
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	s.dropCopy("the disk has no room for two copies of the database")
	return roomy()
}

// tableBytes returns the size of all tables in a directory.
func tableBytes(dir string) (sum uint64, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+table.Suffix))
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil { // otherwise the table was compacted and deleted
			sum += uint64(info.Size())
		}
	}
	return sum, err
}

// dropCopy removes the copy, and ends the writing of a draft. It returns false when there was neither. The caller
// holds retention.running.
func (s *Store) dropCopy(reason string) bool {
	if s.retention.copied.Swap(noCopy) == noCopy {
		return false
	}
	err := removeCopy(s.dir)
	s.log.Warn("the checkpoint copy is removed: limitkeeper rebuild has none until the next scrub", "dir", s.dir, "reason", reason, "error", err)
	return true
}

// removeCopy removes the copy of a store, and INVENTORY first: without INVENTORY, the rest that a killed process
// leaves is not a copy.
func removeCopy(dir string) error {
	dir = filepath.Join(dir, copyDir)
	if err := os.Remove(filepath.Join(dir, table.InventoryName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}
