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

// Hold is a request that was counted before its final cost was known. A hold is open until it is settled, released or expired.
type Hold struct {
	ID        string
	UserID    int64
	KeyID     string // "" for a request without a key
	KeySeq    int64
	Shared    bool      // the counter of the user has counted the hold, too
	At        time.Time // the held costs are in the windows that contain this time
	ExpiresAt time.Time
	OnExpiry  OnExpiry

	Cost  int64       // held, of the meter requests
	Costs []MeterCost // held, of the other meters, sorted

	Method, Path string    // of the request, for the price of the settlement
	PricedAt     time.Time // the UpdatedAt of the prices under which the hold was opened

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
	HoldReleased HoldStatus = "released" // all held costs were given back
	HoldExpired  HoldStatus = "expired"
)

// OnExpiry says what happens to the costs of a hold that expires.
type OnExpiry bool

// The ways to end a hold that expires.
const (
	KeepHeld    OnExpiry = false // the held costs stay counted
	ReleaseHeld OnExpiry = true  // the held costs are given back
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

// ExpiredError returns an error that wraps [ErrHoldExpired]. Its message says whether the costs of the expired hold stay counted, and how to
// correct the usage.
func (h *Hold) ExpiredError() error {
	adjust := fmt.Sprintf("/users/%d/usage/adjust", h.UserID)
	if h.KeyID != "" {
		adjust = "/keys/" + h.KeyID + "/usage/adjust"
	}
	message := "The hold has expired, and its costs stay counted: correct them with POST " + adjust
	if h.OnExpiry == ReleaseHeld {
		message = "The hold has expired, and its costs were given back unless its key has moved to another user: add the final cost with POST " + adjust
	}
	return fmt.Errorf("%w: %w", &Error{Code: CodeHoldExpired, Message: message}, ErrHoldExpired)
}

// holdPrefix begins the id of each hold.
const holdPrefix = "hold_"

// NewHoldID returns the id of a new hold of a user. The id has the number of the user, so that a store finds the hold.
func NewHoldID(user int64) string { return fmt.Sprint(holdPrefix, user, "_", secrets.Random(24)) }

// HoldUser returns the user of the hold with an id. ok is false for a text that is not the id of a hold.
func HoldUser(id string) (user int64, ok bool) {
	number, random, ok := strings.Cut(strings.TrimPrefix(id, holdPrefix), "_")
	user, err := strconv.ParseInt(number, 10, 64)
	return user, ok && err == nil && user > 0 && random != "" && fmt.Sprint(holdPrefix, user, "_", random) == id && len(id) <= 64
}

// NewHold describes the hold that a request opens.
type NewHold struct {
	ID        string
	ExpiresAt time.Time // in whole milliseconds
	OnExpiry  OnExpiry
	PricedAt  time.Time // see [Hold.PricedAt]
	Path      string    // the priced path of the request; "" if the endpoint of the entry is that path
}

// OpenHold returns the hold that the request opens.
func (c *Consumption) OpenHold() *Hold {
	h := &Hold{ID: c.Hold.ID, UserID: c.UserID, KeyID: c.KeyID, KeySeq: c.KeySeq, Shared: c.Shared, At: c.Entry.At, ExpiresAt: c.Hold.ExpiresAt,
		OnExpiry: c.Hold.OnExpiry, Cost: c.Cost, Costs: c.Costs, Method: c.Entry.Method, Path: c.Hold.Path, PricedAt: c.Hold.PricedAt, Status: HoldOpen}
	if h.Path == "" {
		h.Path = c.Entry.Endpoint
	}
	return h
}

// NoteOldest notes an open hold of a user that began at a time, for [Store.OldestHolds].
func NoteOldest(oldest map[int64]time.Time, user int64, at time.Time) {
	if known, has := oldest[user]; !has || at.Before(known) {
		oldest[user] = at
	}
}

// Expired reports whether an open hold has ended at a time.
func (h *Hold) Expired(at time.Time) bool { return h.Status == HoldOpen && !at.Before(h.ExpiresAt) }

// OpenHolds has the numbers of open holds that two counters have counted: the deciding counter of a request, and the counter of its key.
type OpenHolds struct{ Deciding, Own int }

// refusal returns the owner of the concurrency that has no room for the hold of a request. It returns "" if there is room, or if the request
// opens no hold.
func (o OpenHolds) refusal(c *Consumption) Origin {
	switch {
	case c.Hold == nil:
		return ""
	case c.Concurrency > 0 && int64(o.Deciding) >= c.Concurrency:
		return OfPlan
	case c.Own.Concurrency > 0 && int64(o.Own) >= c.Own.Concurrency:
		return OfKey
	}
	return ""
}

// NotBefore moves a request that opens or ends a hold to the latest time of its counters, if that is later than its own: a hold and its
// settlement are then counted in the same windows of both counters. It returns any other request unchanged.
func (c *Consumption) NotBefore(counters ...*Counter) *Consumption {
	if c.Hold == nil && c.Settlement == nil {
		return c
	}
	latest := c.Entry.At.Unix()
	for _, counter := range counters {
		latest = max(latest, counter.At)
	}
	if latest == c.Entry.At.Unix() {
		return c
	}
	return c.WithSecond(latest)
}

// WithSecond returns the request with a later time, in Unix seconds. A hold that the request opens lasts as long as before.
func (c *Consumption) WithSecond(second int64) *Consumption {
	later := *c
	later.Entry.At, later.requested = time.Unix(second, 0).UTC(), c.RequestedAt()
	if c.Hold != nil {
		hold := *c.Hold
		hold.ExpiresAt = hold.ExpiresAt.Add(later.Entry.At.Sub(c.Entry.At).Truncate(time.Millisecond))
		later.Hold = &hold
	}
	return &later
}

// RequestedAt returns the time of the request before [Consumption.WithSecond]. The buckets of rates use this time.
func (c *Consumption) RequestedAt() time.Time {
	if c.requested.IsZero() {
		return c.Entry.At
	}
	return c.requested
}

// checkConcurrency returns an error unless a concurrency is valid. 0 means that there is none.
func checkConcurrency(n int64) error {
	if n < 0 || n > MaxConcurrency {
		return Invalid("concurrency", "Concurrency must be a whole number from 1 to 10000")
	}
	return nil
}

// concurrencyMember describes the member concurrency. In a resource, 0 means that there is none; the API writes null.
func concurrencyMember[R, P any](in func(*P) *Optional[int64], get func(*R) int64, set func(*R, int64)) Member[R, P] {
	return nullable("concurrency", TypeWhole, in, func(r *R) *int64 { return orNil(get(r)) }, func(r *R, v *int64) error {
		if set(r, OrZero(v)); v != nil && *v == 0 {
			return checkConcurrency(-1)
		}
		return checkConcurrency(OrZero(v))
	})
}
