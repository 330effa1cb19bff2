package badgerstore

import (
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// dayNumber is one number of one day.
type dayNumber struct {
	date   core.Date
	number dayKind
	used   int64
}

// dayKind identifies a number of a day. The lowest 7 bits are the index in package record, the next bit is dayChange, and the higher bits are the
// record.MeterIndex of the meter. The higher bits are 0 for the first record.DayNumbers indexes, which count the cost of requests.
type dayKind uint32

// kindOfMeter returns the kind of a number of a meter.
func kindOfMeter(meter string, number int) dayKind {
	return dayKind(record.MeterIndex(meter)<<8 | uint32(number))
}

func (k dayKind) meter() string { return record.MeterName(uint32(k >> 8)) }
func (k dayKind) number() int   { return int(k & 0x7f) }
func (k dayKind) change() bool  { return k&dayChange != 0 }
func (k dayKind) ofMeter() bool { return k>>8 != 0 }

// dayChange marks a difference, which may be negative: the archive adds the difference to its number. A number without the mark replaces the number
// in the archive.
const dayChange = 0x80

// same reports whether other is the same number of the same day.
func (d dayNumber) same(other dayNumber) bool {
	return d.date == other.date && d.number == other.number
}

// concerns reports whether other has the same number of the same day. Each of the two may be the number or a change of the number.
func (d dayNumber) concerns(other dayNumber) bool {
	return d.date == other.date && d.number&^dayChange == other.number&^dayChange
}

// dayNumbersOf returns the count of numbers that a day of a key or user has.
func dayNumbersOf(kind uint32) int {
	if kind == kindKey {
		return record.DayDenied + 1
	}
	return record.DayNumbers
}

// windowNumber returns the kind of the number that counts the usage of the counter itself. For the last day, this number is
// core.Counter.Today.
func windowNumber(kind uint32) dayKind {
	if kind == kindKey {
		return record.DayAllowed
	}
	return record.DaySharedAllowed
}

// countDay adds a request to the days of its key or user. It does not add the usage of the counter itself, which is in the
// windows: see counterState.count.
func (t *counterState) countDay(kind uint32, shared, denied bool, cost int64, at time.Time) {
	switch {
	case denied:
		t.addDay(record.DayDenied, cost, at)
		if shared && kind == kindUser {
			t.addDay(record.DaySharedDenied, cost, at)
		}
	case kind == kindUser:
		t.addDay(record.DayAllowed, cost, at)
	}
}

// addDay adds to a number of the day of a time, or of the last day of the number, if that is later.
func (t *counterState) addDay(number dayKind, cost int64, at time.Time) {
	i, date := t.lastDay(number), core.DateOf(at)
	if i < 0 || t.days[i].date < date {
		i, t.days = len(t.days), append(t.days, dayNumber{date: date, number: number})
	}
	t.days[i].used = core.AddSaturating(t.days[i].used, cost)
}

// settleDay adds the difference of a settlement to the day of its hold. core.Counter.Settle has already changed core.Counter.Today, the number of
// the present day.
func (t *counterState) settleDay(kind uint32, e *event) {
	by, date := e.Cost-e.Settlement.Cost, core.DateOf(e.Settlement.HeldAt)
	if kind == kindUser {
		if i := t.lastDay(record.DayAllowed); i < 0 || t.days[i].date < date { // an import has removed the day of the hold
			t.days = append(t.days, dayNumber{date: date, number: record.DayAllowed})
		}
		t.changeDay(record.DayAllowed, by, date)
	}
	number := windowNumber(kind)
	switch {
	case !e.counts(kind):
	case date != t.date():
		t.changeDay(number, by, date)
	case t.Today == 0: // the day may have a number from before an import
		t.setDay(dayNumber{date: date, number: number})
	}
}

// setDay sets a number of a day, whatever the archive has. It removes earlier changes of the number.
func (t *counterState) setDay(d dayNumber) {
	t.days = append(slices.DeleteFunc(t.days, d.concerns), d)
}

// changeDay adds a difference to a number of a day. The archive may have the day already.
func (t *counterState) changeDay(number dayKind, by int64, date core.Date) {
	if i := slices.IndexFunc(t.days, dayNumber{date: date, number: number}.same); i >= 0 {
		t.days[i].used = number.bound(t.days[i].used + by)
		return
	}
	change := dayNumber{date, number | dayChange, by}
	if i := slices.IndexFunc(t.days, change.same); i >= 0 {
		t.days[i].used += by
		return
	}
	if by != 0 {
		t.days = append(t.days, change)
	}
}

// bound returns a number of a day after a change. The cost of requests is not negative.
func (k dayKind) bound(used int64) int64 {
	if k.ofMeter() {
		return core.AddSigned(used, 0)
	}
	return min(max(0, used), core.MaxLimit)
}

// countMeters adds an event to the numbers of the meters, on the day that counts the cost of the request. cut is what a settlement has cut off the usage
// of this counter, see [core.Counter.CutOff].
func (t *counterState) countMeters(kind uint32, e *event, cut []core.MeterCost) {
	if e.Cost == 1 && len(e.Costs) == 0 && e.Adjustment == nil && e.Settlement == nil { // most requests
		return
	}
	changes := (&record.Counted{Cost: e.Cost, Costs: e.Costs, Denied: e.Denied, Adjustment: e.Adjustment, Adjusted: e.adjusted, Settlement: e.Settlement}).Changes()
	if len(changes) == 0 && len(cut) == 0 && len(e.cut) == 0 {
		return
	}
	last := func(number dayKind) core.Date {
		if i := t.lastDay(number); i >= 0 {
			return t.days[i].date
		}
		return core.DateOf(e.At)
	}
	add := func(date core.Date, shared bool) {
		for _, ch := range changes {
			t.addMeter(date, ch.Meter, ch.Number, shared, ch.By)
		}
	}
	date, sharedDate := t.date(), t.date() // of all traffic and of the shared traffic
	switch {
	case e.Settlement != nil:
		date = core.DateOf(e.Settlement.HeldAt)
		sharedDate = date
	case e.Denied:
		date, sharedDate = last(record.DayDenied), last(record.DaySharedDenied)
	case kind == kindUser:
		date = max(core.DateOf(e.At), last(record.DayAllowed))
	}
	shared := kind == kindUser
	if e.counts(kind) || shared && !e.ownOnly {
		add(date, false)
	}
	if shared && e.shared {
		add(sharedDate, true)
	}
	for _, m := range cut {
		t.addMeter(sharedDate, m.Meter, record.DayAdjusted, shared, m.Cost)
	}
	if shared { // the deciding counter has cut off as much of the use of the user
		if !e.shared {
			cut = e.cut
		}
		for _, m := range cut {
			t.addMeter(date, m.Meter, record.DayAdjusted, false, m.Cost)
		}
	}
}

// addMeter adds to a number of a meter on a day.
func (t *counterState) addMeter(date core.Date, meter string, number int, shared bool, by int64) {
	if shared {
		number = record.SharedNumber(number)
	}
	k := kindOfMeter(meter, number)
	if i := t.lastDay(k); i < 0 || t.days[i].date < date { // the archive has no such day
		t.days = append(t.days, dayNumber{date, k, by})
		return
	}
	t.changeDay(k, by, date)
}

// lastDay returns the index of the last day of a number, -1 without any.
func (t *counterState) lastDay(number dayKind) int {
	i := len(t.days) - 1
	for i >= 0 && t.days[i].number != number {
		i--
	}
	return i
}

// endWindowDay adds the day of the window before a change, if the window is now of another day.
func (t *counterState) endWindowDay(kind uint32, before core.WindowUsage) {
	if before.Used == 0 || before.Start == t.Day().Start {
		return
	}
	t.setDay(dayNumber{before.Date(), windowNumber(kind), before.Used}) // the window may have gone back to this day in between
}

// endedDays are days that the next checkpoint writes to the archive.
type endedDays struct {
	list         []dayNumber
	archiveStale bool // see counterState
}

// forPage returns the state that the page has after a checkpoint, and the days that the archive has then. Counts are still added to
// the last day of each number except windowNumber, so these days stay on the page.
func (t *counterState) forPage(kind uint32) (page counterState, ended endedDays) {
	page, ended.archiveStale = *t, t.archiveStale
	page.archiveStale = false
	for i, d := range t.days {
		if d.number == windowNumber(kind) || d.number.change() || i != t.lastDay(d.number) {
			ended.list = append(ended.list, d)
		}
	}
	if ended.list != nil {
		page.days = slices.DeleteFunc(slices.Clone(t.days), func(d dayNumber) bool { return slices.Contains(ended.list, d) })
	}
	return page, ended
}

// dropArchived removes the days that a checkpoint has archived.
func (t *counterState) dropArchived(ended endedDays) {
	for _, d := range ended.list {
		i := slices.IndexFunc(t.days, d.same)
		switch { // each may have changed since the checkpoint has taken the counter
		case i < 0:
		case d.number.change() && t.days[i].used != d.used:
			t.days[i].used -= d.used
		case t.days[i].used == d.used:
			t.days = slices.Delete(t.days, i, i+1)
		}
	}
	t.archiveStale = t.archiveStale && !ended.archiveStale
}

// keepDays adds the days that an earlier state still had to archive. The earlier state has counted every event before this state, so it has all changes
// that the archive lacks after the crash. This state may lack changes of a lost checkpoint.
func (t *counterState) keepDays(before *counterState) {
	if t.archiveStale {
		return
	}
	t.days = slices.DeleteFunc(t.days, func(d dayNumber) bool { return d.number.change() && slices.ContainsFunc(before.days, d.concerns) })
	older := slices.DeleteFunc(slices.Clone(before.days), func(d dayNumber) bool { return slices.ContainsFunc(t.days, d.concerns) })
	t.days, t.archiveStale = append(older, t.days...), before.archiveStale
}

// eachDay calls fn with each number that the archive lacks or has with an older value.
func (t *counterState) eachDay(kind uint32, fn func(dayNumber)) {
	today := dayNumber{t.Day().Date(), windowNumber(kind), t.Today}
	for _, d := range t.days {
		if today.used == 0 || !d.concerns(today) {
			fn(d)
		}
	}
	if today.used > 0 {
		fn(today)
	}
}

// setDays replaces all days with a list, oldest first. It leaves out all but the last core.DaysKept of them. A day that a wrong
// clock has put into the future thus leaves the others in place.
func (t *counterState) setDays(kind uint32, list []core.CounterDay) {
	t.days, t.archiveStale = nil, true
	for _, day := range list[max(0, len(list)-core.DaysKept):] {
		for n := range dayNumbersOf(kind) {
			if used := *record.DayNumber(&day, n); used > 0 {
				t.days = append(t.days, dayNumber{day.Date, dayKind(n), used})
			}
		}
		for i := range day.Meters {
			for n := range record.DayMeterNumbers {
				if _, shared := record.IsShared(n); shared && kind == kindKey {
					continue
				}
				if used := *record.MeterNumber(&day.Meters[i], n); used != 0 {
					t.days = append(t.days, dayNumber{day.Date, kindOfMeter(day.Meters[i].Meter, n), used})
				}
			}
		}
	}
}
