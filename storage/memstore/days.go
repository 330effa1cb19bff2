package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// days holds the traffic of a key or user by date.
type days map[core.Date]*core.CounterDay

// at returns a day, and creates it if it is missing.
func (d days) at(date core.Date) *core.CounterDay {
	if d[date] == nil {
		d[date] = &core.CounterDay{Date: date}
	}
	return d[date]
}

// add adds to one number of a day: of the day of at, or of the latest day on which the number is
// above 0, if that is later.
func (d days) add(number func(*core.CounterDay) *int64, cost int64, at time.Time) {
	date := core.DateOf(at)
	for later, day := range d {
		if *number(day) > 0 {
			date = max(date, later)
		}
	}
	*number(d.at(date)) += cost
}

// The numbers of a day.
func allowed(d *core.CounterDay) *int64       { return &d.Allowed }
func denied(d *core.CounterDay) *int64        { return &d.Denied }
func sharedAllowed(d *core.CounterDay) *int64 { return &d.Shared.Allowed }
func sharedDenied(d *core.CounterDay) *int64  { return &d.Shared.Denied }

// daysOf returns the days of a key or user.
func (s *Store) daysOf(id core.CounterID) days {
	if s.days[id] == nil {
		s.days[id] = days{}
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
	t := s.counter(id).Windows[core.Day]
	if t == (core.WindowUsage{}) {
		return
	}
	number := allowed
	if id.KeyID == "" {
		number = sharedAllowed
	}
	*number(s.daysOf(id).at(t.Date())) = t.Used
}

// Days implements [core.Store].
func (s *Store) Days(_ context.Context, of core.DaysFilter, first, last core.Date) (list []core.DayTotals, err error) {
	err = s.locked(func() error {
		list = core.NewDays(first, last)
		sum := func(id core.CounterID, traffic func(*core.CounterDay) core.Traffic) {
			for date, day := range s.days[id] {
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
		for _, day := range slices.SortedFunc(maps.Values(s.days[canonical(id)]), func(a, b *core.CounterDay) int { return cmp.Compare(a.Date, b.Date) }) {
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
		s.days[id] = days{}
		for _, day := range list {
			if id.KeyID != "" {
				day.Shared = core.Traffic{}
			}
			s.days[id][day.Date] = &day
		}
		s.copyDayWindow(id)
		return nil
	})
}
