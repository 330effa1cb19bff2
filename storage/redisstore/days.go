package redisstore

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// dayField is a field of the hash of counters that holds one number of the latest day.
type dayField struct {
	name   string
	number int // as in scripts/day_counts.lua
}

// dayFields returns the day fields of a user or key. The first is the counter itself, which holds the
// allowed requests of its day.
func dayFields(field string) []dayField {
	if field == userField {
		return []dayField{{field, record.DaySharedAllowed}, {"a" + field, record.DayAllowed}, {"d" + field, record.DayDenied}, {"s" + field, record.DaySharedDenied}}
	}
	return []dayField{{field, record.DayAllowed}, {"d" + field, record.DayDenied}}
}

// Each number of a past day has a head of 4 bytes: the date, then hourBits for its latest hour, then numberBits for its index, then sizeBits for the
// size of its value in bytes.
const (
	hourBits   = 5
	numberBits = 2
	sizeBits   = 3
)

// addPast decodes past days. It adds them to days, and their latest hours to latest.
func addPast(days record.Days, latest latestHours, past string) error {
	for r := record.NewReader([]byte(past)); !r.Ended(); {
		head := r.Uint(4)
		used := r.Uint(int(head % (1 << sizeBits)))
		if r.Failed() {
			return record.ErrDamaged
		}
		head >>= sizeBits
		number, hour, date := int(head%(1<<numberBits)), head>>numberBits%(1<<hourBits), core.Date(head>>(numberBits+hourBits))
		*days.Number(date, number) = int64(used)
		latest.set(dayNumber{date, core.MeterRequests, number}, int(hour), int64(used))
	}
	return nil
}

// appendPast encodes one number of a past day, with noHour as its latest hour: encodeHours encodes the hours.
func appendPast(b []byte, number int, t core.WindowUsage) []byte {
	size := 7
	switch {
	case t.Used < 1<<8:
		size = 1
	case t.Used < 1<<16:
		size = 2
	}
	head := ((uint64(t.Start/day)<<hourBits|noHour)<<numberBits|uint64(number))<<sizeBits | uint64(size)
	return record.AppendUint(record.AppendUint(b, 4, head), size, uint64(t.Used))
}

// addMeterDays decodes the days of meters, pairs of a date and the numbers of the meters. It adds them to days, and their latest hours to latest.
func addMeterDays(days record.Days, latest latestHours, pairs []string) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		date, err := strconv.ParseInt(pairs[i], 10, 32)
		if err != nil {
			return record.ErrDamaged
		}
		for r := record.NewReader([]byte(pairs[i+1])); !r.Ended(); {
			code := int(r.Uint(1))
			meter := r.Bytes(int(r.Uint(1)))
			value := int64(r.Uint(8))
			hour, number := code/8, code%8
			if r.Failed() || number >= record.DayMeterNumbers {
				return record.ErrDamaged
			}
			*days.MeterNumber(core.Date(date), meter, number) = value
			latest.set(dayNumber{core.Date(date), meter, number}, hour, value)
		}
	}
	return nil
}

// encodeMeterDays returns the days of meters as pairs of a date and the numbers of the meters.
func encodeMeterDays(days []core.CounterDay) (pairs []string) {
	for _, d := range days {
		if d.Date.IsHour() {
			continue
		}
		var b []byte
		for i := range d.Meters {
			for n := range record.DayMeterNumbers {
				if value := *record.MeterNumber(&d.Meters[i], n); value != 0 {
					value = min(max(-maxUsed, value), maxUsed)
					b = record.AppendUint(appendMeter(append(b, byte(8*noHour+n)), d.Meters[i].Meter), 8, uint64(value))
				}
			}
		}
		if len(b) > 0 {
			pairs = append(pairs, strconv.Itoa(int(max(0, d.Date))), string(b))
		}
	}
	return pairs
}

func decodeDayCount(b string) (t core.WindowUsage, hour int, err error) {
	r := record.NewReader([]byte(b))
	t.Start, t.Used, hour = int64(r.Uint(3))*day, int64(r.Uint(7)), int(r.Uint(1))
	if r.Failed() {
		err = record.ErrDamaged
	}
	return t, hour, err
}

func encodeDayCount(t core.WindowUsage) string {
	return string(append(record.AppendUint(record.AppendUint(nil, 3, uint64(t.Start/day)), 7, uint64(t.Used)), noHour))
}

// Days implements [core.Store].
func (s *Store) Days(ctx context.Context, of core.DaysFilter, first, last core.Date) ([]core.DayTotals, error) {
	list, span := core.NewDays(first, last), spanOf(first, last)
	read := func(ctx context.Context, ids []core.CounterID) ([]counterDays, error) {
		return s.daysOf(ctx, ids, span)
	}
	err := scan(ctx, s, of, read, func(id core.CounterID, c counterDays) {
		for date, d := range c.days {
			if date < first || date > last {
				continue
			}
			ofPlan := of.PlanID != "" && id.KeyID == "" // a user of the plan
			list[date-first].Add(new(d.Totals(ofPlan)))
		}
	})
	if err == nil && of == (core.DaysFilter{Account: of.Account}) {
		var deleted [][]core.CounterDay
		deleted, err = s.DaysOf(ctx, []core.CounterID{{Account: of.Account}}, first, last) // DaysOf first runs the tasks of the outbox: a task may move the days of a deleted user
		for _, days := range deleted {
			for i := range days {
				list[days[i].Date-first].Add(new(days[i].Totals(false)))
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// DaysOf implements [core.Store].
func (s *Store) DaysOf(ctx context.Context, ids []core.CounterID, first, last core.Date) ([][]core.CounterDay, error) {
	_, lists, err := s.listsOf(ctx, ids, spanOf(first, last))
	if err != nil {
		return nil, err
	}
	for i, list := range lists {
		lists[i] = slices.DeleteFunc(list, func(d core.CounterDay) bool { return d.Date < first || d.Date > last })
	}
	return lists, nil
}

// daySpan selects the days that a read returns.
type daySpan struct {
	dates []core.Date // empty for all days
	hours bool        // also read the hours of these days
}

// spanOf returns a span that includes the days or hours from first to last.
func spanOf(first, last core.Date) daySpan {
	span := daySpan{hours: last.IsHour()}
	if last.Day()-first.Day() < hourDays && (first.IsHour() || first == last) {
		for d := first.Day(); d <= last.Day(); d++ {
			span.dates = append(span.dates, d)
		}
	}
	return span
}

// singleDay reports whether the span is one day, without hours.
func (s *daySpan) singleDay() bool { return len(s.dates) == 1 && !s.hours }

// counterDays are the days of a user or key, and its counter.
type counterDays struct {
	days    record.Days
	counter core.Counter
	latest  core.Date // latest date of a number
}

// daysOf returns the days of some users or keys. For a single day, it first reads no past days. It then reads the counters again whose latest
// day is another one, with their past days.
func (s *Store) daysOf(ctx context.Context, ids []core.CounterID, span daySpan) ([]counterDays, error) {
	all, err := readLocated(ctx, s, ids, s.readDays(span))
	if err != nil || !span.singleDay() {
		return all, err
	}
	var other []core.CounterID
	var which []int
	for i, c := range all {
		if c.counter.Day().Date() != span.dates[0] || c.latest != span.dates[0] {
			other, which = append(other, ids[i]), append(which, i)
		}
	}
	whole, err := readLocated(ctx, s, other, s.readDays(daySpan{}))
	for i, c := range whole {
		all[which[i]] = c
	}
	return all, err
}

// readDays reads counters with their days in a span. A span with dates and without hours has no past days.
func (s *Store) readDays(span daySpan) reading[counterDays] {
	return reading[counterDays]{func(at location, loaded bool) rueidis.Completed {
		keys := []string{at.slot.counters(), at.slot.pastDays(at.field), at.slot.meterDays(at.field)}
		args := []string{strconv.Itoa(len(span.dates))}
		for _, d := range span.dates {
			args = append(args, strconv.Itoa(int(d)))
		}
		for _, f := range dayFields(at.field) {
			args = append(args, f.name)
		}
		args = append(args, metersField(at.field), keylessField(at.field))
		if span.hours {
			keys, args = append(keys, at.slot.hours(at.field)), append(args, hoursField(at.field))
		}
		return readDaysScript.command(s.client.B(), loaded, keys, args)
	}, func(at location, r rueidis.RedisResult) (counterDays, bool, error) {
		return decodeDays(at, r, span.hours)
	}}
}

// decodeDays decodes the answer to readDays.
func decodeDays(at location, r rueidis.RedisResult, hours bool) (c counterDays, here bool, err error) {
	parts, err := r.ToArray()
	if err != nil {
		return c, false, unavailable(err)
	}
	c.days = record.Days{}
	fields := dayFields(at.field)
	var latest latestHours
	var newest string
	var elements []string
	if want := len(fields) + 4; hours && len(parts) == want+2 {
		latest = latestHours{}
		newest, _ = text(parts[len(fields)+2])
		if elements, err = parts[want+1].AsStrSlice(); err != nil {
			return c, false, unavailable(err)
		}
		parts = slices.Delete(parts, len(fields)+2, len(fields)+3)
	} else if hours || len(parts) != want {
		return c, false, record.ErrDamaged
	}
	meters, _ := text(parts[len(fields)])
	denials, _ := text(parts[len(fields)+1])
	past, _ := text(parts[len(fields)+2])
	if err := addPast(c.days, latest, past); err != nil {
		return c, false, err
	}
	ofMeters, err := parts[len(fields)+3].AsStrSlice()
	if err != nil {
		return c, false, unavailable(err)
	}
	if err := addMeterDays(c.days, latest, ofMeters); err != nil {
		return c, false, err
	}
	for i, f := range fields {
		b, ok := text(parts[i])
		if !ok {
			continue
		}
		var t core.WindowUsage
		var hour int
		if i == 0 {
			c.counter, err = decodeWithMeters(at.field, b, meters, denials)
			here, t, hour = err == nil && !isMoving(b), c.counter.Day(), int(c.counter.At%day/3600)
		} else {
			t, hour, err = decodeDayCount(b)
		}
		if err != nil {
			return c, false, err
		}
		if t != (core.WindowUsage{}) { // replaces a past day
			*c.days.Number(t.Date(), f.number) = t.Used
		}
		date := t.Date()
		if i == 0 {
			date = core.DateOf(time.Unix(c.counter.At, 0)) // t is zero on a day without usage
		}
		latest.set(dayNumber{date, core.MeterRequests, f.number}, hour, t.Used)
		c.latest = max(c.latest, t.Date())
	}
	if hours {
		if err := latest.addTo(c.days, elements, newest); err != nil {
			return c, false, err
		}
	}
	return c, here, nil
}

// CounterDays implements [core.Importer].
func (s *Store) CounterDays(ctx context.Context, id core.CounterID) ([]core.CounterDay, error) {
	_, days, err := s.CountersWithDays(ctx, []core.CounterID{id})
	if err != nil {
		return nil, err
	}
	return days[0], nil
}

// CountersWithDays implements [core.LiveStore]: one script reads a counter and its days.
func (s *Store) CountersWithDays(ctx context.Context, ids []core.CounterID) ([]core.Counter, [][]core.CounterDay, error) {
	counters, days, err := s.listsOf(ctx, ids, daySpan{hours: true})
	for i := range days {
		days[i] = record.Kept(days[i])
	}
	return counters, days, err
}

// listsOf returns counters, and their days in a span, oldest first.
func (s *Store) listsOf(ctx context.Context, ids []core.CounterID, span daySpan) ([]core.Counter, [][]core.CounterDay, error) {
	all, err := s.daysOf(ctx, ids, span)
	if err != nil {
		return nil, nil, err
	}
	counters, days := make([]core.Counter, len(ids)), make([][]core.CounterDay, len(ids))
	for i, c := range all {
		counters[i], days[i] = c.counter, c.days.List()
		if ids[i].IsDeletedUsers() {
			if days[i], err = s.deletedDays(ctx, ids[i].Account); err != nil {
				return nil, nil, err
			}
		}
	}
	return counters, days, nil
}

// pastDaysTTL is how long past days live after the last write, in milliseconds.
var pastDaysTTL = strconv.Itoa((core.DaysKept + 1) * day * 1000)

// hoursTTL is how long hours live after the last write, in milliseconds. See hours.lua.
var hoursTTL = strconv.Itoa(10 * day * 1000)

// SetDays implements [core.Importer].
func (s *Store) SetDays(ctx context.Context, id core.CounterID, days []core.CounterDay) error {
	switch {
	case id.IsDeletedUsers():
		return s.setDeleted(ctx, id.Account, days)
	case id.KeyID != "":
		days = record.WithoutShared(days)
	}
	locs, err := s.locations(ctx, []core.CounterID{id})
	if err != nil {
		return err
	}
	at := locs[0]
	over, latest := encodeDays(dayFields(at.field), days)
	ofMeters := encodeMeterDays(days)
	args := append([]string{at.field, over, pastDaysTTL, encodeHours(record.Kept(days)), hoursTTL, strconv.Itoa(len(ofMeters) / 2)}, ofMeters...)
	keys := []string{at.slot.counters(), at.slot.pastDays(at.field), at.slot.meterDays(at.field), at.slot.hours(at.field)}
	return s.setAt(ctx, id, at, setDaysScript, keys, append(args, latest...))
}

// encodeDays returns the stored form of days: the past days, and pairs of field and value for the latest
// days.
func encodeDays(fields []dayField, days []core.CounterDay) (over string, latest []string) {
	var b []byte
	for i, f := range fields {
		var last core.WindowUsage
		for _, d := range days {
			used := min(*record.DayNumber(&d, f.number), maxUsed)
			if used == 0 {
				continue
			}
			if last.Used > 0 {
				b = appendPast(b, f.number, last)
			}
			last = core.WindowUsage{Start: int64(max(0, d.Date)) * day, Used: used}
		}
		value := ""
		switch {
		case last.Used == 0:
		case i == 0: // the counter holds its own latest day, which may differ
			b = appendPast(b, f.number, last)
		default:
			value = encodeDayCount(last)
		}
		if i > 0 {
			latest = append(latest, f.name, value)
		}
	}
	return string(b), latest
}
