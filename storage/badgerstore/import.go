package badgerstore

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// SetHistory implements [core.Importer].
func (s *Store) SetHistory(_ context.Context, id core.CounterID, entries []core.Entry, retention time.Duration) error {
	return s.importHistory(id, entries, retention, true)
}

// AppendHistory implements [core.Importer].
func (s *Store) AppendHistory(_ context.Context, id core.CounterID, entries []core.Entry, retention time.Duration) error {
	return s.importHistory(id, entries, retention, false)
}

// importHistory appends entries to a history, as events that no counter counts. With replace, it first appends the state
// of the counter with an empty history. Replay continues from that state, so the older events leave the history.
func (s *Store) importHistory(id core.CounterID, entries []core.Entry, retention time.Duration, replace bool) error {
	return s.importInto([]core.CounterID{id}, func(_ int, c *counter) error {
		if replace {
			c.clearHistory()
			if err := s.setLocked(c); err != nil {
				return err
			}
		}
		for i := range entries {
			e := newImported(c, &entries[i])
			record := e.encode(nil)
			position, err := s.events.Append(record.append, e.keep(s.clock.Load(), retention))
			if err != nil {
				return err
			}
			c.count(&e, c.kind, position)
			c.changedLocked()
		}
		return nil
	})
}

// newImported returns the event of an imported entry. The event is in the history of one counter only.
func newImported(c *counter, entry *core.Entry) event {
	e := event{Entry: *entry, account: c.account, uncounted: true}
	if c.kind == kindKey {
		e.key = c.number
	}
	*e.linkOf(c.kind) = c.next(entry.At)
	return e
}

// SetCounters implements [core.Importer]. It changes the counters in memory, and appends their new states to the event
// log.
func (s *Store) SetCounters(_ context.Context, ids []core.CounterID, counters []core.Counter) error {
	return s.importInto(ids, func(i int, c *counter) error {
		before := c.Day()
		c.Set(&counters[i])
		c.endWindowDay(c.kind, before)
		return s.setLocked(c)
	})
}

// SetDays implements [core.Importer].
func (s *Store) SetDays(_ context.Context, id core.CounterID, days []core.CounterDay) error {
	if id.IsDeletedUsers() {
		return s.setDeleted(id.Account, days)
	}
	return s.importInto([]core.CounterID{id}, func(_ int, c *counter) error {
		c.setDays(c.kind, days)
		c.daysSet = true
		return s.setLocked(c)
	})
}

// importInto runs fn on counters in memory, under the locks of their shards, and waits until the event log has written what fn appends.
func (s *Store) importInto(ids []core.CounterID, fn func(i int, c *counter) error) (err error) {
	if err := s.enterToWrite(); err != nil {
		return err
	}
	defer s.leave()
	for i := 0; i < len(ids) && err == nil; i++ {
		err = s.change(ids[i], func(c *counter) error { return fn(i, c) })
	}
	return fault(firstOf(err, s.events.Flush()))
}

// setLocked appends the state of a changed counter to the event log. The caller holds the lock of its shard.
func (s *Store) setLocked(c *counter) error {
	c.changedLocked()
	return s.appendSet(c)
}

// change runs fn on a counter in memory, under the lock of its shard.
func (s *Store) change(id core.CounterID, fn func(*counter) error) error {
	refs, err := s.refsOf([]core.CounterID{id})
	if err != nil || refs[0].number == 0 {
		return firstOf(err, notFound(id.KeyID))
	}
	of := refs[0]
	if err := s.admit(); err != nil {
		return err
	}
	for sh := s.counters.shard(of); ; {
		if err := s.load(id.Account, of, id.KeyID); err != nil {
			return err
		}
		if c := sh.lockIdle(of); c != nil { // otherwise the counter was evicted again
			err = fn(c)
			sh.mu.Unlock()
			return err
		}
		sh.mu.Unlock()
	}
}

var _ core.Importer = (*Store)(nil)

// An import, or a denial that the history has no room for, changes a counter without an event. The store then writes
// the whole state of the counter to the event log. Later events continue from that state.
//
//	recordCounter          1 byte
//	account, kind, number  uvarints
//	state                  see [counterState.code]

// appendSet appends the state of a counter to the event log. The caller holds the lock of its shard.
func (s *Store) appendSet(c *counter) error {
	_, err := s.events.Append(c.encodeSet, eventlog.Keep{})
	if c.savedBy = byRecord; err != nil {
		c.savedBy = byNothing
	}
	return err
}

// encodeSet appends the record with the state of a counter to b. position is the position of the record. The state
// includes all events before it.
func (c *counter) encodeSet(b []byte, position int64) []byte {
	c.applied = position
	b = append(b, recordCounter)
	b = binary.AppendUvarint(b, uint64(c.account))
	b = binary.AppendUvarint(b, uint64(c.kind))
	b = binary.AppendUvarint(b, uint64(c.number))
	return c.encode(b)
}

// decodeSet decodes a record of encodeSet, and returns the counter and its state.
func decodeSet(payload []byte) (of ref, t counterState, err error) {
	r := record.NewReader(payload[1:])
	of = ref{account: uint32(r.Uvarint()), kind: uint32(r.Uvarint()), number: int64(r.Uvarint())}
	if r.Failed() || r.Ended() {
		return of, t, errEvent
	}
	t, err = decodeState(r.Rest())
	return of, t, err
}
