package badgerstore

import (
	"cmp"
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
	kind    uint32 // kindKey or kindUser; kindOwnRate for a bucket
}

// kindOwnRate is the kind of the bucket for the own rate of a key. Buckets are only in memory: no record has this kind.
const kindOwnRate = 1

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

	// days has the numbers of days and hours that the archive lacks, or has with older values. The last element of a number is its latest day or
	// hour. Of windowNumber, days has only ended days and hours.
	days []dayNumber

	// inHour is the value of windowNumber in its latest hour; hour is 0 if there is none. For most keys, the archive lacks no other number, so days
	// is nil and takes no memory.
	inHour       int64
	hour         core.Date
	archiveStale bool // the days and hours in the archive do not count: the counter was deleted, or an import replaces them
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

// clone returns a deep copy.
func (t *counterState) clone() counterState {
	c := *t
	c.Counter, c.chain, c.days = t.Counter.Clone(), slices.Clone(t.chain), slices.Clone(t.days)
	return c
}

// terms returns the number of terms of n, which is the length of the chain of n entries.
func terms(n int64) (count int) {
	for ; n > 0; n = jump(n) {
		count++
	}
	return count
}

// replay adds the next event of the counter, as it was read from the event log.
func (t *counterState) replay(e *event, kind uint32, position int64) error {
	if e.linkOf(kind).number != t.entries+1 {
		return errEvent
	}
	if e.Denied && !e.uncounted && (kind == kindKey || e.key == 0) { // of a request, core.Counter.Deny has done this
		t.AddDenied(core.DateOf(e.At), 1)
		t.LastRefused = max(0, e.At.Unix())
	}
	t.count(e, kind, position)
	return nil
}

// count adds an event at a position of the event log to the usage, to the days and to the history. A serving store and a replay
// both count with it.
func (t *counterState) count(e *event, kind uint32, position int64) {
	var cut []core.MeterCost
	if e.counts(kind) && !e.Denied {
		before, charge := t.Day(), core.Charge{At: e.At, Cost: e.Cost, Costs: e.Costs, Since: e.since}
		switch {
		case e.Adjustment != nil:
			t.Adjust(e.Adjustment, &charge)
		case e.Settlement != nil:
			cut = t.CutOff(e.Settlement, &charge)
			t.Settle(e.Settlement, &charge)
		default:
			t.Add(&charge)
		}
		if e.Settlement == nil || before.Date() != t.date() { // a settlement may leave nothing of the day
			t.endWindowDay(kind, before)
		}
	}
	switch {
	case e.uncounted || e.Adjustment != nil:
	case e.Settlement != nil:
		t.settleDay(kind, e)
	default:
		t.countDay(kind, e.shared, e.Denied, e.Cost, e.At)
	}
	if !e.uncounted {
		t.countMeters(kind, e, cut)
	}
	t.append(*e.linkOf(kind), e.At, position)
}
