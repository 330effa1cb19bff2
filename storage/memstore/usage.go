package memstore

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// usage is what the store keeps of a key or user besides the resource.
type usage struct {
	counter core.Counter
	buckets core.Buckets // Deciding while this counter decides, Own for the own rate of a key
	history []core.Entry // oldest first
	days    days
	results map[string]firstResult // by request id; of a key, or of requests without a key
}

// usage returns what the store keeps of a key, or of a user if the id names no key. It adds a missing one.
func (s *Store) usage(id core.CounterID) *usage {
	if id.KeyID != "" {
		id.UserID = 0
	}
	if s.usages[id] == nil {
		s.usages[id] = &usage{days: newDays(), results: map[string]firstResult{}}
	}
	return s.usages[id]
}

// Consume implements [core.Store]. It records a denied request in the history before it returns.
func (s *Store) Consume(_ context.Context, c *core.Consumption) (v core.ConsumeResult, err error) {
	err = s.locked(func() error {
		if err := s.checkExists(c); err != nil {
			return err
		}
		of := s.usage(core.CounterID{Account: c.Account, KeyID: c.KeyID, UserID: c.UserID})
		if first, ok := of.firstResult(c); ok && c.Refused == "" {
			v = first
			return nil
		}
		deciding := s.usage(c.DecidingCounter())
		c = c.NotBefore(&deciding.counter, &of.counter)
		s.expire(c.Account, c.Entry.At, c.Retention, func(h *core.Hold) bool { return counts(h, c.DecidingCounter()) || counts(h, keyOf(c)) })
		open := core.OpenHolds{Deciding: s.countOpen(c.DecidingCounter()), Own: s.countOpen(keyOf(c))}
		buckets := core.Buckets{Deciding: deciding.buckets.Deciding, Own: of.buckets.Own}
		v = deciding.counter.Decide(c, &of.counter, &buckets, open)
		if v.HoldID != "" && (open.Deciding >= core.MaxOpenHolds || len(s.openHoldsOf(c.Account)) >= core.MaxAccountHolds) {
			v = core.ConsumeResult{}
			return core.ErrTooManyHolds
		}
		if c.Adjustment != nil {
			s.adjustDay(c, deciding.counter.Adjust(c.Adjustment, c.Charge()))
			s.appendEntry(c, &v)
			of.rememberResult(c, v)
			return nil
		}
		if !c.Counts() {
			return nil
		}
		if v.Allowed {
			deciding.counter.Add(c.Charge())
			if deciding != of {
				of.counter.Add(c.Charge())
			}
			buckets.Take(c)
			deciding.buckets.Deciding, of.buckets.Own = buckets.Deciding, buckets.Own
			s.addHold(c)
		}
		s.countDay(c, v.Allowed)
		if !v.Allowed && !of.counter.Deny(c.Entry.At) {
			return nil
		}
		s.appendEntry(c, &v)
		if v.Allowed {
			of.rememberResult(c, v)
		}
		return nil
	})
	return v, err
}

// checkExists returns an error if the key or the user of a request does not exist.
func (s *Store) checkExists(c *core.Consumption) error {
	r := s.of(c.Account)
	if c.KeyID != "" && r.keys.rows[c.KeyID] == nil {
		return core.ErrKeyNotFound
	}
	if r.users.rows[c.UserID] == nil {
		return core.ErrUserNotFound
	}
	return nil
}

// Counters implements [core.Store].
func (s *Store) Counters(_ context.Context, ids []core.CounterID) (list []core.Counter, err error) {
	err = s.locked(func() error {
		list = make([]core.Counter, len(ids))
		for i, id := range ids {
			list[i] = s.usage(id).counter.Clone()
			list[i].LastUsedAt = normalTime(list[i].LastUsedAt)
		}
		return nil
	})
	return list, err
}

// View implements [core.Store].
func (s *Store) View(ctx context.Context, account string, fn func(core.View) error) error {
	return fn(view{s, ctx, account})
}

// view is a [core.View].
type view struct {
	s       *Store
	ctx     context.Context
	account string
}

func (v view) User(id int64) (*core.User, error)  { return v.s.User(v.ctx, v.account, id) }
func (v view) Plan(id string) (*core.Plan, error) { return v.s.Plan(v.ctx, v.account, id) }
func (v view) Key(id string) (*core.Key, error)   { return v.s.Key(v.ctx, v.account, id) }
func (v view) Keys(f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	return v.s.Keys(v.ctx, v.account, f, p)
}
func (v view) Counters(ids []core.CounterID) ([]core.Counter, error) { return v.s.Counters(v.ctx, ids) }

// PlanUsed implements [core.Store].
func (s *Store) PlanUsed(_ context.Context, account, plan string, p core.Period, at time.Time) (used int64, err error) {
	err = s.locked(func() error {
		add := func(id core.CounterID) {
			used = core.AddSaturating(used, s.usage(id).counter.Usage(core.MeterRequests, p, nil, at).Used)
		}
		r := s.of(account)
		for _, k := range r.matchingKeys(core.KeyFilter{PlanID: &plan}) {
			add(core.CounterID{Account: account, KeyID: k.ID})
		}
		for _, u := range r.matchingUsers(core.UserFilter{PlanID: plan}) {
			add(core.CounterID{Account: account, UserID: u.ID})
		}
		return nil
	})
	return used, err
}

// normalTime returns a time as the store returns it: in UTC, without a monotonic reading.
func normalTime(t time.Time) time.Time { return t.Round(0).UTC() }
