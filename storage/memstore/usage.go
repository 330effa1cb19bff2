package memstore

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Consume implements [core.Store]. It records a denied request in the history before it returns.
func (s *Store) Consume(_ context.Context, c *core.Consumption) (v core.ConsumeResult, err error) {
	err = s.locked(func() error {
		if err := s.checkExists(c); err != nil {
			return err
		}
		key := core.CounterID{Account: c.Account, KeyID: c.KeyID}
		if c.KeyID == "" {
			key.UserID = c.UserID
		}
		if first, ok := s.firstResults[key].lookup(c); ok {
			v = first
			return nil
		}
		b := s.buckets[c.DecidingCounter()]
		v = s.counter(c.DecidingCounter()).Consume(c, &b)
		s.buckets[c.DecidingCounter()] = b
		if c.Adjustment != nil {
			s.appendEntry(c, "")
			s.rememberResult(key, c, v)
			return nil
		}
		if !c.Counts() {
			return nil
		}
		if v.Allowed && c.Shared {
			s.counter(key).Add(c.Charge())
		}
		s.countDay(c, v.Allowed)
		if !v.Allowed && !s.counter(key).Deny(c.Entry.At) {
			return nil
		}
		s.appendEntry(c, v.Reason)
		if v.Allowed {
			s.rememberResult(key, c, v)
		}
		return nil
	})
	return v, err
}

// checkExists returns an error if the key or the user of a request does not exist.
func (s *Store) checkExists(c *core.Consumption) error {
	r := s.of(c.Account)
	if c.KeyID != "" && r.keys[c.KeyID] == nil {
		return core.ErrKeyNotFound
	}
	if r.users[c.UserID] == nil {
		return core.ErrUserNotFound
	}
	return nil
}

// Counters implements [core.Store].
func (s *Store) Counters(_ context.Context, ids []core.CounterID) (list []core.Counter, err error) {
	err = s.locked(func() error {
		list = make([]core.Counter, len(ids))
		for i, id := range ids {
			if c, ok := s.counters[canonical(id)]; ok {
				list[i] = c.Clone()
				list[i].LastUsedAt = normalTime(c.LastUsedAt)
			}
		}
		return nil
	})
	return list, err
}

// PlanTotals implements [core.Store].
func (s *Store) PlanTotals(_ context.Context, account, plan string, p core.Period, at time.Time, n int) (d core.PlanTotals, err error) {
	err = s.locked(func() error {
		add := func(id core.CounterID, seq int64) {
			if c, ok := s.counters[id]; ok {
				d.Add(n, id, seq, c.Usage(core.MeterRequests, p, nil, at))
			}
		}
		r := s.of(account)
		for _, k := range r.matchingKeys(core.KeyFilter{PlanID: &plan}) {
			add(core.CounterID{Account: account, KeyID: k.ID}, k.Seq)
		}
		for _, u := range r.matchingUsers(core.UserFilter{PlanID: plan}) {
			add(core.CounterID{Account: account, UserID: u.ID}, 0)
		}
		return nil
	})
	return d, err
}

// counter returns the counter with the id, and creates it if it is missing.
func (s *Store) counter(id core.CounterID) *core.Counter {
	c, ok := s.counters[id]
	if !ok {
		c = &core.Counter{}
		s.counters[id] = c
	}
	return c
}

// canonical returns the id without the user if it names a key.
func canonical(id core.CounterID) core.CounterID {
	if id.KeyID != "" {
		id.UserID = 0
	}
	return id
}

// forget deletes counters with their histories, days and request ids.
func (s *Store) forget(ids []core.CounterID) {
	for _, id := range ids {
		delete(s.counters, id)
		delete(s.buckets, id)
		delete(s.histories, id)
		delete(s.days, id)
		delete(s.firstResults, id)
	}
}
