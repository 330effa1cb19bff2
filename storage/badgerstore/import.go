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
		key, user := keyShard.getLocked(of), userShard.getLocked(ofUser)
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
			<-busy
		} else if err := s.loadBoth(c, of, ofUser); err != nil {
			return err
		}
	}
}

// SetCounters implements [core.Importer]. The counters are changed in memory, and folded
// before it returns, because no event of the event log has their new values. A process that ends
// before that leaves them as they were, each with all its events.
func (s *Store) SetCounters(_ context.Context, ids []core.CounterID, counters []core.Counter) error {
	if err := s.enterToWrite(); err != nil {
		return err
	}
	defer s.leave()
	for i, id := range ids {
		if err := s.setCounter(id, &counters[i]); err != nil {
			return fault(err)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return fault(s.fold())
}

// setCounter changes a counter in memory, where it stays until it is folded.
func (s *Store) setCounter(id core.CounterID, to *core.Counter) error {
	return s.change(id, func(c *counter) {
		before := c.Tallies[core.Day]
		c.Tallies, c.LastUsedAt, c.DeniedOmitted = to.Tallies, to.LastUsedAt, to.DeniedOmitted
		c.turned(c.kind, before)
	})
}

// SetDays implements [core.Importer]. They are changed in memory, and folded alone. What
// is being folded meanwhile is from before: it ends first.
func (s *Store) SetDays(_ context.Context, id core.CounterID, days []core.CounterDay) error {
	if err := s.enterToWrite(); err != nil {
		return err
	}
	defer s.leave()
	s.folder.running.Lock()
	defer s.folder.running.Unlock()
	var alone folding
	err := s.change(id, func(c *counter) {
		c.setDays(c.kind, days)
		alone.add(c)
	})
	if err == nil {
		err = s.foldBatch(&alone)
	}
	return fault(err)
}

// change runs fn on a counter in memory, under the lock of its shard. What fn changes is in
// no event of the event log: the counter stays until it is folded.
func (s *Store) change(id core.CounterID, fn func(*counter)) error {
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
	for sh := s.counters.shard(of); ; {
		if err := s.load(id.Account, of, id.KeyID); err != nil {
			return err
		}
		sh.mu.Lock()
		c := sh.getLocked(of)
		if c != nil && c.busy == nil { // else it has left the memory again, or is being deleted
			c.unsaved = true
			c.changedLocked()
			fn(c)
			sh.mu.Unlock()
			return nil
		}
		sh.mu.Unlock()
	}
}

var _ core.Importer = (*Store)(nil)
