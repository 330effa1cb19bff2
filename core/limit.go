package core

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// MeterRequests is the name of the meter that every account has: it counts requests.
const MeterRequests = "requests"

// MaxMeterCost is the largest cost of one request on a meter.
const MaxMeterCost = 1_000_000_000

// MaxPricedCost is the largest cost of one request on a meter that a formula of a price results in: a thousandfold of MaxMeterCost, because a unit
// of money is often a small part of a cent.
const MaxPricedCost = 1_000_000_000_000

// Unlimited is the [Terms.Limit] of a plan without a primary limit.
const Unlimited = math.MaxInt64

// OnExceed says what happens to a request that a limit has no room for.
type OnExceed bool

// The ways to treat a request that a limit has no room for.
const (
	DenyExceed  OnExceed = false
	AllowExceed OnExceed = true // the request passes and counts: see [LimitUsage.Overage]
)

var exceedWords = []string{"deny", "allow"}

// String returns the word of the API: deny or allow.
func (e OnExceed) String() string {
	if e == AllowExceed {
		return exceedWords[1]
	}
	return exceedWords[0]
}

// MarshalText writes what String returns.
func (e OnExceed) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText reads what String returns.
func (e *OnExceed) UnmarshalText(text []byte) error {
	var ok bool
	if *e, ok = ParseOnExceed(string(text)); !ok {
		return fmt.Errorf("want one of %v, got %q", exceedWords, text)
	}
	return nil
}

// ParseOnExceed returns what a word of the API stands for, and whether it is one.
func ParseOnExceed(word string) (e OnExceed, ok bool) {
	return word == exceedWords[1], slices.Contains(exceedWords, word)
}

// Limit allows at most Max of a meter in each window of a period.
type Limit struct {
	Meter    string   `json:"meter"`
	Max      int64    `json:"max"`
	Period   Period   `json:"period"`
	OnExceed OnExceed `json:"on_exceed,omitempty"`
}

// Unlimited reports whether the limit is the missing primary limit of a plan.
func (l Limit) Unlimited() bool { return l.Max == Unlimited }

// Remaining returns the rest of the limit, at least 0.
func (l Limit) Remaining(used int64) int64 { return max(0, l.Max-used) }

// LimitUsage is a limit with its owner, and the usage in its window.
type LimitUsage struct {
	Limit
	Of Origin
	Usage
}

// Overage returns how much of the usage is beyond the limit, nil for a limit that denies and for a missing limit.
func (u *LimitUsage) Overage() *int64 {
	if u.OnExceed == DenyExceed || u.Limit.Unlimited() {
		return nil
	}
	return new(max(0, u.Used-u.Max))
}

// Percentage returns the usage in percent of the limit with two decimals, 0 if there is no limit.
func (u *LimitUsage) Percentage() float64 {
	if u.Limit.Unlimited() {
		return 0
	}
	return Percentage(u.Used, u.Max)
}

// Share returns the usage divided by the limit, 0 if there is no limit. It is 1 or more if nothing is left.
func (u *LimitUsage) Share() float64 {
	if u.Limit.Unlimited() {
		return 0
	}
	return float64(u.Used) / float64(max(u.Max, 1))
}

// OwnLimits are the limits, the rate and the concurrency of one key. They apply together with those of its plan.
type OwnLimits struct {
	Limits      []Limit `json:"limits,omitempty"`
	Rate        *Rate   `json:"rate,omitempty"`
	Concurrency int64   `json:"concurrency,omitempty"` // the most open holds of the key; 0 for no bound
}

// MeterCost is the cost of a request on one meter.
type MeterCost struct {
	Meter string `json:"meter"`
	Cost  int64  `json:"cost"`
}

// SortCosts sorts costs by the name of the meter.
func SortCosts(costs []MeterCost) {
	slices.SortFunc(costs, func(a, b MeterCost) int { return strings.Compare(a.Meter, b.Meter) })
}

// allows reports whether the limit allows a request when the usage is used.
func (l Limit) allows(used int64, c *Consumption) bool {
	cost := c.CostOn(l.Meter)
	return l.OnExceed == AllowExceed || cost == 0 && !c.needs(l.Meter) || used < l.Max && cost <= l.Max-used
}

// The bounds of limits.
const (
	MaxLimits = 16 // of a plan, besides the primary limit; of a key; overrides of a user
	MaxMeters = 16 // that the plans and prices of an account name, besides requests

	// MaxMetersEver bounds the meters of a counter. A counter also keeps meters that no plan names any more. A page of badgerstore
	// has 64 counters and takes at most 1 MiB. A meter takes up to 96 bytes.
	MaxMetersEver = 64
)

// meterName matches the name of a meter, and meterForm describes it.
var meterName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

const meterForm = "1 to 32 letters a to z, digits or _, the first a letter"

// IsMeterName reports whether a name can be the name of a meter.
func IsMeterName(name string) bool { return meterName.MatchString(name) }

// checkMeterName returns an error unless a name is the name of a meter.
func checkMeterName(field, name string) error {
	if !IsMeterName(name) {
		return Invalid(field, "A meter is named by 1 to 32 letters a to z, digits or _, and begins with a letter: "+strconv.Quote(secrets.Sanitize(name, 64)))
	}
	return nil
}

// check returns an error unless the rate, the concurrency and the limits are valid, and no limit repeats another.
func (o OwnLimits) check() error {
	if o.Rate != nil {
		if err := o.Rate.check(); err != nil {
			return err
		}
	}
	if err := checkConcurrency(o.Concurrency); err != nil {
		return err
	}
	return checkLimits("limits", o.Limits)
}

// checkLimits returns an error unless the limits in a member are valid, and none repeats another.
func checkLimits(member string, limits []Limit) error {
	if len(limits) > MaxLimits {
		return Invalid(member, fmt.Sprintf("%s must be at most %d", fieldLabel(member), MaxLimits))
	}
	for i, l := range limits {
		if err := checkMeterName(member, l.Meter); err != nil {
			return err
		}
		if l.Max < 1 || l.Max > MaxLimit {
			return Invalid(member, fmt.Sprintf("The max of limit %d must be greater than 0 and at most %d", i+1, int64(MaxLimit)))
		}
		for _, other := range limits[:i] {
			if l.Meter == other.Meter && l.Period == other.Period {
				return Invalid(member, fmt.Sprintf("Limit %d is a second limit of %s in a %v", i+1, l.Meter, l.Period))
			}
		}
	}
	return nil
}

// MaxCosts is the largest number of meters that one request names.
const MaxCosts = MaxMeters + 1

// CheckCosts returns an error with the code INVALID_REQUEST if there are too many costs, or if one is out of bounds or of
// no meter.
func CheckCosts(costs []MeterCost) error {
	if len(costs) > MaxCosts {
		return BadRequest("costs", fmt.Sprintf("Costs must name at most %d meters", MaxCosts))
	}
	for _, m := range costs {
		if !IsMeterName(m.Meter) {
			return BadRequest("costs", "Costs must name meters: "+meterForm)
		}
		if m.Cost < 0 || m.Cost > MaxMeterCost {
			return BadRequest("costs", "The cost of "+m.Meter+" must be a whole number from 0 to 1000000000")
		}
	}
	return nil
}
