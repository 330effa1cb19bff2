package service

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// KeyDays returns the traffic of a key on each day, or in each hour, from first to last, both included.
func (s *Service) KeyDays(ctx context.Context, account, id string, first, last core.Date) ([]core.DayTotals, error) {
	if _, err := s.store.Key(ctx, account, id); err != nil {
		return nil, err
	}
	return s.days(ctx, core.DaysFilter{Account: account, KeyID: id}, first, last)
}

// UserDays returns the traffic of a user on each day, or in each hour, from first to last. A request belongs to the
// user that had the key at the time.
func (s *Service) UserDays(ctx context.Context, account string, id int64, first, last core.Date) ([]core.DayTotals, error) {
	if _, err := s.store.User(ctx, account, id); err != nil {
		return nil, err
	}
	return s.days(ctx, core.DaysFilter{Account: account, UserID: id}, first, last)
}

// PlanDays returns the traffic of the keys and users that the plan limits now, on each day, or in each hour, from
// first to last.
func (s *Service) PlanDays(ctx context.Context, account, id string, first, last core.Date) ([]core.DayTotals, error) {
	if _, err := s.store.Plan(ctx, account, id); err != nil {
		return nil, err
	}
	return s.days(ctx, core.DaysFilter{Account: account, PlanID: id}, first, last)
}

// AccountDays returns the traffic of all users of an account on each day from first to last.
func (s *Service) AccountDays(ctx context.Context, account string, first, last core.Date) ([]core.DayTotals, error) {
	return s.days(ctx, core.DaysFilter{Account: account}, first, last)
}

// days returns the traffic of a key or user. The traffic of a plan or an account is a large query:
// an account runs one at a time.
func (s *Service) days(ctx context.Context, of core.DaysFilter, first, last core.Date) (list []core.DayTotals, err error) {
	if err := s.checkDays(first, last); err != nil {
		return nil, err
	}
	n := wholeAccount
	if of.KeyID != "" || of.UserID != 0 {
		n = 1
	}
	err = s.runQuery(ctx, of.Account, n, func() error {
		list, err = s.store.Days(ctx, of, first, last)
		return err
	})
	return list, err
}

// checkDays returns an error unless first to last is a range of days, or of hours, that are kept.
func (s *Service) checkDays(first, last core.Date) error {
	oldest, most, what := s.Today()-core.DaysKept+1, int64(core.DaysKept), "days"
	if first.IsHour() {
		oldest, most, what = core.FirstHourKept(s.now()), core.HoursKept, "hours"
	}
	switch {
	case last < first:
		return core.Invalid("to", "To must not be before from")
	case first < oldest:
		return core.Invalid("from", fmt.Sprintf("From must be %v or later: the last %d %s are kept", oldest, most, what))
	case int64(last)-int64(first) >= most:
		return core.Invalid("to", fmt.Sprintf("To must be at most %d %s after from", most-1, what))
	}
	return nil
}

// Today returns the day of the service's clock.
func (s *Service) Today() core.Date { return core.DateOf(s.now()) }

// ThisHour returns the hour of the service's clock.
func (s *Service) ThisHour() core.Date { return core.HourOf(s.now()) }
