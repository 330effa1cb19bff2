package badgerstore

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// The flags of a record of a counter: the low bits of its first number. The other bits are applied.
const (
	stateStale = 1 << iota // archiveStale
	stateMore              // optional numbers follow the usage
	stateFlags = iota      // number of flags
)

// encode appends the record of a counter.
//
//	flags, applied    uvarint, see above
//	entries           uvarint
//	last used         time
//	newest            varint of nanoseconds after last used
//	late              uvarint of nanoseconds
//	at                varint of seconds after last used
//	usage             uvarints: requests of each period, in the order of their numbers, and of today
//	days              their number, a uvarint; of each by how many days it is before at, the number and the usage: varint, uvarints
//	with stateMore:
//	  omitted denials uvarint
//	  denials         the day of the last denials, and the number recorded on that day, plus refusedFollows: uvarints
//	  last refused    with refusedFollows: the second, uvarint
//	  meters          their number, uvarint; of each meter its name, a text, and the usage of each period
//	chain             uvarints, newest first: each the distance from the position after it, the first from applied
func (t *counterState) encode(b []byte) []byte {
	flags := t.flags()
	b = binary.AppendUvarint(b, uint64(t.applied)<<stateFlags|flags)
	b = binary.AppendUvarint(b, uint64(t.entries))
	b = record.AppendTime(b, t.LastUsedAt)
	b = binary.AppendVarint(b, int64(t.newest-momentOf(t.LastUsedAt)))
	b = binary.AppendUvarint(b, uint64(t.late))
	b = binary.AppendVarint(b, t.At-secondOf(t.LastUsedAt))
	b = binary.AppendUvarint(appendPeriodUsage(b, &t.Requests), uint64(t.Today))
	b = binary.AppendUvarint(b, uint64(len(t.days)))
	for _, d := range t.days {
		b = binary.AppendVarint(b, int64(t.date()-d.date))
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(d.number)), uint64(d.used))
	}
	if flags&stateMore != 0 {
		b = t.appendMore(b)
	}
	before := t.applied
	for _, position := range slices.Backward(t.chain) {
		b = binary.AppendUvarint(b, uint64(before-position))
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

// refusedFollows is added to the number of recorded denials, at most core.DeniedPerDay, when the second of the last one follows.
const refusedFollows = 1 << 14

// appendMore appends the optional numbers.
func (t *counterState) appendMore(b []byte) []byte {
	date, recorded := t.DeniedOn()
	b = binary.AppendUvarint(b, uint64(t.DeniedOmitted))
	b = binary.AppendUvarint(b, uint64(date))
	if t.LastRefused == 0 {
		b = binary.AppendUvarint(b, uint64(recorded))
	} else {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(recorded)|refusedFollows), uint64(t.LastRefused))
	}
	n := 0
	for m := t.Meters; m != nil; m = m.Next {
		n++
	}
	b = binary.AppendUvarint(b, uint64(n))
	for m := t.Meters; m != nil; m = m.Next {
		b = appendPeriodUsage(record.AppendText(b, m.Meter), &m.Usage)
	}
	return b
}

// date returns the day that contains At.
func (t *counterState) date() core.Date { return core.DateOf(time.Unix(t.At, 0)) }

func (t *counterState) flags() uint64 {
	_, recorded := t.DeniedOn()
	more := t.DeniedOmitted != 0 || recorded != 0 || t.LastRefused != 0 || t.Meters != nil
	return uint64(stateStale*flagByte(t.archiveStale) | stateMore*flagByte(more))
}

// secondOf returns a time in Unix seconds, 0 for the zero time.
func secondOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// decodeState returns the state in a record, the zero state for a nil record.
func decodeState(b []byte) (t counterState, err error) {
	if b == nil {
		return t, nil
	}
	r := newDecoder(b)
	flags := r.Uvarint()
	t.applied, t.archiveStale = int64(flags>>stateFlags), flags&stateStale != 0
	t.entries = int64(r.Uvarint())
	t.LastUsedAt = r.Time()
	t.newest = momentOf(t.LastUsedAt) + moment(r.Varint())
	t.late = time.Duration(r.Uvarint())
	t.At = secondOf(t.LastUsedAt) + r.Varint()
	t.Requests, t.Today = r.periodUsage(), int64(r.Uvarint())
	for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
		d := dayNumber{t.date() - core.Date(r.Varint()), uint8(r.Uvarint()), int64(r.Uvarint())}
		if d.number&^dayChange >= record.DayNumbers {
			r.Fail()
		}
		t.days = append(t.days, d)
	}
	if flags&stateMore != 0 {
		r.more(&t)
	}
	for position := t.applied; !r.Failed() && !r.Ended(); {
		position -= int64(r.Uvarint())
		t.chain = append(t.chain, position)
	}
	slices.Reverse(t.chain)
	if r.Failed() || len(t.chain) != terms(t.entries) {
		return counterState{}, errRecord
	}
	return t, nil
}

// periodUsage reads the usage of each period.
func (r *decoder) periodUsage() (t core.PeriodUsage) {
	for p := range t {
		t[p] = int64(r.Uvarint())
	}
	return t
}

// more reads the optional numbers of a counter.
func (r *decoder) more(t *counterState) {
	t.DeniedOmitted = int64(r.Uvarint())
	date, recorded := core.Date(r.Uvarint()), r.Uvarint()
	if recorded&refusedFollows != 0 {
		t.LastRefused = int64(r.Uvarint())
	}
	t.AddDenied(date, int(recorded&^refusedFollows))
	for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
		name := r.Text()
		t.SetMeter(name, r.periodUsage())
	}
}

// encodeDropped returns the record of a deleted counter: its events up to position do not count, and neither do its days in the
// archive.
func encodeDropped(position int64) []byte {
	dropped := counterState{applied: position, archiveStale: true}
	return dropped.encode(nil)
}

// isDropped reports whether a record on a page belongs to a deleted counter.
func isDropped(record []byte) bool {
	n, _ := binary.Uvarint(record)
	return n&stateStale != 0
}

// appliedOf returns the position of the last event that a record includes.
func appliedOf(record []byte) int64 {
	n, _ := binary.Uvarint(record)
	return int64(n >> stateFlags)
}
