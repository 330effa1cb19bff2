package badgerstore

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// AppendHistory implements [core.Importer]. The entries are events of the event log like any
// other, but count nowhere.
func (s *Store) AppendHistory(_ context.Context, account string, entries []core.Entry, retention time.Duration) error {
	if err := s.enterToWrite(); err != nil {
		return err
	}
	defer s.leave()
	return fault(s.appendHistory(account, entries, retention))
}

// appendHistory waits for the last event alone: those before it are in its block or in an
// earlier one, and no block is written before these.
func (s *Store) appendHistory(account string, entries []core.Entry, retention time.Duration) error {
	if err := s.admit(); err != nil {
		return err
	}
	seqs := map[string]int64{}
	for i := range entries {
		e := &entries[i]
		c := core.Consumption{Account: account, KeyID: e.KeyID, KeySeq: seqs[e.KeyID], UserID: e.UserID, Cost: e.Cost,
			Entry: *e, Retention: retention}
		key, user, err := s.refsOf(&c)
		if err != nil {
			return err
		}
		seqs[e.KeyID] = key.number
		last := i == len(entries)-1
		ticket, err := s.record(&c, key, user, last)
		if err != nil {
			return err
		}
		if last {
			return ticket.Wait()
		}
	}
	return nil
}

// record appends an entry to the event log, for which the caller waits or not.
func (s *Store) record(c *core.Consumption, of, ofUser ref, wait bool) (t eventlog.Ticket, err error) {
	err = s.withBoth(c, of, ofUser, func(key, user *counter) error {
		e := newEvent(c, key, user, c.Entry.Denied)
		e.uncounted = true
		var position int64
		if k := e.keep(s.clock.Load()); wait {
			position, t, err = s.events.AppendAwaited(e.append, k)
		} else {
			position, err = s.events.Append(e.append, k)
		}
		if err == nil {
			recordAppended(&e, key, user, position)
		}
		return err
	})
	return t, err
}

// withBoth runs fn on the counters of a request, under the locks of their shards, as soon
// as they are in memory.
func (s *Store) withBoth(c *core.Consumption, of, ofUser ref, fn func(key, user *counter) error) error {
	for {
		keyShard, userShard := s.counters.lock(of, ofUser)
		key, user := keyShard.find(of), userShard.find(ofUser)
		absent := key == nil || user == nil
		var busy chan struct{}
		if !absent {
			if busy = key.busy; busy == nil {
				busy = user.busy
			}
		}
		if !absent && busy == nil {
			defer unlock(keyShard, userShard)
			return fn(key, user)
		}
		unlock(keyShard, userShard)
		if !absent {
			if err := s.await(busy); err != nil {
				return err
			}
		} else if err := s.loadBoth(c, of, ofUser); err != nil {
			return err
		}
	}
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
			fn(c)
			c.unsaved = true
			c.changedLocked()
			err = s.appendSet(c)
			sh.mu.Unlock()
			return err
		}
		sh.mu.Unlock()
	}
}

var _ core.Importer = (*Store)(nil)
