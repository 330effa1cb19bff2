package core

import (
	"strings"
	"time"
)

// DefaultRetention is the default of history_retention.
const DefaultRetention = 30 * 24 * time.Hour

// The bounds of the members of a history entry, in bytes. Longer texts are cut between two
// characters. A store takes at most MaxEntrySize bytes for such an entry in each history, plus the
// request id, and plus MaxMeterSize bytes for each meter other than requests that it costs, and for the limit that refused.
const (
	MaxEntryEndpoint = 256
	MaxEntryMethod   = 32
	MaxEntryAddress  = 64 // an IPv6 address with a zone fits
	MaxEntrySize     = 512
	MaxMeterSize     = 48
)

// Reason says why a request was refused.
type Reason string

// The reasons.
const (
	ReasonQuota       Reason = "quota"       // a limit has no room
	ReasonRate        Reason = "rate"        // the bucket has no token
	ReasonDisabled    Reason = "disabled"    // the key is inactive or its user disabled
	ReasonExpired     Reason = "expired"     // the key has expired
	ReasonRestricted  Reason = "restricted"  // the key or its plan does not allow such a request
	ReasonConcurrency Reason = "concurrency" // too many holds are open

	ReasonUnknown   Reason = "unknown"   // no key of the account has the value; never in a history
	ReasonMalformed Reason = "malformed" // the value does not have the form of a key; never in a history
)

// Reasons returns the reasons of denials in a history. Stores keep the index of a reason in this list, so append new reasons only.
func Reasons() []Reason {
	return []Reason{ReasonQuota, ReasonRate, ReasonDisabled, ReasonExpired, ReasonRestricted, ReasonConcurrency}
}

// Entry is one request in the history, allowed or denied. It never holds a secret.
type Entry struct {
	At       time.Time   `json:"at"`
	KeyID    string      `json:"key_id"`
	UserID   int64       `json:"user_id"` // the user of the key at the time
	Endpoint string      `json:"endpoint"`
	Method   string      `json:"method"`
	IP       string      `json:"ip,omitempty"`
	Cost     int64       `json:"cost"`            // of the meter requests
	Costs    []MeterCost `json:"costs,omitempty"` // of the other meters, sorted by name
	Denied   bool        `json:"denied,omitempty"`
	Reason   Reason      `json:"reason,omitempty"` // of a denied request

	// Limit is the limit that refused, with [ReasonQuota]: a limit of a minute has reset before anybody looks. Nil for any other entry.
	Limit *RefusingLimit `json:"limit,omitempty"`

	// RequestID is the name that the caller gave to the request, at most MaxRequestIDLength bytes, "" for none.
	RequestID string `json:"request_id,omitempty"`

	Adjustment *Adjustment `json:"adjustment,omitempty"` // of an entry that is not a request; nil for any other
	Settlement *Settlement `json:"settlement,omitempty"` // of an entry that ends a hold, with its final costs; nil for any other
	HoldID     string      `json:"hold_id,omitempty"`    // of the hold that the request has opened

	// Late is how much earlier At is than the latest time of an older entry of the history, 0 if no older entry is later. Only Store.History
	// sets it.
	Late time.Duration `json:"-"`
}

// LatestSoFar returns the latest time of the entry and of the older entries of its history. Lists are in its order.
func (e *Entry) LatestSoFar() time.Time { return e.At.Add(e.Late) }

// RefusingLimit is a limit that has refused a request, and its usage at that moment.
type RefusingLimit struct {
	Of     Origin `json:"of"` // whose limit it is
	Meter  string `json:"meter"`
	Period Period `json:"period"`
	Max    int64  `json:"max"`
	Used   int64  `json:"used"` // in the window of the request, without the request
}

// AdjustmentID is the first byte of the [Consumption.RequestID] of an adjustment: ids of adjustments are no ids of requests. Clients send no
// control characters.
const AdjustmentID = "\x00"

// ShownRequestID returns a [Consumption.RequestID] as its caller wrote it.
func ShownRequestID(id string) string { return strings.TrimPrefix(id, AdjustmentID) }

// Recorded returns the entry of the request for the history: its Entry, with what the consumption and the result say.
func (c *Consumption) Recorded(v *ConsumeResult) Entry {
	e := c.Entry
	e.KeyID, e.UserID, e.Cost, e.Costs, e.RequestID = c.KeyID, c.UserID, c.Cost, c.Costs, ShownRequestID(c.RequestID)
	e.Adjustment, e.Settlement, e.Denied, e.Reason = c.Adjustment, c.Settlement, v.Reason != "", v.Reason
	if c.Hold != nil && !e.Denied {
		e.HoldID = c.Hold.ID
	}
	if v.Reason == ReasonQuota {
		l := c.LimitAt(v.Deciding)
		e.Limit = &RefusingLimit{c.OriginAt(v.Deciding), l.Meter, l.Period, l.Max, v.Usage.Used}
	}
	return e
}

// Same reports whether two entries look the same.
func (e *Entry) Same(other Entry) bool {
	return e.RequestID == other.RequestID && e.At.Equal(other.At) && e.KeyID == other.KeyID && e.UserID == other.UserID && e.Endpoint == other.Endpoint && e.Method == other.Method &&
		e.IP == other.IP && e.Cost == other.Cost && e.Denied == other.Denied && e.Reason == other.Reason
}
