package badgerstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// A snapshot is the data of an open store at one instant: a view of its database, and the events up to a position of its event
// log. The snapshot finds the counters that the view lacks by a replay, as a start does. Badger keeps the records of the view, and the
// store keeps the segments of the event log. No decision waits for it. A checkpoint comes first, so the snapshot replays only the events
// of about a second.

var (
	// ErrSnapshotOpen means that the store has a snapshot already.
	ErrSnapshotOpen = errors.New("the store has an open snapshot: close that snapshot first")

	errSnapshotClosed = errors.New("the snapshot is closed")
	errSnapshotFull   = core.Logged(fmt.Errorf("the snapshot was closed early: %w", diskspace.ErrFull))
	errReadOnly       = core.Unavailable(errors.New("a snapshot cannot be changed"))
)

// Snapshot is the data of a store at one instant. It refuses all writes. The caller calls Close.
type Snapshot struct {
	*Store
	of      *Store
	end     int64  // its position in the event log
	reading *int64 // keeps the segments of the event log

	life   context.Context         // ends when the snapshot has to end; the cause says why
	giveUp context.CancelCauseFunc // ends life
	ended  chan struct{}           // closed when the snapshot is closed
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
// that write began. newSnapshot returns [ErrSnapshotOpen] when the store has a snapshot already. ctx ends
// the making of the snapshot only. The store closes the snapshot when it is closed itself, and when the disk is full.
func (s *Store) newSnapshot(ctx context.Context) (*Snapshot, error) {
	if err := s.enterToWrite(); err != nil {
		return nil, err
	}
	defer s.leave()
	c := &Snapshot{of: s, ended: make(chan struct{})}
	c.life, c.giveUp = context.WithCancelCause(context.Background())
	if !s.snapshot.CompareAndSwap(nil, c) {
		return nil, ErrSnapshotOpen
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })()
	err := s.checkpoint()
	s.retention.running.Lock()
	c.reading = s.retention.readers.begin(s.events.From)
	s.retention.running.Unlock()
	c.Store = s.frozen()
	if err == nil {
		err = c.fill(ctx)
	}
	context.AfterFunc(c.life, c.close)
	if err != nil {
		c.giveUp(err)
		<-c.ended
		return nil, fmt.Errorf("make a snapshot of the store in %s: %w", s.dir, withAdvice(s.dir, err))
	}
	return c, nil
}

// frozen returns a store that reads the files of s, without a view yet, and refuses all writes.
func (s *Store) frozen() *Store {
	c := &Store{db: s.db, dir: s.dir, options: s.options, log: s.log, space: s.space, events: s.events, now: s.now, failpoint: s.failpoint}
	c.Resources = resource.New(database{c})
	c.forget(minPerShard * shards)
	c.clock.Store(s.clock.Load())
	c.retention.removedEarly.Store(s.retention.removedEarly.Load())
	c.failed.Store(&errReadOnly)
	return c
}

// fill takes the view, and replays the events after it.
func (c *Snapshot) fill(ctx context.Context) error {
	c.of.unapplied.Lock() // every transaction in the event log is in the view
	c.held = c.db.NewTransaction(false)
	err := c.events.Flush()
	c.end = c.events.Written() // read after the view was taken: the log has every event of the view
	c.of.unapplied.Unlock()
	var mark int64
	if err == nil {
		mark, _, err = view{c.held}.readMark()
	}
	if err != nil {
		return err
	}
	c.checkpointer.mark.Store(mark)
	r := &replay{s: c.Store, ofSnapshot: true, dropped: map[ref]bool{}, proceed: func() error {
		c.failpoint(failSnapshot)
		return firstOf(context.Cause(ctx), c.of.stopped())
	}}
	return firstOf(r.run(mark, c.end), r.proceed())
}

// Close closes the snapshot. It returns an error when the store has closed the snapshot before.
func (c *Snapshot) Close() error {
	c.giveUp(errSnapshotClosed)
	<-c.ended
	if cause := context.Cause(c.life); cause != errSnapshotClosed {
		return cause
	}
	return nil
}

// close closes the snapshot when its methods have ended.
func (c *Snapshot) close() {
	cause := context.Cause(c.life)
	c.failed.Store(&cause)
	c.Store.life.Lock()
	defer c.Store.life.Unlock()
	c.closed = true
	if c.held != nil {
		c.held.Discard()
	}
	c.of.retention.readers.end(c.reading)
	c.of.snapshot.Store(nil)
	close(c.ended)
}

// endSnapshot ends the snapshot of the store, and waits for its end.
func (s *Store) endSnapshot(cause error) {
	if c := s.snapshot.Load(); c != nil {
		c.giveUp(cause)
		<-c.ended
	}
}

// dropSnapshot ends the snapshot because the disk is full. It reports whether the store still has a snapshot: until its end, no
// history can be removed.
func (s *Store) dropSnapshot() bool {
	c := s.snapshot.Load()
	if c == nil {
		return false
	}
	if c.life.Err() == nil {
		s.log.Warn("the snapshot is closed", "dir", s.dir, "reason", "the disk is full")
	}
	c.giveUp(errSnapshotFull)
	return s.snapshot.Load() != nil
}

var _ core.Importer = (*Snapshot)(nil)
