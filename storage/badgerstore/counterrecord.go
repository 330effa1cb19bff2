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
	stateHour              // windowNumber has a latest hour
	stateFlags = iota      // number of flags
)

// code codes the record of a counter.
//
//	flags, applied    uvarint, see above
//	entries           uvarint
//	last used         time
//	newest            varint of nanoseconds after last used
//	late              uvarint of nanoseconds
//	at                varint of seconds after last used
//	usage             uvarints: requests of each period, in the order of their numbers, and of today
//	hour              with stateHour: the distance of the latest hour and the usage in that hour, varints
//	days and hours    of the cost of requests: twice their count, a uvarint, plus 1 if numbers of meters follow; for each see dayNumber.code
//	with stateMore:
//	  omitted denials uvarint
//	  denials         the day of the last denials, and the number recorded on that day, plus refusedFollows: uvarints
//	  last refused    with refusedFollows: the second, uvarint
//	  meters          their number, uvarint; of each meter its name, a text, and the usage of each period
//	numbers of meters if there are any: their count, a uvarint; for each see dayNumber.code
//	chain             terms(entries) uvarints, newest first: each the distance from the position after it, the first from applied
//
// The distance of a day is the number of days from it to the day of newest. The distance of an hour is the number of hours from it to the hour of newest.
func (t *counterState) code(c *record.Codec) {
	flags := uint64(t.applied)<<stateFlags | t.flags()
	record.Number(c, &flags)
	t.applied, t.archiveStale = int64(flags>>stateFlags), flags&stateStale != 0
	record.Number(c, &t.entries)
	c.Time(&t.LastUsedAt)
	newest, at := int64(t.newest-momentOf(t.LastUsedAt)), t.At-secondOf(t.LastUsedAt)
	record.Signed(c, &newest)
	record.Number(c, &t.late)
	record.Signed(c, &at)
	t.newest, t.At = momentOf(t.LastUsedAt)+moment(newest), secondOf(t.LastUsedAt)+at
	codePeriodUsage(c, &t.Requests)
	record.Number(c, &t.Today)
	newestHour := core.HourOf(t.newest.time())
	if flags&stateHour != 0 {
		distance := newestHour - t.hour
		record.Signed(c, &distance)
		if t.hour = newestHour - distance; !t.hour.IsHour() {
			c.Fail()
		}
		record.Signed(c, &t.inHour)
	}
	t.codeDays(c, flags, newestHour)
	if c.Decodes() && t.entries > 0 {
		t.chain = make([]int64, terms(t.entries))
	}
	before := t.applied
	for i := len(t.chain) - 1; i >= 0; i-- {
		distance := before - t.chain[i]
		record.Number(c, &distance)
		before -= distance
		t.chain[i] = before
	}
}

func (t *counterState) flags() uint64 {
	_, recorded := t.DeniedOn()
	more := t.DeniedOmitted != 0 || recorded != 0 || t.LastRefused != 0 || t.Meters != nil
	return uint64(stateStale*flagByte(t.archiveStale) | stateMore*flagByte(more) | stateHour*flagByte(t.hour != 0))
}

// codePeriodUsage codes the usage of each period.
func codePeriodUsage(c *record.Codec, t *core.PeriodUsage) {
	for p := range t {
		record.Number(c, &t[p])
	}
}

// refusedFollows is added to the number of recorded denials, at most core.DeniedPerDay, when LastRefused follows.
const refusedFollows = 1 << 14

// codeMore codes the optional numbers, and returns the names of Meters.
func (t *counterState) codeMore(c *record.Codec) (meters []string) {
	date, recorded := t.DeniedOn()
	if t.LastRefused != 0 {
		recorded |= refusedFollows
	}
	record.Number(c, &t.DeniedOmitted)
	record.Number(c, &date)
	if record.Number(c, &recorded); recorded&refusedFollows != 0 {
		record.Number(c, &t.LastRefused)
	}
	if c.Decodes() {
		t.AddDenied(date, recorded&^refusedFollows)
	}
	for m := t.Meters; m != nil; m = m.Next {
		meters = append(meters, m.Meter)
	}
	m := t.Meters
	record.List(c, &meters, func(name *string) {
		if c.Text(name); !c.Decodes() {
			codePeriodUsage(c, &m.Usage)
			m = m.Next
			return
		}
		var usage core.PeriodUsage
		codePeriodUsage(c, &usage)
		t.SetMeter(*name, usage)
	})
	return meters
}

// codeDays codes the numbers of days and hours: first of the cost of requests, then of meters, with the optional numbers of codeMore in between.
func (t *counterState) codeDays(c *record.Codec, flags uint64, newestHour core.Date) {
	costs, ofMeters := uint64(0), uint64(0)
	for _, d := range t.days {
		if d.number.fixed() {
			costs++
		} else {
			ofMeters++
		}
	}
	costs = costs<<1 | uint64(flagByte(ofMeters > 0))
	record.Number(c, &costs)
	t.codeNumbers(c, costs>>1, newestHour, nil)
	var meters []string
	if flags&stateMore != 0 {
		meters = t.codeMore(c)
	}
	if costs&1 != 0 {
		record.Number(c, &ofMeters)
		t.codeNumbers(c, ofMeters, newestHour, &meters)
	}
}

// codeNumbers codes numbers of days and hours: of the cost of requests if meters is nil, of meters otherwise. n is their count for decoding.
func (t *counterState) codeNumbers(c *record.Codec, n uint64, newestHour core.Date, meters *[]string) {
	for ; c.Decodes() && n > 0 && !c.Failed(); n-- {
		var d dayNumber
		d.code(c, newestHour, meters)
		t.days = append(t.days, d)
	}
	for i := 0; !c.Decodes() && i < len(t.days); i++ {
		if d := &t.days[i]; d.number.fixed() == (meters == nil) {
			d.code(c, newestHour, meters)
		}
	}
}

// code codes a number of a day or hour. meters is nil for the cost of requests. Decoding fails for an unknown kind, and for a date that does not fit the kind.
//
//	meter     with meters: see codeMeterOf
//	distance  varint, see counterState.code
//	kind      uvarint: the low 8 bits of the dayKind, which are its index and marks
//	number    a uvarint for the cost of requests on a day, otherwise a varint
func (d *dayNumber) code(c *record.Codec, newestHour core.Date, meters *[]string) {
	meter, numbers := dayKind(0), record.DayNumbers
	if meters != nil {
		meter, numbers = codeMeterOf(c, d.number, meters), record.DayMeterNumbers
	}
	kind, distance := d.number&0xff, d.origin(newestHour)-d.date
	record.Signed(c, &distance)
	record.Number(c, &kind)
	d.number = meter | kind
	d.date = d.origin(newestHour) - distance
	if kind > 0xff || d.number.index() >= numbers || d.date.IsHour() != d.number.hour() || d.number.fixed() != (meters == nil) {
		c.Fail()
	}
	if d.number.ofDay() {
		record.Number(c, &d.used)
	} else {
		record.Signed(c, &d.used)
	}
}

// origin returns the day or hour from which the distance of a number is counted. newestHour is the hour of counterState.newest.
func (d *dayNumber) origin(newestHour core.Date) core.Date {
	if d.number.hour() {
		return newestHour
	}
	return newestHour.Day()
}

// codeMeterOf codes the meter of a number: its place in a list of names, from 1, a uvarint. The list begins with the result of codeMore. With place 0 the
// name follows, see codeMeter, and codeMeterOf appends the name to the list. It returns the kind of the meter with index 0.
func codeMeterOf(c *record.Codec, k dayKind, meters *[]string) dayKind {
	place, name := 0, ""
	if !c.Decodes() {
		name = k.meter()
		place = slices.Index(*meters, name) + 1
	}
	switch record.Number(c, &place); {
	case place == 0:
		codeMeter(c, &name)
		*meters = append(*meters, name)
	case 0 < place && place <= len(*meters):
		name = (*meters)[place-1]
	default:
		c.Fail()
		return 0
	}
	return kindOfMeter(name, 0)
}

// date returns the day that contains At.
func (t *counterState) date() core.Date { return core.DateOf(time.Unix(t.At, 0)) }

// secondOf returns a time in Unix seconds, 0 for the zero time.
func secondOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// encode appends the record of a counter to b.
func (t *counterState) encode(b []byte) []byte { return record.Append(b, t.code) }

// decodeState returns the state in a record, the zero state for a nil record. The error is errRecord.
func decodeState(b []byte) (t counterState, err error) {
	if b == nil {
		return t, nil
	}
	c := record.Decoder(b)
	if t.code(&c); c.Failed() || !c.Ended() {
		return counterState{}, errRecord
	}
	return t, nil
}

// encodeDropped returns the record of a deleted counter: its events up to position, and its days in the archive, do not count.
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
