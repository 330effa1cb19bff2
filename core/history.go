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

// Reason says why a request was denied.
type Reason string

// The reasons.
const (
	ReasonQuota    Reason = "quota"    // a limit has no room
	ReasonRate     Reason = "rate"     // the bucket has no token
	ReasonDisabled Reason = "disabled" // the key is inactive or its user disabled
	ReasonExpired  Reason = "expired"  // the key has expired
)

// Reasons returns all reasons. Stores number them in this order, so a new one comes last.
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
}

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

// newEntry returns the history entry of a request: bounded, and without any text that looks like a
// secret.
func newEntry(r *Request, d *pendingDecision) Entry {
	return Entry{
		At: d.At.UTC().Truncate(historyGranularity), KeyID: d.Key.ID, UserID: d.Key.UserID, Cost: r.Cost,
		Endpoint: sanitize(r.Endpoint, MaxEntryEndpoint),
		Method:   sanitize(r.Method, MaxEntryMethod),
		IP:       sanitize(r.IP, MaxEntryAddress),
	}
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

// isPlainASCII reports whether s is printable ASCII without a percent sign and without the
// beginning of a secret. Such a text can hold no secret. Nearly every request has only such texts.
func isPlainASCII(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~' || c == '%':
			return false
		case c == '_' && strings.HasSuffix(s[:i+1], ownerPrefix):
			return false
		}
	}
	return true
}
