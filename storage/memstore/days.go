package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// days holds the traffic of a key or user by date, and for each number the latest day on which it was counted.
type days struct {
	byDate map[core.Date]*core.CounterDay
	latest [numbers]core.Date
}

// at returns a day, and creates it if it is missing.
func (d *days) at(date core.Date) *core.CounterDay {
	if d.byDate[date] == nil {
		d.byDate[date] = &core.CounterDay{Date: date}
	}
	return d.byDate[date]
}

// add adds to one number of a day: of the day of at, or of the latest day of the number, if that is later.
func (d *days) add(number int, cost int64, at time.Time) {
	d.latest[number] = max(d.latest[number], core.DateOf(at))
	*numberOf(d.at(d.latest[number]), number) += cost
}

// The numbers of a day.
const (
	allowed = iota
	denied
	sharedAllowed
	sharedDenied
	numbers
)

func numberOf(d *core.CounterDay, number int) *int64 {
	return []*int64{allowed: &d.Allowed, denied: &d.Denied, sharedAllowed: &d.Shared.Allowed, sharedDenied: &d.Shared.Denied}[number]
}

// daysOf returns the days of a key or user.
func (s *Store) daysOf(id core.CounterID) *days {
	if s.days[id] == nil {
		s.days[id] = &days{byDate: map[core.Date]*core.CounterDay{}}
	}
	return s.days[id]
}

// countDay adds a request to the days of its key and user. The allowed traffic that a counter
// decided is copied from its day window.
func (s *Store) countDay(c *core.Consumption, isAllowed bool) {
	keyID, userID := core.CounterID{Account: c.Account, KeyID: c.KeyID}, core.CounterID{Account: c.Account, UserID: c.UserID}
	key, user := s.daysOf(keyID), s.daysOf(userID)
	if !isAllowed {
		key.add(denied, c.Cost, c.Entry.At)
		user.add(denied, c.Cost, c.Entry.At)
		if c.Shared {
			user.add(sharedDenied, c.Cost, c.Entry.At)
		}
		return
	}
	user.add(allowed, c.Cost, c.Entry.At)
	s.copyDayWindow(keyID)
	if c.Shared {
		s.copyDayWindow(userID)
	}
}

// copyDayWindow copies the day window of a counter into its days.
func (s *Store) copyDayWindow(id core.CounterID) {
	t := s.counter(id).Day()
	if t == (core.WindowUsage{}) {
		return
	}
	number := allowed
	if id.KeyID == "" {
		number = sharedAllowed
	}
	*numberOf(s.daysOf(id).at(t.Date()), number) = t.Used
}

// Days implements [core.Store].
func (s *Store) Days(_ context.Context, of core.DaysFilter, first, last core.Date) (list []core.DayTotals, err error) {
	err = s.locked(func() error {
		list = core.NewDays(first, last)
		sum := func(id core.CounterID, traffic func(*core.CounterDay) core.Traffic) {
			for date, day := range s.daysOf(id).byDate {
				if first <= date && date <= last {
					t := &list[date-first].Traffic
					*t = t.Plus(traffic(day))
				}
			}
		}
		whole := func(d *core.CounterDay) core.Traffic { return d.Traffic }
		shared := func(d *core.CounterDay) core.Traffic { return d.Shared }
		r := s.of(of.Account)
		switch {
		case of.KeyID != "":
			sum(core.CounterID{Account: of.Account, KeyID: of.KeyID}, whole)
		case of.UserID != 0:
			sum(core.CounterID{Account: of.Account, UserID: of.UserID}, whole)
		case of.PlanID != "":
			for _, k := range r.matchingKeys(core.KeyFilter{PlanID: &of.PlanID}) {
				sum(core.CounterID{Account: of.Account, KeyID: k.ID}, whole)
			}
			for _, u := range r.matchingUsers(core.UserFilter{PlanID: of.PlanID}) {
				sum(core.CounterID{Account: of.Account, UserID: u.ID}, shared)
			}
		default:
			for id := range r.users {
				sum(core.CounterID{Account: of.Account, UserID: id}, whole)
			}
		}
		return nil
	})
	return list, err
}

// CounterDays implements [core.Importer].
func (s *Store) CounterDays(_ context.Context, id core.CounterID) (list []core.CounterDay, err error) {
	err = s.locked(func() error {
		for _, day := range slices.SortedFunc(maps.Values(s.daysOf(canonical(id)).byDate), func(a, b *core.CounterDay) int { return cmp.Compare(a.Date, b.Date) }) {
			if *day != (core.CounterDay{Date: day.Date}) {
				list = append(list, *day)
			}
		}
		return nil
	})
	return list, err
}

// SetDays implements [core.Importer].
func (s *Store) SetDays(_ context.Context, id core.CounterID, list []core.CounterDay) error {
	return s.locked(func() error {
		if err := s.checkCounterExists(id); err != nil {
			return err
		}
		id = canonical(id)
		delete(s.days, id)
		d := s.daysOf(id)
		for _, day := range list {
			if id.KeyID != "" {
				day.Shared = core.Traffic{}
			}
			d.byDate[day.Date] = &day
			for n := range d.latest {
				if *numberOf(&day, n) > 0 {
					d.latest[n] = max(d.latest[n], day.Date)
				}
			}
		}
		s.copyDayWindow(id)
		return nil
	})
}
