package badgerstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// The event of a request with a hold opens the hold. The event of a settlement ends the hold. Open holds are in memory: each counter that has
// counted a hold lists the hold. A checkpoint writes a record for each hold that is still open, from which the next start loads the hold. The
// checkpoint also writes the position of the last event of each hold, as for a request id.

// openHold is an open hold. The locks of the shards of both counters guard its members.
type openHold struct {
	id        string
	keyID     string
	key, user ref // key is user for a request without a key
	shared    bool
	at, until time.Time
	onExpiry  core.OnExpiry
	cost      int64
	costs     []core.MeterCost
	position  int64 // of the event that opened the hold
}

// openHoldCounts counts the open holds of each account.
type openHoldCounts struct {
	mu   sync.Mutex
	open map[uint32]int // by the number of the account
}

// add adds n to the number of open holds of an account, and returns the sum.
func (h *openHoldCounts) add(account uint32, n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open[account] += n; h.open[account] == 0 {
		delete(h.open, account)
		return 0
	}
	return h.open[account]
}

// holdKey returns the request id that indexes the last event of a hold. No request has such an id: the service refuses control characters.
func holdKey(user ref, id string) requestKey { return requestKey{user, "\x01" + id} }

// openKey returns the request id that stands for the record of an open hold: see requestIDPath. No request has such an id, either.
func openKey(user ref, id string) requestKey { return requestKey{user, openPrefix + id} }

const openPrefix = "\x02"

// dueLocked returns the hold of a counter that expires first, if the hold has expired at a time, else nil.
func (s *shard) dueLocked(of ref, now time.Time) *openHold {
	if len(s.open) == 0 {
		return nil
	}
	if list := s.open[of]; len(list) > 0 && !now.Before(list[0].until) {
		return list[0]
	}
	return nil
}

// openLocked returns the open hold with an id that a counter lists, nil if the counter lists no such hold.
func (s *shard) openLocked(of ref, id string) *openHold {
	for _, h := range s.open[of] {
		if h.id == id {
			return h
		}
	}
	return nil
}

// list adds a hold to the list of a counter, in the order in which the holds expire.
func (s *shard) list(of ref, h *openHold) {
	list := s.open[of]
	i, _ := slices.BinarySearchFunc(list, h, (*openHold).compare)
	s.open[of] = slices.Insert(list, i, h)
}

// compare orders holds by the times at which they expire.
func (h *openHold) compare(other *openHold) int {
	return cmp.Or(h.until.Compare(other.until), strings.Compare(h.id, other.id))
}

// unlist removes a hold from the list of a counter.
func (s *shard) unlist(of ref, h *openHold) {
	list := slices.DeleteFunc(s.open[of], func(o *openHold) bool { return o == h })
	if s.open[of] = list; len(list) == 0 {
		delete(s.open, of)
	}
}

// counters returns the counters that have counted a hold.
func (h *openHold) counters() []ref {
	if h.shared && h.key != h.user {
		return []ref{h.key, h.user}
	}
	return []ref{h.key}
}

// openHoldOf returns the hold that an event at a position has opened.
func openHoldOf(e *event, position int64) *openHold {
	h := &openHold{id: e.HoldID, keyID: e.KeyID, shared: e.shared, at: e.At, until: e.hold.ExpiresAt, onExpiry: e.hold.OnExpiry, cost: e.Cost,
		costs: slices.Clone(e.Costs), position: position}
	h.key, h.user = e.refs()
	return h
}

// openHoldLocked adds an open hold. The caller holds the locks of the shards of its counters.
func (s *Store) openHoldLocked(h *openHold) {
	for _, of := range h.counters() {
		s.counters.shard(of).list(of, h)
	}
	s.counters.shard(h.user).requestIDs.positions[openKey(h.user, h.id)] = h.position
	s.holds.add(h.user.account, 1)
}

// closeHoldLocked removes a hold that is no longer open. The caller holds the locks of the shards of its counters and of its user.
func (s *Store) closeHoldLocked(h *openHold) {
	for _, of := range h.counters() {
		s.counters.shard(of).unlist(of, h)
	}
	ids := &s.counters.shard(h.user).requestIDs
	if delete(ids.positions, openKey(h.user, h.id)); h.position < ids.taken { // it may have a record
		ids.positions[openKey(h.user, h.id)] = 0
	}
	s.holds.add(h.user.account, -1)
}

// closeHold removes a hold, unless it was closed in between.
func (s *Store) closeHold(h *openHold) {
	s.counters.lock(h.key, h.user)
	defer unlock(s.counters.shard(h.key), s.counters.shard(h.user))
	if s.counters.shard(h.key).openLocked(h.key, h.id) == h {
		s.closeHoldLocked(h)
	}
}

// openHoldsLocked returns the numbers of open holds of the counters of a request that opens a hold. The error is ErrTooManyHolds if the deciding
// counter or the account has too many open holds.
func (s *Store) openHoldsLocked(c *core.Consumption, key, deciding ref) (open core.OpenHolds, err error) {
	if c.Hold == nil {
		return open, nil
	}
	open = core.OpenHolds{Deciding: len(s.counters.shard(deciding).open[deciding]), Own: len(s.counters.shard(key).open[key])}
	if open.Deciding >= core.MaxOpenHolds || s.holds.add(key.account, 0) >= core.MaxAccountHolds {
		err = core.ErrTooManyHolds
	}
	return open, err
}

// loadHolds opens the holds that were open at the last checkpoint. The replay then opens and closes the holds of later events.
func (s *Store) loadHolds() error {
	var positions []int64
	err := s.inView(func(r view) error {
		return r.eachFrom(at(kindHold), at(kindHold), func(_ path, value []byte) (bool, error) {
			position, err := decodeNumber(value)
			positions = append(positions, position)
			return true, err
		})
	})
	for _, position := range positions {
		if err != nil {
			return err
		}
		var e event
		if e, err = s.event(position); err == nil && e.hold != nil {
			h := openHoldOf(&e, position)
			s.openHoldLocked(h)
			ids := &s.counters.shard(h.user).requestIDs
			ids.taken = max(ids.taken, position+1)
			delete(ids.positions, openKey(h.user, h.id))
		}
	}
	return err
}

// Hold implements [core.Store].
func (s *Store) Hold(_ context.Context, account, id string) (*core.Hold, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	h, _, err := s.findHold(account, id)
	return h, fault(err)
}

// findHold returns a hold and its user.
func (s *Store) findHold(account, id string) (h *core.Hold, user ref, err error) {
	number, err := s.accounts.number(s, account)
	userID, ok := core.HoldUser(id)
	if err == nil && (!ok || number == 0) {
		err = core.ErrHoldNotFound
	}
	user = ref{userID, number, kindUser}
	if err == nil {
		h, err = s.readHold(user, id)
	}
	return h, user, err
}

// readHold reads a hold from its events.
func (s *Store) readHold(user ref, id string) (*core.Hold, error) {
	known, err := s.remembered(holdKey(user, id))
	if err == nil && known.position == 0 {
		err = core.ErrHoldNotFound
	}
	var last event
	if err == nil {
		last, err = s.event(known.position)
	}
	opened := last
	if err == nil && last.Settlement != nil {
		opened, err = s.event(last.opened)
	}
	switch {
	case errors.Is(err, eventlog.ErrGone):
		return nil, core.ErrHoldNotFound
	case err != nil:
		return nil, err
	case opened.HoldID != id || opened.hold == nil:
		return nil, core.ErrHoldNotFound // the user was deleted, and its number is in use again
	}
	c := &core.Consumption{KeyID: opened.KeyID, KeySeq: opened.key, UserID: opened.UserID, Shared: opened.shared, Cost: opened.Cost, Costs: opened.Costs,
		Entry: opened.Entry, Hold: opened.hold, Settlement: last.Settlement}
	h := c.OpenHold()
	if last.Settlement != nil {
		c.Entry, c.Cost, c.Costs = last.Entry, last.Cost, last.Costs
		return h.Close(c), nil
	}
	key, _ := opened.refs()
	s.counters.lock(key, user)
	defer unlock(s.counters.shard(key), s.counters.shard(user))
	if open := s.counters.shard(key).openLocked(key, id); open != nil {
		h.ExpiresAt = open.until
	} else {
		h.Status = core.HoldExpired
	}
	return h, nil
}

// ExtendHold implements [core.Store]. The new end is in memory only: a hold that is extended belongs to a gateway of the same process.
func (s *Store) ExtendHold(_ context.Context, account, id string, at, until time.Time) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	read, user, err := s.findHold(account, id)
	if err != nil {
		return fault(err)
	}
	key := user
	if read.KeyID != "" {
		key = ref{read.KeySeq, user.account, kindKey}
	}
	s.counters.lock(key, user)
	defer unlock(s.counters.shard(key), s.counters.shard(user))
	h := s.counters.shard(key).openLocked(key, id)
	if h == nil || !at.Before(h.until) {
		return core.ErrHoldExpired
	}
	if !until.After(h.until) {
		return nil
	}
	for _, of := range h.counters() {
		s.counters.shard(of).unlist(of, h)
	}
	h.until = until
	for _, of := range h.counters() {
		s.counters.shard(of).list(of, h)
	}
	return nil
}

// OldestHolds implements [core.Store].
func (s *Store) OldestHolds(_ context.Context, account string) (map[int64]time.Time, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	oldest := map[int64]time.Time{}
	err := s.eachHold(account, func(h *openHold) { core.NoteOldest(oldest, h.user.number, h.at) })
	return oldest, err
}

// ExpireHolds implements [core.Store]. It reads open holds only, which are in memory.
func (s *Store) ExpireHolds(ctx context.Context, account string, at time.Time, retention time.Duration) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	var due []*openHold
	err := s.eachHold(account, func(h *openHold) {
		if !at.Before(h.until) {
			due = append(due, h)
		}
	})
	if err != nil {
		return err
	}
	slices.SortFunc(due, (*openHold).compare)
	c := &core.Consumption{Account: account, Retention: retention, Entry: core.Entry{At: at}}
	for _, h := range due {
		u, err := s.User(ctx, account, h.user.number)
		if err == nil {
			c.Anchors = u.Anchors
			err = s.expire(c, &decided{expired: h, at: at})
		}
		if err != nil && !errors.Is(err, core.ErrUserNotFound) {
			return fault(err)
		}
	}
	return nil
}

// eachHold calls fn with the open holds of an account, under the lock of a shard.
func (s *Store) eachHold(account string, fn func(*openHold)) error {
	number, err := s.accounts.number(s, account)
	if err != nil || s.holds.add(number, 0) == 0 {
		return fault(err)
	}
	s.counters.each(func(sh *shard) {
		for of, open := range sh.open {
			for _, h := range open {
				if of == h.key && of.account == number { // the user of a key lists its holds, too
					fn(h)
				}
			}
		}
	})
	return nil
}

// endHolds ends the holds of deleted keys and users, and of keys that move to other users. Their costs stay counted.
func (s *Store) endHolds(w *writes) {
	for _, r := range slices.Concat(w.dropped, w.moved) {
		sh := s.counters.shard(r)
		sh.mu.Lock()
		list := slices.Clone(sh.open[r])
		sh.mu.Unlock()
		for _, h := range list {
			s.closeHold(h)
		}
	}
}
