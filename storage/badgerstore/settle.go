package badgerstore

import (
	"context"
	"errors"

	"github.com/limitkeeper/limitkeeper/core"
)

// Settle implements [core.Store].
func (s *Store) Settle(_ context.Context, c *core.Consumption) (h *core.Hold, repeated bool, err error) {
	if err := s.enterToWrite(); err != nil {
		return nil, false, err
	}
	defer s.leave()
	h, repeated, err = s.settle(c)
	return h, repeated, fault(err)
}

func (s *Store) settle(c *core.Consumption) (h *core.Hold, repeated bool, err error) {
	if err := s.admit(); err != nil {
		return nil, false, err
	}
	key, user, err := s.locate(c)
	for err == nil {
		if err = s.loadBoth(c, key, user); err != nil {
			break
		}
		d := s.appendEnd(c, key, user)
		switch {
		case d.err != nil:
			return nil, false, d.err
		case d.absent:
			continue
		case d.expired != nil:
			return nil, false, firstOf(s.expire(c, &d), core.ErrHoldExpired)
		case d.appended:
			err = d.ticket.Wait()
		}
		if err == nil {
			h, err = s.readHold(user, c.Settlement.HoldID)
		}
		if err == nil && h.Status == core.HoldExpired && c.Settlement.Status != core.HoldExpired {
			err = core.ErrHoldExpired
		}
		return h, !d.appended, err
	}
	return nil, false, err
}

// appendEnd appends the event of a settlement and changes the counters, if the hold is open. The result has the hold if it has expired instead.
func (s *Store) appendEnd(c *core.Consumption, of, ofUser ref) (d decided) {
	keyShard, userShard := s.counters.shard(of), s.counters.shard(ofUser)
	s.counters.lock(of, ofUser)
	defer unlock(keyShard, userShard)
	key, user := keyShard.find(of), userShard.find(ofUser)
	if key == nil || user == nil || key.busy != nil || user.busy != nil {
		d.absent = true
		return d
	}
	h := keyShard.openLocked(of, c.Settlement.HoldID)
	if h == nil {
		return d
	}
	deciding := key
	if c.Shared {
		deciding = user
	}
	c = c.NotBefore(&key.Counter, &deciding.Counter)
	if c.Settlement.Status != core.HoldExpired && !c.Entry.At.Before(h.until) {
		d.expired, d.at = h, c.Entry.At
		return d
	}
	_, d.ticket, d.err = s.append(c, key, user, new(core.ConsumeResult), h)
	d.appended = d.err == nil
	return d
}

// expire ends the expired hold of a decision. c is a request of the same user.
func (s *Store) expire(c *core.Consumption, d *decided) error {
	h := d.expired
	if h.onExpiry == core.ReleaseHeld {
		end := h.hold().Expiry(c)
		end.Entry.At = d.at
		_, _, err := s.settle(end)
		if errors.Is(err, core.ErrKeyNotFound) || errors.Is(err, core.ErrUserNotFound) {
			err = nil // the counters of the hold were deleted
		}
		return err
	}
	s.closeHold(h)
	return nil
}

// hold returns the members of the hold that a settlement needs.
func (h *openHold) hold() *core.Hold {
	c := &core.Hold{ID: h.id, UserID: h.user.number, KeyID: h.keyID, Shared: h.shared, At: h.at, Cost: h.cost, Costs: h.costs}
	if h.key != h.user {
		c.KeySeq = h.key.number
	}
	return c
}
