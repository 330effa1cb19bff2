package badgerstore

import (
	"context"

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

// load loads a counter into memory if its key or user exists. keyID is "" for a user. Concurrent
// loads of one counter add it once: the others wait until it is no longer busy.
func (s *Store) load(account string, of ref, keyID string) error {
	sh := s.counters.shard(of)
	for {
		sh.mu.Lock()
		if c := sh.find(of); c != nil {
			busy := c.busy
			sh.mu.Unlock()
			if busy != nil {
				<-busy
				continue
			}
			return nil
		}
		c := sh.addLocked(of, s.events.Written())
		c.busy = make(chan struct{})
		pending := sh.pending[of]
		sh.mu.Unlock()

		t, base, again, err := s.readExisting(account, of, keyID, pending)
		sh.mu.Lock()
		close(c.busy)
		c.busy = nil
		if err != nil || again {
			sh.removeLocked(c)
		} else {
			c.readLocked(t, base)
		}
		sh.mu.Unlock()
		if !again {
			return err
		}
		if err := s.readEntered(account, func(snapshot) error { return nil }); err != nil { // waits
			return err
		}
	}
}

// readExisting reads a counter from the database. base is the position up to which its page has
// applied the event log. again is true while a transaction of several parts is applied to the
// account: the caller then tries again.
func (s *Store) readExisting(account string, of ref, keyID string, pending head) (t counterState, base int64, again bool, err error) {
	defer s.retention.readers.end(s.retention.readers.begin(s.checkpointer.mark.Load))
	txn, ok := s.tryBegin(account)
	if !ok {
		return counterState{}, 0, true, nil
	}
	defer txn.Discard()
	r := snapshot{txn}
	if err := r.exists(account, of, keyID); err != nil {
		return counterState{}, 0, false, err
	}
	t, base, err = s.readState(r, of, pending)
	return t, base, false, err
}

// exists returns an error when the key or user of a counter does not exist.
func (r snapshot) exists(account string, of ref, keyID string) error {
	if of.kind == kindKey {
		seq, err := r.number(keyIDPath(account, keyID))
		if err == nil && seq != of.number {
			return core.ErrKeyNotFound
		}
		return err
	}
	_, err := r.item(userPath(account, of.number))
	if err == badger.ErrKeyNotFound {
		return core.ErrUserNotFound
	}
	return err
}

// readState reads a counter from its page, and applies the events that the page does not have. base
// is the position of the last event on the page.
func (s *Store) readState(r snapshot, of ref, pending head) (t counterState, base int64, err error) {
	if t, err = r.counterState(of); err != nil {
		return counterState{}, 0, err
	}
	base = t.applied
	err = s.catchUp(&t, of, pending.position)
	return t, base, err
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
		if err := t.apply(&missing[i].event, of.kind, missing[i].position); err != nil {
			return err
		}
	}
	return nil
}

// peek returns a copy of a counter, without adding it to the cache. All events in the copy are
// durable.
func (s *Store) peek(of ref) (counterState, error) {
	t, err := s.peekAny(of)
	if err == nil && !s.events.Safe(t.applied) {
		err = s.events.Flush()
	}
	return t, err
}

// peekAny is peek, but events in the copy may not be durable yet.
func (s *Store) peekAny(of ref) (counterState, error) {
	sh := s.counters.shard(of)
	for {
		sh.mu.Lock()
		c, pending := sh.peekLocked(of), sh.pending[of]
		var busy chan struct{}
		if c != nil {
			if busy = c.busy; busy == nil {
				t := c.clone()
				sh.mu.Unlock()
				return t, nil
			}
		}
		sh.mu.Unlock()
		if busy == nil {
			return s.readAside(of, pending)
		}
		<-busy
	}
}

// readAside reads a counter that is not in memory. pending was read before the page: the page has
// the events of every checkpoint that ended since.
func (s *Store) readAside(of ref, pending head) (t counterState, err error) {
	err = s.viewCounters(func(r snapshot) error {
		t, _, err = s.readState(r, of, pending)
		return err
	})
	return t, err
}

// Counters implements [core.Store].
func (s *Store) Counters(_ context.Context, ids []core.CounterID) (list []core.Counter, err error) {
	list = make([]core.Counter, len(ids))
	for i, id := range ids {
		t, err := s.stateOf(id)
		if err != nil {
			return nil, err
		}
		list[i] = t.Counter
		list[i].LastUsedAt = t.LastUsedAt.UTC()
	}
	return list, nil
}

// stateOf returns a counter, the zero state when its key or user does not exist.
func (s *Store) stateOf(id core.CounterID) (t counterState, err error) {
	var of ref
	if err := s.enter(); err != nil {
		return counterState{}, err
	}
	defer s.leave()
	err = s.readEntered(id.Account, func(r snapshot) error {
		of, err = r.refOf(id)
		return err
	})
	if err != nil || of.number == 0 {
		return counterState{}, err
	}
	t, err = s.peek(of)
	return t, fault(err)
}

// refOf returns the ref of a counter, the zero ref if the key or user does not exist.
func (r snapshot) refOf(id core.CounterID) (ref, error) {
	account, err := r.number(accountIDPath(id.Account))
	if err != nil || account == 0 {
		return ref{}, err
	}
	if id.KeyID == "" {
		return ref{id.UserID, uint32(account), kindUser}, nil
	}
	seq, err := r.number(keyIDPath(id.Account, id.KeyID))
	return ref{seq, uint32(account), kindKey}, err
}

// hold makes counters busy until release, while their keys or users are deleted.
func (all *counterCache) hold(refs []ref, written int64) {
	for _, of := range refs {
		all.holdOne(of, written)
	}
}

func (all *counterCache) holdOne(of ref, written int64) {
	sh := all.shard(of)
	for {
		sh.mu.Lock()
		c := sh.peekLocked(of)
		if c == nil {
			c = sh.addLocked(of, written)
			c.empty = true
		}
		busy := c.busy
		if busy == nil {
			c.busy = make(chan struct{})
		}
		sh.mu.Unlock()
		if busy == nil {
			return
		}
		<-busy
	}
}

// release ends hold. It removes the counters if their keys or users were deleted.
func (all *counterCache) release(refs []ref, deleted bool) {
	for _, of := range refs {
		sh := all.shard(of)
		sh.mu.Lock()
		c := sh.peekLocked(of)
		close(c.busy)
		c.busy = nil
		if deleted || c.empty {
			sh.removeLocked(c)
		}
		if deleted {
			delete(sh.pending, of)
		}
		sh.mu.Unlock()
	}
}
