package core

import (
	"time"
)

// Terms are the plan and the limits under which a request is decided.
type Terms struct {
	PlanID   string
	PlanName string
	Period   Period  // of the primary limit, which is of the meter requests
	Limit    int64   // the primary limit; Unlimited for none
	Further  []Limit // the other limits; they are shared, do not change them
	Rate     *Rate   // nil for none; it is shared, do not change it
}

// LimitAt returns the limit at an index: 0 is the primary limit, and the others follow.
func (t *Terms) LimitAt(i int) Limit {
	if i == 0 {
		return Limit{MeterRequests, t.Limit, t.Period}
	}
	return t.Further[i-1]
}

// Consumption is a request for [Store.Consume].
type Consumption struct {
	Account string
	KeyID   string
	KeySeq  int64 // the Seq of the key
	UserID  int64
	Shared  bool        // the counter of the user decides and counts, too
	Terms               // of the plan in force
	Anchors Anchors     // of the user
	Cost    int64       // requests, 0…MaxCost
	Costs   []MeterCost // of the other meters, sorted by name; each is 1…MaxMeterCost
	Entry   Entry       // for the history; its At is the time of the request

	// Later lists the meters that are charged afterwards, sorted: each limit of such a meter must have something left.
	Later []string

	// Retention is how long the entry must be kept. The store may delete it afterwards.
	Retention time.Duration

	// RequestID is the name that the caller gives to the request, at most MaxRequestIDLength bytes,
	// "" for none. Two requests of one key with the same id are the same request.
	RequestID string

	// Refused is the reason to deny the request without a check of limits and rate: ReasonDisabled, ReasonExpired or ReasonRestricted. It is ""
	// for any other request. The store then only records the denial.
	Refused Reason

	// Adjustment, if set, replaces the request: the store changes the deciding counter, and never denies. Without a KeyID, Shared
	// is true: the adjustment changes the counter of the user, and is in the history of the user only.
	Adjustment *Adjustment
}

// Counts reports whether the request costs something.
func (c *Consumption) Counts() bool { return c.Cost > 0 || len(c.Costs) > 0 }

// costOf returns the cost of the request on a meter.
func (c *Consumption) costOf(meter string) int64 {
	if meter == MeterRequests {
		return c.Cost
	}
	for _, m := range c.Costs {
		if m.Meter == meter {
			return m.Cost
		}
	}
	return 0
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
	RetryAfter time.Duration // with ReasonRate: the time until the bucket has a token
	Deciding   int           // the index of the deciding limit: see [Terms.LimitAt]
	Usage      Usage         // of the deciding counter and limit, after the step
	Limits     []LimitUsage  // of each limit, by its index; nil when the plan has only the primary one. Without a primary limit, index 0 is zero.
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
