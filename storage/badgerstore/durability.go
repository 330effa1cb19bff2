package badgerstore

import (
	"errors"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// Durability says what an answered write survives, beside the death of the process,
// which it always does.
type Durability uint8

const (
	// Process is the default. Everything is written to the disk every second: a
	// power cut, or a crash of the operating system, may lose what was answered
	// since.
	Process Durability = iota
	// Power writes every commit to the disk before it is answered. Concurrent
	// requests still share a commit.
	Power
)

// String returns "process" or "power".
func (d Durability) String() string {
	if d == Power {
		return "power"
	}
	return "process"
}

// SetDurability changes the durability of an open store. When it returns, what was
// answered before is as durable as what will be.
func (s *Store) SetDurability(d Durability) {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	s.committing.Lock()
	defer s.committing.Unlock()
	s.events.SetPower(d == Power)
	if d == Power && s.durability != Power {
		_ = s.syncAll() // the store has failed then, and says so
	}
	s.durability = d
}

// committedLocked makes what was just committed as durable as the store is to be.
func (s *Store) committedLocked() error {
	if err := s.logs.committed(); err != nil {
		return s.fail(err)
	}
	s.unsynced.Store(true)
	if s.durability == Power {
		return s.sync()
	}
	return nil
}

// syncAll makes everything durable that was answered: the event log and the database. What the
// event log cannot write at the moment was not answered, and is tried again later.
func (s *Store) syncAll() error {
	if err := s.events.Flush(); err != nil && !errors.Is(err, eventlog.ErrTemporary) {
		return fault(err)
	}
	return firstOf(fault(s.events.Sync()), s.sync())
}

// sync brings what was committed to the disk, and waits when somebody else is about to.
// When that fails it is final: a second try may succeed without the bytes of the first.
// So the store takes no more writes until it is opened again.
func (s *Store) sync() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if err := s.failure(); err != nil {
		return err
	}
	if !s.unsynced.Swap(false) {
		return nil
	}
	if err := s.logs.sync(); err != nil {
		return s.fail(err)
	}
	return nil
}
