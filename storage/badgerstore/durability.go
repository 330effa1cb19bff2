package badgerstore

import "errors"

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
	if d == Power && s.durability != Power {
		s.syncLocked(s.logs.syncAll)
	}
	s.durability = d
}

// syncLocked runs sync unless the disk has failed before. A sync that fails is
// final: what it was to write may be lost although a second one succeeds, so the
// store takes no more writes until it is opened again.
func (s *Store) syncLocked(sync func() error) error {
	if err := s.failure(); err != nil {
		return err
	}
	if err := sync(); err != nil {
		return s.fail(errors.Join(errors.New("write to disk"), err))
	}
	return nil
}
