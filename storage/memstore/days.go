package memstore

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// days holds the traffic of a key or user by date, and for each number the latest day on which it was counted.
type days struct {
	record.Days
	latest [record.DayNumbers]core.Date
}

// add adds to one number of a day: of the day of at, or of the latest day of the number, if that is later.
func (d *days) add(number int, cost int64, at time.Time) {
	d.latest[number] = max(d.latest[number], core.DateOf(at))
	*d.Number(d.latest[number], number) += cost
}

// countDay adds a request to the days of its key and user. The allowed traffic that a counter
// decided is copied from its day window.
func (s *Store) countDay(c *core.Consumption, isAllowed bool) {
	keyID, userID := core.CounterID{Account: c.Account, KeyID: c.KeyID}, core.CounterID{Account: c.Account, UserID: c.UserID}
	user := &s.usage(userID).days
	if !isAllowed {
		if c.KeyID != "" {
			s.usage(keyID).days.add(record.DayDenied, c.Cost, c.Entry.At)
		}
		user.add(record.DayDenied, c.Cost, c.Entry.At)
		if c.Shared {
			user.add(record.DaySharedDenied, c.Cost, c.Entry.At)
		}
		return
	}
	user.add(record.DayAllowed, c.Cost, c.Entry.At)
	if c.KeyID != "" {
		s.copyDayWindow(keyID)
	}
	if c.Shared {
		s.copyDayWindow(userID)
	}
}

// copyDayWindow copies the day window of a counter into its days.
func (s *Store) copyDayWindow(id core.CounterID) {
	u := s.usage(id)
	t := u.counter.Day()
	if t == (core.WindowUsage{}) {
		return
	}
	number := record.DayAllowed
	if id.KeyID == "" {
		number = record.DaySharedAllowed
	}
	*u.days.Number(t.Date(), number) = t.Used
}

// Days implements [core.Store].
func (s *Store) Days(_ context.Context, of core.DaysFilter, first, last core.Date) (list []core.DayTotals, err error) {
	err = s.locked(func() error {
		list = core.NewDays(first, last)
		sum := func(id core.CounterID, traffic func(*core.CounterDay) core.Traffic) {
			for date, day := range s.usage(id).days.Days {
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
		case of.KeyID != "" || of.UserID != 0:
			sum(core.CounterID{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID}, whole)
		case of.PlanID != "":
			for _, k := range r.matchingKeys(core.KeyFilter{PlanID: &of.PlanID}) {
				sum(core.CounterID{Account: of.Account, KeyID: k.ID}, whole)
			}
			for _, u := range r.matchingUsers(core.UserFilter{PlanID: of.PlanID}) {
				sum(core.CounterID{Account: of.Account, UserID: u.ID}, shared)
			}
		default:
			for id := range r.users.rows {
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
		list = s.usage(id).days.List()
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
		d := newDays()
		for _, day := range list {
			if id.KeyID != "" {
				day.Shared = core.Traffic{}
			}
			d.Days[day.Date] = &day
			for n := range d.latest {
				if *record.DayNumber(&day, n) > 0 {
					d.latest[n] = max(d.latest[n], day.Date)
				}
			}
		}
		s.usage(id).days = d
		s.copyDayWindow(id)
		return nil
	})
}

func newDays() days { return days{Days: record.Days{}} }
