package badgerstore

import (
	"context"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
)

// Consume implements [core.Store]. The decision is made on the counters in memory,
// each under its lock, and an allowed request is answered when the batch that it is
// in was committed. A denied one is answered at once.
func (s *Store) Consume(_ context.Context, c *core.Consumption) (core.Verdict, error) {
	if err := s.enterToWrite(); err != nil {
		return core.Verdict{}, err
	}
	defer s.leave()
	for {
		d := s.decide(c)
		if d.err == errUncertain {
			d = s.decideNew(c)
		}
		switch {
		case d.again:
			continue
		case d.err != nil:
			return core.Verdict{}, fault(d.err)
		case d.batch == nil:
			return core.Verdict{Usage: d.usage, Allowed: d.ok}, nil
		}
		if err := s.queue.wait(d.batch, d.lead); err != nil {
			return core.Verdict{}, fault(err)
		}
		return core.Verdict{Usage: d.usage, Allowed: d.ok}, nil
	}
}

// decideNew decides a request of which a counter has no record, if its key and its
// user exist. Both counters are in memory before that is looked up: a deletion that
// comes later finds them there and ends them.
func (s *Store) decideNew(c *core.Consumption) decided {
	key := s.counters.acquire(core.CounterID{Account: c.Account, KeyID: c.KeyID})
	defer key.release()
	user := s.counters.acquire(core.CounterID{Account: c.Account, UserID: c.UserID})
	defer user.release()
	if err := s.readEntered(c.Account, func(r snapshot) error { return r.exist(c) }); err != nil {
		return decided{err: err}
	}
	key.assure()
	user.assure()
	d := s.decide(c)
	d.again = d.again || d.err == errUncertain // a counter was deleted and is new again
	return d
}

// exist returns an error when the key or the user of a request does not exist.
func (r snapshot) exist(c *core.Consumption) error {
	key, err := r.get(keyIDPath(c.Account, c.KeyID))
	if err != nil || key == nil {
		return firstOf(err, core.ErrKeyNotFound)
	}
	user, err := r.get(userPath(c.Account, c.UserID))
	if err != nil || user == nil {
		return firstOf(err, core.ErrUserNotFound)
	}
	return nil
}

// decided is how a request was decided.
type decided struct {
	usage core.Usage
	ok    bool
	batch *batch // to wait for, nil when the answer need not wait
	lead  bool   // the caller commits the batch
	again bool   // a counter went out of use: nothing was decided
	err   error
}

// decide decides a request on its counters and puts what follows into a batch.
func (s *Store) decide(c *core.Consumption) (d decided) {
	key := s.counters.acquire(core.CounterID{Account: c.Account, KeyID: c.KeyID})
	user := s.counters.acquire(core.CounterID{Account: c.Account, UserID: c.UserID})
	var keyKept, userKept bool
	key.mu.Lock()
	user.mu.Lock() // always after a key
	defer func() {
		user.mu.Unlock()
		key.mu.Unlock()
		if !userKept {
			user.release()
		}
		if !keyKept {
			key.release()
		}
	}()
	if key.ended != nil || user.ended != nil {
		d.again = true
		return d
	}
	if d.err = firstOf(key.loadLocked(s.db), user.loadLocked(s.db)); d.err != nil {
		return d
	}
	deciding := key
	if c.Shared {
		deciding = user
	}
	d.usage, d.ok = deciding.Consume(c.Period, c.Limit, c.Cost, c.Entry.At)
	switch {
	case c.Cost == 0:
		return d
	case !d.ok:
		keyKept, userKept = s.queue.deny(key, user, c)
		return d
	case c.Shared:
		key.Add(c.Cost, c.Entry.At)
	}
	d.batch, d.lead, keyKept, userKept = s.queue.allow(key, user, c)
	return d
}

// allow puts an allowed request into a batch. The caller holds the locks of both
// counters.
func (q *queue) allow(key, user *counter, c *core.Consumption) (b *batch, lead, keyKept, userKept bool) {
	ofKey, ofUser := newEntries(key, user, c, false)
	q.mu.Lock()
	defer q.mu.Unlock()
	b = q.openLocked()
	keyKept, userKept = b.addLocked(key, ofKey), b.addLocked(user, ofUser)
	return b, q.leadLocked(), keyKept, userKept
}

// deny puts the entry of a denied request into a batch, if it is to be recorded and
// there is room. Otherwise the key's counter says that it is not, which is saved
// later.
func (q *queue) deny(key, user *counter, c *core.Consumption) (keyKept, userKept bool) {
	record := key.Deny(c.Entry.At)
	q.mu.Lock()
	defer q.mu.Unlock()
	if record && len(q.waiting) > maxDenied {
		record = false
		key.DeniedOmitted++
	}
	switch {
	case record:
	case key.in != nil:
		key.in.addLocked(key, nil)
		return false, false
	case key.unsaved:
		return false, false
	default:
		key.unsaved = true
		q.unsaved = append(q.unsaved, key)
		return true, false
	}
	ofKey, ofUser := newEntries(key, user, c, true)
	b := q.openLocked()
	keyKept, userKept = b.addLocked(key, ofKey), b.addLocked(user, ofUser)
	if b.full() && q.leadLocked() {
		q.group.Go(func() { q.lead(nil) })
	}
	return keyKept, userKept
}

// Counters implements [core.Store].
func (s *Store) Counters(_ context.Context, ids []core.CounterID) (list []core.Counter, err error) {
	var account string
	if len(ids) > 0 {
		account = ids[0].Account
	}
	err = s.readUsage(account, func(r snapshot) error {
		list = make([]core.Counter, len(ids))
		for i, id := range ids {
			t, err := r.tally(id)
			if err != nil {
				return err
			}
			list[i] = t.Counter
		}
		return nil
	})
	return list, err
}

// readUsage runs fn on a snapshot with everything that was answered before.
func (s *Store) readUsage(account string, fn func(snapshot) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.queue.flush()
	return s.readEntered(account, fn)
}

// tally reads a counter as it is stored.
func (r snapshot) tally(id core.CounterID) (tally, error) {
	record, err := r.get(counterPath(id))
	if err != nil {
		return tally{}, err
	}
	return decodeTally(record)
}

// dropCounter deletes a counter in a transaction, and leaves its history to be
// swept.
func dropCounter(txn *badger.Txn, p path) (id core.CounterID, err error) {
	r := reading{p[1:]}
	id.Account, id.KeyID = r.text(), r.text()
	if id.KeyID == "" {
		id.UserID = int64(r.uint64())
	}
	if r.failed() {
		return id, errRecord
	}
	record, err := snapshot{txn}.get(p)
	if err != nil || record == nil {
		return id, err
	}
	t, err := decodeTally(record)
	if err != nil {
		return id, err
	}
	if t.history != 0 {
		err = txn.Set(trashPath(t.history), nil)
	}
	return id, firstOf(err, txn.Delete(p))
}
