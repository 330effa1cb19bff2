package badgerstore

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ref identifies a counter and its history within the store: by the number of the account, and the Seq of a key or
// the id of a user. The store never reuses these numbers.
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
	newest  time.Time     // the latest time of an entry
	late    time.Duration // the largest link.late of an entry
	applied int64         // the position of the last event that this state includes

	// chain has the positions of the last entry, of the entry that the last entry jumps to, and so on, oldest first:
	// see jump.
	chain []int64

	days *days // nil when empty
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
	if at.After(t.newest) || t.entries == 0 {
		return t.withPositions(l)
	}
	l.late = t.newest.Sub(at)
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
	if t.entries == 0 || at.After(t.newest) {
		t.newest = at
	}
	t.entries = l.number
	t.late = max(t.late, l.late)
	t.applied = position
}

// clearHistory removes all entries. The next entry has the number 1.
func (t *counterState) clearHistory() {
	t.entries, t.newest, t.late, t.chain = 0, time.Time{}, 0, t.chain[:0]
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
	c.chain, c.days = slices.Clone(t.chain), t.days.clone()
	return c
}

// The flags of a record of a counter: the low bits of its first number. The other bits are applied.
const (
	stateDropped = 1 << iota // the counter was deleted: the record ends here
	stateNewest              // LastUsedAt equals newest, and is left out
	stateDays                // the windows start at midnight: their starts are in days instead of seconds
	stateHead                // the last entry is at applied: the chain is stored without that position
	stateMore                // optional numbers follow the windows
	stateFlags   = iota      // number of flags
)

// encode appends the record of a counter.
//
//	flags, applied    uvarint, see above
//	entries           uvarint
//	newest, late      time, uvarint of nanoseconds
//	last used         time, absent with stateNewest
//	omitted denials   uvarint
//	windows           for each period: the start as a difference from the previous start, varint; the usage, uvarint
//	optional numbers  with stateMore: a uvarint of bits, see more; then each number of a day, encoded like a window
//	denials           with moreDenied: the day of the last denials and the number recorded on that day, uvarints
//	chain             uvarints, each the difference from the previous position
func (t *counterState) encode(b []byte) []byte {
	flags := t.flags()
	b = binary.AppendUvarint(b, uint64(t.applied)<<stateFlags|flags)
	b = binary.AppendUvarint(b, uint64(t.entries))
	b = binary.AppendUvarint(appendTime(b, t.newest), uint64(t.late))
	if flags&stateNewest == 0 {
		b = appendTime(b, t.LastUsedAt)
	}
	b = binary.AppendUvarint(b, uint64(t.DeniedOmitted))
	unit, before := unitOf(flags), int64(0)
	window := func(w core.WindowUsage) {
		b = binary.AppendUvarint(binary.AppendVarint(b, w.Start/unit-before), uint64(w.Used))
		before = w.Start / unit
	}
	for _, w := range t.Windows {
		window(w)
	}
	if flags&stateMore != 0 {
		more := t.more()
		b = binary.AppendUvarint(b, more)
		for n := range dayNumbersStored {
			if more&(1<<n) != 0 {
				window(t.days.now[n])
			}
		}
		if more&moreDenied != 0 {
			date, recorded := t.DeniedOn()
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(date)), uint64(recorded))
		}
	}
	chain, before := t.chain, 0
	if flags&stateHead != 0 {
		chain = chain[:len(chain)-1]
	}
	for _, position := range chain {
		b = binary.AppendUvarint(b, uint64(position-before))
		before = position
	}
	return b
}

// moreDenied is the bit of the recorded denials. Each lower bit stands for a number of a day, see dayNumbersStored.
const moreDenied = 1 << dayNumbersStored

// more returns the bits of the optional numbers in the record.
func (t *counterState) more() uint64 {
	bits := t.days.nonZero()
	if _, recorded := t.DeniedOn(); recorded > 0 {
		bits |= moreDenied
	}
	return bits
}

const day = 24 * 60 * 60 // seconds

func unitOf(flags uint64) int64 {
	if flags&stateDays != 0 {
		return day
	}
	return 1
}

func (t *counterState) flags() (f uint64) {
	if t.newest.Equal(t.LastUsedAt) {
		f |= stateNewest
	}
	if t.entries > 0 && t.lastPosition() == t.applied {
		f |= stateHead
	}
	if t.more() != 0 {
		f |= stateMore
	}
	for _, w := range t.Windows {
		if w.Start%day != 0 {
			return f
		}
	}
	return f | stateDays
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
	t.newest, t.late = r.time(), time.Duration(r.uvarint())
	if t.LastUsedAt = t.newest; first&stateNewest == 0 {
		t.LastUsedAt = r.time()
	}
	t.DeniedOmitted = int64(r.uvarint())
	unit, before := unitOf(first), int64(0)
	window := func() core.WindowUsage {
		before += r.varint()
		return core.WindowUsage{Start: before * unit, Used: int64(r.uvarint())}
	}
	for i := range t.Windows {
		t.Windows[i] = window()
	}
	if first&stateMore != 0 {
		more := r.uvarint()
		if more != moreDenied {
			t.days = new(days)
		}
		for n := range dayNumbersStored {
			if more&(1<<n) != 0 {
				t.days.now[n] = window()
			}
		}
		if more&moreDenied != 0 {
			date := core.Date(r.uvarint())
			t.AddDenied(date, int(r.uvarint()))
		}
	}
	position := int64(0)
	for !r.failed() && len(r.rest) > 0 {
		position += int64(r.uvarint())
		t.chain = append(t.chain, position)
	}
	if first&stateHead != 0 {
		t.chain = append(t.chain, t.applied)
	}
	if r.failed() || first&stateDropped != 0 || len(t.chain) != terms(t.entries) {
		return counterState{}, errRecord
	}
	return t, nil
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
	l, counts := *e.linkOf(kind), kind == kindKey || e.shared
	if l.number != t.entries+1 {
		return errEvent
	}
	if counts && !e.Denied && !e.uncounted {
		t.count(kind, e.Cost, e.At)
	}
	if e.Denied && !e.uncounted && kind == kindKey {
		t.AddDenied(core.DateOf(e.At), 1)
	}
	t.recordAppended(e, kind, position)
	return nil
}

// count adds the cost of an allowed request.
func (t *counterState) count(kind uint32, cost int64, at time.Time) {
	before := t.Windows[core.Day]
	t.Add(cost, at)
	t.endWindowDay(kind, before)
}

// recordAppended adds an event at a position of the event log to the history and to the days.
func (t *counterState) recordAppended(e *event, kind uint32, position int64) {
	if !e.uncounted {
		t.countDay(kind, e.shared, e.Denied, e.Cost, e.At)
	}
	t.append(*e.linkOf(kind), e.At, position)
}
