package memstore

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// SetHistory implements [core.Importer]. This store keeps every entry, whatever the retention.
func (s *Store) SetHistory(_ context.Context, id core.CounterID, entries []core.Entry, _ time.Duration) error {
	return s.importHistory(id, entries, true)
}

// AppendHistory implements [core.Importer].
func (s *Store) AppendHistory(_ context.Context, id core.CounterID, entries []core.Entry, _ time.Duration) error {
	return s.importHistory(id, entries, false)
}

// importHistory appends entries to a history. With replace it removes the entries before.
func (s *Store) importHistory(id core.CounterID, entries []core.Entry, replace bool) error {
	return s.locked(func() error {
		if err := s.checkCounterExists(id); err != nil {
			return err
		}
		u := s.usage(id)
		if replace {
			u.history = nil
		}
		for _, e := range entries {
			e.At = normalTime(e.At)
			u.addEntry(e)
		}
		return nil
	})
}

// SetCounters implements [core.Importer].
func (s *Store) SetCounters(_ context.Context, ids []core.CounterID, counters []core.Counter) error {
	return s.locked(func() error {
		for i, id := range ids {
			if err := s.checkCounterExists(id); err != nil {
				return err
			}
			s.usage(id).counter.Set(&counters[i])
			s.copyDayWindow(id)
		}
		return nil
	})
}

// checkCounterExists returns an error if the key or user of a counter does not exist.
func (s *Store) checkCounterExists(id core.CounterID) error {
	r := s.of(id.Account)
	switch {
	case id.IsDeletedUsers() && s.resources[id.Account] != nil:
		return nil
	case id.KeyID != "" && r.keys.rows[id.KeyID] == nil:
		return core.ErrKeyNotFound
	case id.KeyID == "" && r.users.rows[id.UserID] == nil:
		return core.ErrUserNotFound
	}
	return nil
}

var _ core.Importer = (*Store)(nil)
