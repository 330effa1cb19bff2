package record

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/limitkeeper/limitkeeper/core"
)

// The indexes of the numbers of a day. The first DayNumbers are fields of [core.CounterDay] and count the cost of requests. Each of its meters has all
// DayMeterNumbers.
const (
	DayAllowed = iota
	DayDenied
	DaySharedAllowed
	DaySharedDenied
	DayNumbers  // the count of the indexes above
	DayAdjusted = iota - 1
	DaySharedAdjusted
	DayMeterNumbers // the count of all indexes
)

// DayNumber returns a pointer to a number of a day.
func DayNumber(d *core.CounterDay, number int) *int64 {
	return [DayNumbers]*int64{&d.Allowed, &d.Denied, &d.Shared.Allowed, &d.Shared.Denied}[number]
}

// MeterNumber returns a pointer to a number of a meter.
func MeterNumber(m *core.MeterDay, number int) *int64 {
	return [DayMeterNumbers]*int64{&m.Allowed, &m.Denied, &m.Shared.Allowed, &m.Shared.Denied, &m.Adjusted, &m.Shared.Adjusted}[number]
}

// SharedNumber returns the index of the number of the shared traffic for the index of a number of the whole traffic.
func SharedNumber(number int) int {
	if number == DayAdjusted {
		return DaySharedAdjusted
	}
	return number + DaySharedAllowed
}

// IsShared reports whether a number counts shared traffic. whole is the index of the same number of the whole traffic.
func IsShared(number int) (whole int, shared bool) {
	switch number {
	case DaySharedAllowed, DaySharedDenied:
		return number - DaySharedAllowed, true
	case DaySharedAdjusted:
		return DayAdjusted, true
	}
	return number, false
}

// DayChange is a change of a number of a meter on a day.
type DayChange struct {
	Meter  string
	Number int // DayAllowed, DayDenied or DayAdjusted
	By     int64
}

// Counted is an event that changes days: a request with its costs, an adjustment or a settlement.
type Counted struct {
	Cost       int64
	Costs      []core.MeterCost
	Denied     bool
	Adjustment *core.Adjustment
	Adjusted   int64 // the result of [core.Counter.Adjust]
	Settlement *core.Settlement
}

// Changes returns the changes of the meters of a day. It leaves out the cost of requests, which is not in Meters.
func (c *Counted) Changes() (list []DayChange) {
	add := func(meter string, number int, by int64) {
		if by != 0 {
			list = append(list, DayChange{meter, number, by})
		}
	}
	number := DayAllowed
	if c.Denied {
		number = DayDenied
	}
	switch s := c.Settlement; {
	case c.Adjustment != nil:
		add(c.Adjustment.Meter, DayAdjusted, c.Adjusted)
	case s != nil:
		excess := c.Cost - s.Cost
		if s.Status != core.HoldSettled { // a released request no longer counts
			excess++
		}
		add(core.MeterCount, number, excess)
		for _, m := range s.Changes(c.Costs) {
			add(m.Meter, number, m.Cost)
		}
	case c.Cost != 1 || len(c.Costs) > 0:
		add(core.MeterCount, number, c.Cost-1)
		for _, m := range c.Costs {
			add(m.Meter, number, m.Cost)
		}
	}
	return list
}

// CostChange returns the change of the cost of requests. Its By is 0 for no change.
func (c *Counted) CostChange() DayChange {
	change := DayChange{core.MeterRequests, DayAllowed, c.Cost}
	switch {
	case c.Adjustment != nil:
		change.By = 0
	case c.Settlement != nil:
		change.By -= c.Settlement.Cost
	case c.Denied:
		change.Number = DayDenied
	}
	return change
}

// HourChanges returns the changes of an hour: the changes of the meters, and the change of the cost of requests.
func (c *Counted) HourChanges() []DayChange {
	list := c.Changes()
	if cost := c.CostChange(); cost.By != 0 {
		list = append(list, cost)
	}
	return list
}

// Kept returns the days and hours of a sorted list without the days before the last core.DaysKept, and without the hours before the last
// core.HoursKept. A day that a wrong clock has put into the future thus leaves the others in place.
func Kept(list []core.CounterDay) []core.CounterDay {
	n := 0
	for n < len(list) && !list[n].Date.IsHour() {
		n++
	}
	days, hours := list[max(0, n-core.DaysKept):n], list[max(n, len(list)-core.HoursKept):]
	return slices.Concat(days, hours)
}

// Days maps dates to the days of a key or user.
type Days map[core.Date]*core.CounterDay

// Number returns a pointer to a number of a day. It adds a missing day.
func (d Days) Number(date core.Date, number int) *int64 { return DayNumber(d.day(date), number) }

// MeterNumber returns a pointer to a number of a meter on a day. It adds a missing day and a missing meter. The next call may invalidate the pointer.
func (d Days) MeterNumber(date core.Date, meter string, number int) *int64 {
	day := d.day(date)
	i, found := slices.BinarySearchFunc(day.Meters, meter, func(m core.MeterDay, name string) int { return strings.Compare(m.Meter, name) })
	if !found {
		day.Meters = slices.Insert(day.Meters, i, core.MeterDay{Meter: meter})
	}
	return MeterNumber(&day.Meters[i], number)
}

func (d Days) day(date core.Date) *core.CounterDay {
	if d[date] == nil {
		d[date] = &core.CounterDay{Date: date}
	}
	return d[date]
}

// List returns a copy of the days with traffic, oldest first.
func (d Days) List() (list []core.CounterDay) {
	for _, day := range d {
		c := *day
		c.Meters = nil
		for _, m := range day.Meters {
			if m != (core.MeterDay{Meter: m.Meter}) {
				c.Meters = append(c.Meters, m)
			}
		}
		if !c.Empty() {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b core.CounterDay) int { return cmp.Compare(a.Date, b.Date) })
	return list
}

// meterIndex gives each name of a meter a number for the lifetime of the process. An account has few meters, and many accounts have the same names.
// MeterName takes no lock: a new name makes a new slice.
var meterIndex = struct {
	sync.RWMutex
	byName map[string]uint32
	names  atomic.Pointer[[]string]
}{byName: map[string]uint32{"": 0}}

func init() { meterIndex.names.Store(&[]string{""}) }

// MeterIndex returns a number that stands for the name of a meter in this process; 0 stands for "".
func MeterIndex(name string) uint32 {
	x := &meterIndex
	x.RLock()
	i, known := x.byName[name]
	x.RUnlock()
	if known {
		return i
	}
	x.Lock()
	defer x.Unlock()
	if i, known = x.byName[name]; !known {
		names := slices.Clone(*x.names.Load())
		i, name = uint32(len(names)), strings.Clone(name)
		names = append(names, name)
		x.byName[name] = i
		x.names.Store(&names)
	}
	return i
}

// MeterName returns the name for an index of [MeterIndex].
func MeterName(index uint32) string {
	return (*meterIndex.names.Load())[index]
}
