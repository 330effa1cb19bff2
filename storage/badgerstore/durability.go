package badgerstore

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
	s.ledger.power.Store(d == Power)
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

// syncAll brings everything to the disk that was answered: the ledger and the database.
func (s *Store) syncAll() error {
	if err := firstOf(s.ledger.flush(), s.ledger.sync()); err != nil {
		return s.fail(err)
	}
	return s.sync()
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
