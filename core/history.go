package core

import (
	"cmp"
	"container/heap"
	"context"
	"sort"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
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

// isPlainASCII reports whether s is printable ASCII that holds no secret, from a look at its bytes. Nearly every request has
// only such texts.
func isPlainASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return isPlain(s)
}

// HistoryFilter selects entries of the history of an account. The zero value selects all.
type HistoryFilter struct {
	Status   string    // allowed or denied, "" for both
	Reason   Reason    // of a denial, "" for any entry
	UserID   int64     // 0 for any
	KeyID    string    // "" for any
	Endpoint string    // what the endpoint begins with
	From, To time.Time // From ≤ time < To; the zero time for no bound
}

// matches reports whether an entry is selected.
func (f *HistoryFilter) matches(e *Entry) bool {
	switch {
	case f.Status == string(Denied) && !e.Denied, f.Status == string(Allowed) && e.Denied,
		f.Reason != "" && (f.Reason != e.Reason || !e.Denied),
		f.UserID != 0 && f.UserID != e.UserID,
		f.KeyID != "" && f.KeyID != e.KeyID,
		!strings.HasPrefix(e.Endpoint, f.Endpoint),
		e.At.Before(f.From),
		!f.To.IsZero() && !e.At.Before(f.To):
		return false
	}
	return true
}

// The bounds of a search in the history of an account.
const (
	MaxFound        = 10_000  // matching entries
	maxSearched     = 100_000 // entries read, besides the newest one of each user
	maxHistoryBatch = 64      // entries read at once from one history
	historiesAtOnce = 16      // histories read at once
)

// AccountHistory returns a page of the matching entries of an account, newest first, and the number of matching entries.
// complete is false if the search stopped at MaxFound matches, or after it read maxSearched entries besides the newest entry of
// each user.
// Entries of one user are in the order in which they were counted. It reads the histories of all users, and is a large
// query: an account runs one at a time, see [ErrTooManyRequests].
func (s *Service) AccountHistory(ctx context.Context, account string, f HistoryFilter, p Page) (list []Entry, found int, complete bool, err error) {
	m := historyMerge{s: s, f: &f, since: s.now().Add(-s.retention())}
	if from := f.From.Add(-time.Nanosecond); !f.From.IsZero() && from.After(m.since) {
		m.since = from
	}
	size := manyCounters
	if f.KeyID != "" || f.UserID != 0 {
		size = 1
	}
	err = s.runQuery(ctx, account, size, func() error {
		if err := m.open(ctx, account); err != nil {
			return err
		}
		for m.read <= maxSearched && found < MaxFound {
			e, err := m.next(ctx)
			if err != nil {
				return err
			}
			if e == nil {
				complete = true
				return nil
			}
			if !f.matches(e) {
				continue
			}
			if found++; found > p.Offset() && len(list) < p.Size {
				list = append(list, *e)
			}
		}
		return nil
	})
	return list, found, complete, err
}

// historyMerge merges histories of an account by time, newest first.
type historyMerge struct {
	s       *Service
	f       *HistoryFilter
	since   time.Time // entries at or before it are left out
	sources historySources
	read    int // entries read after the first ones
}

// open reads the newest entries of each history that may have matching ones.
func (m *historyMerge) open(ctx context.Context, account string) error {
	switch {
	case m.f.KeyID != "":
		return m.add(ctx, []*historySource{{of: CounterID{Account: account, KeyID: m.f.KeyID}}})
	case m.f.UserID != 0:
		return m.add(ctx, []*historySource{{of: CounterID{Account: account, UserID: m.f.UserID}}})
	}
	list := func(p Page) ([]*User, int, error) { return m.s.store.Users(ctx, account, UserFilter{}, p) }
	return eachPage(ctx, list, func(users []*User) error {
		sources := make([]*historySource, len(users))
		for i, u := range users {
			sources[i] = &historySource{of: CounterID{Account: account, UserID: u.ID}}
		}
		return m.add(ctx, sources)
	})
}

// add adds the sources that have entries.
func (m *historyMerge) add(ctx context.Context, sources []*historySource) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(historiesAtOnce)
	for _, src := range sources {
		g.Go(func() error {
			if err := src.seek(ctx, m); err != nil {
				return err
			}
			_, err := src.fill(ctx, m)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, src := range sources {
		if len(src.batch) > 0 {
			heap.Push(&m.sources, src)
		}
	}
	return nil
}

// next returns the next entry, nil at the end.
func (m *historyMerge) next(ctx context.Context) (*Entry, error) {
	if len(m.sources) == 0 {
		return nil, ctx.Err()
	}
	src := m.sources[0]
	e := src.batch[0]
	src.batch = src.batch[1:]
	if len(src.batch) == 0 {
		n, err := src.fill(ctx, m)
		if err != nil {
			return nil, err
		}
		m.read += n
	}
	if len(src.batch) == 0 {
		heap.Pop(&m.sources)
	} else {
		heap.Fix(&m.sources, 0)
	}
	return &e, nil
}

// historySource reads one history, newest first.
type historySource struct {
	of     CounterID
	offset int     // entries that are read or skipped
	total  int     // of the history at the last fill, 0 before
	batch  []Entry // read, and not yet returned
}

// seek skips the entries that are 5 minutes (maxClockJump) or more after the end of the filter, by binary search. The filter
// drops the rest: entries are in the order of arrival, and the clocks of nodes differ by seconds.
func (src *historySource) seek(ctx context.Context, m *historyMerge) (err error) {
	if m.f.To.IsZero() {
		return nil
	}
	end := m.f.To.Add(maxClockJump)
	newest, n, err := m.s.store.History(ctx, src.of, m.since, Page{1, 1})
	if err != nil || len(newest) == 0 || newest[0].At.Before(end) {
		return err
	}
	src.offset = sort.Search(n, func(i int) bool {
		one, _, failed := m.s.store.History(ctx, src.of, m.since, Page{i + 1, 1})
		err = cmp.Or(err, failed)
		return failed != nil || len(one) == 0 || one[0].At.Before(end)
	})
	return err
}

// fill reads the next entries into the batch, and returns the number of entries read. Each read is one page; its size is the
// largest power of two that divides the offset, at most 64. New entries push the old ones back, so fill skips as many entries as
// were added since the last read.
func (src *historySource) fill(ctx context.Context, m *historyMerge) (n int, err error) {
	for {
		size := min(max(1, src.offset&-src.offset), maxHistoryBatch)
		var total int
		src.batch, total, err = m.s.store.History(ctx, src.of, m.since, Page{src.offset/size + 1, size})
		if err != nil || len(src.batch) == 0 {
			return n, err
		}
		added := 0
		if src.total > 0 {
			added = max(0, total-src.total)
		}
		skip := min(added, len(src.batch))
		n += len(src.batch)
		src.offset += len(src.batch)
		src.total = total - (added - skip)
		if src.batch = src.batch[skip:]; len(src.batch) > 0 {
			return n, nil
		}
	}
}

// historySources is a heap ordered by the time of the next entry, newest first. Ties go to the lower user id.
type historySources []*historySource

func (h historySources) Len() int { return len(h) }
func (h historySources) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(b.batch[0].At.Compare(a.batch[0].At), cmp.Compare(a.of.UserID, b.of.UserID)) < 0
}
func (h historySources) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *historySources) Push(x any)   { *h = append(*h, x.(*historySource)) }
func (h *historySources) Pop() any {
	last := len(*h) - 1
	src := (*h)[last]
	*h = (*h)[:last]
	return src
}
