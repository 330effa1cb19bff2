package core

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// DefaultRetention is the default of history_retention.
const DefaultRetention = 30 * 24 * time.Hour

// Maximum lengths of the fields of a Request, in bytes.
const (
	maxEndpointLength = 2048
	maxMethodLength   = MaxEntryMethod
	maxAddressLength  = 128
)

// The bounds of the members of a history entry, in bytes. Longer texts are cut between two
// characters. A store takes at most MaxEntrySize bytes for such an entry in each history, plus the
// request id, and plus MaxMeterSize bytes for each meter other than requests that it costs.
const (
	MaxEntryEndpoint = 256
	MaxEntryMethod   = 32
	MaxEntryAddress  = 64 // an IPv6 address with a zone fits
	MaxEntrySize     = 512
	MaxMeterSize     = 48
)

const historyGranularity = time.Millisecond

// Reason says why a request was refused.
type Reason string

// The reasons.
const (
	ReasonQuota    Reason = "quota"    // a limit has no room
	ReasonRate     Reason = "rate"     // the bucket has no token
	ReasonDisabled Reason = "disabled" // the key is inactive or its user disabled
	ReasonExpired  Reason = "expired"  // the key has expired

	ReasonUnknown   Reason = "unknown"   // no key of the account has the value; never in a history
	ReasonMalformed Reason = "malformed" // the value does not have the form of a key; never in a history
)

// Reasons returns the reasons of denials in a history. Stores keep the index of a reason in this list, so append new reasons only. Redis keeps the index
// + 1, and 5 for an adjustment (markAdjustment in storage/redisstore): a fifth reason needs another number there.
func Reasons() []Reason { return []Reason{ReasonQuota, ReasonRate, ReasonDisabled, ReasonExpired} }

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

	Adjustment *Adjustment `json:"adjustment,omitempty"` // of an entry that is not a request; nil for a request

	// Late is how much earlier At is than the latest time of an older entry of the history, 0 if no older entry is later. Only Store.History
	// sets it.
	Late time.Duration `json:"-"`
}

// LatestSoFar returns the latest time of the entry and of the older entries of its history. Lists are in its order.
func (e *Entry) LatestSoFar() time.Time { return e.At.Add(e.Late) }

// KeyHistory returns a page of the requests of a key, newest first, and the number of kept
// requests.
func (s *Service) KeyHistory(ctx context.Context, account, id string, p Page) ([]Entry, int, error) {
	if _, err := s.store.Key(ctx, account, id); err != nil {
		return nil, 0, err
	}
	return s.history(ctx, CounterID{Account: account, KeyID: id}, p)
}

// UserHistory returns a page of the requests of a user, newest first, and the number of kept
// requests. A request belongs to the user that had the key at the time.
func (s *Service) UserHistory(ctx context.Context, account string, id int64, p Page) ([]Entry, int, error) {
	if _, err := s.store.User(ctx, account, id); err != nil {
		return nil, 0, err
	}
	return s.history(ctx, CounterID{Account: account, UserID: id}, p)
}

func (s *Service) history(ctx context.Context, of CounterID, p Page) ([]Entry, int, error) {
	return s.store.History(ctx, of, s.now().Add(-s.retention()), p)
}

// fill sets the members of the history entry of a request: bounded, and without any text that looks like a secret.
func (e *Entry) fill(r *Request, d *pendingDecision) {
	e.At, e.KeyID, e.UserID, e.Cost = d.At.UTC().Truncate(historyGranularity), d.Key.ID, d.Key.UserID, r.Cost
	e.Endpoint = sanitize(r.mask(r.Endpoint), MaxEntryEndpoint)
	e.Method = sanitize(r.mask(r.Method), MaxEntryMethod)
	e.IP = sanitize(r.mask(r.IP), MaxEntryAddress)
}

// mask returns a text without copies of the key of the request. An imported key may have any form; [MaskSecrets] masks a key
// with the default prefix.
func (r *Request) mask(s string) string {
	if r.Secret == "" || len(s) < len(r.Secret) || strings.HasPrefix(r.Secret, DefaultKeyPrefix) {
		return s
	}
	return ReplaceSecret(s, r.Secret, "***")
}

// sanitize masks secrets in s, replaces control characters and invalid UTF-8 by U+FFFD, and cuts s
// to at most n bytes.
func sanitize(s string, n int) string {
	if isPlainASCII(s) {
		return s[:min(n, len(s))]
	}
	s = MaskSecrets(s)
	if strings.ContainsFunc(s, unicode.IsControl) {
		s = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return utf8.RuneError
			}
			return r
		}, s)
	}
	if len(s) <= n && utf8.ValidString(s) {
		return s
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.ToValidUTF8(s[:min(n, len(s))], "")
}

// isPlainASCII reports whether s is printable ASCII that holds no secret, from one look at each byte. Nearly every request has
// only such texts.
func isPlainASCII(s string) bool {
	var seen byte
	for i := range len(s) {
		seen |= textBytes[s[i]]
	}
	return seen == 0 || seen == mayBeSecret && isPlain(s)
}

const (
	notPrintable = 1 << iota
	mayBeSecret  // each secret in printable ASCII has a _ or a percent sign
)

var textBytes = func() (table [256]byte) {
	for c := range table {
		if c < ' ' || c > '~' {
			table[c] = notPrintable
		}
	}
	table['_'], table['%'] = mayBeSecret, mayBeSecret
	return table
}()
