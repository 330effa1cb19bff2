package badgerstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
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
	t, err := s.stateOf(of)
	if err != nil || t.entries == 0 {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	h := history{finder: eventFinder{s: s, counterState: &t, kind: kindKey}, late: t.late, since: since}
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
	newest := make([]time.Time, len(ids))
	for i, id := range ids {
		t, err := s.stateOf(id)
		if err != nil {
			return nil, err
		}
		newest[i] = t.newest.time()
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

// entry returns the entry with a number, and the latest time up to this entry. Both times are zero when the segment of
// the entry was removed.
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
	if err != nil || h.late == 0 {
		h.live = first
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
	gone   int64 // the segments of events up to this number were removed
}

// event returns the event with a number, or eventlog.ErrGone when its segment was removed.
func (f *eventFinder) event(number int64) (event, error) {
	if number <= f.gone {
		return event{}, eventlog.ErrGone
	}
	position, n, read := f.nearest(number)
	for {
		if !read {
			e, err := f.s.event(position)
			if errors.Is(err, eventlog.ErrGone) {
				f.gone = max(f.gone, n)
			}
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
		read = false
	}
}

// nearest returns where the search for an event begins: at the nearest later event of the chain, or at the event that
// was read last if that is nearer. read is true for the event that was read last.
func (f *eventFinder) nearest(number int64) (position, n int64, read bool) {
	t := f.counterState
	n = t.entries
	i := len(t.chain) - 1
	for ; i > 0 && jump(n) >= number; i-- {
		n = jump(n)
	}
	if f.number >= number && f.number <= n {
		return 0, f.number, true
	}
	return t.chain[i], n, false
}

// event is a request in the event log. It is an entry in the histories of its key and of its user, and has all data from
// which replay rebuilds their counters.
type event struct {
	core.Entry
	account   uint32 // number of the account
	key       int64  // Seq of the key
	shared    bool   // the user's counter also counts the request
	uncounted bool   // from an import: no counter counts the event, and it is in one history only
	ofKey     link
	ofUser    link
	retention time.Duration // the histories include the entry for this time after At

	since     *core.Since // of a user with anchors; nil for the calendar
	requestID string      // "" for a request without an id
	first     *answer     // the answer to the request, if it has an id
}

// answer is the stored answer to the first request with a request id.
type answer struct {
	terms  core.Terms
	result core.ConsumeResult
}

// repeated returns the answer to a repeated request.
func (v *answer) repeated() core.ConsumeResult {
	result := v.result
	result.Allowed, result.FirstTerms = true, &v.terms
	return result
}

// errEvent means that a record has a valid checksum, and is not the event that its position must have.
var errEvent = fmt.Errorf("%w: a record is valid, but is not the expected event", eventlog.ErrDamaged)

// The flags in the first byte of an event.
const (
	flagDenied = 1 << iota
	flagShared
	flagRequestID
	flagUncounted
	flagCosts  // costs of other meters than requests
	flagSince  // the user has anchors
	flagLimits // the answer has the windows of all limits
)

// The flags in the second byte of a recordEvent.
const (
	moreReason     = 1 << iota // the reason of a denial other than the quota
	moreAdjustment             // the event is an adjustment
	moreFlags      = 1<<iota - 1
)

// more returns the flags of a recordEvent, 0 if the event needs none.
func (e *event) more() (f byte) {
	if e.Denied && e.Reason != "" && e.Reason != core.ReasonQuota {
		f |= moreReason
	}
	if e.Adjustment != nil {
		f |= moreAdjustment
	}
	return f
}

// append appends the record of an event to b. position is the position of the record.
//
//	recordEvent, more flags           2 bytes; absent without more flags
//	flags                             1 byte
//	account, key, user                uvarints
//	at                                time
//	cost                              uvarint
//	retention                         uvarint of whole minutes, plus 1
//	for the key, then for the user:
//	  number                          uvarint; 0 when the event is not in this history
//	  prev, jump                      uvarints: the distances to the older entries; 0 without such an entry
//	  late                            uvarint of nanoseconds
//	key id, endpoint, method, address texts
//	with flagCosts:                   number of meters, uvarint; for each its name, a text, and its cost, uvarint
//	with moreReason:                  its index in [core.Reasons], 1 byte
//	with moreAdjustment:              meter, a text; set, a byte; period, uvarint; value, varint; reason, a text
//	with flagSince:                   for a day, week, month, year: since as a distance before at, varint of seconds
//	only with a request id:
//	  request id                      text
//	  used, start of the window       uvarint, varint of seconds
//	  period, limit                   uvarints
//	  plan id, plan name              texts
//	  with flagLimits:                see answer.appendLimits
func (e *event) append(b []byte, position int64) []byte {
	more := e.more()
	if more != 0 {
		b = append(b, recordEvent, more)
	}
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
	if len(e.Costs) > 0 {
		b = binary.AppendUvarint(b, uint64(len(e.Costs)))
		for _, m := range e.Costs {
			b = binary.AppendUvarint(appendText(b, m.Meter), uint64(m.Cost))
		}
	}
	if more&moreReason != 0 {
		b = append(b, byte(slices.Index(core.Reasons(), e.Reason)))
	}
	if a := e.Adjustment; a != nil {
		b = append(appendText(b, a.Meter), flagByte(a.Set))
		b = binary.AppendVarint(binary.AppendUvarint(b, uint64(a.Period)), a.Value)
		b = appendText(b, a.Reason)
	}
	if e.since != nil {
		for p := core.Day; p <= core.Year; p++ {
			b = binary.AppendVarint(b, e.At.Unix()-e.since[p])
		}
	}
	if e.requestID != "" {
		b = e.first.append(appendText(b, e.requestID), e.hasLimits())
	}
	return b
}

// hasLimits reports whether the answer is stored with the windows of all limits. Otherwise it has one limit, and the
// window follows from its start.
func (e *event) hasLimits() bool {
	return e.first != nil && (e.since != nil || len(e.first.terms.Further) > 0)
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
	if len(e.Costs) > 0 {
		f |= flagCosts
	}
	if e.since != nil {
		f |= flagSince
	}
	if e.hasLimits() {
		f |= flagLimits
	}
	return f
}

func (l *link) append(b []byte, position int64) []byte {
	b = binary.AppendUvarint(b, uint64(l.number))
	b = binary.AppendUvarint(b, back(position, l.prev))
	b = binary.AppendUvarint(b, back(position, l.jump))
	return binary.AppendUvarint(b, uint64(l.late))
}

// back returns the distance from a position to an older position, 0 for the position 0.
func back(from, to int64) uint64 {
	if to == 0 {
		return 0
	}
	return uint64(from - to)
}

func (v *answer) append(b []byte, limits bool) []byte {
	b = binary.AppendUvarint(b, uint64(v.result.Usage.Used))
	b = binary.AppendVarint(b, v.result.Usage.Window.Start.Unix())
	b = binary.AppendUvarint(b, uint64(v.terms.Period))
	b = binary.AppendUvarint(b, uint64(v.terms.Limit))
	b = appendText(appendText(b, v.terms.PlanID), v.terms.PlanName)
	if limits {
		b = v.appendLimits(b)
	}
	return b
}

// appendLimits appends the limits of an answer.
//
//	end, deciding limit  varint of seconds, 0 for a window without an end; uvarint
//	further limits       their number; of each the meter, a text, and the period and the maximum: uvarints
//	usages               their number; of each used, and the start and the end of the window: uvarint, varints
func (v *answer) appendLimits(b []byte) []byte {
	b = appendEnd(b, v.result.Usage.Window)
	b = binary.AppendUvarint(b, uint64(v.result.Deciding))
	b = binary.AppendUvarint(b, uint64(len(v.terms.Further)))
	for _, l := range v.terms.Further {
		b = binary.AppendUvarint(binary.AppendUvarint(appendText(b, l.Meter), uint64(l.Period)), uint64(l.Max))
	}
	b = binary.AppendUvarint(b, uint64(len(v.result.Limits)))
	for _, u := range v.result.Limits {
		b = binary.AppendVarint(binary.AppendUvarint(b, uint64(u.Used)), secondOf(u.Window.Start))
		b = appendEnd(b, u.Window)
	}
	return b
}

// appendEnd appends the end of a window, 0 for none.
func appendEnd(b []byte, w core.Window) []byte { return binary.AppendVarint(b, secondOf(w.End)) }

// decodeEvent decodes a record of the event log. position is the position of the record.
func decodeEvent(payload []byte, position int64) (e event, err error) {
	var more byte
	if payload[0] == recordEvent && len(payload) > 2 {
		if more, payload = payload[1], payload[2:]; more == 0 || more > moreFlags {
			return event{}, errEvent
		}
	}
	r := decoder{payload[1:]}
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
	if flags&flagCosts != 0 {
		for n := r.uvarint(); n > 0 && !r.failed(); n-- {
			e.Costs = append(e.Costs, core.MeterCost{Meter: r.text(), Cost: int64(r.uvarint())})
		}
	}
	if e.Denied {
		e.Reason = core.ReasonQuota
	}
	if more&moreReason != 0 {
		e.Reason = r.reason()
	}
	if more&moreAdjustment != 0 {
		e.Adjustment = r.adjustment()
	}
	if flags&flagSince != 0 {
		since := core.Anchors(nil).Since(e.At)
		for p := core.Day; p <= core.Year; p++ {
			since[p] = e.At.Unix() - r.varint()
		}
		e.since = &since
	}
	if flags&flagRequestID != 0 {
		e.requestID = r.text()
		e.first = r.answer(flags&flagLimits != 0)
	}
	if r.failed() || len(r.rest) > 0 {
		return event{}, errEvent
	}
	return e, nil
}

// flagByte returns 1 for true.
func flagByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func (r *decoder) reason() core.Reason {
	if i := r.uvarint(); i < uint64(len(core.Reasons())) {
		return core.Reasons()[i]
	}
	r.fail()
	return ""
}

func (r *decoder) adjustment() *core.Adjustment {
	a := &core.Adjustment{Meter: r.text(), Set: r.uvarint() == 1, Period: core.Period(r.uvarint()), Value: r.varint(), Reason: r.text()}
	if a.Period > core.Lifetime {
		r.fail()
	}
	return a
}

func (r *decoder) link(position int64) (l link) {
	l.number = int64(r.uvarint())
	l.prev, l.jump = r.back(position), r.back(position)
	l.late = time.Duration(r.uvarint())
	return l
}

func (r *decoder) back(position int64) int64 {
	if n := int64(r.uvarint()); n != 0 {
		return position - n
	}
	return 0
}

func (r *decoder) answer(limits bool) *answer {
	v := new(answer)
	u := &v.result.Usage
	u.Used, u.Window.Start = int64(r.uvarint()), time.Unix(r.varint(), 0).UTC()
	v.terms.Period, v.terms.Limit = core.Period(r.uvarint()), int64(r.uvarint())
	v.terms.PlanID, v.terms.PlanName = r.text(), r.text()
	if r.failed() || v.terms.Period > core.Lifetime {
		r.fail()
		return v
	}
	if !limits {
		u.Window = v.terms.Period.Window(u.Window.Start)
		return v
	}
	u.Window.End = r.end()
	v.result.Deciding = int(r.uvarint())
	for n := r.uvarint(); n > 0 && !r.failed(); n-- {
		v.terms.Further = append(v.terms.Further, core.Limit{Meter: r.text(), Period: core.Period(r.uvarint()), Max: int64(r.uvarint())})
	}
	n := r.uvarint()
	if n > uint64(1+len(v.terms.Further)) || v.result.Deciding > len(v.terms.Further) {
		r.fail()
		return v
	}
	for i := range int(n) {
		used := core.Usage{Used: int64(r.uvarint()), Window: core.Window{Start: time.Unix(r.varint(), 0).UTC(), End: r.end()}}
		v.result.Limits = append(v.result.Limits, core.LimitUsage{Limit: v.terms.LimitAt(i), Usage: used})
	}
	if len(v.result.Limits) > 0 && v.terms.Limit == core.Unlimited {
		v.result.Limits[0] = core.LimitUsage{}
	}
	return v
}

// end reads the end of a window.
func (r *decoder) end() time.Time {
	if end := r.varint(); end != 0 {
		return time.Unix(end, 0).UTC()
	}
	return time.Time{}
}

// counts reports whether an event that is not denied changes the counter of its key or of its user.
func (e *event) counts(kind uint32) bool {
	return !e.uncounted && (kind == kindUser && e.shared || kind == kindKey && !(e.shared && e.Adjustment != nil))
}

// requestIDOwner returns the counter that remembers the request id of the event: of the key, or of the user if the event has no
// key.
func (e *event) requestIDOwner() ref {
	key, user := e.refs()
	if e.key == 0 {
		return user
	}
	return key
}

// refs returns the counters of the key and of the user. The event is in their histories when linkOf has a number.
func (e *event) refs() (key, user ref) {
	return ref{e.key, e.account, kindKey}, ref{e.UserID, e.account, kindUser}
}

// keep returns how long an event that is written now is kept. Until is the end of its retention. Before Hard the event is
// kept in any case, because it has the answer to its request id.
func (e *event) keep(now int64) (k eventlog.Keep) {
	if e.requestID != "" {
		k.Hard = now + int64(idRetention/time.Second)
	}
	k.Until = max(k.Hard, now+int64((keptLonger+e.retention)/time.Second))
	return k
}

// idRetention is how long the event of a request with an id, and its index record, are kept.
const idRetention = core.RequestIDRetention + keptLonger

// keptLonger is added to the retention of an event. The service's clock sets the time of an event and the store's clock
// ends its retention, and the two clocks may differ.
const keptLonger = 24 * time.Hour

// linkOf returns the link of an event in the history of its key or of its user.
func (e *event) linkOf(kind uint32) *link {
	if kind == kindUser {
		return &e.ofUser
	}
	return &e.ofKey
}
