package badgerstore

import (
	"cmp"
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
	stateHour              // windowNumber has a latest hour
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
//	hour              with stateHour: the distance of the latest hour and the usage in that hour, varints
//	costs             the cost of requests on days and in hours: twice their count, a uvarint, plus 1 if numbers of meters follow; for each, the
//	                  distance, the kind and the usage: varint, uvarint, and a uvarint for a day or a varint for an hour
//	with stateMore:
//	  omitted denials uvarint
//	  denials         the day of the last denials, and the number recorded on that day, plus refusedFollows: uvarints
//	  last refused    with refusedFollows: the second, uvarint
//	  meters          their number, uvarint; of each meter its name, a text, and the usage of each period
//	numbers of meters if there are any: their count, a uvarint; for each, the place of the meter in the list of names from 1, or 0 and its
//	                  name, a text, "" for requests; the distance, the kind and the usage: varint, uvarint, varint
//	chain             uvarints, newest first: each the distance from the position after it, the first from applied
//
// The distance of a day is the number of days from it to the day of newest. The distance of an hour is the number of hours from it to the hour of newest.
// The kind is the low 8 bits of a dayKind: index and marks. The list of names has the names of the meters in the record, and then each name that was
// written with place 0.
func (t *counterState) encode(b []byte) []byte {
	flags := t.flags()
	b = binary.AppendUvarint(b, uint64(t.applied)<<stateFlags|flags)
	b = binary.AppendUvarint(b, uint64(t.entries))
	b = record.AppendTime(b, t.LastUsedAt)
	b = binary.AppendVarint(b, int64(t.newest-momentOf(t.LastUsedAt)))
	b = binary.AppendUvarint(b, uint64(t.late))
	b = binary.AppendVarint(b, t.At-secondOf(t.LastUsedAt))
	b = binary.AppendUvarint(appendPeriodUsage(b, &t.Requests), uint64(t.Today))
	costs := 0
	for _, d := range t.days {
		if d.number.fixed() {
			costs++
		}
	}
	ofMeters, newest := len(t.days)-costs, hourAt(t.newest)
	if flags&stateHour != 0 {
		b = binary.AppendVarint(binary.AppendVarint(b, int64(newest-t.hour)), t.inHour)
	}
	b = binary.AppendUvarint(b, uint64(costs)<<1|uint64(flagByte(ofMeters > 0)))
	for _, d := range t.days {
		switch {
		case d.number.ofDay():
			b = binary.AppendUvarint(d.appendDateAndKind(b, newest), uint64(d.used))
		case d.number.fixed():
			b = binary.AppendVarint(d.appendDateAndKind(b, newest), d.used)
		}
	}
	if flags&stateMore != 0 {
		b = t.appendMore(b)
	}
	if ofMeters > 0 {
		b = t.appendMeterDays(binary.AppendUvarint(b, uint64(ofMeters)), newest)
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

// hourAt returns the hour of a moment.
func hourAt(m moment) core.Date { return core.HourOf(m.time()) }

// appendDateAndKind appends the distance of a day or hour from the newest hour, and the low 8 bits of its kind.
func (d dayNumber) appendDateAndKind(b []byte, newest core.Date) []byte {
	if !d.number.hour() {
		newest = newest.Day()
	}
	return binary.AppendUvarint(binary.AppendVarint(b, int64(newest-d.date)), uint64(d.number&0xff))
}

// dateAndKind reads the distance and the kind that appendDateAndKind wrote. It fails if the index of the number is not less than numbers.
func (r *decoder) dateAndKind(newest core.Date, numbers int) (d dayNumber) {
	distance := core.Date(r.Varint())
	if d.number = dayKind(r.Uvarint()); !d.number.hour() {
		newest = newest.Day()
	}
	d.date = newest - distance
	if d.number > 0xff || d.number.index() >= numbers || d.number.hour() != d.date.IsHour() {
		r.Fail()
	}
	return d
}

// meterNames returns the names of the meters of the counter, in the order of Meters.
func (t *counterState) meterNames() (names []string) {
	for m := t.Meters; m != nil; m = m.Next {
		names = append(names, m.Meter)
	}
	return names
}

// appendMeterDays appends the numbers of meters.
func (t *counterState) appendMeterDays(b []byte, newest core.Date) []byte {
	names := t.meterNames()
	for _, d := range t.days {
		if d.number.fixed() {
			continue
		}
		name := d.number.meter()
		place := 1 + slices.Index(names, name)
		if b = binary.AppendUvarint(b, uint64(place)); place == 0 {
			names = append(names, name)
			if name == core.MeterRequests {
				name = ""
			}
			b = record.AppendText(b, name)
		}
		b = binary.AppendVarint(d.appendDateAndKind(b, newest), d.used)
	}
	return b
}

// meterDays reads the numbers of meters.
func (r *decoder) meterDays(t *counterState, newest core.Date) {
	names := t.meterNames()
	for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
		place := r.Uvarint()
		if place == 0 {
			names = append(names, cmp.Or(r.Text(), core.MeterRequests))
			place = uint64(len(names))
		}
		if place > uint64(len(names)) {
			r.Fail()
			return
		}
		d := r.dateAndKind(newest, record.DayMeterNumbers)
		d.number |= kindOfMeter(names[place-1], 0)
		d.used = r.Varint()
		t.days = append(t.days, d)
	}
}

// date returns the day that contains At.
func (t *counterState) date() core.Date { return core.DateOf(time.Unix(t.At, 0)) }

func (t *counterState) flags() uint64 {
	_, recorded := t.DeniedOn()
	more := t.DeniedOmitted != 0 || recorded != 0 || t.LastRefused != 0 || t.Meters != nil
	return uint64(stateStale*flagByte(t.archiveStale) | stateMore*flagByte(more) | stateHour*flagByte(t.hour != 0))
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
	newest := hourAt(t.newest)
	if flags&stateHour != 0 {
		t.hour, t.inHour = newest-core.Date(r.Varint()), r.Varint()
		if !t.hour.IsHour() {
			r.Fail()
		}
	}
	costs := r.Uvarint()
	for n := costs >> 1; n > 0 && !r.Failed(); n-- {
		d := r.dateAndKind(newest, record.DayNumbers)
		if d.number.hour() {
			d.used = r.Varint()
		} else {
			d.used = int64(r.Uvarint())
		}
		t.days = append(t.days, d)
	}
	if flags&stateMore != 0 {
		r.more(&t)
	}
	if costs&1 != 0 {
		r.meterDays(&t, newest)
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
