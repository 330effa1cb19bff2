package core

import (
	"math"
	"sync/atomic"
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

// WindowUsage is the usage of one window.
type WindowUsage struct {
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
	Windows       [periods]WindowUsage `json:"tallies"` // by [Period]
	LastUsedAt    time.Time            `json:"last_used_at,omitzero"`
	DeniedOmitted int64                `json:"denied_omitted,omitempty"` // denied requests that are not in the history

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
	w, t := p.Window(at), c.Windows[p]
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
	for p := range c.Windows {
		c.Windows[p].add(windows[p].Start.Unix(), cost)
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

// Date returns the day of a tally of a day.
func (t WindowUsage) Date() Date { return DateOf(time.Unix(t.Start, 0)) }

// AddDay adds cost to a tally of a day: to that of at, or of a later day that it has
// seen.
func (t *WindowUsage) AddDay(cost int64, at time.Time) {
	t.add(calendarOf(at).start, cost)
}

// add adds cost to the window that begins at start, or to a later one.
func (t *WindowUsage) add(start, cost int64) {
	if start > t.Start {
		*t = WindowUsage{Start: start}
	}
	t.Used += min(cost, math.MaxInt64-t.Used)
}

// Terms are what a request is decided under: those of the plan in force.
type Terms struct {
	PlanID   string
	PlanName string
	Period   Period
	Limit    int64
}

// Consumption is one request to be counted if it fits.
type Consumption struct {
	Account string
	KeyID   string // whose counter counts
	KeySeq  int64  // the Seq of that key
	UserID  int64
	Shared  bool  // the user's counter decides, and counts too
	Terms         // of the plan in force
	Cost    int64 // 0…MaxCost
	Entry   Entry // for the history; its At is the time of the request

	// Retention is how long the entry must be kept; it may be deleted afterwards.
	Retention time.Duration

	// KeyHandle and UserHandle are kept by the caller with the key, or nil.
	KeyHandle, UserHandle *Handle

	// RequestID is what the caller calls the request, at most MaxRequestIDLength bytes,
	// or "" for none. The same id of the same key is the same request.
	RequestID string
}

// Counter returns the id of the counter that decides.
func (c *Consumption) Counter() CounterID {
	if c.Shared {
		return CounterID{Account: c.Account, UserID: c.UserID}
	}
	return CounterID{Account: c.Account, KeyID: c.KeyID}
}

// Repeats reports whether the request is still the same as one with its id that was
// counted at the time first.
func (c *Consumption) Repeats(first time.Time) bool {
	return c.Entry.At.Before(first.Add(RequestIDRetention))
}

// ConsumeResult is what [Store.Consume] answers.
type ConsumeResult struct {
	Usage      Usage // of the deciding counter after the step
	Allowed    bool
	FirstTerms *Terms // set when the request id was answered before: the terms of the first answer
}

// Handle is room in which a store may note how it finds the counter of a key or user
// again, for whoever asks for the same one of the same store again and again. The zero
// value has nothing in it. It must not be copied.
type Handle struct{ atomic.Value }
