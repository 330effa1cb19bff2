package core

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// MeterRequests is the name of the meter that every account has: it counts requests.
const MeterRequests = "requests"

// MaxMeterCost is the largest cost of one request on a meter.
const MaxMeterCost = 1_000_000_000

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

// Limit allows so much of a meter in a period.
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

// LimitUsage is a limit and the usage in its window.
type LimitUsage struct {
	Limit
	Of Origin
	Usage
}

// Overage returns how much of the usage is beyond the limit, nil for a limit that denies.
func (u *LimitUsage) Overage() *int64 {
	if u.OnExceed == DenyExceed {
		return nil
	}
	return new(max(0, u.Used-u.Max))
}

// OwnLimits are limits and the rate of one key alone, inside the plan.
type OwnLimits struct {
	Limits []Limit `json:"limits,omitempty"`
	Rate   *Rate   `json:"rate,omitempty"`
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

// Rate is the token bucket of a plan: it gets back Requests tokens in a second or a minute, and holds at most Burst. Each request
// that costs something takes one token out of a [Bucket].
type Rate struct {
	Requests int64   `json:"requests"` // 1…MaxRate
	Per      RatePer `json:"per"`
	Burst    int64   `json:"burst"` // 1…MaxRate
}

// MaxRate bounds the requests and the burst of a rate.
const MaxRate = 1_000_000

// RatePer is the unit of time of a rate.
type RatePer string

// The units of time of a rate.
const (
	PerSecond RatePer = "second"
	PerMinute RatePer = "minute"
)

// Duration returns the unit: a second or a minute.
func (p RatePer) Duration() time.Duration {
	if p == PerSecond {
		return time.Second
	}
	return time.Minute
}

// check returns an error unless the rate is valid.
func (r *Rate) check() error {
	switch {
	case r.Requests < 1 || r.Requests > MaxRate:
		return Invalid("rate", "The requests of a rate must be from 1 to 1000000")
	case r.Per != PerSecond && r.Per != PerMinute:
		return Invalid("rate", "The per of a rate must be second or minute")
	case r.Burst < 1 || r.Burst > MaxRate:
		return Invalid("rate", "The burst of a rate must be from 1 to 1000000")
	}
	return nil
}

// Token is the size of one token in units. At one request a minute, a bucket gets back one unit in each millisecond.
const Token = 60_000

// PerMillisecond returns how many units a bucket gets back in a millisecond.
func (r *Rate) PerMillisecond() int64 {
	if r.Per == PerSecond {
		return r.Requests * 60
	}
	return r.Requests
}

// Capacity returns the units in a full bucket.
func (r *Rate) Capacity() int64 { return r.Burst * Token }

// Bucket is the token bucket of a counter (RFC 2697 section 3), in whole numbers, so that all stores compute the same. It
// stores the units below the capacity, so the zero value is a full bucket under any rate. After a change of the rate they stay,
// up to the new capacity. golang.org/x/time/rate has the same rule, but takes 80 bytes
// and a lock for each counter instead of 16 bytes under the lock of the store.
type Bucket struct {
	At    int64 // Unix milliseconds
	Taken int64 // the units below the capacity at the time At
}

// taken returns the units below the capacity at a time in Unix milliseconds.
func (b Bucket) taken(r *Rate, at int64) int64 {
	b.Taken = min(b.Taken, r.Capacity())
	if b.Full(r.PerMillisecond(), at) {
		return 0
	}
	return b.Taken - max(0, at-b.At)*r.PerMillisecond()
}

// Full reports whether a bucket that gets back so many units in a millisecond is full at a time in Unix milliseconds. When At
// is more than maxClockJump later than the time, a clock was wrong, and the bucket is full.
func (b Bucket) Full(perMillisecond, at int64) bool {
	elapsed := at - b.At
	return elapsed < -maxClockJump.Milliseconds() || elapsed > b.Taken/perMillisecond
}

// Wait returns how long a request at a time must wait for a token, 0 if the bucket has a token or the rate is nil. It
// returns whole milliseconds.
func (b Bucket) Wait(r *Rate, at time.Time) time.Duration {
	if r == nil {
		return 0
	}
	missing := b.taken(r, at.UnixMilli()) + Token - r.Capacity()
	perMilli := r.PerMillisecond()
	return time.Duration(max(0, (missing+perMilli-1)/perMilli)) * time.Millisecond
}

// Take takes a token. With a nil rate it does nothing.
func (b *Bucket) Take(r *Rate, at time.Time) {
	if r == nil {
		return
	}
	now := at.UnixMilli()
	b.Taken = b.taken(r, now) + Token
	if now > b.At || b.At-now > maxClockJump.Milliseconds() {
		b.At = now
	}
}

// MeterCost is the cost of a request on one meter.
type MeterCost struct {
	Meter string `json:"meter"`
	Cost  int64  `json:"cost"`
}

// allows reports whether a request may pass when the usage is used.
func (l Limit) allows(used int64, c *Consumption) bool {
	cost := c.costOf(l.Meter)
	return l.OnExceed == AllowExceed || cost == 0 && !c.needs(l.Meter) || used < l.Max && cost <= l.Max-used
}

// The bounds of limits.
const (
	MaxLimits = 16 // of a plan, besides the primary limit; of a key
	MaxMeters = 16 // of an account, besides requests

	// MaxMetersEver bounds the meters of a counter. A counter also keeps meters that no plan names any more. A page of badgerstore
	// has 64 counters and takes at most 1 MiB. A meter takes up to 96 bytes.
	MaxMetersEver = 64
)

// meterName is the form of the name of a meter.
var meterName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// IsMeterName reports whether a name can be the name of a meter.
func IsMeterName(name string) bool { return meterName.MatchString(name) }

// checkMeterName returns an error unless a name is the name of a meter.
func checkMeterName(field, name string) error {
	if !IsMeterName(name) {
		return Invalid(field, "A meter is named by 1 to 32 letters a to z, digits or _, and begins with a letter: "+strconv.Quote(secrets.Sanitize(name, 64)))
	}
	return nil
}

// check returns an error unless the rate and the limits are valid, and no limit repeats another.
func (o OwnLimits) check() error {
	if o.Rate != nil {
		if err := o.Rate.check(); err != nil {
			return err
		}
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
		if !meterName.MatchString(m.Meter) {
			return BadRequest("costs", "Costs must name meters: 1 to 32 letters a to z, digits or _, the first a letter")
		}
		if m.Cost < 0 || m.Cost > MaxMeterCost {
			return BadRequest("costs", "The cost of "+m.Meter+" must be a whole number from 0 to 1000000000")
		}
	}
	return nil
}
