package badgerstore

import (
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

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

// countDay adds a request to the days of its key or user. countMeters adds the request to the hours, and counterState.count adds the usage of the
// counter itself to the windows.
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

// countMeters adds an event to the numbers of the meters on the day that counts the cost of the request. It also adds the event to all numbers of one hour
// of that day. cut is the part that a settlement has cut off for this counter, see [core.Counter.CutOff].
func (t *counterState) countMeters(kind uint32, e *event, cut []core.MeterCost) {
	if e.Cost == 1 && len(e.Costs) == 0 && e.Adjustment == nil && e.Settlement == nil { // most requests
		t.countOne(kind, e)
		return
	}
	all, shared := t.placesOf(kind, e)
	ofAll, ofShared := e.counts(kind) || kind == kindUser && !e.ownOnly, kind == kindUser && e.shared
	counted := record.Counted{Cost: e.Cost, Costs: e.Costs, Denied: e.Denied, Adjustment: e.Adjustment, Adjusted: e.adjusted, Settlement: e.Settlement}
	if cost := counted.CostChange(); cost.By != 0 {
		if ofAll {
			t.addHour(kind, all.hour, dayKind(cost.Number), cost.By)
		}
		if ofShared {
			t.addHour(kind, shared.hour, dayKind(record.SharedNumber(cost.Number)), cost.By)
		}
	}
	for _, ch := range counted.Changes() {
		if ofAll {
			t.addMeter(all, kindOfMeter(ch.Meter, ch.Number), ch.By)
		}
		if ofShared {
			t.addMeter(shared, kindOfMeter(ch.Meter, record.SharedNumber(ch.Number)), ch.By)
		}
	}
	for _, m := range cut {
		number := record.DayAdjusted
		if kind == kindUser {
			number = record.DaySharedAdjusted
		}
		t.addMeter(shared, kindOfMeter(m.Meter, number), m.Cost)
	}
	if kind != kindUser {
		return
	}
	if !e.shared {
		cut = e.cut
	}
	for _, m := range cut { // cut off by the deciding counter: the days of the user have the same adjustment
		t.addMeter(all, kindOfMeter(m.Meter, record.DayAdjusted), m.Cost)
	}
}

// countOne is countMeters for a request with cost 1 and no cost on another meter. Such a request changes only numbers of hours.
func (t *counterState) countOne(kind uint32, e *event) {
	number := dayKind(record.DayAllowed)
	if e.Denied {
		number = record.DayDenied
	}
	t.addHour(kind, t.dateOf(kind, number).HourIn(e.At), number, 1)
	if kind == kindUser && e.shared {
		number += record.DaySharedAllowed
		t.addHour(kind, t.dateOf(kind, number).HourIn(e.At), number, 1)
	}
}

// dayAndHour is the day on which an event counts, and an hour of that day.
type dayAndHour struct{ date, hour core.Date }

// placesOf returns the day and hour for all traffic of an event, and the day and hour for its shared traffic.
func (t *counterState) placesOf(kind uint32, e *event) (all, shared dayAndHour) {
	at := e.At
	switch {
	case e.Settlement != nil:
		at = e.Settlement.HeldAt
		all.date = core.DateOf(at)
		shared.date = all.date
	case e.Denied:
		all.date, shared.date = t.dateOf(kind, record.DayDenied), t.dateOf(kind, record.DaySharedDenied)
	default:
		shared.date = t.date()
		if all.date = shared.date; kind == kindUser {
			all.date = core.DateOf(at)
			if i := t.lastDay(record.DayAllowed); i >= 0 {
				all.date = max(all.date, t.days[i].date)
			}
		}
	}
	all.hour = all.date.HourIn(at)
	if shared.hour = all.hour; shared.date != all.date {
		shared.hour = shared.date.HourIn(at)
	}
	return all, shared
}

// dateOf returns the latest day of a number of the cost of requests. countDay has just counted the request on this day.
func (t *counterState) dateOf(kind uint32, number dayKind) core.Date {
	if number != windowNumber(kind) {
		if i := t.lastDay(number); i >= 0 {
			return t.days[i].date
		}
	}
	return t.date()
}

// addMeter adds to a number of a meter on a day, and in an hour.
func (t *counterState) addMeter(to dayAndHour, number dayKind, by int64) {
	t.addNumber(to.date, number, by)
	t.addNumber(to.hour, number|dayHour, by)
}

// addHour adds to a number of the cost of requests in an hour.
func (t *counterState) addHour(kind uint32, hour core.Date, number dayKind, by int64) {
	switch {
	case number != windowNumber(kind):
		t.addNumber(hour, dayHour|number, by)
	case t.hour == hour:
		t.inHour = core.AddSigned(t.inHour, by)
	case t.hour < hour:
		if t.inHour != 0 {
			t.days = append(t.days, t.present(kind))
		}
		t.hour, t.inHour = hour, by
	default:
		t.changeDay(dayHour|number, by, hour)
	}
}

// present returns the value of windowNumber in the latest hour.
func (t *counterState) present(kind uint32) dayNumber {
	return dayNumber{t.hour, dayHour | windowNumber(kind), t.inHour}
}

// addNumber adds to a number that may be negative. The number is not windowNumber.
func (t *counterState) addNumber(date core.Date, number dayKind, by int64) {
	switch i := t.lastDay(number); {
	case i < 0 || t.days[i].date < date: // the archive has no such day
		t.days = append(t.days, dayNumber{date, number, by})
	case t.days[i].date == date:
		t.days[i].used = core.AddSigned(t.days[i].used, by)
	default:
		t.changeDay(number, by, date)
	}
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

// forPage returns the state that a checkpoint writes to the page, and the days and hours that it writes to the archive. The latest day and the latest hour of
// each number except windowNumber can still grow, so the page keeps them.
func (t *counterState) forPage(kind uint32) (page counterState, ended endedDays) {
	page, ended.archiveStale = *t, t.archiveStale
	page.archiveStale = false
	for i, d := range t.days {
		if d.number&^dayHour == windowNumber(kind) || d.number.change() || i != t.lastDay(d.number) {
			ended.list = append(ended.list, d)
		}
	}
	if ended.list != nil {
		page.days = slices.DeleteFunc(slices.Clone(t.days), func(d dayNumber) bool { return slices.Contains(ended.list, d) })
	}
	return page, ended
}

// dropArchived removes the days that a checkpoint has archived. What has changed since the checkpoint took the counter becomes a change of the archive, as in
// a counter that is loaded from the new page and the events after it.
func (t *counterState) dropArchived(ended endedDays) {
	for _, d := range ended.list {
		i := slices.IndexFunc(t.days, d.same)
		switch {
		case i < 0:
		case t.days[i].used == d.used:
			t.days = slices.Delete(t.days, i, i+1)
		default:
			t.days[i].number |= dayChange
			t.days[i].used -= d.used
		}
	}
	if len(ended.list) > 0 {
		t.days = append([]dayNumber(nil), t.days...) // a copy frees the memory of the longer list until the next hour ends
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
	if t.inHour != 0 {
		fn(t.present(kind))
	}
}

// setDays replaces all days and hours with the days and hours of a list, without expired ones: see record.Kept.
func (t *counterState) setDays(kind uint32, list []core.CounterDay) {
	t.days, t.hour, t.inHour, t.archiveStale = nil, 0, 0, true
	for _, day := range record.Kept(list) {
		for n := range dayNumbersOf(kind) {
			if used := *record.DayNumber(&day, n); used > 0 && !day.Date.IsHour() {
				t.days = append(t.days, dayNumber{day.Date, dayKind(n), used})
			}
		}
		for i := range day.Meters {
			for n := range record.DayMeterNumbers {
				if _, shared := record.IsShared(n); shared && kind == kindKey {
					continue
				}
				switch used, number := *record.MeterNumber(&day.Meters[i], n), kindOn(day.Date, day.Meters[i].Meter, n); {
				case used == 0:
				case number == dayHour|windowNumber(kind):
					t.addHour(kind, day.Date, windowNumber(kind), used)
				default:
					t.days = append(t.days, dayNumber{day.Date, number, used})
				}
			}
		}
	}
}
