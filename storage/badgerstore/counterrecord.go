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
//	days              twice their number, plus 1 if there are days of meters, a uvarint; for each, the days from its date to at, the number and
//	                  the usage: varint, uvarints
//	with stateMore:
//	  omitted denials uvarint
//	  denials         the day of the last denials, and the number recorded on that day, plus refusedFollows: uvarints
//	  last refused    with refusedFollows: the second, uvarint
//	  meters          their number, uvarint; of each meter its name, a text, and the usage of each period
//	days of meters    if there are any: their number, uvarint; for each, the place of the meter in the list of meters from 1, or 0 and its
//	                  name, a text; the days from its date to at, the number and the usage: varint, uvarint, varint
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
	ofMeters := 0
	for _, d := range t.days {
		if d.number.ofMeter() {
			ofMeters++
		}
	}
	b = binary.AppendUvarint(b, uint64(len(t.days)-ofMeters)<<1|uint64(flagByte(ofMeters > 0)))
	for _, d := range t.days {
		if !d.number.ofMeter() {
			b = binary.AppendVarint(b, int64(t.date()-d.date))
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(d.number)), uint64(d.used))
		}
	}
	if flags&stateMore != 0 {
		b = t.appendMore(b)
	}
	if ofMeters > 0 {
		b = t.appendMeterDays(binary.AppendUvarint(b, uint64(ofMeters)))
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

// appendMeterDays appends the days of meters.
func (t *counterState) appendMeterDays(b []byte) []byte {
	for _, d := range t.days {
		if !d.number.ofMeter() {
			continue
		}
		name, place := d.number.meter(), 1
		m := t.Meters
		for ; m != nil && m.Meter != name; m = m.Next {
			place++
		}
		if m != nil {
			b = binary.AppendUvarint(b, uint64(place))
		} else {
			b = record.AppendText(binary.AppendUvarint(b, 0), name)
		}
		b = binary.AppendVarint(b, int64(t.date()-d.date))
		b = binary.AppendVarint(binary.AppendUvarint(b, uint64(d.number&0xff)), d.used)
	}
	return b
}

// meterDays reads the days of meters.
func (r *decoder) meterDays(t *counterState) {
	for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
		name := ""
		if place := r.Uvarint(); place == 0 {
			name = r.Text()
		} else {
			m := t.Meters
			for ; m != nil && place > 1; place-- {
				m = m.Next
			}
			if m == nil {
				r.Fail()
				return
			}
			name = m.Meter
		}
		date, number, used := t.date()-core.Date(r.Varint()), r.Uvarint(), r.Varint()
		if number&^dayChange >= record.DayMeterNumbers || name == "" {
			r.Fail()
			return
		}
		t.days = append(t.days, dayNumber{date, kindOfMeter(name, int(number)), used})
	}
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
	plain := r.Uvarint()
	for n := plain >> 1; n > 0 && !r.Failed(); n-- {
		d := dayNumber{t.date() - core.Date(r.Varint()), dayKind(r.Uvarint()), int64(r.Uvarint())}
		if d.number&^dayChange >= record.DayNumbers {
			r.Fail()
		}
		t.days = append(t.days, d)
	}
	if flags&stateMore != 0 {
		r.more(&t)
	}
	if plain&1 != 0 {
		r.meterDays(&t)
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
