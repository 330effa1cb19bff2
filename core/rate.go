package core

import "time"

// Rate is the rule of a token bucket, for a plan or for one key: the bucket gets back Requests tokens in a second or a minute,
// and holds at most Burst. Each request that costs something takes one token out of a [Bucket].
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

// Bucket is a token bucket (RFC 2697 section 3), in whole numbers, so that all stores compute the same. It
// stores the units below the capacity, so the zero value is a full bucket under any rate. After a change of the rate they stay,
// up to the new capacity. golang.org/x/time/rate has the same rule, but takes 80 bytes and a lock for each counter instead of
// 16 bytes under the lock of the store.
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

// Buckets are the token buckets of a request: one of the deciding counter for the rate of the plan, one of the key for its own rate.
type Buckets struct{ Deciding, Own Bucket }

// Wait returns the longer of the waits for the two buckets and the owner of its rate, 0 and "" if each bucket has a token.
func (b *Buckets) Wait(r *Consumption) (wait time.Duration, of Origin) {
	plan, own := b.Deciding.Wait(r.Rate, r.RequestedAt()), b.Own.Wait(r.Own.Rate, r.RequestedAt())
	switch {
	case own > plan:
		return own, OfKey
	case plan > 0:
		return plan, OfPlan
	}
	return 0, ""
}

// Take takes a token out of each bucket that has a rate.
func (b *Buckets) Take(r *Consumption) {
	b.Deciding.Take(r.Rate, r.RequestedAt())
	b.Own.Take(r.Own.Rate, r.RequestedAt())
}
