package badgerstore

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// SetHistory implements [core.Importer].
func (s *Store) SetHistory(_ context.Context, id core.CounterID, entries []core.Entry, retention time.Duration) error {
	return s.importHistory(id, entries, retention, true)
}

// AppendHistory implements [core.Importer].
func (s *Store) AppendHistory(_ context.Context, id core.CounterID, entries []core.Entry, retention time.Duration) error {
	return s.importHistory(id, entries, retention, false)
}

// importHistory appends entries to a history, as events that no counter counts. With replace it first appends the
// state of the counter without a history: replay continues from that state, so earlier events leave the history.
func (s *Store) importHistory(id core.CounterID, entries []core.Entry, retention time.Duration, replace bool) error {
	if err := s.enterToWrite(); err != nil {
		return err
	}
	defer s.leave()
	err := s.change(id, func(c *counter) error {
		if replace {
			c.clearHistory()
			if err := s.setLocked(c); err != nil {
				return err
			}
		}
		for i := range entries {
			e := newImported(c, &entries[i], retention)
			position, err := s.events.Append(e.append, e.keep(s.clock.Load()))
			if err != nil {
				return err
			}
			c.recordAppended(&e, c.kind, position)
			c.changedLocked()
		}
		return nil
	})
	return fault(firstOf(err, s.events.Flush()))
}

// newImported returns the event of an entry that is in the history of one counter.
func newImported(c *counter, entry *core.Entry, retention time.Duration) event {
	e := event{Entry: *entry, account: c.account, uncounted: true, retention: min(max(retention, 0), maxRetention)}
	if c.kind == kindKey {
		e.key = c.number
	}
	*e.linkOf(c.kind) = c.next(entry.At)
	return e
}

// SetCounters implements [core.Importer]. The counters are changed in memory, and are in the event
// log as they are then.
func (s *Store) SetCounters(_ context.Context, ids []core.CounterID, counters []core.Counter) error {
	if err := s.enterToWrite(); err != nil {
		return err
	}
	defer s.leave()
	for i, id := range ids {
		to := &counters[i]
		err := s.set(id, func(c *counter) {
			before := c.Windows[core.Day]
			c.Windows, c.LastUsedAt, c.DeniedOmitted = to.Windows, to.LastUsedAt, to.DeniedOmitted
			c.turned(c.kind, before)
		})
		if err != nil {
			return fault(err)
		}
	}
	return fault(s.events.Flush())
}

// SetDays implements [core.Importer].
func (s *Store) SetDays(_ context.Context, id core.CounterID, days []core.CounterDay) error {
	if err := s.enterToWrite(); err != nil {
		return err
	}
	defer s.leave()
	err := s.set(id, func(c *counter) { c.setDays(c.kind, days) })
	return fault(firstOf(err, s.events.Flush()))
}

// set changes a counter in memory by fn, under the lock of its shard, and appends it to the event
// log as it is then.
func (s *Store) set(id core.CounterID, fn func(*counter)) error {
	return s.change(id, func(c *counter) error {
		fn(c)
		return s.setLocked(c)
	})
}

// setLocked appends a changed counter to the event log as it is.
func (s *Store) setLocked(c *counter) error {
	c.unsaved = true
	c.changedLocked()
	return s.appendSet(c)
}

// change runs fn on a counter in memory, under the lock of its shard.
func (s *Store) change(id core.CounterID, fn func(*counter) error) error {
	missing := core.ErrKeyNotFound
	if id.KeyID == "" {
		missing = core.ErrUserNotFound
	}
	var of ref
	err := s.readEntered(id.Account, func(r snapshot) (err error) {
		of, err = r.refOf(id)
		return err
	})
	if err != nil || of.number == 0 {
		return firstOf(err, missing)
	}
	if err := s.admit(); err != nil {
		return err
	}
	for sh := s.counters.shard(of); ; {
		if err := s.load(id.Account, of, id.KeyID); err != nil {
			return err
		}
		sh.mu.Lock()
		c := sh.find(of)
		if c != nil && c.busy == nil { // else it has left the memory again, or is being deleted
			err := fn(c)
			sh.mu.Unlock()
			return err
		}
		sh.mu.Unlock()
	}
}

var _ core.Importer = (*Store)(nil)
