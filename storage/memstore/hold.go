package memstore

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// addHold adds the hold of an allowed request. It does nothing for a request without a hold.
func (s *Store) addHold(c *core.Consumption) {
	if c.Hold != nil {
		s.holds[c.Account] = append(s.holds[c.Account], copyOfHold(c.OpenHold()))
	}
}

// openHoldsOf returns the open holds of an account.
func (s *Store) openHoldsOf(account string) (list []*core.Hold) {
	for _, h := range s.holds[account] {
		if h.Status == core.HoldOpen {
			list = append(list, h)
		}
	}
	return list
}

// countOpen returns the number of open holds that a counter has counted.
func (s *Store) countOpen(of core.CounterID) (n int) {
	for _, h := range s.openHoldsOf(of.Account) {
		if counts(h, of) {
			n++
		}
	}
	return n
}

// counts reports whether a counter has counted a hold.
func counts(h *core.Hold, of core.CounterID) bool {
	if of.KeyID != "" {
		return h.KeyID == of.KeyID
	}
	return h.Shared && h.UserID == of.UserID
}

// keyOf returns the counter of the key of a request, or of its user if it has no key.
func keyOf(c *core.Consumption) core.CounterID {
	if c.KeyID == "" {
		return core.CounterID{Account: c.Account, UserID: c.UserID}
	}
	return core.CounterID{Account: c.Account, KeyID: c.KeyID}
}

// expire ends the matching open holds of an account that have expired at a time, the earliest end first.
func (s *Store) expire(account string, at time.Time, retention time.Duration, match func(*core.Hold) bool) {
	list := s.openHoldsOf(account)
	slices.SortFunc(list, func(a, b *core.Hold) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), strings.Compare(a.ID, b.ID))
	})
	for _, h := range list {
		if !h.Expired(at) || !match(h) {
			continue
		}
		if h.OnExpiry == core.KeepHeld {
			h.Status = core.HoldExpired
		} else {
			after := &core.Consumption{Account: account, Anchors: s.of(account).users.rows[h.UserID].Anchors, Retention: retention, Entry: core.Entry{At: at}}
			s.settle(h, h.Expiry(after))
		}
	}
}

// findHold returns the hold with an id, nil if the account has no such hold.
func (s *Store) findHold(account, id string) *core.Hold {
	i := slices.IndexFunc(s.holds[account], func(h *core.Hold) bool { return h.ID == id })
	if i < 0 {
		return nil
	}
	return s.holds[account][i]
}

// dropHolds removes the holds that a deleted counter has counted.
func (s *Store) dropHolds(of core.CounterID) {
	s.holds[of.Account] = slices.DeleteFunc(s.holds[of.Account], func(h *core.Hold) bool {
		return counts(h, of) || of.KeyID == "" && h.UserID == of.UserID
	})
}

// endMoved ends the open holds of keys that a transaction moves to other users. Their costs stay counted.
func (s *Store) endMoved(account string, before, after *resources) {
	for _, h := range s.openHoldsOf(account) {
		b, a := before.keys.rows[h.KeyID], after.keys.rows[h.KeyID]
		if b != nil && a != nil && b.UserID != a.UserID {
			h.Status = core.HoldExpired
		}
	}
}

// Settle implements [core.Store].
func (s *Store) Settle(_ context.Context, c *core.Consumption) (h *core.Hold, repeated bool, err error) {
	err = s.locked(func() error {
		if err := s.checkExists(c); err != nil {
			return err
		}
		found := s.findHold(c.Account, c.Settlement.HoldID)
		if found == nil {
			return core.ErrHoldNotFound
		}
		c = c.NotBefore(&s.usage(c.DecidingCounter()).counter, &s.usage(keyOf(c)).counter)
		s.expire(c.Account, c.Entry.At, c.Retention, func(h *core.Hold) bool { return h == found })
		switch found.Status {
		case core.HoldExpired:
			return core.ErrHoldExpired
		case core.HoldOpen:
			s.settle(found, c)
		default:
			repeated = true
		}
		h = copyOfHold(found)
		return nil
	})
	return h, repeated, err
}

// settle ends an open hold by a settlement. It changes the counters and the days, and appends the entry.
func (s *Store) settle(h *core.Hold, c *core.Consumption) {
	deciding, of := s.usage(c.DecidingCounter()), s.usage(keyOf(c))
	c = c.NotBefore(&deciding.counter, &of.counter)
	counters := []*usage{deciding}
	if of != deciding {
		counters = append(counters, of)
	}
	by, date := c.Cost-c.Settlement.Cost, core.DateOf(c.Settlement.HeldAt)
	counted := &record.Counted{Cost: c.Cost, Costs: c.Costs, Settlement: c.Settlement}
	user := s.usage(core.CounterID{Account: c.Account, UserID: c.UserID})
	user.days.latest[record.DayAllowed] = max(user.days.latest[record.DayAllowed], date) // an import may have removed the day of the hold
	user.changeDay(date, record.DayAllowed, by)
	user.days.change(date, c.Settlement.HeldAt, false, counted)
	for i, u := range counters { // the number of the present day of a counter is core.Counter.Today
		cut := u.counter.CutOff(c.Settlement, c.Charge())
		u.counter.Settle(c.Settlement, c.Charge())
		number, shared := record.DayAllowed, i == 0 && c.Shared
		if shared {
			number = record.DaySharedAllowed
		}
		by := by
		if date == core.DateOf(time.Unix(u.counter.At, 0)) {
			by = u.counter.Today - *u.days.Number(date, number)
		}
		u.changeDay(date, number, by)
		if shared || u != user {
			u.days.change(date, c.Settlement.HeldAt, shared, counted)
		}
		for _, m := range cut {
			for _, date := range []core.Date{date, date.HourIn(c.Settlement.HeldAt)} {
				ch := record.DayChange{Meter: m.Meter, Number: record.DayAdjusted, By: m.Cost}
				u.days.changeOne(date, shared, ch)
				if i == 0 { // cut off by the deciding counter
					user.days.changeOne(date, false, ch)
				}
			}
		}
	}
	s.appendEntry(c, new(core.ConsumeResult))
	*h = *copyOfHold(h.Close(c))
}

// changeDay adds a difference to a number of a day.
func (u *usage) changeDay(date core.Date, number int, by int64) {
	used := u.days.Number(date, number)
	*used = min(max(0, *used+by), core.MaxLimit)
}

// Hold implements [core.Store].
func (s *Store) Hold(_ context.Context, account, id string) (h *core.Hold, err error) {
	err = s.locked(func() error {
		found := s.findHold(account, id)
		if found == nil {
			return core.ErrHoldNotFound
		}
		h = copyOfHold(found)
		return nil
	})
	return h, err
}

// ExtendHold implements [core.Store].
func (s *Store) ExtendHold(_ context.Context, account, id string, at, until time.Time) error {
	return s.locked(func() error {
		h := s.findHold(account, id)
		switch {
		case h == nil:
			return core.ErrHoldNotFound
		case h.Status != core.HoldOpen || h.Expired(at):
			return core.ErrHoldExpired
		}
		if until.After(h.ExpiresAt) {
			h.ExpiresAt = normalTime(until)
		}
		return nil
	})
}

// OldestHolds implements [core.Store].
func (s *Store) OldestHolds(_ context.Context, account string) (map[int64]time.Time, error) {
	oldest := map[int64]time.Time{}
	err := s.locked(func() error {
		for _, h := range s.openHoldsOf(account) {
			core.NoteOldest(oldest, h.UserID, h.At)
		}
		return nil
	})
	return oldest, err
}

// ExpireHolds implements [core.Store].
func (s *Store) ExpireHolds(_ context.Context, account string, at time.Time, retention time.Duration) error {
	return s.locked(func() error {
		s.expire(account, at, retention, func(*core.Hold) bool { return true })
		return nil
	})
}

// copyOfHold returns a deep copy of a hold, with its times in UTC.
func copyOfHold(h *core.Hold) *core.Hold {
	c := *h
	c.Costs, c.SettledCosts = slices.Clone(h.Costs), slices.Clone(h.SettledCosts)
	for _, t := range []*time.Time{&c.At, &c.ExpiresAt, &c.PricedAt, &c.ClosedAt} {
		*t = normalTime(*t)
	}
	return &c
}
