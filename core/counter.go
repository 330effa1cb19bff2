package core

import (
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

// CounterID names the counter of a key, or the counter of a user if KeyID is "". Without KeyID and UserID it names the deleted users of the account,
// which have only days, see [Store.Days].
type CounterID struct {
	Account string `json:"account_id"`
	KeyID   string `json:"key_id,omitempty"`
	UserID  int64  `json:"user_id,omitempty"`
}

// IsDeletedUsers reports whether id names the deleted users of an account.
func (id CounterID) IsDeletedUsers() bool { return id.KeyID == "" && id.UserID == 0 }

// WindowUsage is the usage of one window.
type WindowUsage struct {
	Start int64 `json:"start"` // the start of the window in Unix seconds
	Used  int64 `json:"used"`
}

// PeriodUsage is the usage of one meter in one window of each period, by [Period].
type PeriodUsage [periods]int64

// Counter holds the usage of one key or one user: a [PeriodUsage] for each meter, so that a plan may change its limits and
// keep the usage. The zero value is an unused counter.
//
// All numbers are of the windows that contain the time At. It only moves to a later time. If the clock steps back, the
// windows of At stay open, and no earlier ones are opened again.
type Counter struct {
	At       int64       `json:"at"` // Unix seconds of the latest count
	Requests PeriodUsage `json:"requests"`
	Today    int64       `json:"today"` // requests on the day of the calendar that contains At

	// Meters is the list of the other meters, sorted by name. A meter is missing until it is counted. A decision reads a meter of
	// this list with one cache miss. A map takes three, one after the other, and a slice takes 16 bytes more of each counter.
	Meters *MeterUsage `json:"meters,omitempty"`

	LastUsedAt    time.Time `json:"last_used_at,omitzero"`
	DeniedOmitted int64     `json:"denied_omitted,omitempty"` // denied requests that are not in the history
	LastRefused   int64     `json:"last_refused,omitempty"`   // Unix second of the last denied request, 0 for none

	// The bounds of recorded denials take 8 bytes: a store has a million counters in memory.
	deniedDay      uint16 // the latest day of a denial, since 1970-01-01; enough until 2149
	deniedInDay    uint16 // recorded on that day, at most DeniedPerDay
	deniedInSecond uint8  // recorded in the second LastRefused, at most DeniedPerSecond
}

// MeterUsage is the usage of one meter, and the next one in the list of a counter.
type MeterUsage struct {
	Meter string      `json:"meter"`
	Usage PeriodUsage `json:"usage"`
	Next  *MeterUsage `json:"next,omitempty"`
}

// Usage is the usage of one counter in one window.
type Usage struct {
	Window Window
	Used   int64
}

// Usage returns the usage of a meter in the window of a period that contains the time at, or in a later window that
// the counter has seen. The user has the anchors.
func (c *Counter) Usage(meter string, p Period, anchors Anchors, at time.Time) Usage {
	if at.Unix() < c.At {
		at = time.Unix(c.At, 0)
	}
	since := anchors.Since(at)
	return Usage{anchors.Window(p, at), c.used(meter, p, &since)}
}

// used returns the usage of a meter in the windows that count usage since the given times.
func (c *Counter) used(meter string, p Period, since *Since) int64 {
	switch {
	case c.At < since[p]:
		return 0
	case meter == MeterRequests:
		return c.Requests[p]
	}
	if t := c.Meter(meter); t != nil {
		return t[p]
	}
	return 0
}

// reading is a counter at the time of a request.
type reading struct {
	*Counter
	at    time.Time // of the request, or of the counter if that is later
	since Since     // the starts of the windows that contain at
}

// readFor returns the counter at the time of a request.
func (c *Counter) readFor(r *Consumption) reading {
	v := reading{Counter: c, at: r.Entry.At} // while since is zero, all usage of the counter counts
	if s := v.at.Unix(); s > c.At {
		v.since = r.Anchors.Since(v.at)
	} else if s < c.At {
		v.at = time.Unix(c.At, 0)
	}
	return v
}

// Decide returns the result of a request, and changes nothing. The counter c decides. The limits of the key alone read the
// counter key. A request is allowed when every limit has room for its cost on the meter of the limit, every concurrency for its
// hold, and every bucket has a token. A limit has room for a cost of 0, unless the meter is charged later. A request that costs nothing at all is allowed
// while every limit has something left, and every bucket a token. A limit with [AllowExceed] has room for everything.
func (c *Counter) Decide(r *Consumption, key *Counter, b *Buckets, open OpenHolds) ConsumeResult {
	if r.Adjustment != nil {
		return ConsumeResult{Allowed: true}
	}
	now := c.readFor(r)
	at, keyAt := now.at, now.at
	var few [4]int64
	used, allowed := few[:0], true
	for i := range r.Limits() {
		if i == 1+len(r.Further) && key != c {
			now = key.readFor(r)
			keyAt = now.at
		}
		l := r.LimitAt(i)
		n := now.used(l.Meter, l.Period, &now.since)
		used, allowed = append(used, n), allowed && l.allows(n, r)
	}
	var reason Reason
	var wait time.Duration
	var of Origin
	switch {
	case r.Refused != "":
		reason = r.Refused
	case !allowed:
		reason = ReasonQuota
	default:
		if of = open.refusal(r); of != "" {
			reason = ReasonConcurrency
			break
		}
		if wait, of = b.Wait(r); wait > 0 {
			reason = ReasonRate
			break
		}
		for i := range used {
			used[i] = AddSaturating(used[i], r.CostOn(r.LimitAt(i).Meter))
		}
	}
	v := r.Result(reason, at, keyAt, used)
	v.RetryAfter, v.RefusedBy = wait, of
	if v.Allowed && r.Hold != nil && r.Counts() {
		v.HoldID = r.Hold.ID
	}
	return v
}

// Result returns the result of a decision, without RetryAfter, RefusedBy and HoldID. The reason is "" for an allowed request. The times at
// and keyAt select the windows of the deciding counter and of the counter of the key. used is the usage under each limit after
// the decision.
//
// If limits have no room, the deciding limit is the exceeded limit that resets last. Otherwise it is the primary limit, or the
// first further limit if there is no primary limit.
func (c *Consumption) Result(reason Reason, at, keyAt time.Time, used []int64) ConsumeResult {
	v := ConsumeResult{Allowed: reason == "", Reason: reason}
	if len(used) == 1 {
		v.Usage = Usage{c.Anchors.Window(c.Period, at), used[0]}
		return v
	}
	first := 0
	v.Limits = make([]LimitUsage, len(used))
	if c.Limit == Unlimited {
		first = 1
	}
	decided, exceeded := false, reason == ReasonQuota
	for i := first; i < len(used); i++ {
		if i > len(c.Further) {
			at = keyAt
		}
		l := c.LimitAt(i)
		u := Usage{c.Anchors.Window(l.Period, at), used[i]}
		decides := !exceeded && i == first || exceeded && !l.allows(u.Used, c)
		if decides && (!decided || v.Usage.Window.endsBefore(u.Window)) {
			decided, v.Deciding, v.Usage = true, i, u
		}
		v.Limits[i] = LimitUsage{l, c.OriginAt(i), u}
	}
	return v
}

// endsBefore reports whether the window ends before another one.
func (w Window) endsBefore(other Window) bool {
	return w.Ends() && (!other.Ends() || w.End.Before(other.End))
}

// Charge is the cost of a request, or another change of a counter.
type Charge struct {
	At    time.Time
	Cost  int64       // requests
	Costs []MeterCost // of the other meters
	Since *Since      // of the windows that contain At; nil for the calendar
}

// Charge returns what the request adds to a counter.
func (c *Consumption) Charge() *Charge {
	ch := &Charge{At: c.Entry.At, Cost: c.Cost, Costs: c.Costs}
	if len(c.Anchors) > 0 {
		ch.Since = new(c.Anchors.Since(ch.At))
	}
	return ch
}

// Add adds a charge to every period without a limit.
func (c *Counter) Add(ch *Charge) {
	c.open(ch)
	c.Requests.add(ch.Cost)
	c.Today = AddSaturating(c.Today, ch.Cost)
	for _, m := range ch.Costs {
		c.meter(m.Meter).add(m.Cost)
	}
	if ch.At.After(c.LastUsedAt) {
		c.LastUsedAt = ch.At
	}
}

// open opens the windows that contain the time of a charge, if it is later than At: the usage of windows that have ended
// since At becomes 0.
func (c *Counter) open(ch *Charge) {
	at := ch.At.Unix()
	if at <= c.At {
		return
	}
	since := ch.since()
	for p, start := range since {
		if c.At < start {
			c.Requests[p] = 0
			for m := c.Meters; m != nil; m = m.Next {
				m.Usage[p] = 0
			}
		}
	}
	if c.At < at-floorMod(at, secondsOfDay) {
		c.Today = 0
	}
	c.At = at
}

// Meter returns the usage of a meter other than requests, nil if the counter has never counted it. The counter keeps the result.
func (c *Counter) Meter(name string) *PeriodUsage {
	for m := c.Meters; m != nil; m = m.Next {
		if m.Meter == name {
			return &m.Usage
		}
	}
	return nil
}

// SetMeter sets the usage of a meter other than requests.
func (c *Counter) SetMeter(name string, t PeriodUsage) { *c.meter(name) = t }

// meter returns the usage of a meter other than requests, and creates it if it is missing.
func (c *Counter) meter(name string) *PeriodUsage {
	at := &c.Meters
	for *at != nil && (*at).Meter < name {
		at = &(*at).Next
	}
	if *at == nil || (*at).Meter != name {
		*at = &MeterUsage{Meter: Intern(name), Next: *at} // comparisons of interned names read no text
	}
	return &(*at).Usage
}

// add adds a cost to every period.
func (t *PeriodUsage) add(cost int64) {
	for p := range t {
		t[p] = AddSaturating(t[p], cost)
	}
}

// Clone returns a deep copy.
func (c *Counter) Clone() Counter {
	clone := *c
	end := &clone.Meters
	for m := c.Meters; m != nil; m = m.Next {
		*end = &MeterUsage{Meter: m.Meter, Usage: m.Usage}
		end = &(*end).Next
	}
	return clone
}

// Set takes the exported members of another counter, and keeps its own bounds of recorded denials. The count of a second restarts at 0 if
// LastRefused changes.
func (c *Counter) Set(to *Counter) {
	was := *c
	*c = to.Clone()
	c.deniedDay, c.deniedInDay, c.deniedInSecond = was.deniedDay, was.deniedInDay, 0
	if c.LastRefused == was.LastRefused {
		c.deniedInSecond = was.deniedInSecond
	}
}

// Saved returns a deep copy without the denials of the current second, which no store keeps.
func (c *Counter) Saved() (saved Counter) {
	saved.Set(c)
	saved.AddDenied(c.DeniedOn())
	return saved
}

// Same reports whether two counters have the same usage, LastUsedAt, DeniedOmitted and LastRefused.
func (c *Counter) Same(other *Counter) bool {
	m, o := c.Meters, other.Meters
	for m != nil && o != nil && m.Meter == o.Meter && m.Usage == o.Usage {
		m, o = m.Next, o.Next
	}
	return m == nil && o == nil && c.At == other.At && c.Requests == other.Requests && c.Today == other.Today &&
		c.LastUsedAt.Equal(other.LastUsedAt) && c.DeniedOmitted == other.DeniedOmitted && c.LastRefused == other.LastRefused
}

// Day returns the requests on the latest day of the counter, the zero value for none.
func (c *Counter) Day() WindowUsage {
	if c.Today == 0 {
		return WindowUsage{}
	}
	return WindowUsage{Start: c.At - floorMod(c.At, secondsOfDay), Used: c.Today}
}

// Date returns the day of a day window.
func (t WindowUsage) Date() Date { return DateOf(time.Unix(t.Start, 0)) }
