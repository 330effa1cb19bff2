package badgerstore

import (
	"context"
	"errors"
	"math/bits"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
)

// loadBoth loads the counters of a request. If both the key and the user are missing, it returns
// ErrKeyNotFound, even if they were deleted between the two loads.
func (s *Store) loadBoth(c *core.Consumption, key, user ref) error {
	if err := s.load(c.Account, key, c.KeyID); err != nil {
		return err
	}
	err := s.load(c.Account, user, "")
	if err == core.ErrUserNotFound {
		return firstOf(s.load(c.Account, key, c.KeyID), err)
	}
	return err
}

// lockIdle locks the shard and returns a counter of it, nil when it is not in memory. It first waits while the counter is busy.
func (s *shard) lockIdle(of ref) *counter {
	for {
		s.mu.Lock()
		c := s.peekLocked(of)
		if c == nil || c.busy == nil {
			return c
		}
		busy := c.busy
		s.mu.Unlock()
		<-busy
	}
}

// load loads a counter into memory if its key or user exists. keyID is "" for a user. Concurrent
// loads of one counter add it once: the others wait until it is no longer busy.
func (s *Store) load(account string, of ref, keyID string) error {
	sh := s.counters.shard(of)
	if sh.lockIdle(of) != nil {
		sh.mu.Unlock()
		return nil
	}
	c := sh.addLocked(of, s.events.Written())
	c.busy = make(chan struct{})
	s.counters.misses.Add(1)
	var t counterState
	var onPage int64
	var err error
	for {
		written, pending := sh.written, sh.pending[of].position
		sh.mu.Unlock()
		err = s.viewCounters(func(r view) error {
			err := r.exists(account, of, keyID)
			if err == nil {
				t, onPage, err = s.readState(r, of, pending)
			}
			return err
		})
		if sh.mu.Lock(); err != nil || sh.written == written {
			break
		}
	}
	defer sh.mu.Unlock()
	close(c.busy)
	c.busy = nil
	if err != nil {
		sh.removeLocked(c)
		return err
	}
	sh.setStateLocked(c, t, onPage)
	return nil
}

// exists returns an error when the key or user of a counter does not exist.
func (r view) exists(account string, of ref, keyID string) error {
	if of.kind == kindKey {
		seq, err := r.number(keyIDPath(account, keyID))
		if err == nil && seq != of.number {
			return core.ErrKeyNotFound
		}
		return err
	}
	err := r.read(userPath(account, of.number), func([]byte) error { return nil })
	if errors.Is(err, badger.ErrKeyNotFound) {
		return core.ErrUserNotFound
	}
	return err
}

// readState reads a counter from its page, and applies the events that the page does not have, up to the event at a position. onPage
// is the position of the last event on the page.
func (s *Store) readState(r view, of ref, position int64) (t counterState, onPage int64, err error) {
	err = r.onPage(of.page(), func(p *page) error {
		t, onPage, err = s.stateAt(p[of.cell()], of, position)
		return err
	})
	return t, onPage, err
}

// stateAt returns the state of a counter that has a record on its page, with the events after the record up to the one at
// position. onPage is the position of the last event that the record includes.
func (s *Store) stateAt(record []byte, of ref, position int64) (t counterState, onPage int64, err error) {
	if t, err = decodeState(record); err != nil {
		return counterState{}, 0, err
	}
	onPage = t.applied
	return t, onPage, s.catchUp(&t, of, position)
}

// catchUp applies the events that a counter does not have yet, up to the event at position. Each
// event has the position of the previous event.
func (s *Store) catchUp(t *counterState, of ref, position int64) error {
	type at struct {
		position int64
		event    event
	}
	var missing []at
	for position > t.applied {
		e, err := s.event(position)
		if err != nil {
			return err
		}
		missing = append(missing, at{position, e})
		position = e.linkOf(of.kind).prev
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := t.replay(&missing[i].event, of.kind, missing[i].position); err != nil {
			return err
		}
	}
	return nil
}

// eachCounter calls fn with the counters in some cells of a page: first with those in memory, then with the others, which it
// reads from the page and the events after it. onPage is the position up to which the page of a counter has the events. Then eachCounter calls last, which
// may be nil, with the view of the page. fn must not keep its arguments. The cache stays as it is.
func (s *Store) eachCounter(p *cells, fn func(cell byte, t *counterState, onPage int64), last func(view) error) error {
	absent := map[byte]int64{} // the positions of the last events of the counters that are not in memory, 0 if the page has them
	sh := s.counters.shard(p.page.counter(0))
	for mask := p.mask; mask != 0; mask &= mask - 1 {
		cell := byte(bits.TrailingZeros64(mask))
		if c := sh.lockIdle(p.page.counter(cell)); c != nil {
			fn(cell, &c.counterState, c.onPage)
		} else {
			absent[cell] = sh.pending[p.page.counter(cell)].position
		}
		sh.mu.Unlock()
	}
	if len(absent) == 0 && last == nil {
		return nil
	}
	return s.viewCounters(func(r view) (err error) { // after pending: the pages have the events of every checkpoint since
		if len(absent) > 0 {
			err = r.onPage(p.page, func(pg *page) error {
				for cell, position := range absent {
					t, onPage, err := s.stateAt(pg[cell], p.page.counter(cell), position)
					if err != nil {
						return err
					}
					fn(cell, &t, onPage)
				}
				return nil
			})
		}
		if err == nil && last != nil {
			err = last(r)
		}
		return err
	})
}

// peek returns copies of counters, the zero state for a zero ref. Not all events in the copies may be durable.
func (s *Store) peek(refs []ref) ([]counterState, error) {
	states := make([]counterState, len(refs))
	for i, of := range refs {
		if of.number == 0 {
			continue
		}
		one := &cells{page: of.page(), mask: 1 << of.cell()}
		if err := s.eachCounter(one, func(_ byte, t *counterState, _ int64) { states[i] = t.clone() }, nil); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// peekDurable is peek after all events in the copies are durable.
func (s *Store) peekDurable(refs []ref) ([]counterState, error) {
	states, err := s.peek(refs)
	for i := range states {
		if err == nil && !s.events.Safe(states[i].applied) {
			err = s.events.Flush()
		}
	}
	if err != nil {
		return nil, fault(err)
	}
	return states, nil
}

// Counters implements [core.Store].
func (s *Store) Counters(_ context.Context, ids []core.CounterID) ([]core.Counter, error) {
	states, err := s.states(ids)
	return countersOf(states), err
}

// countersOf returns the counters of states, nil without any.
func countersOf(states []counterState) (list []core.Counter) {
	for i := range states {
		list = append(list, states[i].Counter)
		list[i].LastUsedAt = list[i].LastUsedAt.UTC()
	}
	return list
}

// states returns counters, the zero state for each whose key or user does not exist. All their events are durable.
func (s *Store) states(ids []core.CounterID) ([]counterState, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	refs, err := s.refsOf(ids)
	if err != nil {
		return nil, err
	}
	return s.peekDurable(refs)
}

// refsOf returns the refs of counters, the zero ref for each whose key or user does not exist.
func (s *Store) refsOf(ids []core.CounterID) (refs []ref, err error) {
	err = s.readEntered(func(r view) error {
		refs, err = readAll(ids, func(id core.CounterID) (ref, error) { return s.refOf(r, id) })
		return err
	})
	return refs, err
}

// refOf returns the ref of a counter, the zero ref if the key or user does not exist.
func (s *Store) refOf(r view, id core.CounterID) (ref, error) {
	account, err := s.accounts.number(s, id.Account)
	switch {
	case err != nil || account == 0:
		return ref{}, err
	case id.KeyID == "":
		return ref{id.UserID, account, kindUser}, nil
	}
	seq, err := r.number(keyIDPath(id.Account, id.KeyID))
	return ref{seq, account, kindKey}, err
}
