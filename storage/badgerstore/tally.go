package badgerstore

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ref names a counter and its history within the store: the number of the account,
// and the Seq of a key or the id of a user. Neither is given a second time.
type ref struct {
	number  int64
	account uint32
	kind    uint32 // kindKey or kindUser
}

// compare orders counters as their pages are.
func (r ref) compare(other ref) int {
	if r.number != other.number && r.account == other.account && r.kind == other.kind {
		return cmp.Compare(r.number, other.number)
	}
	return cmp.Or(cmp.Compare(r.account, other.account), cmp.Compare(r.kind, other.kind))
}

// tally is a counter with where its history stands: what is stored of it, and what
// the events of the event log after applied change.
type tally struct {
	core.Counter

	entries int64 // how many were ever appended: they are numbered from 1
	newest  time.Time
	late    time.Duration // of the entry that was late the most
	applied int64         // the position of the last event that is in it

	// chain is where the entries are that any other is found from: see [jump].
	chain []int64

	days *days // nil while there is nothing in them
}

// link is an entry of a history in an event: its number, and where to go on to older
// ones.
type link struct {
	number int64
	prev   int64         // the position of the entry before it, 0 if it is the first
	jump   int64         // the position of the entry with the number jump(number), 0 if there is none
	late   time.Duration // by how much it is earlier than the latest before it
}

// The entries of a history are a list in which each one knows the one before it, and
// one much further back. How far is set by its number, written as a sum of terms of
// the form 2ᵏ−1, the largest possible first: it jumps over the smallest term. So any
// entry is reached from any later one in about 2·log₂ steps, an entry is appended
// knowing no more than the chain of jumps from the last one, and nothing that was
// written is ever changed. (E. W. Myers, An applicative random-access stack,
// Information Processing Letters 17, 1983.)

// jump returns the number of the entry that the entry with a number jumps to, 0 if
// there is none.
func jump(number int64) int64 {
	last, _ := smallestTerms(number)
	return number - last
}

// smallestTerms returns the smallest term of a number and the one before it, 0 when
// there is none.
func smallestTerms(n int64) (last, before int64) {
	for n > 0 {
		term := int64(1)<<(bits.Len64(uint64(n)+1)-1) - 1
		last, before = term, last
		n -= term
	}
	return last, before
}

// next returns the link of the next entry, at a time.
func (t *tally) next(at time.Time) link {
	l := link{number: t.entries + 1}
	if at.After(t.newest) || t.entries == 0 {
		return t.linked(l)
	}
	l.late = t.newest.Sub(at)
	return t.linked(l)
}

func (t *tally) linked(l link) link {
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

// append makes the entry of an event at a position the last one of the history.
func (t *tally) append(l link, at time.Time, position int64) {
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
func (t *tally) clearHistory() {
	t.entries, t.newest, t.late, t.chain = 0, time.Time{}, 0, t.chain[:0]
}

// head returns the position of the last entry, 0 when there is none.
func (t *tally) head() int64 {
	if n := len(t.chain); n > 0 {
		return t.chain[n-1]
	}
	return 0
}

// clone returns a copy that shares nothing.
func (t *tally) clone() tally {
	c := *t
	c.chain, c.days = slices.Clone(t.chain), t.days.clone()
	return c
}

// What the first number of the record of a counter says, beside applied.
const (
	tallyDropped = 1 << iota // it was deleted: nothing follows
	tallyNewest              // it was last used at newest
	tallyDays                // the windows start with days
	tallyHead                // the last entry is at applied
	tallyMore                // there are numbers of a day beside that of the windows
	tallyFlags   = iota
)

// encode appends the record of a counter. What follows from something else is left out.
//
//	flags, applied  uvarint, see above
//	entries         uvarint
//	newest, late    time, uvarint of nanoseconds
//	last used       time
//	omitted denials uvarint
//	for each period its start, a varint, in seconds or days, what it is more than that
//	                before it, and what was used, a uvarint
//	more numbers    which there are, a uvarint of bits, and each like a period
//	denials         with moreDenied: the day of the last ones and how many were recorded
//	                on it, uvarints
//	the chain       as many uvarints as the entries make, each what it is more than
//	                the one before
func (t *tally) encode(b []byte) []byte {
	flags := t.flags()
	b = binary.AppendUvarint(b, uint64(t.applied)<<tallyFlags|flags)
	b = binary.AppendUvarint(b, uint64(t.entries))
	b = binary.AppendUvarint(appendTime(b, t.newest), uint64(t.late))
	if flags&tallyNewest == 0 {
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
	if flags&tallyMore != 0 {
		which := t.more()
		b = binary.AppendUvarint(b, which)
		for n := range dayMore {
			if which&(1<<n) != 0 {
				window(t.days.now[n])
			}
		}
		if which&moreDenied != 0 {
			date, recorded := t.DeniedOn()
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(date)), uint64(recorded))
		}
	}
	chain, before := t.chain, 0
	if flags&tallyHead != 0 {
		chain = chain[:len(chain)-1]
	}
	for _, position := range chain {
		b = binary.AppendUvarint(b, uint64(position-before))
		before = position
	}
	return b
}

// moreDenied is the bit of the recorded denials. The bits before it are numbers of a day.
const moreDenied = 1 << dayMore

// more returns, as bits, which optional numbers the record has after the windows.
func (t *tally) more() uint64 {
	bits := t.days.which()
	if _, recorded := t.DeniedOn(); recorded > 0 {
		bits |= moreDenied
	}
	return bits
}

const day = 24 * 60 * 60 // seconds

func unitOf(flags uint64) int64 {
	if flags&tallyDays != 0 {
		return day
	}
	return 1
}

func (t *tally) flags() (f uint64) {
	if t.newest.Equal(t.LastUsedAt) {
		f |= tallyNewest
	}
	if t.entries > 0 && t.head() == t.applied {
		f |= tallyHead
	}
	if t.more() != 0 {
		f |= tallyMore
	}
	for _, w := range t.Windows {
		if w.Start%day != 0 {
			return f
		}
	}
	return f | tallyDays
}

// decodeTally returns the tally of a record, the zero tally when there is none.
func decodeTally(record []byte) (t tally, err error) {
	if record == nil {
		return t, nil
	}
	r := reading{record}
	first := r.uvarint()
	t.applied = int64(first >> tallyFlags)
	if first&tallyDropped != 0 && !r.failed() && len(r.rest) == 0 {
		t.over().archiveStale = true
		return t, nil
	}
	t.entries = int64(r.uvarint())
	t.newest, t.late = r.time(), time.Duration(r.uvarint())
	if t.LastUsedAt = t.newest; first&tallyNewest == 0 {
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
	if first&tallyMore != 0 {
		which := r.uvarint()
		if which != moreDenied {
			t.days = new(days)
		}
		for n := range dayMore {
			if which&(1<<n) != 0 {
				t.days.now[n] = window()
			}
		}
		if which&moreDenied != 0 {
			date := core.Date(r.uvarint())
			t.AddDenied(date, int(r.uvarint()))
		}
	}
	position := int64(0)
	for !r.failed() && len(r.rest) > 0 {
		position += int64(r.uvarint())
		t.chain = append(t.chain, position)
	}
	if first&tallyHead != 0 {
		t.chain = append(t.chain, t.applied)
	}
	if r.failed() || first&tallyDropped != 0 || len(t.chain) != terms(t.entries) {
		return tally{}, errRecord
	}
	return t, nil
}

// encodeDropped returns the record of a counter that was deleted: the events up to a
// position do not count.
func encodeDropped(position int64) []byte {
	return binary.AppendUvarint(nil, uint64(position)<<tallyFlags|tallyDropped)
}

// isDropped reports whether the record is that of a counter that was deleted, and
// appliedOf up to which position a counter has got its events.
func isDropped(record []byte) bool {
	n, _ := binary.Uvarint(record)
	return n&tallyDropped != 0
}

func appliedOf(record []byte) int64 {
	n, _ := binary.Uvarint(record)
	return int64(n >> tallyFlags)
}

// terms returns how many terms a number has.
func terms(n int64) (count int) {
	for ; n > 0; n = jump(n) {
		count++
	}
	return count
}

// apply counts an event of the event log that is not in the tally yet.
func (t *tally) apply(e *event, kind uint32, position int64) error {
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
func (t *tally) count(kind uint32, cost int64, at time.Time) {
	before := t.Windows[core.Day]
	t.Add(cost, at)
	t.turned(kind, before)
}

// recordAppended updates the history and the day with an event and its position in the event log.
func (t *tally) recordAppended(e *event, kind uint32, position int64) {
	if !e.uncounted {
		t.countDay(kind, e.shared, e.Denied, e.Cost, e.At)
	}
	t.append(*e.linkOf(kind), e.At, position)
}
