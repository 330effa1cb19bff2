package badgerstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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

// event is a request in the event log: its entry in the histories of its key and of its
// user, and all that a counter is made whole from.
type event struct {
	core.Entry
	account   uint32 // its number
	key       int64  // its Seq
	shared    bool   // the user's counter counts too
	uncounted bool   // an import made it: it counts nowhere, and may be in one history alone
	ofKey     link
	ofUser    link
	retention time.Duration // how long from At it may be asked for

	requestID string // of a request that is to be answered once, else ""
	first     answer
}

// verdict is what a request with an id was answered.
type answer struct {
	used  int64
	start int64 // of the window, Unix seconds
	terms core.Terms
}

// errEvent means that a valid record is not the event that belongs there.
var errEvent = fmt.Errorf("%w: an event is not the one that was written there", eventlog.ErrDamaged)

// What the first byte of an event says.
const (
	flagDenied = 1 << iota
	flagShared
	flagRequestID
	flagUncounted
)

// append appends an event, as a record of the event log at a position.
//
//	flags                   1 byte
//	account, key, user      uvarints
//	at                      time
//	cost                    uvarint
//	keep                    uvarint of minutes
//	in the history of the key and of the user:
//	  number                uvarint; 0 when the event is in the other history alone
//	  prev, jump            how far back they are, uvarints; 0 for none
//	  late                  uvarint of nanoseconds
//	key id, endpoint, method, address, each a text
//	with a request id: it, used, start of the window, period, limit, plan's id and name
func (e *event) append(b []byte, position int64) []byte {
	b = append(b, e.flags())
	b = binary.AppendUvarint(b, uint64(e.account))
	b = binary.AppendUvarint(b, uint64(e.key))
	b = binary.AppendUvarint(b, uint64(e.UserID))
	b = appendTime(b, e.At)
	b = binary.AppendUvarint(b, uint64(e.Cost))
	b = binary.AppendUvarint(b, uint64(e.retention/time.Minute+1))
	b = e.ofKey.append(b, position)
	b = e.ofUser.append(b, position)
	b = appendText(b, e.KeyID)
	b = appendText(b, e.Endpoint)
	b = appendText(b, e.Method)
	b = appendText(b, e.IP)
	if e.requestID != "" {
		b = e.first.append(appendText(b, e.requestID))
	}
	return b
}

func (e *event) flags() (f byte) {
	if e.Denied {
		f |= flagDenied
	}
	if e.shared {
		f |= flagShared
	}
	if e.requestID != "" {
		f |= flagRequestID
	}
	if e.uncounted {
		f |= flagUncounted
	}
	return f
}

func (l *link) append(b []byte, position int64) []byte {
	b = binary.AppendUvarint(b, uint64(l.number))
	b = binary.AppendUvarint(b, back(position, l.prev))
	b = binary.AppendUvarint(b, back(position, l.jump))
	return binary.AppendUvarint(b, uint64(l.late))
}

// back returns how far back a position is, 0 for none.
func back(from, to int64) uint64 {
	if to == 0 {
		return 0
	}
	return uint64(from - to)
}

func (v *answer) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(v.used))
	b = binary.AppendVarint(b, v.start)
	b = binary.AppendUvarint(b, uint64(v.terms.Period))
	b = binary.AppendUvarint(b, uint64(v.terms.Limit))
	return appendText(appendText(b, v.terms.PlanID), v.terms.PlanName)
}

// decodeEvent returns the event of a record at a position.
func decodeEvent(payload []byte, position int64) (e event, err error) {
	r := reading{payload[1:]}
	flags := payload[0]
	if flags >= recordRedo {
		return event{}, errEvent
	}
	e.Denied, e.shared, e.uncounted = flags&flagDenied != 0, flags&flagShared != 0, flags&flagUncounted != 0
	e.account, e.key, e.UserID = uint32(r.uvarint()), int64(r.uvarint()), int64(r.uvarint())
	e.At = r.time()
	e.Cost = int64(r.uvarint())
	e.retention = time.Duration(r.uvarint()) * time.Minute
	e.ofKey, e.ofUser = r.link(position), r.link(position)
	e.KeyID, e.Endpoint, e.Method, e.IP = r.text(), r.text(), r.text(), r.text()
	if flags&flagRequestID != 0 {
		e.requestID, e.first = r.text(), r.answer()
	}
	if r.failed() || len(r.rest) > 0 {
		return event{}, errEvent
	}
	return e, nil
}

func (r *reading) link(position int64) (l link) {
	l.number = int64(r.uvarint())
	l.prev, l.jump = r.back(position), r.back(position)
	l.late = time.Duration(r.uvarint())
	return l
}

func (r *reading) back(position int64) int64 {
	if n := int64(r.uvarint()); n != 0 {
		return position - n
	}
	return 0
}

func (r *reading) answer() (v answer) {
	v.used, v.start = int64(r.uvarint()), r.varint()
	v.terms.Period, v.terms.Limit = core.Period(r.uvarint()), int64(r.uvarint())
	v.terms.PlanID, v.terms.PlanName = r.text(), r.text()
	return v
}

// refs returns the counters of an event. The event is in the histories for which linkOf has a number.
func (e *event) refs() (key, user ref) {
	return ref{e.key, e.account, kindKey}, ref{e.UserID, e.account, kindUser}
}

// keep returns until when an event that is written now must be kept: its history until the end
// of its retention, and its request id in any case.
func (e *event) keep(now int64) (k eventlog.Keep) {
	if e.requestID != "" {
		k.Hard = now + int64(idRetention/time.Second)
	}
	k.Until = max(k.Hard, now+int64((keptLonger+e.retention)/time.Second))
	return k
}

// idRetention is how long the event of a request with an id, and its index record, are kept.
const idRetention = core.RequestIDRetention + keptLonger

// encodeKeep returns the record of a segment of format 1.
//
//	until, hard  uvarints; a record of before schema 4 has the first one only
func encodeKeep(k eventlog.Keep) []byte {
	return binary.AppendUvarint(encodeNumber(k.Until), uint64(k.Hard))
}

// decodeKeep returns until when the events of a segment of format 1 must be kept. A record of
// before schema 4 does not say when the request ids end: decodeKeep assumes that they were made
// at the time now.
func decodeKeep(record []byte, now int64) (k eventlog.Keep, err error) {
	r := reading{record}
	if k.Until = int64(r.uvarint()); !r.failed() && len(r.rest) == 0 {
		k.Hard = min(k.Until, now+int64(idRetention/time.Second))
		return k, nil
	}
	if k.Hard = int64(r.uvarint()); r.failed() || len(r.rest) > 0 {
		return eventlog.Keep{}, errRecord
	}
	return k, nil
}

// keptLonger is how much longer than asked for an event is kept: its time is that of the
// service's clock, its end that of the store's, which may be another clock.
const keptLonger = 24 * time.Hour

// linkOf returns the link of an event in the history of its key or of its user.
func (e *event) linkOf(kind uint32) *link {
	if kind == kindUser {
		return &e.ofUser
	}
	return &e.ofKey
}
