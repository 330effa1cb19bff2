package badgerstore

import (
	"context"
	"errors"
	"slices"
	"sort"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// The history of a counter is a list of entries, numbered from 1 in the order in which they were counted. Each entry is
// an event of the event log. It has the positions of two older entries, prev and jump (see [jump]), so a reader finds
// any entry from the newest entry in about 2·log₂(n) steps.
//
//	number         1      2      3      4      5      6
//	prev                  1      2      3      4      5
//	jump                  1             3      4      3
//	time           10:00  10:01  10:05  10:02  10:06  10:07
//	late           0      0      0      3 min  0      0
//	latest so far  10:00  10:01  10:05  10:05  10:06  10:07
//
// Entry 4 is late: an older entry has a later time. Times are therefore not sorted. The sum time + late is the latest
// time up to an entry, and never decreases.
//
// An entry has expired when its time is not after since, a parameter of the query. Two binary searches over the latest
// time so far divide the history into three ranges:
//
//	latest so far ≤ since                              every entry has expired
//	since < latest so far ≤ since + the largest late   mixed: history.divide reads each entry
//	since + the largest late < latest so far           no entry has expired

// maxMixed is the largest number of entries in the mixed range. It bounds the cost of a query after the clock was a year
// ahead for a moment. The entries after the bound are in the total without being read; an
// expired one is left off its page.
const maxMixed = 50_000

// History implements [core.Store].
func (s *Store) History(_ context.Context, of core.CounterID, since time.Time, p core.Page) (list []core.Entry, total int, err error) {
	err = s.withHistory(of, since, func(h *history) (err error) {
		list, err = h.page(p)
		total = h.total()
		return err
	})
	return list, total, err
}

// CountFrom implements [core.HistoryIndex].
func (s *Store) CountFrom(_ context.Context, of core.CounterID, since, from time.Time) (n int, err error) {
	err = s.withHistory(of, since, func(h *history) error {
		first, err := h.firstLaterThan(from.Add(h.late - 1)) // with the time from, too
		n = h.countFrom(first)
		return err
	})
	return n, err
}

// withHistory finds the entries of a history after since, and calls fn. It does not call fn for a history that has never had an entry.
func (s *Store) withHistory(of core.CounterID, since time.Time, fn func(*history) error) error {
	states, err := s.states([]core.CounterID{of})
	if err != nil || states[0].entries == 0 {
		return err
	}
	t := &states[0]
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	h := history{finder: eventFinder{s: s, counterState: t, kind: kindKey}, late: t.late, since: since}
	if of.KeyID == "" {
		h.finder.kind = kindUser
	}
	if err := h.divide(); err != nil {
		return fault(err)
	}
	return fault(fn(&h))
}

// NewestEntries implements [core.HistoryIndex].
func (s *Store) NewestEntries(_ context.Context, ids []core.CounterID) ([]time.Time, error) {
	states, err := s.states(ids)
	if err != nil {
		return nil, err
	}
	newest := make([]time.Time, len(ids))
	for i := range states {
		newest[i] = states[i].newest.time()
	}
	return newest, nil
}

var _ core.HistoryIndex = (*Store)(nil)

// history is one query of a history.
type history struct {
	finder eventFinder
	late   time.Duration
	since  time.Time

	live  int64   // no entry from this number on has expired
	mixed []int64 // the numbers of the older entries that have not expired
}

// entry returns the entry with a number, and the latest time up to this entry. An entry that is gone, and all older ones, have no
// time.
func (h *history) entry(number int64) (e core.Entry, latest time.Time, err error) {
	v, err := h.finder.event(number)
	if errors.Is(err, eventlog.ErrGone) {
		return core.Entry{}, time.Time{}, nil
	}
	v.Late = v.linkOf(h.finder.kind).late
	return v.Entry, v.LatestSoFar(), err
}

// divide finds the entries that have not expired.
func (h *history) divide() error {
	first, err := h.firstLaterThan(h.since)
	if h.live = first; h.late > 0 && err == nil {
		h.live, err = h.firstLaterThan(h.since.Add(h.late))
	}
	if err != nil {
		return err
	}
	h.live = min(h.live, first+maxMixed)
	for n := first; n < h.live; n++ {
		e, _, err := h.entry(n)
		if err != nil {
			return err
		}
		if e.At.After(h.since) {
			h.mixed = append(h.mixed, n)
		}
	}
	return nil
}

// firstLaterThan returns the number of the first entry whose time LatestSoFar is after t. Without such an entry it returns the number
// of the next entry.
func (h *history) firstLaterThan(t time.Time) (int64, error) {
	var failed error
	i := sort.Search(int(h.finder.counterState.entries), func(i int) bool {
		_, latest, err := h.entry(int64(i) + 1)
		failed = firstOf(failed, err)
		return latest.After(t)
	})
	return int64(i) + 1, failed
}

// countFrom returns the number of entries from a number on that have not expired.
func (h *history) countFrom(first int64) int {
	i, _ := slices.BinarySearch(h.mixed, first)
	return int(h.finder.counterState.entries-max(first, h.live)) + 1 + len(h.mixed) - i
}

func (h *history) total() int { return h.countFrom(1) }

// page returns the entries on a page that have not expired, newest first.
func (h *history) page(p core.Page) ([]core.Entry, error) {
	var list []core.Entry
	for i := p.Offset(); i < h.total() && i-p.Offset() < p.Size; i++ {
		e, _, err := h.entry(h.number(i))
		if err != nil {
			return nil, err
		}
		if e.At.After(h.since) { // otherwise it has expired outside the first maxMixed entries, or its segment was removed
			list = append(list, e)
		}
	}
	return list, nil
}

// number returns the number of the entry at index i. Index 0 is the newest entry, and expired entries are not counted.
func (h *history) number(i int) int64 {
	if n := h.finder.counterState.entries - int64(i); n >= h.live {
		return n
	}
	return h.mixed[h.total()-1-i]
}

// eventFinder finds the events of a history in the event log by their numbers.
type eventFinder struct {
	s            *Store
	counterState *counterState
	kind         uint32

	number int64 // the number of the event last, 0 before the first read
	last   event // the event that was read last
}

// event returns the event with a number, or eventlog.ErrGone when the event log now begins behind it.
func (f *eventFinder) event(number int64) (event, error) {
	position, n := f.nearest(number)
	for {
		if n != f.number {
			e, err := f.s.event(position)
			if err != nil {
				return event{}, err
			}
			if e.linkOf(f.kind).number != n {
				return event{}, errEvent
			}
			f.last, f.number = e, n
		}
		if n == number {
			return f.last, nil
		}
		l := f.last.linkOf(f.kind)
		if j := jump(n); j >= number {
			position, n = l.jump, j
		} else {
			position, n = l.prev, n-1
		}
	}
}

// nearest returns where the search for an event begins: at the nearest later event of the chain, or at the event that
// was read last if that is nearer.
func (f *eventFinder) nearest(number int64) (position, n int64) {
	t := f.counterState
	n = t.entries
	i := len(t.chain) - 1
	for ; i > 0 && jump(n) >= number; i-- {
		n = jump(n)
	}
	if f.number >= number && f.number <= n {
		return 0, f.number
	}
	return t.chain[i], n
}
