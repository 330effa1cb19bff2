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
// counted a hold lists the hold. A checkpoint writes a record for each hold that is still open, from which the next start loads the hold. It
// also writes the position of the last event of each hold, as for a request id.

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
	recorded  bool  // a checkpoint has written or is about to write the record; the lock of the shard of the user guards this member
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

// openHoldPath returns the path of the record of an open hold.
func openHoldPath(user ref, id string) path {
	return at(kindHold).number(int64(user.account)).number(user.number).text(id)
}

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

// openLocked returns the open hold of a counter with an id, nil if the counter has no such hold.
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
	h := &openHold{id: e.HoldID, keyID: e.KeyID, shared: e.shared, at: e.At, until: e.hold.ExpiresAt, onExpiry: e.hold.OnExpiry, cost: e.Cost, costs: slices.Clone(e.Costs),
		position: position}
	if h.key, h.user = e.refs(); e.key == 0 {
		h.key = h.user
	}
	return h
}

// openHoldLocked adds an open hold. The caller holds the locks of the shards of its counters.
func (s *Store) openHoldLocked(h *openHold) {
	for _, of := range h.counters() {
		s.counters.shard(of).list(of, h)
	}
	s.counters.shard(h.user).holdRecords[holdKey(h.user, h.id)] = h
	s.holds.add(h.user.account, 1)
}

// closeHoldLocked removes a hold that is no longer open. The caller holds the locks of the shards of its counters and of its user.
func (s *Store) closeHoldLocked(h *openHold) {
	for _, of := range h.counters() {
		s.counters.shard(of).unlist(of, h)
	}
	records := s.counters.shard(h.user).holdRecords
	if delete(records, holdKey(h.user, h.id)); h.recorded {
		records[holdKey(h.user, h.id)] = nil
	}
	s.holds.add(h.user.account, -1)
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
	of, sh := holdKey(user, id), s.counters.shard(user)
	sh.mu.Lock()
	position := sh.requestIDs.positions[of]
	sh.mu.Unlock()
	var err error
	if position == 0 {
		err = s.inView(func(r view) (err error) {
			position, err = r.number(requestIDPath(of))
			return err
		})
	}
	if err == nil && position == 0 {
		err = core.ErrHoldNotFound
	}
	var last event
	if err == nil {
		last, err = s.event(position)
	}
	opened := last
	if err == nil && last.Settlement != nil {
		position = last.opened
		opened, err = s.event(position)
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
	key := openHoldOf(&opened, position).key
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
	number, err := s.accounts.number(s, account)
	if err != nil || s.holds.add(number, 0) == 0 {
		return oldest, fault(err)
	}
	for i := range s.counters.shards {
		s.counters.shards[i].eachHold(number, func(h *openHold) { core.NoteOldest(oldest, h.user.number, h.at) })
	}
	return oldest, nil
}

// ExpireHolds implements [core.Store]. It reads open holds only, which are in memory.
func (s *Store) ExpireHolds(ctx context.Context, account string, at time.Time, retention time.Duration) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	number, err := s.accounts.number(s, account)
	if err != nil || s.holds.add(number, 0) == 0 {
		return fault(err)
	}
	var due []*openHold
	for i := range s.counters.shards {
		due = append(due, s.counters.shards[i].due(number, at)...)
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

// due returns the holds in the shard of an account that have expired at a time.
func (s *shard) due(account uint32, at time.Time) (list []*openHold) {
	s.eachHold(account, func(h *openHold) {
		if !at.Before(h.until) {
			list = append(list, h)
		}
	})
	return list
}

// eachHold calls fn with the open holds in the shard of an account, under the lock of the shard. The shard of the user leaves out the holds of a key.
func (s *shard) eachHold(account uint32, fn func(*openHold)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, open := range s.open {
		for _, h := range open {
			if of == h.key && of.account == account {
				fn(h)
			}
		}
	}
}

// endHolds ends the holds of deleted keys and users, and of keys that move to other users. Their costs stay counted.
func (s *Store) endHolds(w *writes) {
	for _, r := range slices.Concat(w.dropped, w.moved) {
		sh := s.counters.shard(r)
		sh.mu.Lock()
		list := slices.Clone(sh.open[r])
		sh.mu.Unlock()
		for _, h := range list {
			s.counters.lock(h.key, h.user)
			if s.counters.shard(h.key).openLocked(h.key, h.id) == h {
				s.closeHoldLocked(h)
			}
			unlock(s.counters.shard(h.key), s.counters.shard(h.user))
		}
	}
}
