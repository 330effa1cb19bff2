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
	number uint8 // see record.DayNumbers; plus dayChange
	used   int64
}

// dayChange marks a difference, which may be negative: the archive adds the difference to its number. A number without the mark replaces the number
// in the archive.
const dayChange = 0x80

// same reports whether other is the same number of the same day.
func (d dayNumber) same(other dayNumber) bool {
	return d.date == other.date && d.number == other.number
}

// dayNumbersOf returns the count of numbers that a day of a key or user has.
func dayNumbersOf(kind uint32) int {
	if kind == kindKey {
		return record.DayDenied + 1
	}
	return record.DayNumbers
}

// windowNumber returns the number that counts the usage of the counter itself. For the last day, this number is
// core.Counter.Today.
func windowNumber(kind uint32) int {
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
func (t *counterState) addDay(number uint8, cost int64, at time.Time) {
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
		t.changeDay(record.DayAllowed, by, date)
	}
	number := uint8(windowNumber(kind))
	switch {
	case !e.counts(kind):
	case date != t.date():
		t.changeDay(number, by, date)
	case t.Today == 0: // the day may have a number from before an import
		t.days = append(slices.DeleteFunc(t.days, dayNumber{date: date, number: number}.same), dayNumber{date: date, number: number})
	}
}

// changeDay adds a difference to a number of a day. The archive may have the day already.
func (t *counterState) changeDay(number uint8, by int64, date core.Date) {
	if i := slices.IndexFunc(t.days, dayNumber{date: date, number: number}.same); i >= 0 {
		t.days[i].used = max(0, t.days[i].used+by)
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

// lastDay returns the index of the last day of a number, -1 without any.
func (t *counterState) lastDay(number uint8) int {
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
	value := dayNumber{before.Date(), uint8(windowNumber(kind)), before.Used}
	if i := slices.IndexFunc(t.days, value.same); i >= 0 { // the window went back to this day in between
		t.days[i] = value
		return
	}
	t.days = append(t.days, value)
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
		if int(d.number) == windowNumber(kind) || d.number&dayChange != 0 || i != t.lastDay(d.number) {
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
		case d.number&dayChange != 0 && t.days[i].used != d.used:
			t.days[i].used -= d.used
		case t.days[i].used == d.used:
			t.days = slices.Delete(t.days, i, i+1)
		}
	}
	t.archiveStale = t.archiveStale && !ended.archiveStale
}

// keepDays adds the days that an earlier state still had to archive.
func (t *counterState) keepDays(before *counterState) {
	if t.archiveStale {
		return
	}
	older := slices.DeleteFunc(slices.Clone(before.days), func(d dayNumber) bool { return slices.ContainsFunc(t.days, d.same) })
	t.days, t.archiveStale = append(older, t.days...), before.archiveStale
}

// eachDay calls fn with each number that the archive lacks or has with an older value.
func (t *counterState) eachDay(kind uint32, fn func(dayNumber)) {
	today := dayNumber{t.Day().Date(), uint8(windowNumber(kind)), t.Today}
	for _, d := range t.days {
		if today.used == 0 || !d.same(today) {
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
				t.days = append(t.days, dayNumber{day.Date, uint8(n), used})
			}
		}
	}
}
