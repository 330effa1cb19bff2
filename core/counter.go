package core

import (
	"math"
	"time"
)

// MaxCost is the largest cost of one request.
const MaxCost = 1_000_000

// The bounds of denied requests in the history of one key. [Counter.DeniedOmitted] counts the
// others.
const (
	DeniedPerSecond = 10     // per second of the request's time
	DeniedPerDay    = 10_000 // per UTC day
)

// CounterID names the counter of a key, or the counter of a user if KeyID is "".
type CounterID struct {
	Account string
	KeyID   string
	UserID  int64
}

// WindowUsage is the usage of one window.
type WindowUsage struct {
	Start int64 `json:"start"` // the start of the window in Unix seconds
	Used  int64 `json:"used"`
}

// Counter holds the usage of one key or one user: one window for each period, so that a plan may
// change its period and keep the usage. The zero value is an unused counter.
//
// A window is left only for a later one. If the clock steps back over a boundary, the later window
// stays in force and no earlier one is opened again.
type Counter struct {
	Windows       [periods]WindowUsage `json:"tallies"` // by [Period]
	LastUsedAt    time.Time            `json:"last_used_at,omitzero"`
	DeniedOmitted int64                `json:"denied_omitted,omitempty"` // denied requests that are not in the history

	// The bounds of recorded denials take 8 bytes: a store has a million counters in memory.
	deniedSecond   uint16 // Unix second of the last denial, modulo 65536. Values repeat every 18.2 h.
	deniedDay      uint16 // the latest day of a denial, since 1970-01-01; enough until 2149
	deniedInDay    uint16 // recorded on that day, at most DeniedPerDay
	deniedInSecond uint8  // recorded in that second, at most DeniedPerSecond
}

// Usage is the usage of one counter in one window.
type Usage struct {
	Window Window
	Used   int64
}

// Usage returns the usage of the period at the time at: in the window that contains at, or in a
// later window that the counter has seen.
func (c *Counter) Usage(p Period, at time.Time) Usage {
	w, t := p.Window(at), c.Windows[p]
	switch start := w.Start.Unix(); {
	case t.Start == start:
		return Usage{w, t.Used}
	case t.Start > start:
		return Usage{p.Window(time.Unix(t.Start, 0)), t.Used}
	}
	return Usage{w, 0}
}

// Consume adds cost to every period unless the usage of period p would then exceed limit. It
// returns the usage of p afterwards and whether the request is allowed. A cost of 0 checks the
// quota and changes nothing; it is allowed while the usage is below the limit.
func (c *Counter) Consume(p Period, limit, cost int64, at time.Time) (Usage, bool) {
	u, allowed := c.Decide(p, limit, cost, at)
	if allowed && cost > 0 {
		c.Add(cost, at)
	}
	return u, allowed
}

// Decide returns what [Counter.Consume] would return, and changes nothing.
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
	for p := range c.Windows {
		c.Windows[p].add(windows[p].Start.Unix(), cost)
	}
	if at.After(c.LastUsedAt) {
		c.LastUsedAt = at
	}
}

// Deny counts a denied request and reports whether the history records it: at most
// [DeniedPerSecond] in one second of the clock, and [DeniedPerDay] on one day. If the clock steps
// back, the later day stays in force. A store persists the values of [Counter.DeniedOn] with the
// counter.
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

// Date returns the day of a day window.
func (t WindowUsage) Date() Date { return DateOf(time.Unix(t.Start, 0)) }

// AddDay adds cost to a day window: to the day that contains at, or to the later day that the
// window is of.
func (t *WindowUsage) AddDay(cost int64, at time.Time) {
	t.add(calendarOf(at).start, cost)
}

// add adds cost to the window that begins at start, or to the later window that t is of.
func (t *WindowUsage) add(start, cost int64) {
	if start > t.Start {
		*t = WindowUsage{Start: start}
	}
	t.Used += min(cost, math.MaxInt64-t.Used)
}

// Terms are the plan, the period and the limit under which a request is decided.
type Terms struct {
	PlanID   string
	PlanName string
	Period   Period
	Limit    int64
}

// Consumption is a request for [Store.Consume].
type Consumption struct {
	Account string
	KeyID   string
	KeySeq  int64 // the Seq of the key
	UserID  int64
	Shared  bool  // the counter of the user decides and counts, too
	Terms         // of the plan in force
	Cost    int64 // 0…MaxCost
	Entry   Entry // for the history; its At is the time of the request

	// Retention is how long the entry must be kept. The store may delete it afterwards.
	Retention time.Duration

	// RequestID is the name that the caller gives to the request, at most MaxRequestIDLength bytes,
	// "" for none. Two requests of one key with the same id are the same request.
	RequestID string
}

// DecidingCounter returns the id of the deciding counter.
func (c *Consumption) DecidingCounter() CounterID {
	if c.Shared {
		return CounterID{Account: c.Account, UserID: c.UserID}
	}
	return CounterID{Account: c.Account, KeyID: c.KeyID}
}

// Repeats reports whether the request repeats a request with the same key and id that was counted
// at the time first.
func (c *Consumption) Repeats(first time.Time) bool {
	return c.Entry.At.Before(first.Add(RequestIDRetention))
}

// ConsumeResult is the result of [Store.Consume].
type ConsumeResult struct {
	Usage      Usage // of the deciding counter after the step
	Allowed    bool
	FirstTerms *Terms // of the first answer, if the request repeats an earlier one; else nil
}
