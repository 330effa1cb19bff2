package badgerstore

import (
	"context"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// Consume implements [core.Store]. The decision is made on the counters in memory,
// under the locks of their shards, and an allowed request is answered when the block
// of the event log that it is in was written. A denied one is answered at once.
func (s *Store) Consume(_ context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if err := s.enterToWrite(); err != nil {
		return core.ConsumeResult{}, err
	}
	defer s.leave()
	v, err := s.consume(c)
	return v, fault(err)
}

func (s *Store) consume(c *core.Consumption) (core.ConsumeResult, error) {
	if err := s.admit(); err != nil {
		return core.ConsumeResult{}, err
	}
	key, user, err := s.refsOf(c)
	if err != nil {
		return core.ConsumeResult{}, err
	}
	for {
		v, found, known, err := s.lookUp(c, key, user)
		if found || err != nil {
			return v, err
		}
		d := s.decide(c, key, user, known)
		switch {
		case d.err != nil:
			return core.ConsumeResult{}, d.err
		case d.absent:
			if err := s.loadBoth(c, key, user); err != nil {
				return core.ConsumeResult{}, err
			}
		case d.busy != nil:
			if err := s.await(d.busy); err != nil {
				return core.ConsumeResult{}, err
			}
		case d.again:
		case !d.waits:
			return d.verdict, nil
		default:
			return d.verdict, d.ticket.Wait()
		}
	}
}

// admit returns nil as soon as there is room for another event, or why there is none. The
// event log may try to write, so the caller holds no lock of a shard.
func (s *Store) admit() error {
	if err := s.events.Ready(); err != nil {
		return err
	}
	return s.folder.room(s)
}

// refsOf returns the counters of a request. Whether there are such a key and user is
// seen when they are read.
func (s *Store) refsOf(c *core.Consumption) (key, user ref, err error) {
	account, err := s.accounts.number(s, c.Account)
	if err != nil {
		return ref{}, ref{}, err
	}
	seq := c.KeySeq
	if account == 0 {
		return ref{}, ref{}, core.ErrKeyNotFound
	}
	if seq == 0 {
		err = s.readEntered(c.Account, func(r snapshot) error {
			seq, err = r.number(keyIDPath(c.Account, c.KeyID))
			return err
		})
		if err != nil || seq == 0 {
			return ref{}, ref{}, firstOf(err, core.ErrKeyNotFound)
		}
	}
	return ref{seq, account, kindKey}, ref{c.UserID, account, kindUser}, nil
}

// accountNumbers are the numbers of accounts that were asked for. They never change.
type accountNumbers struct {
	mu   sync.RWMutex
	byID map[string]uint32
}

// number returns the number of an account, 0 when there is no such account.
func (n *accountNumbers) number(s *Store, account string) (uint32, error) {
	n.mu.RLock()
	number := n.byID[account]
	n.mu.RUnlock()
	if number != 0 {
		return number, nil
	}
	var stored int64
	err := s.readEntered(account, func(r snapshot) (err error) {
		stored, err = r.number(accountIDPath(account))
		return err
	})
	if err != nil || stored == 0 {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byID[account] = uint32(stored)
	return uint32(stored), nil
}

// decided is how a request was decided, or why it was not.
type decided struct {
	verdict core.ConsumeResult
	ticket  eventlog.Ticket // to wait for before the answer, if waits
	waits   bool

	absent bool          // a counter is not in memory
	busy   chan struct{} // a counter is busy until this is closed
	again  bool          // a request with the same id came first
	err    error
}

// decide decides a request on its counters and appends the event that follows.
func (s *Store) decide(c *core.Consumption, of, ofUser ref, known lookedUp) (d decided) {
	keyShard, userShard := s.counters.shard(of), s.counters.shard(ofUser)
	key, user := keyShard.find(of), userShard.find(ofUser)
	s.counters.lock(of, ofUser)
	defer unlock(keyShard, userShard)
	key, user = keyShard.confirmLocked(of, key), userShard.confirmLocked(ofUser, user)
	switch {
	case key == nil || user == nil:
		d.absent = true
		return d
	case key.busy != nil || user.busy != nil:
		if d.busy = key.busy; d.busy == nil {
			d.busy = user.busy
		}
		return d
	case c.RequestID != "" && !keyShard.repeats.currentLocked(repeat{of, c.RequestID}, known):
		d.again = true
		return d
	}
	deciding := key
	if c.Shared {
		deciding = user
	}
	d.verdict.Usage, d.verdict.Allowed = deciding.Decide(c.Period, c.Limit, c.Cost, c.Entry.At)
	switch {
	case c.Cost == 0:
	case !d.verdict.Allowed:
		s.deny(c, key, user)
	default:
		var position int64
		position, d.ticket, d.err = s.allow(c, key, user, d.verdict.Usage)
		d.waits = d.err == nil
		if c.RequestID != "" && d.waits {
			keyShard.repeats.addLocked(repeat{of, c.RequestID}, position)
			s.folder.remembered.Add(1)
		}
	}
	return d
}

// allow appends the event of an allowed request and then counts it: a request that the event log
// refuses leaves the counters as they are. The caller holds the locks of the shards of both
// counters, here and in deny.
func (s *Store) allow(c *core.Consumption, key, user *counter, u core.Usage) (position int64, t eventlog.Ticket, err error) {
	e := newEvent(c, key, user, false)
	if c.RequestID != "" {
		e.requestID, e.first = c.RequestID, newVerdict(u, c.Terms)
	}
	position, t, err = s.events.AppendAwaited(e.append, e.keep(s.clock.Load()))
	if err != nil {
		return 0, t, err
	}
	if c.Shared {
		user.count(kindUser, c.Cost, c.Entry.At)
	}
	key.count(kindKey, c.Cost, c.Entry.At)
	recordAppended(&e, key, user, position)
	return position, t, nil
}

// deny appends the event of a denied request, if it is to be recorded and there is room.
// Otherwise the counters alone have the denial, and that of the key says so.
func (s *Store) deny(c *core.Consumption, key, user *counter) {
	record := key.Deny(c.Entry.At)
	if record && s.events.Idle() {
		e := newEvent(c, key, user, true)
		if position, err := s.events.Append(e.append, e.keep(s.clock.Load())); err == nil {
			recordAppended(&e, key, user, position)
			return
		}
	}
	if record {
		key.DeniedOmitted++
	}
	for _, of := range []*counter{key, user} {
		of.countDay(of.kind, c.Shared, true, c.Cost, c.Entry.At)
		of.unsaved, of.unlogged = true, true
		of.changedLocked()
	}
}

// longest is how long an entry can be asked to be kept.
const longest = 100 * 365 * 24 * time.Hour

// newEvent returns the event of a request.
func newEvent(c *core.Consumption, key, user *counter, denied bool) event {
	e := event{
		Entry: c.Entry, account: key.account, key: key.number, shared: c.Shared,
		ofKey: key.next(c.Entry.At), ofUser: user.next(c.Entry.At),
		retention: min(max(c.Retention, 0), longest),
	}
	e.KeyID, e.UserID, e.Cost, e.Denied = c.KeyID, c.UserID, c.Cost, denied
	return e
}

// recordAppended updates both counters of an event with its position in the event log.
func recordAppended(e *event, key, user *counter, position int64) {
	key.recordAppended(e, kindKey, position)
	user.recordAppended(e, kindUser, position)
	key.changedLocked()
	user.changedLocked()
}
