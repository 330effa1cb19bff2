package badgerstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// Consume implements [core.Store] in five steps:
//
//	admit   returns an error while the event log refuses events, and waits while too many wait for a checkpoint
//	locate  finds the numbers of both counters; lookUp then finds the first answer to a repeated request id
//	decide  applies core's rule to the counters in memory, under the locks of their shards
//	append  appends the event to the open block of the event log, under the same locks
//	wait    waits until the block is in its file; with durability power until the block is on disk
//
// A denied request ends after append, and a request without any cost after decide. When a counter is not in memory, or is being
// loaded or deleted, Consume loads the counter or waits for it, and decides again.
func (s *Store) Consume(_ context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if err := s.enterToWrite(); err != nil {
		return core.ConsumeResult{}, err
	}
	defer s.leave()
	result, err := s.consume(c)
	return result, fault(err)
}

func (s *Store) consume(c *core.Consumption) (core.ConsumeResult, error) {
	if err := s.admit(); err != nil {
		return core.ConsumeResult{}, err
	}
	key, user, err := s.locate(c)
	if err != nil {
		return core.ConsumeResult{}, err
	}
	for {
		first, known, err := s.lookUp(c, key, user)
		if err != nil {
			return core.ConsumeResult{}, err
		}
		if first != nil {
			return *first, nil
		}
		switch d := s.decide(c, key, user, known); {
		case d.err != nil:
			return core.ConsumeResult{}, d.err
		case d.outdated:
		case d.expired != nil:
			if err := s.expire(c, &d); err != nil {
				return core.ConsumeResult{}, err
			}
		case d.absent:
			if err := s.loadBoth(c, key, user); err != nil {
				return core.ConsumeResult{}, err
			}
		case d.appended:
			return d.result, d.ticket.Wait()
		default:
			return d.result, nil
		}
	}
}

// admit returns an error while the event log refuses events. It waits while too many events wait for a checkpoint. The
// event log may write in this call, so the caller holds no lock of a shard.
func (s *Store) admit() error {
	if err := s.events.Ready(); err != nil {
		return err
	}
	return s.checkpointer.waitForRoom(s)
}

// locate returns the counters of the key and of the user of a request. Without a key both are the counter of the user. loadBoth
// checks whether the key and the user still exist.
func (s *Store) locate(c *core.Consumption) (key, user ref, err error) {
	account, err := s.accounts.number(s, c.Account)
	user = ref{c.UserID, account, kindUser}
	key = user
	if c.KeyID != "" {
		key = ref{c.KeySeq, account, kindKey}
	}
	if key.number == 0 && err == nil {
		err = s.readEntered(func(r view) (err error) {
			key.number, err = r.number(keyIDPath(c.Account, c.KeyID))
			return err
		})
	}
	if err == nil && (account == 0 || key.number == 0) {
		err = notFound(c.KeyID)
	}
	return key, user, err
}

// notFound returns the error for a missing key, or for a missing user if keyID is "".
func notFound(keyID string) error {
	if keyID == "" {
		return core.ErrUserNotFound
	}
	return core.ErrKeyNotFound
}

// decided is the result of decide: an answer, or the reason to decide again.
type decided struct {
	result   core.ConsumeResult
	appended bool            // the request is allowed and counts
	ticket   eventlog.Ticket // when appended: the caller waits for it before it answers

	absent   bool      // a counter is not in memory, or is being loaded or deleted
	outdated bool      // a request with the same id was counted since lookUp
	expired  *openHold // a hold of a counter that has to be ended first
	at       time.Time // with expired: the time of the request, not before its counters
	err      error     // of the event log; ErrTooManyHolds
}

// decide applies the rule of counting to a request, and appends the event of the request to the event log.
func (s *Store) decide(c *core.Consumption, of, ofUser ref, known lookedUp) (d decided) {
	_ = prefetchText(c.KeyID)
	keyShard, userShard := s.counters.shard(of), s.counters.shard(ofUser)
	key, user := keyShard.find(of), userShard.find(ofUser)
	s.counters.lock(of, ofUser)
	defer unlock(keyShard, userShard)
	key, user = keyShard.confirmLocked(of, key), userShard.confirmLocked(ofUser, user)
	switch {
	case key == nil || user == nil || key.busy != nil || user.busy != nil:
		d.absent = true
		return d
	case c.RequestID != "" && c.Refused == "" && !keyShard.requestIDs.currentLocked(requestKey{of, c.RequestID}, known):
		d.outdated = true
		return d
	}
	_, _ = key.prefetch(), user.prefetch()
	keyShard.hits++
	userShard.hits++
	deciding, decidingShard := key, keyShard
	if c.Shared {
		deciding, decidingShard = user, userShard
	}
	c = c.NotBefore(&deciding.Counter, &key.Counter)
	d.expired = keyShard.dueLocked(key.ref, c.Entry.At)
	if h := decidingShard.dueLocked(deciding.ref, c.Entry.At); h != nil && (d.expired == nil || h.compare(d.expired) < 0) {
		d.expired = h
	}
	if d.expired != nil {
		d.at = c.Entry.At
		return d
	}
	open, tooMany := s.openHoldsLocked(c, key.ref, deciding.ref)
	var b core.Buckets
	if c.Rate != nil {
		b.Deciding = decidingShard.bucketLocked(deciding.ref)
	}
	if c.Own.Rate != nil {
		b.Own = keyShard.bucketLocked(ownBucket(key.ref))
	}
	d.result = deciding.Decide(c, &key.Counter, &b, open)
	switch {
	case d.result.HoldID != "" && tooMany != nil:
		d.err = tooMany
	case !c.Counts() && c.Adjustment == nil:
	case !d.result.Allowed:
		s.appendDenied(c, key, user, &d.result)
	default:
		var position int64
		position, d.ticket, d.err = s.append(c, key, user, &d.result, nil)
		d.appended = d.err == nil
		if c.RequestID != "" && d.appended {
			s.rememberLocked(keyShard, requestKey{of, c.RequestID}, position)
		}
		if c.Adjustment == nil && d.appended {
			decidingShard.takeLocked(deciding.ref, c.Rate, c.RequestedAt())
			keyShard.takeLocked(ownBucket(key.ref), c.Own.Rate, c.RequestedAt())
		}
	}
	return d
}

// rememberLocked notes the position of the event with a request id. The caller holds the lock of the shard.
func (s *Store) rememberLocked(sh *shard, id requestKey, position int64) {
	sh.requestIDs.positions[id] = position
	s.checkpointer.requestIDs.Add(1)
}

// append appends the event of an allowed request, of an adjustment or of the settlement of an open hold, and then counts the event. When the event log refuses
// the event, the counters and the open holds stay as they are. The caller holds the locks of the shards of both counters.
func (s *Store) append(c *core.Consumption, key, user *counter, v *core.ConsumeResult, settled *openHold) (position int64, t eventlog.Ticket, err error) {
	e := newEvent(c, key, user, v)
	if settled != nil {
		e.opened = settled.position
	}
	switch {
	case c.Adjustment != nil:
		e.adjusted = adjustedBy(c, key, user)
	case c.Settlement != nil && !c.Shared:
		e.cut = key.CutOff(c.Settlement, c.Charge())
	}
	if c.RequestID != "" {
		e.idToFind, e.first = c.RequestID, &answer{c.Terms, *v}
	}
	var buf [eventBuffer]byte
	record := e.encode(buf[:0])
	position, t, err = s.events.AppendAwaited(record.append, e.keep(s.clock.Load(), c.Retention))
	if err != nil {
		return 0, t, err
	}
	count(&e, key, user, position)
	switch of := holdKey(user.ref, e.holdID()); {
	case settled != nil:
		s.closeHoldLocked(settled)
		s.rememberLocked(s.counters.shard(user.ref), of, position)
	case e.hold != nil:
		s.openHoldLocked(openHoldOf(&e, position))
		s.rememberLocked(s.counters.shard(user.ref), of, position)
	}
	return position, t, nil
}

// adjustedBy returns the result of [core.Counter.Adjust] for the deciding counter, without changing the counter.
func adjustedBy(c *core.Consumption, key, user *counter) int64 {
	deciding := key
	if c.Shared {
		deciding = user
	}
	after := deciding.Counter.Clone()
	return after.Adjust(c.Adjustment, c.Charge())
}

// appendDenied appends the event of a denied request, unless the history has its limit of denials or the event log has
// no room. In these two cases only the counters include the denial, and DeniedOmitted of the key counts the omission. The
// caller holds the locks of the shards of both counters.
func (s *Store) appendDenied(c *core.Consumption, key, user *counter, v *core.ConsumeResult) {
	record := key.Deny(c.Entry.At)
	if record && s.events.TakesUnawaited() {
		e := newEvent(c, key, user, v)
		var buf [eventBuffer]byte
		record := e.encode(buf[:0])
		if position, err := s.events.Append(record.append, e.keep(s.clock.Load(), c.Retention)); err == nil {
			count(&e, key, user, position)
			return
		}
	}
	if record {
		key.DeniedOmitted++
	}
	counters := []*counter{user, key}
	if key == user {
		counters = counters[:1]
	}
	omitted := event{Entry: core.Entry{At: c.Entry.At, Cost: c.Cost, Costs: c.Costs, Denied: true}, shared: c.Shared}
	for _, of := range counters {
		of.countDay(of.kind, c.Shared, true, c.Cost, c.Entry.At)
		of.countMeters(of.kind, &omitted, nil)
		of.savedBy = byNothing
		of.changedLocked()
	}
}

// newEvent returns the event of a request with its result.
func newEvent(c *core.Consumption, key, user *counter, v *core.ConsumeResult) event {
	e := event{Entry: c.Recorded(v), account: user.account, shared: c.Shared, ownOnly: c.OwnOnly, ofUser: user.next(c.Entry.At)}
	if key != user {
		e.key, e.ofKey = key.number, key.next(c.Entry.At)
	}
	if !e.Denied {
		e.hold = c.Hold
	}
	if len(c.Anchors) > 0 && !e.Denied {
		since := c.Anchors.Since(c.Entry.At)
		e.since = &since
	}
	return e
}

// count adds an event at a position of the event log to the counters of its key and of its user.
func count(e *event, key, user *counter, position int64) {
	if key != user {
		key.count(e, kindKey, position)
		key.changedLocked()
	}
	user.count(e, kindUser, position)
	user.changedLocked()
}

// The first answer to a request id is in the event of the request. The position of that event is in memory until the
// next checkpoint, and then in a record of Badger for 48 hours.

// requestIDs has the positions that the next checkpoint writes for the keys and users of a shard: of the event of each request with an id, of the last event
// of each hold (holdKey), and of the event of each open hold (openKey). The position of a hold that is no longer open is 0: the checkpoint removes its record.
type requestIDs struct {
	positions map[requestKey]int64
	taken     int64  // the end of the event log when a checkpoint last took the positions: an open hold from before it may have a record
	removals  uint64 // how often positions were removed, after a checkpoint has written them or with their account
}

// requestKey identifies a request by its key and its request id.
type requestKey struct {
	key ref
	id  string
}

// requestIDPath returns the path of the record with the position of a request id, or of an openKey.
func requestIDPath(id requestKey) path {
	if hold, isOpen := strings.CutPrefix(id.id, openPrefix); isOpen {
		return at(kindHold).number(int64(id.key.account)).number(id.key.number).text(hold)
	}
	return append(at(kindRequestID).number(int64(id.key.account)), byte(id.key.kind)).number(id.key.number).text(id.id)
}

// lookedUp is the result of a look-up of a request id. currentLocked tells whether the result still holds.
type lookedUp struct {
	removals uint64 // the value of requestIDs.removals at the look-up
	position int64  // of the event; 0 without an event
}

// lookUp returns the answer to the first request with the same id within the last 24 hours, nil without one. It returns an error when
// the key or the user of a request with an id does not exist.
func (s *Store) lookUp(c *core.Consumption, key, user ref) (first *core.ConsumeResult, known lookedUp, err error) {
	if c.RequestID == "" || c.Refused != "" {
		return nil, known, nil
	}
	if err := s.loadBoth(c, key, user); err != nil {
		return nil, known, err
	}
	known, err = s.remembered(requestKey{key, c.RequestID})
	if err != nil || known.position == 0 {
		return nil, known, err
	}
	e, err := s.event(known.position)
	switch {
	case errors.Is(err, eventlog.ErrGone):
		return nil, known, nil
	case err != nil:
		return nil, known, err
	case e.KeyID != c.KeyID || e.idToFind != c.RequestID || !c.Repeats(e.At):
		return nil, known, nil
	case e.Adjustment != nil: // no limit has decided
		return &core.ConsumeResult{Allowed: true, FirstTerms: &core.Terms{}}, known, nil
	}
	first = &e.first.result
	first.Allowed, first.FirstTerms, first.HoldID = true, &e.first.terms, e.HoldID
	return first, known, nil
}

// remembered looks up the last event with a request id, in memory and then in the database.
func (s *Store) remembered(id requestKey) (known lookedUp, err error) {
	sh := s.counters.shard(id.key)
	sh.mu.Lock()
	known = lookedUp{sh.requestIDs.removals, sh.requestIDs.positions[id]}
	sh.mu.Unlock()
	if known.position == 0 {
		err = s.inView(func(r view) (err error) {
			known.position, err = r.number(requestIDPath(id))
			return err
		})
	}
	return known, err
}

// currentLocked reports whether the result of a look-up still holds. The caller holds the lock of the shard.
func (r *requestIDs) currentLocked(id requestKey, known lookedUp) bool {
	position := r.positions[id]
	return known.removals == r.removals && (position == 0 || position == known.position)
}

// event reads the event at a position. It first makes the event as durable as an answered request.
func (s *Store) event(position int64) (event, error) {
	if !s.events.Safe(position) {
		if err := s.events.Flush(); err != nil {
			return event{}, err
		}
	}
	payload, err := s.events.Read(position, nil)
	if err != nil {
		return event{}, err
	}
	return decodeEvent(payload, position)
}
