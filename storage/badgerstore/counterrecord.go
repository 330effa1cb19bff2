package badgerstore

import (
	"encoding/binary"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

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
	b = binary.AppendUvarint(record.AppendTime(b, t.newest.time()), uint64(t.late))
	if flags&stateNewest == 0 {
		b = record.AppendTime(b, t.LastUsedAt)
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
			b = appendPeriodUsage(record.AppendText(b, m.Meter), &m.Usage)
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
	r := newDecoder(record)
	first := r.Uvarint()
	t.applied = int64(first >> stateFlags)
	if first&stateDropped != 0 && !r.Failed() && r.Ended() {
		t.ended().archiveStale = true
		return t, nil
	}
	t.entries = int64(r.Uvarint())
	newest := r.Time()
	t.newest, t.late = momentOf(newest), time.Duration(r.Uvarint())
	if t.LastUsedAt = newest; first&stateNewest == 0 {
		t.LastUsedAt = r.Time()
	}
	if t.At = secondOf(t.LastUsedAt); first&stateAt == 0 {
		t.At = r.Varint()
	}
	t.DeniedOmitted = int64(r.Uvarint())
	t.Requests, t.Today = r.periodUsage(), int64(r.Uvarint())
	if first&stateMore != 0 {
		r.more(&t)
	}
	r.chain(&t, first)
	if r.Failed() || first&stateDropped != 0 || len(t.chain) != terms(t.entries) {
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
	more := r.Uvarint()
	for n := range dayNumbersStored {
		if more&(1<<n) != 0 {
			used, ago := int64(r.Uvarint()), core.Date(r.Varint())
			t.changeDays().now[n] = core.WindowUsage{Start: (t.date() - ago).Start().Unix(), Used: used}
		}
	}
	if more&moreDenied != 0 {
		date := core.Date(r.Uvarint())
		t.AddDenied(date, int(r.Uvarint()))
	}
	if more&moreMeters != 0 {
		for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
			name := r.Text()
			t.SetMeter(name, r.periodUsage())
		}
	}
}

// chain reads the chain of a counter, which is the rest of its record.
func (r *decoder) chain(t *counterState, flags uint64) {
	position := int64(0)
	for !r.Failed() && len(r.Rest()) > 0 {
		position += int64(r.Uvarint())
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
