package storetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenDays = []defect{
	{name: "counts only denials that are in the history", caughtBy: "machine",
		open: daysAltered(func(_ core.DaysFilter, d *core.DayTotals) { d.Denied = min(d.Denied, core.DeniedPerSecond) })},
	{name: "counts denied cost as allowed", caughtBy: "machine",
		open: daysAltered(func(_ core.DaysFilter, d *core.DayTotals) { d.Allowed, d.Denied = d.Allowed+d.Denied, 0 })},
	{name: "leaves out the days without traffic", caughtBy: "machine",
		open: daysEdited(func(list []core.DayTotals) []core.DayTotals {
			var some []core.DayTotals
			for _, d := range list {
				if d.Traffic != (core.Traffic{}) {
					some = append(some, d)
				}
			}
			return some
		})},
	{name: "returns the last day first", caughtBy: "machine",
		open: daysEdited(func(list []core.DayTotals) []core.DayTotals { return reversed(list) })},
	{name: "returns the hours one hour late", caughtBy: "machine",
		open: daysAltered(func(_ core.DaysFilter, d *core.DayTotals) {
			if d.Date.IsHour() {
				d.Date++
			}
		})},
	{name: "leaves adjustments out of hours", caughtBy: "machine",
		open: daysAltered(func(_ core.DaysFilter, d *core.DayTotals) {
			for i := range d.Meters {
				if d.Date.IsHour() {
					d.Meters[i].Adjusted = 0
				}
			}
		})},
	{name: "uses days of local time", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Entry.At = c.Entry.At.Add(-5 * time.Hour) })},
	{name: "keeps days for a quarter of a year", caughtBy: "machine",
		open: daysEdited(func(list []core.DayTotals) []core.DayTotals {
			for i := range list[:max(0, len(list)-92)] {
				list[i].Traffic = core.Traffic{}
			}
			return list
		})},
	{name: "adds all requests of its users to a plan", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return wholeUsers{s} })},
	{name: "restarts a day at 0 after reopening", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &losesEarlierDay{Store: s} })},
	{name: "has only requests in the days", caughtBy: "machine",
		open: daysAltered(func(_ core.DaysFilter, d *core.DayTotals) { d.Meters = nil })},
	{name: "takes the cost of requests for their number", caughtBy: "machine",
		open: daysAltered(func(_ core.DaysFilter, d *core.DayTotals) {
			d.Meters = slices.DeleteFunc(d.Meters, func(m core.MeterTotals) bool { return m.Meter == core.MeterCount })
		})},
	{name: "leaves adjustments out of the days", caughtBy: "machine",
		open: daysAltered(func(_ core.DaysFilter, d *core.DayTotals) {
			for i := range d.Meters {
				d.Meters[i].Adjusted = 0
			}
		})},
	{name: "takes an adjustment of the own limits of a key for use of its user", caughtBy: "hold/adjusted",
		open: altered(func(c *core.Consumption) { c.OwnOnly = false })},
	{name: "gives back use of a user twice", caughtBy: "hold/adjusted",
		open: wrapped(func(s core.Store) core.Store { return &givesBackTwice{Store: s, cut: map[string]int64{}} })},
	{name: "forgets the days of deleted users", caughtBy: "delete/days",
		open: wrapped(func(s core.Store) core.Store { return forgetsDeletedDays{s} })},
	{name: "keeps only the days of the last deleted user", caughtBy: "delete/days at once",
		open: wrapped(func(s core.Store) core.Store { return keepsLastDeleted{s.(core.Importer)} })},
}

// forgetsDeletedDays returns the days of the remaining users for an account.
type forgetsDeletedDays struct{ core.Store }

func (s forgetsDeletedDays) Days(ctx context.Context, of core.DaysFilter, first, last core.Date) ([]core.DayTotals, error) {
	list, err := s.Store.Days(ctx, of, first, last)
	if err != nil || of != (core.DaysFilter{Account: of.Account}) {
		return list, err
	}
	deleted, err := s.DaysOf(ctx, []core.CounterID{{Account: of.Account}}, first, last)
	for _, d := range deleted[0] {
		t := &list[d.Date-first]
		sum := d.Totals(false)
		t.Allowed, t.Denied = t.Allowed-sum.Allowed, t.Denied-sum.Denied
	}
	return list, err
}

// givesBackTwice leaves what the end of a hold has cut off out of the days of a user.
type givesBackTwice struct {
	core.Store
	mu  sync.Mutex
	cut map[string]int64 // by meter
}

func (s *givesBackTwice) Settle(ctx context.Context, c *core.Consumption) (*core.Hold, bool, error) {
	before, err := s.Counters(ctx, []core.CounterID{c.DecidingCounter()})
	if err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	for _, m := range before[0].CutOff(c.Settlement, c.Charge()) {
		s.cut[m.Meter] += m.Cost
	}
	s.mu.Unlock()
	return s.Store.Settle(ctx, c)
}

func (s *givesBackTwice) Days(ctx context.Context, of core.DaysFilter, first, last core.Date) ([]core.DayTotals, error) {
	list, err := s.Store.Days(ctx, of, first, last)
	s.mu.Lock()
	defer s.mu.Unlock()
	for meter, n := range s.cut {
		if err == nil && of.UserID != 0 {
			list[len(list)-1].AddMeter(meter, core.MeterTraffic{Adjusted: -n})
		}
	}
	return list, err
}

// keepsLastDeleted forgets the days of the users that were deleted before the last one.
type keepsLastDeleted struct{ core.Importer }

func (s keepsLastDeleted) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if err := s.SetDays(ctx, core.CounterID{Account: account}, nil); err != nil {
		return err
	}
	return s.Importer.Update(ctx, account, fn)
}

// daysChanging changes all results of Days.
type daysChanging struct {
	core.Store
	change func(core.DaysFilter, []core.DayTotals) []core.DayTotals
}

func daysEdited(edit func([]core.DayTotals) []core.DayTotals) func() Opened {
	return wrapped(func(s core.Store) core.Store {
		return daysChanging{s, func(_ core.DaysFilter, list []core.DayTotals) []core.DayTotals { return edit(list) }}
	})
}

func daysAltered(alter func(core.DaysFilter, *core.DayTotals)) func() Opened {
	return wrapped(func(s core.Store) core.Store {
		return daysChanging{s, func(of core.DaysFilter, list []core.DayTotals) []core.DayTotals {
			for i := range list {
				alter(of, &list[i])
			}
			return list
		}}
	})
}

func (s daysChanging) Days(ctx context.Context, of core.DaysFilter, first, last core.Date) ([]core.DayTotals, error) {
	list, err := s.Store.Days(ctx, of, first, last)
	return s.change(of, list), err
}

// wholeUsers adds all days of the users with a plan to the days of the plan.
type wholeUsers struct{ core.Store }

func (s wholeUsers) Days(ctx context.Context, of core.DaysFilter, first, last core.Date) ([]core.DayTotals, error) {
	list, err := s.Store.Days(ctx, of, first, last)
	if of.PlanID == "" || err != nil {
		return list, err
	}
	users, _, err := s.Users(ctx, of.Account, core.UserFilter{PlanID: of.PlanID}, core.Page{Number: 1, Size: 1000})
	for _, u := range users {
		whole, err := s.Store.Days(ctx, core.DaysFilter{Account: of.Account, UserID: u.ID}, first, last)
		if err != nil {
			return nil, err
		}
		for i := range list {
			list[i].Traffic = whole[i].Traffic
		}
	}
	return list, err
}

// losesEarlierDay returns only the requests since the store was opened for the current day of a
// key.
type losesEarlierDay struct {
	core.Store
	mu    sync.Mutex
	known bool
	first map[core.Date]core.Traffic
}

func (s *losesEarlierDay) Days(ctx context.Context, of core.DaysFilter, first, last core.Date) ([]core.DayTotals, error) {
	list, err := s.Store.Days(ctx, of, first, last)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		s.known, s.first = true, map[core.Date]core.Traffic{}
		for _, d := range list {
			s.first[d.Date] = d.Traffic
		}
	}
	for i := range list {
		list[i].Allowed -= s.first[list[i].Date].Allowed
		list[i].Denied -= s.first[list[i].Date].Denied
	}
	return list, err
}
