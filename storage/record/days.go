package record

import (
	"cmp"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// Numbers of a day.
const (
	DayAllowed = iota
	DayDenied
	DaySharedAllowed
	DaySharedDenied
	DayNumbers // their count
)

// DayNumber returns a pointer to a number of a day.
func DayNumber(d *core.CounterDay, number int) *int64 {
	return [DayNumbers]*int64{&d.Allowed, &d.Denied, &d.Shared.Allowed, &d.Shared.Denied}[number]
}

// Days maps dates to the days of a key or user.
type Days map[core.Date]*core.CounterDay

// Number returns a pointer to a number of a day. It adds a missing day.
func (d Days) Number(date core.Date, number int) *int64 {
	if d[date] == nil {
		d[date] = &core.CounterDay{Date: date}
	}
	return DayNumber(d[date], number)
}

// List returns the days with traffic, oldest first.
func (d Days) List() (list []core.CounterDay) {
	for _, day := range d {
		if *day != (core.CounterDay{Date: day.Date}) {
			list = append(list, *day)
		}
	}
	slices.SortFunc(list, func(a, b core.CounterDay) int { return cmp.Compare(a.Date, b.Date) })
	return list
}
