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
	s.events.SetPower(d == Power)
	if d == Power {
		_ = s.syncAll() // the store has failed then, and says so
	}
}

// syncEvents brings the whole event log to the disk.
func (s *Store) syncEvents() error { return firstOf(s.events.Flush(), s.events.Sync()) }

// syncAll makes everything durable that was answered. What the event log cannot write at the
// moment was not answered, and is tried again later.
func (s *Store) syncAll() error {
	if err := s.events.Flush(); err != nil && !errors.Is(err, eventlog.ErrTemporary) {
		return fault(err)
	}
	return fault(s.events.Sync())
}
