package core

import (
	"context"
	"math"
	"time"
)

// MaxCost is the largest cost of one request.
const MaxCost = 1_000_000

// How many denied requests of one key are recorded in the history; the rest is counted in
// [Counter.DeniedOmitted].
const (
	DeniedPerSecond = 10     // per second of the request's time
	DeniedPerDay    = 10_000 // per UTC day
)

// CounterID names a counter: that of a key, or that of a user when KeyID is "".
type CounterID struct {
	Account string
	KeyID   string
	UserID  int64
}

// Tally is the usage of one window.
type Tally struct {
	Start int64 `json:"start"` // the start of the window in Unix seconds
	Used  int64 `json:"used"`
}

// Counter is what was used by one key or one user. It holds the windows of every
// period side by side, so that a plan may change its period and keep the usage.
// The zero value is a counter that nothing has used.
//
// A window is left only for a later one: when the clock steps back over a
// boundary, the later window stays in force and no earlier one is opened again.
type Counter struct {
	Tallies       [periods]Tally `json:"tallies"` // by [Period]
	LastUsedAt    time.Time      `json:"last_used_at,omitzero"`
	DeniedOmitted int64          `json:"denied_omitted,omitempty"` // denied requests that are not in the history

	// The bounds of recorded denials take 8 bytes: a store has a million counters in memory.
	deniedSecond   uint16 // Unix second of the last denial, modulo 65536. Values repeat every 18.2 h.
	deniedDay      uint16 // the latest day of a denial, since 1970-01-01; enough until 2149
	deniedInDay    uint16 // recorded on that day, at most DeniedPerDay
	deniedInSecond uint8  // recorded in that second, at most DeniedPerSecond
}

// Usage is what a counter says of one period.
type Usage struct {
	Window Window
	Used   int64
}

// Usage returns the usage of the period at the time at: that of the window of at,
// or of a later one that the counter has seen.
func (c *Counter) Usage(p Period, at time.Time) Usage {
	w, t := p.Window(at), c.Tallies[p]
	switch start := w.Start.Unix(); {
	case t.Start == start:
		return Usage{w, t.Used}
	case t.Start > start:
		return Usage{p.Window(time.Unix(t.Start, 0)), t.Used}
	}
	return Usage{w, 0}
}

// Consume adds cost to every period unless that would take the usage of period p
// over limit. It returns the usage of p afterwards and whether the request is
// allowed. A cost of 0 looks: it changes nothing and is allowed below the limit.
func (c *Counter) Consume(p Period, limit, cost int64, at time.Time) (Usage, bool) {
	u, allowed := c.Decide(p, limit, cost, at)
	if allowed && cost > 0 {
		c.Add(cost, at)
	}
	return u, allowed
}

// Decide returns what Consume would, and changes nothing.
func (c *Counter) Decide(p Period, limit, cost int64, at time.Time) (Usage, bool) {
	u := c.Usage(p, at)
	if cost == 0 {
		return u, u.Used < limit
	}
	if u.Used >= limit || cost > limit-u.Used {
		return u, false
	}
	u.Used += cost
	return u, true
}

// Add adds cost to every period without a limit.
func (c *Counter) Add(cost int64, at time.Time) {
	windows := &calendarOf(at).windows
	for p := range c.Tallies {
		c.Tallies[p].add(windows[p].Start.Unix(), cost)
	}
	if at.After(c.LastUsedAt) {
		c.LastUsedAt = at
	}
}

// Deny counts a denied request and reports whether it is to be recorded in the history:
// at most [DeniedPerSecond] are in one second of the clock, and [DeniedPerDay] on one day.
// When the clock steps back, the later day stays in force. A store persists the values of
// [Counter.DeniedOn] with the counter.
func (c *Counter) Deny(at time.Time) bool {
	if s := uint16(at.Unix()); s != c.deniedSecond {
		c.deniedSecond, c.deniedInSecond = s, 0
	}
	c.openDeniedDay(DateOf(at))
	if c.deniedInSecond >= DeniedPerSecond || c.deniedInDay >= DeniedPerDay {
		c.DeniedOmitted++
		return false
	}
	c.deniedInSecond++
	c.deniedInDay++
	return true
}

// openDeniedDay starts the count of recorded denials at 0 for a later day. An earlier day
// changes nothing.
func (c *Counter) openDeniedDay(d Date) {
	if n := uint16(min(max(0, d), math.MaxUint16)); n > c.deniedDay {
		c.deniedDay, c.deniedInDay = n, 0
	}
}

// DeniedOn returns the latest day of a denial and how many were recorded on it.
func (c *Counter) DeniedOn() (day Date, recorded int) {
	return Date(c.deniedDay), int(c.deniedInDay)
}

// AddDenied adds denials that were recorded on a day, or on the later day of
// [Counter.DeniedOn]. A store restores a counter with AddDenied.
func (c *Counter) AddDenied(day Date, recorded int) {
	c.openDeniedDay(day)
	c.deniedInDay = uint16(min(int(c.deniedInDay)+max(0, recorded), DeniedPerDay))
}

// KeyUsage is the usage that a key is measured by, under its plan.
type KeyUsage struct {
	Usage
	Plan          *Plan
	LastUsedAt    time.Time // of this key; zero when it was never used
	DeniedOmitted int64     // denied requests of this key that are not in the history
}

// Remaining returns how much is left of the limit, never less than 0.
func (u *KeyUsage) Remaining() int64 { return Remaining(u.Used, u.Plan.Limit) }

// Remaining returns how much of limit is left, never less than 0.
func Remaining(used, limit int64) int64 { return max(0, limit-used) }

// Percentage returns used of limit in percent with two decimals, 0 when there is
// no limit.
func Percentage(used, limit int64) float64 {
	if limit == 0 {
		return 0
	}
	return math.Round(float64(used)/float64(limit)*10000) / 100
}

// KeyUsage returns the usage of a key: that of its own counter under its plan, or
// that of its user's counter when it draws on the user's plan.
func (s *Service) KeyUsage(ctx context.Context, account, id string) (*KeyUsage, error) {
	k, err := s.store.Key(ctx, account, id)
	if err != nil {
		return nil, err
	}
	pl, shared, err := s.planOf(ctx, k)
	if err != nil {
		return nil, err
	}
	cs, err := s.store.Counters(ctx, []CounterID{
		{Account: account, KeyID: id}, {Account: account, UserID: k.UserID}})
	if err != nil {
		return nil, err
	}
	own, counter := cs[0], cs[0]
	if shared {
		counter = cs[1]
	}
	return &KeyUsage{Usage: counter.Usage(pl.Period, s.now()), Plan: pl,
		LastUsedAt: own.LastUsedAt, DeniedOmitted: own.DeniedOmitted}, nil
}

// planOf returns the plan that a key draws on, and whether it is its user's.
func (s *Service) planOf(ctx context.Context, k *Key) (pl *Plan, shared bool, err error) {
	plan := k.PlanID
	if plan == "" {
		u, err := s.store.User(ctx, k.AccountID, k.UserID)
		if err != nil {
			return nil, false, err
		}
		plan, shared = u.PlanID, true
	}
	pl, err = s.store.Plan(ctx, k.AccountID, plan)
	return pl, shared, err
}

// LastUsed returns when each of the keys was last used, the zero time when never.
func (s *Service) LastUsed(ctx context.Context, account string, keys []*Key) ([]time.Time, error) {
	ids := make([]CounterID, len(keys))
	for i, k := range keys {
		ids[i] = CounterID{Account: account, KeyID: k.ID}
	}
	cs, err := s.store.Counters(ctx, ids)
	if err != nil {
		return nil, err
	}
	times := make([]time.Time, len(cs))
	for i := range cs {
		times[i] = cs[i].LastUsedAt
	}
	return times, nil
}

// addLimit adds two limits and stays at the largest number rather than overflow.
func addLimit(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// batch is how many resources are read at a time where all are needed.
const batch = 1000

// eachKey calls fn with all keys that match, a batch at a time.
func (s *Service) eachKey(ctx context.Context, account string, f KeyFilter, fn func([]*Key) error) error {
	return eachPage(ctx, func(p Page) ([]*Key, int, error) { return s.store.Keys(ctx, account, f, p) }, fn)
}

func eachPage[T any](ctx context.Context, list func(Page) ([]T, int, error), fn func([]T) error) error {
	for p := (Page{1, batch}); ; p.Number++ {
		if err := ctx.Err(); err != nil { // nobody waits for it any more
			return err
		}
		items, _, err := list(p)
		if err != nil {
			return err
		}
		if err := fn(items); err != nil {
			return err
		}
		if len(items) < batch {
			return nil
		}
	}
}
