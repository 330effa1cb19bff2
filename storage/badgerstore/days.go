package badgerstore

import (
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The indexes of the numbers of a day. A key has only the first two numbers.
const (
	dayAllowed = iota
	dayDenied
	daySharedDenied
	daySharedAllowed
	dayNumbers
)

// dayNumbersStored is the count of numbers in days.now. The number daySharedAllowed of a user's last day is in the
// counter: see windowNumber.
const dayNumbersStored = daySharedAllowed

// windowNumber returns the index of the number that counts the usage of the counter itself. For the last day, this number
// is core.Counter.Today.
func windowNumber(kind uint32) int {
	if kind == kindKey {
		return dayAllowed
	}
	return daySharedAllowed
}

// dayNumbersOf returns the count of numbers that a day of a key or user has.
func dayNumbersOf(kind uint32) int {
	if kind == kindKey {
		return dayDenied + 1
	}
	return dayNumbers
}

// days has the numbers of a key or user that are neither in the windows of the counter nor in the archive.
type days struct {
	now   [dayNumbersStored]core.WindowUsage // for each number: the last day on which the number is not 0
	ended *endedDays                         // days that have ended; nil without any
}

// endedDays are days that the next checkpoint writes to the archive.
type endedDays struct {
	list         []dayNumber
	archiveStale bool // the days in the archive do not count: the counter was deleted, or an import replaces them
}

// dayNumber is one number of one day.
type dayNumber struct {
	date   core.Date
	number uint8
	used   int64
}

// same reports whether other is the same number of the same day.
func (d dayNumber) same(other dayNumber) bool {
	return d.date == other.date && d.number == other.number
}

// traffic returns the number as traffic of all requests, or of the shared requests only.
func (d dayNumber) traffic(shared bool) (t core.Traffic) {
	switch {
	case d.number == dayAllowed && !shared, d.number == daySharedAllowed && shared:
		t.Allowed = d.used
	case d.number == dayDenied && !shared, d.number == daySharedDenied && shared:
		t.Denied = d.used
	}
	return t
}

// nonZero returns a bit set: bit n is set when number n is not 0.
func (d *days) nonZero() (bits uint64) {
	if d == nil {
		return 0
	}
	for n, w := range d.now {
		if w != (core.WindowUsage{}) {
			bits |= 1 << n
		}
	}
	return bits
}

// cloneEnded returns a copy of the days to archive, nil without any.
func (d *days) cloneEnded() *endedDays {
	if d == nil || d.ended == nil {
		return nil
	}
	return &endedDays{slices.Clone(d.ended.list), d.ended.archiveStale}
}

// clone returns a deep copy.
func (d *days) clone() *days {
	if d == nil {
		return nil
	}
	return &days{d.now, d.cloneEnded()}
}

// ended returns the days to archive. The caller may change the result.
func (t *counterState) ended() *endedDays {
	d := t.changeDays()
	if d.ended == nil {
		d.ended = new(endedDays)
	}
	return d.ended
}

// changeDays returns the days. The caller may change the result.
func (t *counterState) changeDays() *days {
	if t.days == nil {
		t.days = new(days)
	}
	return t.days
}

// countDay adds a request to the days of its key or user. It does not add the usage of the counter itself, which is in the
// windows: see counterState.count.
func (t *counterState) countDay(kind uint32, shared, denied bool, cost int64, at time.Time) {
	switch {
	case denied:
		t.addDay(dayDenied, cost, at)
		if shared && kind == kindUser {
			t.addDay(daySharedDenied, cost, at)
		}
	case kind == kindUser:
		t.addDay(dayAllowed, cost, at)
	}
}

func (t *counterState) addDay(number int, cost int64, at time.Time) {
	now := &t.changeDays().now[number]
	before := *now
	now.AddDay(cost, at)
	t.endDay(number, before, *now)
}

// endDay adds the old value of a number to the days to archive, if the new value belongs to another day.
func (t *counterState) endDay(number int, from, to core.WindowUsage) {
	if from.Start == to.Start || from == (core.WindowUsage{}) || from.Date() == to.Date() {
		return
	}
	ended, value := t.ended(), dayNumber{from.Date(), uint8(number), from.Used}
	if i := slices.IndexFunc(ended.list, value.same); i >= 0 { // the number went back to this day in between
		ended.list[i] = value
		return
	}
	ended.list = append(ended.list, value)
}

// dropArchived removes from the days to archive the values that a checkpoint has archived.
func (t *counterState) dropArchived(days *endedDays) {
	if days == nil || t.days == nil || t.days.ended == nil {
		return
	}
	ended := t.days.ended
	ended.list = slices.DeleteFunc(ended.list, func(d dayNumber) bool { return slices.Contains(days.list, d) })
	ended.archiveStale = ended.archiveStale && !days.archiveStale
	if len(ended.list) == 0 && !ended.archiveStale {
		t.days.ended = nil
	}
	if t.days.ended == nil && t.days.nonZero() == 0 {
		t.days = nil
	}
}

// eachDay calls fn with each number that the archive lacks or has with an older value.
func (t *counterState) eachDay(kind uint32, fn func(dayNumber)) {
	var now [dayNumbers]core.WindowUsage
	if t.days != nil {
		copy(now[:], t.days.now[:])
	}
	now[windowNumber(kind)] = t.Day()
	for n, w := range now {
		if w != (core.WindowUsage{}) {
			fn(dayNumber{w.Date(), uint8(n), w.Used})
		}
	}
	if t.days == nil || t.days.ended == nil {
		return
	}
	for _, d := range t.days.ended.list {
		if w := now[d.number]; w == (core.WindowUsage{}) || w.Date() != d.date { // otherwise now has the newer value of the same day
			fn(d)
		}
	}
}

// setDays replaces all days with a list, oldest first. It leaves out all but the last core.DaysKept of them. A day that a wrong
// clock has put into the future thus leaves the others in place.
func (t *counterState) setDays(kind uint32, list []core.CounterDay) {
	t.days = nil
	t.ended().archiveStale = true
	for _, day := range list[max(0, len(list)-core.DaysKept):] {
		for n, used := range numbersIn(&day)[:dayNumbersOf(kind)] {
			to := core.WindowUsage{Start: day.Date.Start().Unix(), Used: used}
			switch {
			case used == 0:
			case n == windowNumber(kind):
				t.endDay(n, to, core.WindowUsage{})
			default:
				t.endDay(n, t.days.now[n], to)
				t.days.now[n] = to
			}
		}
	}
}

func numbersIn(d *core.CounterDay) []int64 {
	return []int64{dayAllowed: d.Allowed, dayDenied: d.Denied, daySharedDenied: d.Shared.Denied, daySharedAllowed: d.Shared.Allowed}
}
