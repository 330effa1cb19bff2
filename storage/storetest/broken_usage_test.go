package storetest

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenUsage = []defect{
	{name: "allows one request too many", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Limit++ })},
	{name: "allows one request too few", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Limit-- })},
	{name: "reads, decides and then writes", caughtBy: "exact/one key",
		open: wrapped(func(s core.Store) core.Store { return readsThenWrites{s} })},
	{name: "reads, decides and then writes for a user", caughtBy: "exact/shared",
		open: wrapped(func(s core.Store) core.Store { return readsThenWrites{s} })},
	{name: "grants a part of the cost", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return grantsPart{s} })},
	{name: "counts a request of cost 0", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Cost = max(c.Cost, 1) })},
	{name: "keeps the first limit that it saw", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &keepsLimit{Store: s, limits: map[core.CounterID]int64{}} })},
	{name: "returns the usage before the step", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return returnsBefore{s} })},
	{name: "forgets one period", caughtBy: "machine",
		open: counting(func(_ core.CounterID, c *core.Counter) { c.Requests[core.Week] = 0 })},
	{name: "uses a window of a week for a day", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if c.Period == core.Week {
				c.Period = core.Day
			}
		})},
	{name: "counts in local time", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Entry.At = c.Entry.At.Add(-5 * time.Hour) })},
	{name: "opens an earlier window again", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &opensEarlier{Store: s, latest: map[string]time.Time{}} })},
	{name: "counts requests of a missing key", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return countsNothing{s} })},
	{name: "gives each key the user's whole quota", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Shared = false })},
	{name: "lets the user's counter decide always", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Shared = true })},
	{name: "forgets when a key was used", caughtBy: "machine",
		open: counting(func(_ core.CounterID, c *core.Counter) { c.LastUsedAt = time.Time{} })},
	{name: "counts without history after the caller is canceled", caughtBy: "exact/caller canceled",
		open: wrapped(func(s core.Store) core.Store { return callerGone{s} })},
	{name: "returns outdated counters", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &showsOld{Store: s, old: map[core.CounterID]core.Counter{}} })},
	{name: "returns counters sorted", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return sortsCounters{s} })},
	{name: "forgets the counters that were not used lately", caughtBy: "counter/many",
		open: wrapped(func(s core.Store) core.Store { return &forgetsUnused{Store: s, number: map[string]int{}} })},
}

// altering changes every request before it is counted.
type altering struct {
	core.Store
	alter func(*core.Consumption)
}

func altered(alter func(*core.Consumption)) func() Opened {
	return wrapped(func(s core.Store) core.Store { return altering{s, alter} })
}

func (s altering) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	changed := *c
	s.alter(&changed)
	return s.Store.Consume(ctx, &changed)
}

// recounting changes every result of Counters.
type recounting struct {
	core.Store
	alter func(core.CounterID, *core.Counter)
}

func counting(alter func(core.CounterID, *core.Counter)) func() Opened {
	return wrapped(func(s core.Store) core.Store { return recounting{s, alter} })
}

func (s recounting) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	cs, err := s.Store.Counters(ctx, ids)
	for i := range cs {
		s.alter(ids[i], &cs[i])
	}
	return cs, err
}

type readsThenWrites struct{ core.Store }

func (s readsThenWrites) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	look := cost(*c, 0)
	v, err := s.Store.Consume(ctx, &look)
	if err != nil || !v.Allowed || v.Usage.Used+c.Cost > c.Limit {
		return core.ConsumeResult{Usage: v.Usage}, err
	}
	runtime.Gosched() // other goroutines may run the same steps here
	unlimited := *c
	unlimited.Limit = core.MaxLimit
	return s.Store.Consume(ctx, &unlimited)
}

type countsNothing struct{ core.Store }

func (s countsNothing) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if errors.Is(err, core.ErrKeyNotFound) || errors.Is(err, core.ErrUserNotFound) {
		return core.ConsumeResult{Usage: core.Usage{Window: c.Period.Window(c.Entry.At), Used: c.Cost}, Allowed: true}, nil
	}
	return v, err
}

type grantsPart struct{ core.Store }

func (s grantsPart) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if left := c.Limit - v.Usage.Used; err == nil && !v.Allowed && left > 0 {
		part := cost(*c, left)
		return s.Store.Consume(ctx, &part)
	}
	return v, err
}

type keepsLimit struct {
	core.Store
	mu     sync.Mutex
	limits map[core.CounterID]int64
}

func (s *keepsLimit) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	s.mu.Lock()
	limit, ok := s.limits[c.DecidingCounter()]
	if !ok {
		limit = c.Limit
		s.limits[c.DecidingCounter()] = limit
	}
	s.mu.Unlock()
	old := *c
	old.Limit = limit
	return s.Store.Consume(ctx, &old)
}

type returnsBefore struct{ core.Store }

func (s returnsBefore) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if v.Allowed {
		v.Usage.Used -= c.Cost
	}
	return v, err
}

// opensEarlier counts requests after a step back over a boundary on a separate counter.
type opensEarlier struct {
	core.Store
	mu     sync.Mutex
	latest map[string]time.Time
}

func (s *opensEarlier) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	s.mu.Lock()
	if c.Entry.At.After(s.latest[c.KeyID]) {
		s.latest[c.KeyID] = c.Entry.At
	}
	back := !c.Period.Window(c.Entry.At).Contains(s.latest[c.KeyID])
	s.mu.Unlock()
	if !back {
		return s.Store.Consume(ctx, c)
	}
	earlier := *c
	earlier.KeyID += " earlier"
	return s.Store.Consume(ctx, &earlier)
}

// callerGone writes the counter, and the history only if ctx is not canceled.
type callerGone struct{ core.Store }

func (s callerGone) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if err == nil && ctx.Err() != nil {
		return core.ConsumeResult{}, ctx.Err()
	}
	return v, err
}

type showsOld struct {
	core.Store
	mu  sync.Mutex
	old map[core.CounterID]core.Counter
}

func (s *showsOld) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	cs, err := s.Store.Counters(ctx, ids)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, id := range ids[:len(cs)] {
		if old, ok := s.old[id]; ok {
			cs[i], s.old[id] = old, cs[i]
		} else {
			s.old[id] = cs[i]
		}
	}
	return cs, err
}

type sortsCounters struct{ core.Store }

func (s sortsCounters) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	sorted := slices.Clone(ids)
	slices.SortFunc(sorted, func(a, b core.CounterID) int {
		return cmp.Or(cmp.Compare(a.KeyID, b.KeyID), cmp.Compare(a.UserID, b.UserID))
	})
	return s.Store.Counters(ctx, sorted)
}

// forgetsUnused has a bounded number of counters. An evicted counter is lost: the next request
// starts a new one.
type forgetsUnused struct {
	core.Store
	mu     sync.Mutex
	number map[string]int // of the counter that replaces the counter of a key
	order  []string
}

func (s *forgetsUnused) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	const room = 2000
	s.mu.Lock()
	if !slices.Contains(s.order, c.KeyID) {
		s.order = append(s.order, c.KeyID)
	}
	if len(s.order) > room {
		s.number[s.order[0]]++
		s.order = s.order[1:]
	}
	other := *c
	for range s.number[c.KeyID] {
		other.KeyID += "'"
	}
	s.mu.Unlock()
	return s.Store.Consume(ctx, &other)
}

var brokenPlanUsed = []defect{
	{name: "leaves out the counters of users", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return onlyKeys{s, core.ReadSize} })},
	{name: "uses the year for every period", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return alwaysOfYear{s} })},
	{name: "includes only the first thousand counters", caughtBy: "counter/many",
		open: wrapped(func(s core.Store) core.Store { return onlyKeys{s, 1000} })},
}

// alwaysOfYear reads the usage of the year for every period.
type alwaysOfYear struct{ core.Store }

func (s alwaysOfYear) PlanUsed(ctx context.Context, account, plan string, _ core.Period, at time.Time) (int64, error) {
	return s.Store.PlanUsed(ctx, account, plan, core.Year, at)
}

// onlyKeys adds up only the counters of the first keys with the plan.
type onlyKeys struct {
	core.Store
	most int
}

func (s onlyKeys) PlanUsed(ctx context.Context, account, plan string, p core.Period, at time.Time) (used int64, err error) {
	keys, _, err := s.Keys(ctx, account, core.KeyFilter{PlanID: &plan}, core.Page{Number: 1, Size: s.most})
	for _, k := range keys {
		cs, err := s.Counters(ctx, []core.CounterID{keyCounter(k)})
		if err != nil {
			return 0, err
		}
		used += cs[0].Usage(core.MeterRequests, p, nil, at).Used
	}
	return used, err
}
