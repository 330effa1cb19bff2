package badgerstore

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ref identifies a counter and its history within the store: by the number of the account, and the Seq of a key or
// the id of a user. Only an import uses the number of a deleted key or user again.
type ref struct {
	number  int64
	account uint32
	kind    uint32 // kindKey or kindUser
}

// compare orders counters by their pages.
func (r ref) compare(other ref) int {
	if r.number != other.number && r.account == other.account && r.kind == other.kind {
		return cmp.Compare(r.number, other.number)
	}
	return cmp.Or(cmp.Compare(r.account, other.account), cmp.Compare(r.kind, other.kind))
}

// counterState is a counter and the end of its history, including all events up to the position applied. Pages store
// this state.
type counterState struct {
	core.Counter

	entries int64         // number of entries ever appended; entries are numbered from 1
	newest  moment        // the latest time of an entry
	late    time.Duration // the largest link.late of an entry
	applied int64         // the position of the last event that this state includes

	// chain has the positions of the last entry, of the entry that the last entry jumps to, and so on, oldest first:
	// see jump.
	chain []int64

	days *days // nil when empty
}

// moment is a time in Unix nanoseconds, 0 for the zero time. It takes 8 bytes instead of 24. Times before 1678 and after
// 2261 become the first or the last moment.
type moment int64

func momentOf(t time.Time) moment {
	const last = math.MaxInt64/int64(time.Second) - 1 // whole seconds that fit
	switch s := t.Unix(); {
	case -last <= s && s <= last:
		return moment(s*int64(time.Second) + int64(t.Nanosecond()))
	case t.IsZero():
		return 0
	case s < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}

// sub returns how much later m is than an earlier moment, at most the longest duration.
func (m moment) sub(earlier moment) time.Duration {
	if d := time.Duration(m - earlier); d >= 0 {
		return d
	}
	return math.MaxInt64
}

// time returns the time in UTC.
func (m moment) time() time.Time {
	if m == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(m)).UTC()
}

// link connects an event with older entries of the history of a key or user.
type link struct {
	number int64         // of this entry in the history
	prev   int64         // the position of the previous entry, 0 for the first entry
	jump   int64         // the position of the entry jump(number), 0 without such an entry
	late   time.Duration // how much earlier this entry is than the latest entry before it, 0 when it is the latest
}

// The entries of a history are a skip list: each entry has the position of the previous entry and of a much older
// entry. The number of an entry, written as a sum of terms 2ᵏ−1, largest first, determines the older entry: the jump
// skips as many entries as the smallest term. A reader finds any entry from any later one in about 2·log₂(n) steps.
// Appending an entry needs only the chain of jumps from the last entry, and changes no earlier entry. (E. W. Myers, An
// applicative random-access stack, Information Processing Letters 17, 1983.)

// jump returns the number of the older entry that entry number jumps to, 0 when there is no such entry.
func jump(number int64) int64 {
	last, _ := smallestTerms(number)
	return number - last
}

// smallestTerms returns the smallest and the second smallest term of n, 0 for a missing term.
func smallestTerms(n int64) (last, before int64) {
	for n > 0 {
		term := int64(1)<<(bits.Len64(uint64(n)+1)-1) - 1
		last, before = term, last
		n -= term
	}
	return last, before
}

// next returns the link of the next entry. at is the time of that entry.
func (t *counterState) next(at time.Time) link {
	l := link{number: t.entries + 1}
	if m := momentOf(at); t.entries > 0 && m < t.newest {
		l.late = t.newest.sub(m)
	}
	return t.withPositions(l)
}

// withPositions sets the positions prev and jump of the next link.
func (t *counterState) withPositions(l link) link {
	n := len(t.chain)
	if n == 0 {
		return l
	}
	l.prev = t.chain[n-1]
	// A new entry on top of two equal trees jumps over both.
	if last, before := smallestTerms(t.entries); last != before {
		l.jump = l.prev
	} else if n > 2 {
		l.jump = t.chain[n-3]
	}
	return l
}

// append adds the entry of the event at a position to the end of the history.
func (t *counterState) append(l link, at time.Time, position int64) {
	if last, before := smallestTerms(t.entries); last == before && last > 0 {
		t.chain = t.chain[:len(t.chain)-2]
	}
	t.chain = append(t.chain, position)
	if m := momentOf(at); t.entries == 0 || m > t.newest {
		t.newest = m
	}
	t.entries = l.number
	t.late = max(t.late, l.late)
	t.applied = position
}

// clearHistory removes all entries. The next entry has the number 1.
func (t *counterState) clearHistory() {
	t.entries, t.newest, t.late, t.chain = 0, 0, 0, t.chain[:0]
}

// lastPosition returns the position of the last entry, 0 when there is none.
func (t *counterState) lastPosition() int64 {
	if n := len(t.chain); n > 0 {
		return t.chain[n-1]
	}
	return 0
}

// clone returns a deep copy.
func (t *counterState) clone() counterState {
	c := *t
	c.Counter, c.chain, c.days = t.Counter.Clone(), slices.Clone(t.chain), t.days.clone()
	return c
}

// The flags of a record of a counter: the low bits of its first number. The other bits are applied.
const (
	stateDropped = 1 << iota // the counter was deleted: the record ends here
	stateNewest              // LastUsedAt equals newest, and is left out
	stateAt                  // At is the second of LastUsedAt, and is left out
	stateHead                // the last entry is at applied: the chain is stored without that position
	stateMore                // optional numbers follow the usage
	stateFlags   = iota      // number of flags
)

// encode appends the record of a counter.
//
//	flags, applied    uvarint, see above
//	entries           uvarint
//	newest, late      time, uvarint of nanoseconds
//	last used         time, absent with stateNewest
//	at                varint, absent with stateAt
//	omitted denials   uvarint
//	usage             uvarints: requests of each period, in the order of their numbers, and of today
//	optional numbers  with stateMore: a uvarint of bits, see more
//	  days            the usage of each number of a day, uvarint, and by how many days its date is before At, varint
//	  denials         with moreDenied: the day of the last denials and the number recorded on that day, uvarints
//	  meters          with moreMeters: their number, uvarint; of each meter its name, a text, and the usage of each period
//	chain             uvarints, each the difference from the previous position
func (t *counterState) encode(b []byte) []byte {
	flags := t.flags()
	b = binary.AppendUvarint(b, uint64(t.applied)<<stateFlags|flags)
	b = binary.AppendUvarint(b, uint64(t.entries))
	b = binary.AppendUvarint(appendTime(b, t.newest.time()), uint64(t.late))
	if flags&stateNewest == 0 {
		b = appendTime(b, t.LastUsedAt)
	}
	if flags&stateAt == 0 {
		b = binary.AppendVarint(b, t.At)
	}
	b = binary.AppendUvarint(b, uint64(t.DeniedOmitted))
	b = binary.AppendUvarint(appendPeriodUsage(b, &t.Requests), uint64(t.Today))
	if flags&stateMore != 0 {
		b = t.appendMore(b)
	}
	chain, before := t.chain, int64(0)
	if flags&stateHead != 0 {
		chain = chain[:len(chain)-1]
	}
	for _, position := range chain {
		b = binary.AppendUvarint(b, uint64(position-before))
		before = position
	}
	return b
}

// appendPeriodUsage appends the usage of each period.
func appendPeriodUsage(b []byte, t *core.PeriodUsage) []byte {
	for _, used := range t {
		b = binary.AppendUvarint(b, uint64(used))
	}
	return b
}

// The bits of the optional numbers. Each lower bit stands for a number of a day, see dayNumbersStored.
const (
	moreDenied = 1 << (dayNumbersStored + iota)
	moreMeters
)

// more returns the bits of the optional numbers in the record.
func (t *counterState) more() uint64 {
	bits := t.days.nonZero()
	if _, recorded := t.DeniedOn(); recorded > 0 {
		bits |= moreDenied
	}
	if t.Meters != nil {
		bits |= moreMeters
	}
	return bits
}

// appendMore appends the optional numbers.
func (t *counterState) appendMore(b []byte) []byte {
	more := t.more()
	b = binary.AppendUvarint(b, more)
	for n := range dayNumbersStored {
		if more&(1<<n) != 0 {
			w := t.days.now[n]
			b = binary.AppendVarint(binary.AppendUvarint(b, uint64(w.Used)), int64(t.date()-w.Date()))
		}
	}
	if more&moreDenied != 0 {
		date, recorded := t.DeniedOn()
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(date)), uint64(recorded))
	}
	if more&moreMeters != 0 {
		n := 0
		for m := t.Meters; m != nil; m = m.Next {
			n++
		}
		b = binary.AppendUvarint(b, uint64(n))
		for m := t.Meters; m != nil; m = m.Next {
			b = appendPeriodUsage(appendText(b, m.Meter), &m.Usage)
		}
	}
	return b
}

// date returns the day that contains At.
func (t *counterState) date() core.Date { return core.DateOf(time.Unix(t.At, 0)) }

const day = 24 * 60 * 60 // seconds

func (t *counterState) flags() (f uint64) {
	if t.newest.time().Equal(t.LastUsedAt) {
		f |= stateNewest
	}
	if t.At == secondOf(t.LastUsedAt) {
		f |= stateAt
	}
	if t.entries > 0 && t.lastPosition() == t.applied {
		f |= stateHead
	}
	if t.more() != 0 {
		f |= stateMore
	}
	return f
}

// secondOf returns a time in Unix seconds, 0 for the zero time.
func secondOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// decodeState returns the state in a record, the zero state for a nil record.
func decodeState(record []byte) (t counterState, err error) {
	if record == nil {
		return t, nil
	}
	r := decoder{record}
	first := r.uvarint()
	t.applied = int64(first >> stateFlags)
	if first&stateDropped != 0 && !r.failed() && len(r.rest) == 0 {
		t.ended().archiveStale = true
		return t, nil
	}
	t.entries = int64(r.uvarint())
	newest := r.time()
	t.newest, t.late = momentOf(newest), time.Duration(r.uvarint())
	if t.LastUsedAt = newest; first&stateNewest == 0 {
		t.LastUsedAt = r.time()
	}
	if t.At = secondOf(t.LastUsedAt); first&stateAt == 0 {
		t.At = r.varint()
	}
	t.DeniedOmitted = int64(r.uvarint())
	t.Requests, t.Today = r.periodUsage(), int64(r.uvarint())
	if first&stateMore != 0 {
		r.more(&t)
	}
	r.chain(&t, first)
	if r.failed() || first&stateDropped != 0 || len(t.chain) != terms(t.entries) {
		return counterState{}, errRecord
	}
	return t, nil
}

// periodUsage reads the usage of each period.
func (r *decoder) periodUsage() (t core.PeriodUsage) {
	for p := range t {
		t[p] = int64(r.uvarint())
	}
	return t
}

// more reads the optional numbers of a counter.
func (r *decoder) more(t *counterState) {
	more := r.uvarint()
	for n := range dayNumbersStored {
		if more&(1<<n) != 0 {
			used, ago := int64(r.uvarint()), core.Date(r.varint())
			t.setDayNumber(n, core.WindowUsage{Start: (t.date() - ago).Start().Unix(), Used: used})
		}
	}
	if more&moreDenied != 0 {
		date := core.Date(r.uvarint())
		t.AddDenied(date, int(r.uvarint()))
	}
	if more&moreMeters != 0 {
		for n := r.uvarint(); n > 0 && !r.failed(); n-- {
			name := r.text()
			t.SetMeter(name, r.periodUsage())
		}
	}
}

// chain reads the chain of a counter, which is the rest of its record.
func (r *decoder) chain(t *counterState, flags uint64) {
	position := int64(0)
	for !r.failed() && len(r.rest) > 0 {
		position += int64(r.uvarint())
		t.chain = append(t.chain, position)
	}
	if flags&stateHead != 0 {
		t.chain = append(t.chain, t.applied)
	}
}

// encodeDropped returns the record of a deleted counter: its events up to position do not count.
func encodeDropped(position int64) []byte {
	return binary.AppendUvarint(nil, uint64(position)<<stateFlags|stateDropped)
}

// isDropped reports whether a record belongs to a deleted counter.
func isDropped(record []byte) bool {
	n, _ := binary.Uvarint(record)
	return n&stateDropped != 0
}

// appliedOf returns the position of the last event that a record includes.
func appliedOf(record []byte) int64 {
	n, _ := binary.Uvarint(record)
	return int64(n >> stateFlags)
}

// terms returns the number of terms of n, which is the length of the chain of n entries.
func terms(n int64) (count int) {
	for ; n > 0; n = jump(n) {
		count++
	}
	return count
}

// apply adds the next event of the counter to the state.
func (t *counterState) apply(e *event, kind uint32, position int64) error {
	l := *e.linkOf(kind)
	if l.number != t.entries+1 {
		return errEvent
	}
	if e.counts(kind) && !e.Denied {
		t.charge(e, kind)
	}
	if e.Denied && !e.uncounted && kind == kindKey {
		t.AddDenied(core.DateOf(e.At), 1)
	}
	t.recordAppended(e, kind, position)
	return nil
}

// charge adds the cost of an allowed request, or makes an adjustment.
func (t *counterState) charge(e *event, kind uint32) {
	before, charge := t.Day(), core.Charge{At: e.At, Cost: e.Cost, Costs: e.Costs, Since: e.since}
	if e.Adjustment != nil {
		t.Adjust(e.Adjustment, &charge)
	} else {
		t.Add(&charge)
	}
	t.endWindowDay(kind, before)
}

// recordAppended adds an event at a position of the event log to the history and to the days.
func (t *counterState) recordAppended(e *event, kind uint32, position int64) {
	if !e.uncounted && e.Adjustment == nil {
		t.countDay(kind, e.shared, e.Denied, e.Cost, e.At)
	}
	t.append(*e.linkOf(kind), e.At, position)
}
