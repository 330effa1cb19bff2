package memstore

import (
	"context"
	"slices"
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
	to := d.Number(d.latest[number], number)
	*to = core.AddSaturating(*to, cost)
}

// countDay adds a request to the days of its key and user. The allowed traffic that a counter
// decided is copied from its day window.
func (s *Store) countDay(c *core.Consumption, isAllowed bool) {
	keyID, userID := core.CounterID{Account: c.Account, KeyID: c.KeyID}, core.CounterID{Account: c.Account, UserID: c.UserID}
	key, user := &s.usage(keyID).days, &s.usage(userID).days
	counted := &record.Counted{Cost: c.Cost, Costs: c.Costs, Denied: !isAllowed}
	if !isAllowed {
		if c.KeyID != "" {
			key.add(record.DayDenied, c.Cost, c.Entry.At)
			key.change(key.latest[record.DayDenied], c.Entry.At, false, counted)
		}
		user.add(record.DayDenied, c.Cost, c.Entry.At)
		user.change(user.latest[record.DayDenied], c.Entry.At, false, counted)
		if c.Shared {
			user.add(record.DaySharedDenied, c.Cost, c.Entry.At)
			user.change(user.latest[record.DaySharedDenied], c.Entry.At, true, counted)
		}
		return
	}
	user.add(record.DayAllowed, c.Cost, c.Entry.At)
	user.change(user.latest[record.DayAllowed], c.Entry.At, false, counted)
	if c.KeyID != "" {
		s.copyDayWindow(keyID)
		key.change(s.dateOf(keyID), c.Entry.At, false, counted)
	}
	if c.Shared {
		s.copyDayWindow(userID)
		user.change(s.dateOf(userID), c.Entry.At, true, counted)
	}
}

// change changes the numbers of meters on a day, and all numbers in an hour of that day; with shared, the numbers of the shared traffic.
func (d *days) change(date core.Date, at time.Time, shared bool, c *record.Counted) {
	for _, ch := range c.Changes() {
		d.changeOne(date, shared, ch)
	}
	for _, ch := range c.HourChanges() {
		d.changeOne(date.HourIn(at), shared, ch)
	}
}

func (d *days) changeOne(date core.Date, shared bool, ch record.DayChange) {
	if shared {
		ch.Number = record.SharedNumber(ch.Number)
	}
	to := d.MeterNumber(date, ch.Meter, ch.Number)
	*to = core.AddSigned(*to, ch.By)
}

// adjustDay adds an adjustment to the days of the deciding counter. It also adds the adjustment to the days of the user, unless the adjustment is OwnOnly.
func (s *Store) adjustDay(c *core.Consumption, adjusted int64) {
	counted := &record.Counted{Adjustment: c.Adjustment, Adjusted: adjusted}
	if !c.OwnOnly {
		user := &s.usage(core.CounterID{Account: c.Account, UserID: c.UserID}).days
		user.change(max(core.DateOf(c.Entry.At), user.latest[record.DayAllowed]), c.Entry.At, false, counted)
	}
	deciding := c.DecidingCounter()
	s.usage(deciding).days.change(s.dateOf(deciding), c.Entry.At, c.Shared, counted)
}

// dateOf returns the day that contains the At of a counter.
func (s *Store) dateOf(id core.CounterID) core.Date {
	return core.DateOf(time.Unix(s.usage(id).counter.At, 0))
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
		sum := func(id core.CounterID, shared bool) {
			for date, day := range s.usage(id).days.Days {
				if first <= date && date <= last {
					list[date-first].Add(new(day.Totals(shared)))
				}
			}
		}
		r := s.of(of.Account)
		switch {
		case of.KeyID != "" || of.UserID != 0:
			sum(core.CounterID{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID}, false)
		case of.PlanID != "":
			for _, k := range r.matchingKeys(core.KeyFilter{PlanID: &of.PlanID}) {
				sum(core.CounterID{Account: of.Account, KeyID: k.ID}, false)
			}
			for _, u := range r.matchingUsers(core.UserFilter{PlanID: of.PlanID}) {
				sum(core.CounterID{Account: of.Account, UserID: u.ID}, true)
			}
		default:
			sum(core.CounterID{Account: of.Account}, false)
			for id := range r.users.rows {
				sum(core.CounterID{Account: of.Account, UserID: id}, false)
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

// DaysOf implements [core.Store].
func (s *Store) DaysOf(ctx context.Context, ids []core.CounterID, first, last core.Date) ([][]core.CounterDay, error) {
	lists := make([][]core.CounterDay, len(ids))
	for i, id := range ids {
		list, err := s.CounterDays(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, d := range list {
			if first <= d.Date && d.Date <= last {
				lists[i] = append(lists[i], d)
			}
		}
	}
	return lists, nil
}

// SetDays implements [core.Importer].
func (s *Store) SetDays(_ context.Context, id core.CounterID, list []core.CounterDay) error {
	return s.locked(func() error {
		if err := s.checkCounterExists(id); err != nil {
			return err
		}
		d := newDays()
		if id.UserID == 0 {
			list = record.WithoutShared(list)
		}
		for _, day := range list {
			day.Meters = slices.Clone(day.Meters)
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
