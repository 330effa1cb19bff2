package storetest

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenHistory = []defect{
	{name: "has no history of users", caughtBy: "machine",
		open: remembering(func(of core.CounterID, es []core.Entry) []core.Entry {
			if of.KeyID == "" {
				return nil
			}
			return es
		})},
	{name: "does not record denials", caughtBy: "machine",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			return slices.DeleteFunc(es, func(x core.Entry) bool { return x.Denied })
		})},
	{name: "does not mark denials", caughtBy: "machine",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			for i := range es {
				es[i].Denied = false
			}
			return es
		})},
	{name: "does not record refusals", caughtBy: "machine",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			return slices.DeleteFunc(es, func(x core.Entry) bool {
				return x.Reason == core.ReasonDisabled || x.Reason == core.ReasonExpired
			})
		})},
	{name: "gives every denial the reason quota", caughtBy: "machine",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			for i := range es {
				if es[i].Denied {
					es[i].Reason = core.ReasonQuota
				}
			}
			return es
		})},
	{name: "forgets which limit refused", caughtBy: "counter/refusing limit",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			for i := range es {
				es[i].Limit = nil
			}
			return es
		})},
	{name: "records the usage of a limit as it is now", caughtBy: "counter/refusing limit",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			for i := range es {
				if l := es[i].Limit; l != nil && l.Period == core.Minute {
					es[i].Limit.Used = 1
				}
			}
			return es
		})},
	{name: "says that each limit is the plan's", caughtBy: "machine",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			for i := range es {
				if es[i].Limit != nil {
					es[i].Limit.Of = core.OfPlan
				}
			}
			return es
		})},
	{name: "forgets the request ids of denied requests", caughtBy: "machine",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			for i := range es {
				if es[i].Denied {
					es[i].RequestID = ""
				}
			}
			return es
		})},
	{name: "takes a refused request for a repeat", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return repeatsRefused{s} })},
	{name: "does not note when a key was last refused", caughtBy: "machine",
		open: counting(func(_ core.CounterID, c *core.Counter) { c.LastRefused = 0 })},
	{name: "lets refused requests pass", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Refused = "" })},
	{name: "records every denial of a flood", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &recordsAll{Store: s} })},
	{name: "records every denial of a day", caughtBy: "counter/denials of a day",
		open: ignoresDailyBound()},
	{name: "forgets how many denials of the day it has recorded when it is opened again", caughtBy: "counter/denials of a day",
		open: losesDenialCount()},
	{name: "counts the denials of a day again when the clock has stepped back", caughtBy: "counter/denials of a day",
		open: wrapped(func(s core.Store) core.Store { return earlierDay{s} })},
	{name: "does not count omitted denials", caughtBy: "machine",
		open: counting(func(_ core.CounterID, c *core.Counter) { c.DeniedOmitted = 0 })},
	{name: "counts omitted denials on the user", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return omitsForUser{s} })},
	{name: "lists the oldest first", caughtBy: "machine",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			slices.Reverse(es)
			return es
		})},
	{name: "sorts by time", caughtBy: "machine",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			slices.SortStableFunc(es, func(a, b core.Entry) int { return b.At.Compare(a.At) })
			return es
		})},
	{name: "loses one entry of many", caughtBy: "exact/history",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			if len(es) > 100 {
				es = slices.Delete(es, 99, 100)
			}
			return es
		})},
	{name: "swaps concurrent entries", caughtBy: "exact/history",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			if len(es) > 100 {
				es[98], es[99] = es[99], es[98]
			}
			return es
		})},
	{name: "ignores the retention of an entry", caughtBy: "counter/retention",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			old := time.Now().Add(-10 * 24 * time.Hour)
			return slices.DeleteFunc(es, func(x core.Entry) bool { return x.At.Before(old) })
		})},
	{name: "includes the entry at since", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return includesSince{s} })},
	{name: "counts the entries before since", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return countsAll{s} })},
	{name: "takes the history of a user from its keys", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return historyOfKeys{s} })},
	{name: "deletes a key from the history of its user", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return forgetsDeleted{s} })},
	{name: "appends denials of deleted keys", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &appendsLate{Store: s} })},
	{name: "keeps the history of a deleted key", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &keepsDeleted{Store: s, seen: map[core.CounterID][]core.Entry{}} })},
}

// rewriting changes every history, consistently for all pages.
type rewriting struct {
	core.Store
	alter func(core.CounterID, []core.Entry) []core.Entry
}

func remembering(alter func(core.CounterID, []core.Entry) []core.Entry) func() Opened {
	return wrapped(func(s core.Store) core.Store { return rewriting{s, alter} })
}

func (s rewriting) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	es, _, err := s.Store.History(ctx, of, since, core.Page{Number: 1, Size: 1 << 20})
	es = s.alter(of, es)
	return cut(es, p), len(es), err
}

// recordsAll moves each denial to a second of its own.
type recordsAll struct {
	core.Store
	mu sync.Mutex
	n  int
}

func (s *recordsAll) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	look := cost(*c, 0)
	v, err := s.Store.Consume(ctx, &look)
	if err != nil || c.Cost == 0 || v.Usage.Used+c.Cost <= c.Limit {
		return s.Store.Consume(ctx, c)
	}
	s.mu.Lock()
	s.n++
	alone := *c
	alone.Entry.At = c.Entry.At.Add(time.Duration(s.n) * time.Second)
	s.mu.Unlock()
	return s.Store.Consume(ctx, &alone)
}

// ignoresDailyBound opens stores that record denials above the bound of a day.
func ignoresDailyBound() func() Opened {
	return func() Opened {
		denials := new(atomic.Int64)
		return wrapped(func(s core.Store) core.Store { return nextDay{s, denials} })()
	}
}

// nextDay moves denials above the bound of a day to the next day.
type nextDay struct {
	core.Store
	denials *atomic.Int64
}

func (s nextDay) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	moved := *c
	if c.Limit == 0 && s.denials.Add(1) > core.DeniedPerDay {
		moved.Entry.At = c.Entry.At.AddDate(0, 0, 1)
	}
	return s.Store.Consume(ctx, &moved)
}

// losesDenialCount opens stores that reset the number of denials of the day.
func losesDenialCount() func() Opened {
	return func() Opened {
		opened := 0
		return wrapped(func(s core.Store) core.Store {
			opened++
			return daysLater{s, opened}
		})()
	}
}

// daysLater moves every denial a number of days later.
type daysLater struct {
	core.Store
	days int
}

func (s daysLater) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	later := *c
	if c.Limit == 0 {
		later.Entry.At = c.Entry.At.AddDate(0, 0, s.days)
	}
	return s.Store.Consume(ctx, &later)
}

// earlierDay moves requests of days before noon two days later.
type earlierDay struct{ core.Store }

func (s earlierDay) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	later := *c
	if c.Entry.At.Before(midnight) {
		later.Entry.At = c.Entry.At.AddDate(0, 0, 2)
	}
	return s.Store.Consume(ctx, &later)
}

var midnight = core.DateOf(noon).Start()

// omitsForUser counts the omitted denials of the first key on the user.
type omitsForUser struct{ core.Store }

func (s omitsForUser) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	cs, err := s.Store.Counters(ctx, ids)
	for i, id := range ids {
		if id.KeyID != "" || err != nil {
			continue
		}
		keys, _, _ := s.Keys(ctx, id.Account, core.KeyFilter{UserID: id.UserID}, core.Page{Number: 1, Size: 1})
		for _, k := range keys {
			of, _ := s.Store.Counters(ctx, []core.CounterID{keyCounter(k)})
			cs[i].DeniedOmitted = of[0].DeniedOmitted
		}
	}
	return cs, err
}

// repeatsRefused answers a refused request with an earlier id as the repeat of that request.
type repeatsRefused struct{ core.Store }

func (s repeatsRefused) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if c.Refused == "" || c.RequestID == "" {
		return s.Store.Consume(ctx, c)
	}
	look := *c
	look.Refused, look.Limit, look.Cost = "", core.Unlimited, 0
	if v, err := s.Store.Consume(ctx, &look); err != nil || v.FirstTerms != nil {
		return v, err
	}
	return s.Store.Consume(ctx, c)
}

type includesSince struct{ core.Store }

func (s includesSince) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	return s.Store.History(ctx, of, since.Add(-time.Nanosecond), p)
}

type countsAll struct{ core.Store }

func (s countsAll) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	es, _, err := s.Store.History(ctx, of, since, p)
	if err != nil {
		return nil, 0, err
	}
	_, total, err := s.Store.History(ctx, of, time.Time{}, p)
	return es, total, err
}

type historyOfKeys struct{ core.Store }

func (s historyOfKeys) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) (es []core.Entry, n int, err error) {
	if of.KeyID != "" {
		return s.Store.History(ctx, of, since, p)
	}
	everything := core.Page{Number: 1, Size: 1 << 20}
	keys, _, err := s.Keys(ctx, of.Account, core.KeyFilter{UserID: of.UserID}, everything)
	for _, k := range keys {
		some, _, _ := s.Store.History(ctx, keyCounter(k), since, everything)
		es = append(es, some...)
	}
	slices.SortStableFunc(es, func(a, b core.Entry) int { return b.At.Compare(a.At) })
	return cut(es, p), len(es), err
}

type forgetsDeleted struct{ core.Store }

func (s forgetsDeleted) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	es, _, err := s.Store.History(ctx, of, since, core.Page{Number: 1, Size: 1 << 20})
	es = slices.DeleteFunc(es, func(x core.Entry) bool {
		_, err := s.Key(ctx, of.Account, x.KeyID)
		return err != nil
	})
	return cut(es, p), len(es), err
}

// keepsDeleted returns the earlier history of a deleted key.
type keepsDeleted struct {
	core.Store
	mu   sync.Mutex
	seen map[core.CounterID][]core.Entry
}

func (s *keepsDeleted) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	es, _, err := s.Store.History(ctx, of, since, core.Page{Number: 1, Size: 1 << 20})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(es) == 0 {
		es = s.seen[of]
	}
	s.seen[of] = es
	return cut(es, p), len(es), err
}

// appendsLate makes denied requests only at the next read.
type appendsLate struct {
	core.Store
	mu   sync.Mutex
	late []core.Consumption
}

func (s *appendsLate) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	look := cost(*c, 0)
	v, err := s.Store.Consume(ctx, &look)
	if err != nil || c.Cost == 0 || v.Usage.Used+c.Cost <= c.Limit {
		return s.Store.Consume(ctx, c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = append(s.late, *c)
	return v, nil
}

func (s *appendsLate) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.late {
		_, _ = s.Store.Consume(ctx, &c)
	}
	s.late = nil
	return s.Store.History(ctx, of, since, p)
}
