package badgerstore

import (
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The numbers of a day. Of a key there are the first two.
const (
	dayAllowed = iota
	dayDenied
	daySharedDenied
	daySharedAllowed
	dayNumbers
)

// dayMore is how many numbers of a day are kept beside the tallies of a counter.
const dayMore = daySharedAllowed

// ownNumber returns which number of a day is what a counter allowed: that of the last day
// is in its tallies.
func ownNumber(kind uint32) int {
	if kind == kindKey {
		return dayAllowed
	}
	return daySharedAllowed
}

// numbersOf returns how many numbers a day has.
func numbersOf(kind uint32) int {
	if kind == kindKey {
		return dayDenied + 1
	}
	return dayNumbers
}

// days are the numbers by the day of a key or user, as far as they are neither in its
// tallies nor in the archive.
type days struct {
	now  [dayMore]core.WindowUsage // by number: the last day on which it is not 0
	over *unarchived               // nil when there are none
}

// unarchived are days that still have to be written to the archive.
type unarchived struct {
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

// traffic returns what the number says of all requests, or of the shared ones.
func (d dayNumber) traffic(shared bool) (t core.Traffic) {
	switch {
	case d.number == dayAllowed && !shared, d.number == daySharedAllowed && shared:
		t.Allowed = d.used
	case d.number == dayDenied && !shared, d.number == daySharedDenied && shared:
		t.Denied = d.used
	}
	return t
}

// which returns the numbers that are not 0, as bits.
func (d *days) which() (bits uint64) {
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

// unarchived returns a copy of what is to be put into the archive, nil when there is
// nothing.
func (d *days) unarchived() *unarchived {
	if d == nil || d.over == nil {
		return nil
	}
	return &unarchived{slices.Clone(d.over.list), d.over.archiveStale}
}

// clone returns a copy that shares nothing.
func (d *days) clone() *days {
	if d == nil {
		return nil
	}
	return &days{d.now, d.unarchived()}
}

// over returns what is to be put into the archive, to be changed.
func (t *tally) over() *unarchived {
	if t.days == nil {
		t.days = new(days)
	}
	if t.days.over == nil {
		t.days.over = new(unarchived)
	}
	return t.days.over
}

// countDay adds a request to the days of its key or user, but for what its counter allowed:
// see turned.
func (t *tally) countDay(kind uint32, shared, denied bool, cost int64, at time.Time) {
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

func (t *tally) addDay(number int, cost int64, at time.Time) {
	if t.days == nil {
		t.days = new(days)
	}
	now := &t.days.now[number]
	before := *now
	now.AddDay(cost, at)
	t.moved(number, before, *now)
}

// turned notes that the counter has allowed something, or was set. Its tally of the day was
// that before.
func (t *tally) turned(kind uint32, before core.WindowUsage) {
	t.moved(ownNumber(kind), before, t.Windows[core.Day])
}

// moved notes the day that a number has left.
func (t *tally) moved(number int, from, to core.WindowUsage) {
	if from.Start == to.Start || from == (core.WindowUsage{}) || from.Date() == to.Date() {
		return
	}
	over, left := t.over(), dayNumber{from.Date(), uint8(number), from.Used}
	if i := slices.IndexFunc(over.list, left.same); i >= 0 { // it was set back meanwhile
		over.list[i] = left
		return
	}
	over.list = append(over.list, left)
}

// archived notes that the archive has some days.
func (t *tally) archived(days *unarchived) {
	if days == nil || t.days == nil || t.days.over == nil {
		return
	}
	over := t.days.over
	over.list = slices.DeleteFunc(over.list, func(d dayNumber) bool { return slices.Contains(days.list, d) })
	over.archiveStale = over.archiveStale && !days.archiveStale
	if len(over.list) == 0 && !over.archiveStale {
		t.days.over = nil
	}
	if t.days.over == nil && t.days.which() == 0 {
		t.days = nil
	}
}

// eachDay calls fn with every number that is not as the archive has it.
func (t *tally) eachDay(kind uint32, fn func(dayNumber)) {
	var now [dayNumbers]core.WindowUsage
	if t.days != nil {
		copy(now[:], t.days.now[:])
	}
	now[ownNumber(kind)] = t.Windows[core.Day]
	for n, w := range now {
		if w != (core.WindowUsage{}) {
			fn(dayNumber{w.Date(), uint8(n), w.Used})
		}
	}
	if t.days == nil || t.days.over == nil {
		return
	}
	for _, d := range t.days.over.list {
		if w := now[d.number]; w == (core.WindowUsage{}) || w.Date() != d.date { // else it goes on
			fn(d)
		}
	}
}

// setDays puts days, the oldest first, in place of all. Those that are too old to be kept
// are left out.
func (t *tally) setDays(kind uint32, list []core.CounterDay) {
	t.days = nil
	t.over().archiveStale = true
	for _, day := range list {
		if list[len(list)-1].Date-day.Date >= core.DaysKept {
			continue
		}
		for n, used := range numbersOfDay(&day)[:numbersOf(kind)] {
			to := core.WindowUsage{Start: day.Date.Start().Unix(), Used: used}
			switch {
			case used == 0:
			case n == ownNumber(kind):
				t.moved(n, to, core.WindowUsage{})
			default:
				t.moved(n, t.days.now[n], to)
				t.days.now[n] = to
			}
		}
	}
}

func numbersOfDay(d *core.CounterDay) []int64 {
	return []int64{dayAllowed: d.Allowed, dayDenied: d.Denied, daySharedDenied: d.Shared.Denied, daySharedAllowed: d.Shared.Allowed}
}
