package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// A snapshot is a copy of the directory of an open store: what a kill of the process at one instant would leave. The
// instant is a position of the event log. The snapshot has the event log up to that position, and tables that were on disk
// before. The start of a store after a kill needs nothing else, so a snapshot opens like a store after a kill, and no
// decision waits for it.
//
//   - Segments of the event log never change once the next one has begun, so the snapshot has hard links to them. The last
//     segment is copied up to the position.
//   - Tables are copied, by the code that copies them for [Rebuild]. Hard links are no choice: Badger truncates a table
//     before it deletes the table, which would empty the other name too.
//   - A checkpoint comes first and ends the memtable. So the snapshot replays only the events of about a second.

// snapshotDir is the directory of the snapshot, within the directory of the store. The next start after a kill removes it.
const snapshotDir = "snapshot"

// snapshotMark is the name of a file in a snapshot. Open, Check, Repair and Rebuild refuse a directory with this file.
const snapshotMark = "SNAPSHOT"

const (
	snapshotRate  = 128 << 20              // bytes of tables that are copied in a second, so that requests come first
	snapshotRetry = 100 * time.Millisecond // the pause while Badger changes the tables
	maxFlushWait  = 10 * time.Second       // how long a snapshot waits until the checkpoint is in tables
	flushPoll     = 20 * time.Millisecond  // the pause between two looks for the table
)

var (
	// ErrSnapshotOpen means that the store has a snapshot already.
	ErrSnapshotOpen = errors.New("the store has an open snapshot: close that snapshot first")

	errSnapshotClosed = errors.New("the snapshot is closed")
	errSnapshotFull   = fmt.Errorf("the snapshot was removed before it was closed: %w", reserve.ErrFull)
	errReadOnly       = core.Unavailable(errors.New("a snapshot cannot be changed"))
	errIsSnapshot     = errors.New("it is a snapshot that a killed process has left: name the directory above it, whose next start removes the snapshot")
)

// Snapshot is the data of a store at one instant. It refuses all writes. The caller calls Close, which removes its files.
type Snapshot struct {
	*Store
	of     *Store
	dir    string
	linked atomic.Bool // the directory has hard links: removing history frees no space

	life   context.Context         // ends when the snapshot has to end; the cause says why
	giveUp context.CancelCauseFunc // ends life
	ended  chan struct{}           // closed when the snapshot is closed, or could not be closed in time
}

// Snapshot implements [core.SnapshotStore].
func (s *Store) Snapshot(ctx context.Context) (core.Importer, error) {
	c, err := s.newSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// newSnapshot returns a snapshot of the store. It has every write and every decision that was answered before the call, and
// none that began after newSnapshot has returned. It is of one instant: with a write it has all writes that were answered before
// that write began. The snapshot is on the disk of the store, and takes the size of the tables there. newSnapshot returns
// [ErrSnapshotOpen] when the store has a snapshot already, and an error when the disk has no room beside min_free. ctx ends
// the making of the snapshot only. The store closes the snapshot when it is closed itself, and when the disk is full.
func (s *Store) newSnapshot(ctx context.Context) (*Snapshot, error) {
	if err := s.enterToWrite(); err != nil {
		return nil, err
	}
	defer s.leave()
	c := &Snapshot{of: s, dir: filepath.Join(s.dir, snapshotDir), ended: make(chan struct{})}
	c.life, c.giveUp = context.WithCancelCause(context.Background())
	if !s.snapshot.CompareAndSwap(nil, c) {
		return nil, ErrSnapshotOpen
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })()
	err := c.create(ctx)
	if err == nil {
		c.Store, err = openSnapshot(c.dir, s.options)
	}
	if err == nil {
		c.retention.removedEarly.Store(s.retention.removedEarly.Load())
		context.AfterFunc(c.life, c.end)
		return c, nil
	}
	c.giveUp(err)
	err = firstOf(err, c.remove())
	c.of.snapshot.Store(nil)
	close(c.ended)
	return nil, fmt.Errorf("make a snapshot of the store in %s: %w", s.dir, withAdvice(s.dir, err))
}

// Close closes the snapshot and removes its files. It returns an error when the store has closed the snapshot before.
func (c *Snapshot) Close() error {
	c.giveUp(errSnapshotClosed)
	<-c.ended
	if cause := context.Cause(c.life); cause != errSnapshotClosed {
		return cause
	}
	return nil
}

// endSnapshot ends the snapshot of the store, and waits for its end.
func (s *Store) endSnapshot(cause error) {
	if c := s.snapshot.Load(); c != nil {
		c.giveUp(cause)
		<-c.ended
	}
}

// create writes the files of the snapshot.
func (c *Snapshot) create(ctx context.Context) error {
	s := c.of
	proceed := func() error {
		s.failpoint(failSnapshot)
		return firstOf(context.Cause(ctx), s.stopped())
	}
	if err := s.checkpointToTables(proceed); err != nil {
		return err
	}
	if err := firstOf(c.remove(), s.roomForSnapshot()); err != nil {
		return err
	}
	log := filepath.Join(c.dir, eventLogDir)
	if err := firstOf(os.Mkdir(c.dir, 0o700), os.WriteFile(filepath.Join(c.dir, snapshotMark), nil, 0o600), os.Mkdir(log, 0o700)); err != nil {
		return err
	}
	tables, err := c.copyLog(log, proceed)
	if err != nil {
		return err
	}
	defer tables.Close()
	whole, err := tables.Write(c.dir, func(n int) bool {
		wait(ctx, time.Duration(n)*time.Second/snapshotRate)
		return proceed() == nil
	})
	if err == nil && !whole {
		err = proceed()
	}
	return err
}

// copyLog begins a copy of the tables, and then copies the event log. So the log has every record that is in the tables. No
// segment is removed meanwhile.
func (c *Snapshot) copyLog(dir string, proceed func() error) (*table.Copy, error) {
	s := c.of
	s.retention.running.Lock()
	reading := s.retention.readers.begin(func() int64 { return s.events.Segments()[0].Base })
	s.retention.running.Unlock()
	defer s.retention.readers.end(reading)
	tables, err := tryCopy(func() (*table.Copy, error) { return s.db.NewCopy(s.flushed.Load()) }, func() bool {
		time.Sleep(snapshotRetry)
		return proceed() == nil
	})
	if tables == nil {
		return nil, firstOf(err, proceed(), table.ErrChanging)
	}
	c.linked.Store(true)
	if err = s.events.Flush(); err == nil {
		err = s.events.Copy(dir, proceed)
	}
	if err != nil {
		tables.Close()
		return nil, err
	}
	return tables, nil
}

// wait waits for d, or until ctx is done.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// checkpointToTables writes a checkpoint, and makes Badger write the checkpoint to tables. It waits for the tables for
// maxFlushWait at most. Without them, the snapshot replays more of the event log.
func (s *Store) checkpointToTables(proceed func() error) error {
	if err := s.checkpoint(); err != nil {
		return err
	}
	mark := s.checkpointer.mark.Load()
	if s.flushed.Load() >= mark {
		return nil
	}
	if err := s.endMemtableNow(); err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < maxFlushWait; time.Sleep(flushPoll) {
		err := s.failOnDamage(s.db.Watch()) // otherwise the file of the memtable stays up to a second longer
		if err != nil {
			return err
		}
		position, err := s.db.Flushed()
		if err = firstOf(err, proceed()); err != nil || max(position, s.flushed.Load()) >= mark {
			return err
		}
	}
	return nil
}

// roomForSnapshot returns an error unless the disk has room for a snapshot without history being removed.
func (s *Store) roomForSnapshot() error {
	size, err := tableBytes(s.dir)
	if err != nil {
		return err
	}
	all := s.events.Segments()
	last := all[len(all)-1]
	need := size + uint64(last.End-last.Base) + reserve.OpeningNeeds
	free, err := s.freeSpace()
	if err == nil && free < need+uint64(s.reserve.MinFree()+s.reserve.Slack()) {
		err = &reserve.FullError{Free: free, Why: fmt.Sprintf("and a snapshot needs %d MiB beside min_free", need>>20)}
	}
	return err
}

// openSnapshot opens the copy that create has written. of are the options of the store. The copy has a clock of its own,
// because Open sets the clock.
func openSnapshot(dir string, of Options) (*Store, error) {
	began := time.Now()
	clock := core.NewClock(func() (time.Time, time.Duration) { return of.Clock.Now(), time.Since(began) }, nil)
	s, err := open(dir, Options{Logger: of.Logger, Clock: clock, fs: of.fs, segmentSize: of.segmentSize, boot: of.boot,
		CounterCache: 1, memtable: smallMemtable, snapshot: true})
	if err == nil {
		s.failed.Store(&errReadOnly)
	}
	return s, err
}

// end closes the snapshot and removes its files. The event log comes first, because its hard links keep segments on the disk
// that the store has removed, and Badger may need that space to close.
func (c *Snapshot) end() {
	cause := context.Cause(c.life)
	c.failed.Store(&cause)
	c.closing.Store(true)
	_ = os.RemoveAll(filepath.Join(c.dir, eventLogDir))
	c.linked.Store(false)
	c.abort(cause, func() {
		if err := c.remove(); err != nil {
			c.log.Warn("a snapshot was not removed: the next start removes it", "dir", c.dir, "error", err)
		}
		c.of.snapshot.Store(nil)
	})
	close(c.ended)
}

// remove removes the files of the snapshot, and the hard links first: the rest is useless without them.
func (c *Snapshot) remove() error { return removeSnapshot(c.of.dir) }

func removeSnapshot(dir string) error {
	dir = filepath.Join(dir, snapshotDir)
	return firstOf(os.RemoveAll(filepath.Join(dir, eventLogDir)), os.RemoveAll(dir))
}

// dropSnapshot ends the snapshot because the disk is full. It reports whether the snapshot still has hard links: until they
// are removed, removing history frees no space.
func (s *Store) dropSnapshot() (linked bool) {
	c := s.snapshot.Load()
	if c == nil {
		return false
	}
	if c.life.Err() == nil {
		s.log.Warn("the snapshot is removed", "dir", s.dir, "reason", "the disk is full")
	}
	c.giveUp(errSnapshotFull)
	return c.linked.Load()
}

var _ core.Importer = (*Snapshot)(nil)
