package core

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The bounds of holds.
const (
	MaxHoldTime     = 24 * time.Hour
	MaxOpenHolds    = 1_000   // of one counter
	MaxAccountHolds = 100_000 // open, of an account
	MaxConcurrency  = 10_000  // see [Terms.Concurrency]
)

// Hold is a request that was counted before its cost is known. It is open until it is settled, released or expired.
type Hold struct {
	ID        string
	UserID    int64
	KeyID     string // "" for a request without a key
	KeySeq    int64
	Shared    bool      // the counter of the user has counted it, too
	At        time.Time // its costs are in the windows that contain this time
	ExpiresAt time.Time
	OnExpiry  OnExpiry

	Cost  int64       // held, of the meter requests
	Costs []MeterCost // held, of the other meters, sorted

	Method, Path string    // of the request, for its price
	PricedAt     time.Time // the UpdatedAt of the prices under which it was taken

	Status       HoldStatus
	ClosedAt     time.Time   // the time of the settlement or release; zero for other holds
	Settled      int64       // with HoldSettled: the final cost of the meter requests
	SettledCosts []MeterCost // with HoldSettled: the final costs of the other meters, sorted
}

// HoldStatus is the state of a hold.
type HoldStatus string

// The states of a hold.
const (
	HoldOpen     HoldStatus = "held"
	HoldSettled  HoldStatus = "settled"
	HoldReleased HoldStatus = "released" // everything was given back
	HoldExpired  HoldStatus = "expired"
)

// OnExpiry says what happens to the costs of a hold that expires.
type OnExpiry bool

// The ways to end a hold that expires.
const (
	KeepHeld    OnExpiry = false // they stay counted
	ReleaseHeld OnExpiry = true  // they are given back
)

// String returns the word of the API: keep or release.
func (x OnExpiry) String() string {
	if x == ReleaseHeld {
		return "release"
	}
	return "keep"
}

// The errors of holds.
var (
	ErrHoldNotFound = &Error{Code: CodeHoldNotFound, Message: "Hold not found"}
	ErrHoldExpired  = &Error{Code: CodeHoldExpired, Message: "The hold has expired"}
	ErrTooManyHolds = &Error{Code: CodeTooManyHolds, Message: "Too many holds are open: settle or release some"}
)

// holdPrefix begins the id of each hold.
const holdPrefix = "hold_"

// NewHoldID returns the id of a new hold of a user. It names the user, so that a store finds the hold.
func NewHoldID(user int64) string { return fmt.Sprint(holdPrefix, user, "_", secrets.Random(24)) }

// HoldUser returns the user of the hold with an id, and false for a text that is no id of a hold.
func HoldUser(id string) (user int64, ok bool) {
	number, random, ok := strings.Cut(strings.TrimPrefix(id, holdPrefix), "_")
	user, err := strconv.ParseInt(number, 10, 64)
	return user, ok && err == nil && user > 0 && random != "" && fmt.Sprint(holdPrefix, user, "_", random) == id && len(id) <= 64
}

// NewHold is what a request says about the hold that it takes.
type NewHold struct {
	ID        string
	ExpiresAt time.Time // in whole milliseconds
	OnExpiry  OnExpiry
	PricedAt  time.Time // see [Hold.PricedAt]
	Path      string    // of the request as it is priced; "" if it is the endpoint of the entry
}

// Hold returns the open hold that the request takes.
func (c *Consumption) OpenHold() *Hold {
	h := &Hold{ID: c.Hold.ID, UserID: c.UserID, KeyID: c.KeyID, KeySeq: c.KeySeq, Shared: c.Shared, At: c.Entry.At, ExpiresAt: c.Hold.ExpiresAt,
		OnExpiry: c.Hold.OnExpiry, Cost: c.Cost, Costs: c.Costs, Method: c.Entry.Method, Path: c.Hold.Path, PricedAt: c.Hold.PricedAt, Status: HoldOpen}
	if h.Path == "" {
		h.Path = c.Entry.Endpoint
	}
	return h
}

// Expired reports whether the hold is open, and its time is over at a time.
func (h *Hold) Expired(at time.Time) bool { return h.Status == HoldOpen && !at.Before(h.ExpiresAt) }

// InFlight are the open holds of the counters of a request: of the deciding one, and of the key.
type InFlight struct{ Deciding, Own int }

// refusal returns whose concurrency has no room for the hold of a request, "" if there is room or the request takes no hold.
func (f InFlight) refusal(c *Consumption) Origin {
	switch {
	case c.Hold == nil:
		return ""
	case c.Concurrency > 0 && int64(f.Deciding) >= c.Concurrency:
		return OfPlan
	case c.Own.Concurrency > 0 && int64(f.Own) >= c.Own.Concurrency:
		return OfKey
	}
	return ""
}

// NotBefore returns the request at the time of the counters, if they are later: a hold and its settlement are then counted in the same
// windows of both counters. Other requests stay as they are.
func (c *Consumption) NotBefore(counters ...*Counter) *Consumption {
	if c.Hold == nil && c.Settlement == nil {
		return c
	}
	latest := c.Entry.At.Unix()
	for _, of := range counters {
		latest = max(latest, of.At)
	}
	if latest == c.Entry.At.Unix() {
		return c
	}
	return c.Raised(latest)
}

// Raised returns the request at a later second.
func (c *Consumption) Raised(second int64) *Consumption {
	raised := *c
	raised.Entry.At, raised.asked = time.Unix(second, 0).UTC(), c.AskedAt()
	return &raised
}

// AskedAt returns the time of the request before [Consumption.NotBefore]. It decides about rates.
func (c *Consumption) AskedAt() time.Time {
	if c.asked.IsZero() {
		return c.Entry.At
	}
	return c.asked
}

// checkConcurrency returns an error unless a concurrency is valid; 0 is none.
func checkConcurrency(n int64) error {
	if n < 0 || n > MaxConcurrency {
		return Invalid("concurrency", "Concurrency must be a whole number from 1 to 10000")
	}
	return nil
}

// concurrencyMember describes the member concurrency. 0 is none.
func concurrencyMember[R, P any](in func(*P) *Optional[int64], get func(*R) int64, set func(*R, int64)) Member[R, P] {
	return nullable("concurrency", TypeWhole, in, func(r *R) *int64 { return orNil(get(r)) }, func(r *R, v *int64) error {
		if set(r, OrZero(v)); v != nil && *v == 0 {
			return checkConcurrency(-1)
		}
		return checkConcurrency(OrZero(v))
	})
}
