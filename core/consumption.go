package core

import (
	"slices"
	"time"
)

// Terms are the plan and the limits under which a request is decided.
type Terms struct {
	PlanID      string
	PlanName    string
	Period      Period    // of the primary limit, which is of the meter requests
	OnExceed    OnExceed  // of the primary limit
	Limit       int64     // the primary limit; Unlimited for none
	Further     []Limit   // the other limits of the plan and the user; they are shared, do not change them
	Rate        *Rate     // nil for none; it is shared, do not change it
	Concurrency int64     // the most open holds of the deciding counter; 0 for no bound
	OfUser      uint64    // bit i is set if the limit with the index i is an override of the user
	Own         OwnLimits // of the key alone, on its own counter; they are shared, do not change them
}

// WithoutRates returns a copy without rates and concurrencies. Stores keep this copy with the first answer to a request id.
func (t *Terms) WithoutRates() *Terms {
	c := *t
	c.Rate, c.Own.Rate = nil, nil
	c.Concurrency, c.Own.Concurrency = 0, 0
	return &c
}

// Origin is the owner of a limit: the plan, the user or the key.
type Origin string

// The origins of limits.
const (
	OfPlan Origin = "plan"
	OfUser Origin = "user" // an override
	OfKey  Origin = "key"
)

// Limits returns the number of limits, with the missing primary limit of a plan.
func (t *Terms) Limits() int { return 1 + len(t.Further) + len(t.Own.Limits) }

// LimitAt returns the limit at an index below Limits: 0 is the primary limit. The other limits of the plan and the user
// follow, and then the limits of the key.
func (t *Terms) LimitAt(i int) Limit {
	switch {
	case i == 0:
		return Limit{MeterRequests, t.Limit, t.Period, t.OnExceed}
	case i <= len(t.Further):
		return t.Further[i-1]
	}
	return t.Own.Limits[i-1-len(t.Further)]
}

// OriginAt returns the owner of the limit at an index.
func (t *Terms) OriginAt(i int) Origin {
	switch {
	case i > len(t.Further):
		return OfKey
	case t.OfUser>>i&1 == 1:
		return OfUser
	}
	return OfPlan
}

// Usages returns the usage under each limit, the primary one first. The limits of the key read the counter key, all others
// the deciding counter. Without any limit, Usages returns the requests in the period, under a limit that is [Limit.Unlimited].
func (t *Terms) Usages(deciding, key *Counter, anchors Anchors, at time.Time) (list []LimitUsage) {
	for i := range t.Limits() {
		l, c := t.LimitAt(i), deciding
		if t.OriginAt(i) == OfKey {
			c = key
		}
		if !l.Unlimited() || t.Limits() == 1 {
			list = append(list, LimitUsage{l, t.OriginAt(i), c.Usage(l.Meter, l.Period, anchors, at)})
		}
	}
	return list
}

// Consumption is a request for [Store.Consume].
type Consumption struct {
	Account string
	KeyID   string // "" for a request without a key; then Shared is true
	KeySeq  int64  // the Seq of the key
	UserID  int64
	Shared  bool        // the counter of the user decides and counts, too
	Terms               // of the plan in force
	Anchors Anchors     // of the user
	Cost    int64       // requests, 0…MaxCost
	Costs   []MeterCost // of the other meters, sorted by name; each is 1…MaxPricedCost
	Free    bool        // the request counts although it costs nothing: by its price, or because the cost is not known yet
	Later   []string    // meters that are charged afterwards: each limit of such a meter must have something left
	Entry   Entry       // for the history; its At is the time of the request

	// Retention is how long the entry must be kept. The store may delete it afterwards.
	Retention time.Duration

	// RequestID is the name that the caller gives to the request, at most MaxRequestIDLength bytes,
	// "" for none. Two requests of one key with the same id are the same request, unless Refused is set. The entry in the history has the id, see
	// [ShownRequestID].
	RequestID string

	// Refused is the reason to deny the request without a check of limits and rate: ReasonDisabled, ReasonExpired or ReasonRestricted. It is ""
	// for any other request. The store then only records the denial.
	Refused Reason

	// Adjustment, if set, replaces the request: the store changes the deciding counter, and never denies.
	Adjustment *Adjustment

	// OwnOnly means that the Adjustment changes only the own limits of a key whose requests the counter of its user decides. Shared is then false, and
	// the usage of the user does not change.
	OwnOnly bool

	// Hold, if set, opens a hold on the costs of the request, if it is allowed.
	Hold *NewHold

	// Settlement, if set, replaces the request: it ends a hold, with the costs as the final ones. Only [Store.Settle] takes it.
	Settlement *Settlement

	requested time.Time // see [Consumption.RequestedAt]; zero if the entry has that time
}

// Counts reports whether the request is counted. Any other request is a look: it costs nothing, and checks every limit.
func (c *Consumption) Counts() bool { return c.Cost > 0 || len(c.Costs) > 0 || c.Free }

// CostOn returns the cost of the request on a meter.
func (c *Consumption) CostOn(meter string) int64 {
	if meter == MeterRequests {
		return c.Cost
	}
	return costIn(c.Costs, meter)
}

// needs reports whether a limit must have something left although the request costs 0 of its meter: the meter is charged
// later, or the request costs nothing at all.
func (c *Consumption) needs(meter string) bool {
	return !c.Counts() || slices.Contains(c.Later, meter)
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
	Allowed    bool
	Reason     Reason        // why the request is denied, "" if it is allowed
	RetryAfter time.Duration // with ReasonRate: the time until each bucket has a token
	RefusedBy  Origin        // with ReasonRate and ReasonConcurrency: the owner of the rate or concurrency, OfPlan or OfKey
	HoldID     string        // of the hold that the request, or the request that it repeats, has opened; "" without one
	Deciding   int           // the index of the deciding limit: see [Terms.LimitAt]
	Usage      Usage         // of the deciding limit, after the step
	Limits     []LimitUsage  // by the index of the limit; nil if there is only the primary one. Without a primary limit, index 0 is zero.
	FirstTerms *Terms        // of the first answer, if the request repeats an earlier one; else nil
}

// The bounds of a request id.
const (
	MaxRequestIDLength = 128            // bytes
	RequestIDRetention = 24 * time.Hour // time for which it is remembered
)

// CheckCost returns an error if a cost is out of bounds.
func CheckCost(cost int64) error {
	if cost < 0 || cost > MaxCost {
		return BadRequest("cost", "Cost must be a whole number from 0 to 1000000")
	}
	return nil
}
