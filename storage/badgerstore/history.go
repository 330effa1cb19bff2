package badgerstore

import (
	"context"
	"errors"
	"sort"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// The entries of a history are numbered in the order in which they were counted, so
// that a page is found by arithmetic from the newest one, and where the live ones begin
// by bisection: each entry knows the time of the latest one up to it, which never goes
// back.
//
// An entry may be late, earlier than one before it. How late the latest of them was is
// in the counter's record; only within that span of the place where the live ones begin
// can live and dead ones lie side by side, and only there they are looked at one by one.

// maxMixed is how many entries are looked at one by one. It bounds what a clock that was
// a year ahead for a moment can cost; beyond it all count as live.
const maxMixed = 50_000

// History implements [core.Store].
func (s *Store) History(_ context.Context, of core.CounterID, since time.Time, p core.Page) (list []core.Entry, total int, err error) {
	t, err := s.stateOf(of)
	if err != nil || t.entries == 0 {
		return nil, 0, err
	}
	if err := s.enter(); err != nil {
		return nil, 0, err
	}
	defer s.leave()
	h := history{reader: reader{s: s, counterState: &t, kind: kindKey}, late: t.late, since: since}
	if of.KeyID == "" {
		h.reader.kind = kindUser
	}
	if err := h.divide(); err != nil {
		return nil, 0, fault(err)
	}
	list, err = h.page(p)
	return list, h.total(), fault(err)
}

// history is a history as it is read.
type history struct {
	reader reader
	late   time.Duration
	since  time.Time

	live  int64   // from this number on all are live
	mixed []int64 // the live ones below it
}

// entry returns the entry with a number, and the time of the latest one up to it. One
// that is not there any more has the zero time.
func (h *history) entry(number int64) (e core.Entry, latest time.Time, err error) {
	v, err := h.reader.event(number)
	if errors.Is(err, eventlog.ErrGone) {
		return core.Entry{}, time.Time{}, nil
	}
	return v.Entry, v.At.Add(v.linkOf(h.reader.kind).late), err
}

// divide finds where the live entries begin.
func (h *history) divide() error {
	first, err := h.firstLaterThan(h.since)
	if err != nil {
		return err
	}
	if h.live, err = h.firstLaterThan(h.since.Add(h.late)); err != nil {
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

// firstLaterThan returns the first number of an entry that is later than t, or comes
// after one that is.
func (h *history) firstLaterThan(t time.Time) (int64, error) {
	var failed error
	i := sort.Search(int(h.reader.counterState.entries), func(i int) bool {
		_, latest, err := h.entry(int64(i) + 1)
		failed = firstOf(failed, err)
		return latest.After(t)
	})
	return int64(i) + 1, failed
}

// total returns how many entries are live.
func (h *history) total() int { return int(h.reader.counterState.entries-h.live) + 1 + len(h.mixed) }

// page returns the live entries on a page, newest first.
func (h *history) page(p core.Page) ([]core.Entry, error) {
	var list []core.Entry
	for i := p.Offset(); i < h.total() && len(list) < p.Size; i++ {
		e, _, err := h.entry(h.number(i))
		if err != nil {
			return nil, err
		}
		if e.At.After(h.since) { // else it has expired meanwhile
			list = append(list, e)
		}
	}
	return list, nil
}

// number returns the number of the entry that has i live ones after it.
func (h *history) number(i int) int64 {
	if n := h.reader.counterState.entries - int64(i); n >= h.live {
		return n
	}
	return h.mixed[h.total()-1-i]
}

// reader finds the events of a history in the event log by their numbers.
type reader struct {
	s            *Store
	counterState *counterState
	kind         uint32

	number int64 // of the event that was read last, 0 for none
	last   event
	gone   int64 // no event with this number, or a smaller one, is there any more
}

// event returns the event with a number, or eventlog.ErrGone.
func (r *reader) event(number int64) (event, error) {
	if number <= r.gone {
		return event{}, eventlog.ErrGone
	}
	position, n, read := r.nearest(number)
	for {
		if !read {
			e, err := r.s.event(position)
			if errors.Is(err, eventlog.ErrGone) {
				r.gone = max(r.gone, n)
			}
			if err != nil {
				return event{}, err
			}
			if e.linkOf(r.kind).number != n {
				return event{}, errEvent
			}
			r.last, r.number = e, n
		}
		if n == number {
			return r.last, nil
		}
		l := r.last.linkOf(r.kind)
		if j := jump(n); j >= number {
			position, n = l.jump, j
		} else {
			position, n = l.prev, n-1
		}
		read = false
	}
}

// nearest returns the nearest event from which one with a number is found: the one that
// was read last, or one of the chain.
func (r *reader) nearest(number int64) (position, n int64, read bool) {
	t := r.counterState
	n = t.entries
	i := len(t.chain) - 1
	for ; i > 0 && jump(n) >= number; i-- {
		n = jump(n)
	}
	if r.number >= number && r.number <= n {
		return 0, r.number, true
	}
	return t.chain[i], n, false
}
