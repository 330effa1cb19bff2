package service

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// HistoryFilter selects entries of the history of an account. The zero value selects all.
type HistoryFilter struct {
	Status   string      // allowed or denied, "" for both
	Reason   core.Reason // of a denial, "" for any entry
	UserID   int64       // 0 for any
	KeyID    string      // "" for any
	Endpoint string      // what the endpoint begins with
	Meter    string      // see concerns; "" for any
	Method   string      // "" for any
	IP       string      // the address of the client as the history has it; "" for any

	RequestID string // "" for any

	From, To time.Time // From ≤ time < To; the zero time for no bound

	After *HistoryCursor // only entries behind it; nil for all
}

// matches reports whether an entry is selected.
func (f *HistoryFilter) matches(e *core.Entry) bool {
	switch {
	case f.Status == string(Denied) && !e.Denied, f.Status == string(Allowed) && e.Denied,
		f.Reason != "" && (f.Reason != e.Reason || !e.Denied),
		f.UserID != 0 && f.UserID != e.UserID,
		f.KeyID != "" && f.KeyID != e.KeyID,
		!strings.HasPrefix(e.Endpoint, f.Endpoint),
		f.Method != "" && f.Method != e.Method,
		f.IP != "" && f.IP != e.IP,
		f.RequestID != "" && f.RequestID != e.RequestID,
		f.Meter != "" && !concerns(e, f.Meter),
		e.At.Before(f.From),
		!f.To.IsZero() && !e.At.Before(f.To):
		return false
	}
	return true
}

// concerns reports whether a limit of the meter has refused the request, or, without such a limit, whether the entry costs or changes the meter.
func concerns(e *core.Entry, meter string) bool {
	costs := func(requests int64, others []core.MeterCost) bool {
		return meter == core.MeterRequests && requests > 0 || slices.ContainsFunc(others, func(m core.MeterCost) bool { return m.Meter == meter })
	}
	switch {
	case e.Limit != nil:
		return e.Limit.Meter == meter
	case e.Adjustment != nil:
		return e.Adjustment.Meter == meter
	case e.Settlement != nil && costs(e.Settlement.Cost, e.Settlement.Costs):
		return true
	}
	return costs(e.Cost, e.Costs)
}

// The bounds of a search in the history of an account.
const (
	MaxFound        = 10_000           // matching entries
	maxSearched     = 100_000          // entries behind the cursor, first reads of histories, and probes of the binary searches
	maxLate         = 10 * time.Second // a search with an end may miss an entry with a larger Entry.Late in a store without [core.HistoryIndex]
	historiesAtOnce = 16               // histories opened at once, in parallel if the store waits for a network: if it is no [core.HistoryIndex]

	firstHistoryBatch = 32   // entries of the first read of a history: most histories need no second read
	historyBatch      = 256  // entries of each later read. badgerstore searches the oldest live entry in each read
	maxBuffered       = 8192 // entries that the open histories of one search share: with more histories, each reads fewer at once
)

// AccountHistory returns a page of the matching entries of an account, newest first. It stops at MaxFound matches, or after maxSearched
// reads; [HistoryPage.Next] goes on from there. A store without [core.HistoryIndex] reads the newest entry of each user first. Entries of one user are in
// the order in which they were counted. Without UserID and KeyID it is a large query: an account runs one at a time, see [ErrTooManyRequests].
func (s *Service) AccountHistory(ctx context.Context, account string, f HistoryFilter, p core.Page) (h HistoryPage, err error) {
	m := s.newHistoryMerge(&f)
	err = s.runQuery(ctx, account, f.size(), func() error {
		if err := m.open(ctx, account); err != nil {
			return err
		}
		return m.page(ctx, p, &h)
	})
	if errors.Is(err, errSearched) {
		err = nil
	}
	if !h.Complete {
		h.SearchedTo = m.latest
	}
	if h.Complete && h.Found <= p.Offset()+len(h.Entries) || h.Next == f.After {
		h.Next = nil
	}
	return h, err
}

// newHistoryMerge returns the merge of the histories that may have entries of a filter.
func (s *Service) newHistoryMerge(f *HistoryFilter) *historyMerge {
	m := &historyMerge{s: s, f: f, since: s.now().Add(-s.retention()), end: f.To}
	if c := f.After; c != nil && (m.end.IsZero() || c.At.Before(m.end)) {
		m.end = c.At.Add(historyGranularity)
	}
	if from := f.From.Add(-time.Nanosecond); !f.From.IsZero() && from.After(m.since) {
		m.since = from
	}
	if c, ok := s.store.(core.CappedHistory); ok {
		m.capped = c.HistoryCap() > 0
	}
	return m
}

// size returns the size of the query for runQuery.
func (f *HistoryFilter) size() int {
	if f.KeyID != "" || f.UserID != 0 {
		return 1
	}
	return wholeAccount
}

// page reads entries until the page is full and the matches are counted. It stops at a bound only between two places of a cursor.
func (m *historyMerge) page(ctx context.Context, p core.Page, h *HistoryPage) error {
	after := m.f.After
	h.Next = after
	var here []core.Entry // with the time and the user of the cursor; the last Left of them are behind it
	for {
		e, err := m.next(ctx)
		if err != nil {
			return err
		}
		if e != nil && !m.f.To.IsZero() && !e.At.Before(m.f.To) {
			continue // not examined: no cursor counts it
		}
		if e != nil && after != nil {
			order := after.compare(e, m.user)
			if order == 0 {
				here = append(here, *e)
				here = here[max(0, len(here)-after.Left):]
			}
			if order <= 0 {
				continue
			}
		}
		if len(here) > 0 && h.Next == after {
			h.Next = &HistoryCursor{At: after.At, UserID: after.UserID} // examine counts Left from 0
		}
		for i := range here {
			m.examine(&here[i], after.UserID, p, h)
		}
		here = nil
		switch {
		case e == nil:
			h.Complete = !m.more
			return nil
		case (m.read > maxSearched || h.Found >= MaxFound) && h.Next.pass(e, m.user) != h.Next, h.Next != nil && h.Next.Left == maxSearched:
			return nil
		}
		m.latest = e.LatestSoFar()
		m.examine(e, m.user, p, h)
	}
}

// examine puts an entry of the history of a user on the page if it belongs there.
func (m *historyMerge) examine(e *core.Entry, user int64, p core.Page, h *HistoryPage) {
	m.read++
	if full := h.Found-p.Offset() >= p.Size; !full {
		h.Next = h.Next.pass(e, user)
	} else {
		order := h.Next.compare(e, user)
		m.past = m.past || order > 0
		if order == 0 && !m.past {
			h.Next.Left++
		}
	}
	if !m.f.matches(e) {
		return
	}
	if h.Found == MaxFound {
		m.more = true
		return
	}
	if h.Found++; h.Found > p.Offset() && len(h.Entries) < p.Size {
		h.Entries = append(h.Entries, *e)
	}
}

// HistoryPage is a page of the history of an account.
type HistoryPage struct {
	Entries  []core.Entry
	Found    int  // matching entries behind the cursor of the filter, at most MaxFound
	Complete bool // the search did not stop at a bound

	// SearchedTo is the time to which a search that is not complete has looked: no later entry was left out. It is zero if nothing was read.
	SearchedTo time.Time

	Next *HistoryCursor // behind the last entry, or where the search stopped; nil at the end, or if nothing behind After was read
}
