package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ReportQuery selects the rows of [Service.StreamReport]. A row adds up all traffic with the same values in the chosen members. Key includes User.
// Without Meter, the report has only the meter requests.
type ReportQuery struct {
	First, Last core.Date // both included, at most [core.DaysKept] days

	User, Key, Plan, Meter, Day, Month bool // Day has precedence over Month
}

// ReportRow is one row of a report. A member that the report does not group by is zero.
type ReportRow struct {
	User  *core.User // nil for the deleted users
	Key   *core.Key  // nil for the usage of the user that belongs to none of its present keys
	Plan  *core.Plan // nil without a plan
	Meter string
	Date  core.Date // the day, or the first day of the month
	ReportNumbers
}

// The bounds of a report.
const (
	reportRows   = 1_000   // rows in one call of write
	reportGroups = 100_000 // groups in memory: of the account in a report without User and Key, otherwise of one user
	reportRest   = 1       // pause after a read, as a multiple of its duration: a report uses at most half a processor
)

// StreamReport calls write with the usage of an account in a range of days, at most 1,000 rows in one call. The slice is valid during the call.
// Rows without numbers are left out. The rows are sorted by user, the oldest user first. The rows of the keys of a user come before its rows without a
// key. The rows of the deleted users come last. The sum of all rows is the traffic of [Service.AccountDays].
//
// The usage of a key with a plan of its own belongs to that plan. All other usage of a user belongs to the plan of the user. Names and plans are the
// present ones. A key that was moved to another user brings all its days. The row without a key of its new user subtracts the usage before the move, so
// that the sum of each user stays right. No row includes an adjustment of the own limits of a key.
//
// The overage of a counter is its usage beyond a limit with [core.AllowExceed], see [core.Terms.ExceedLimits] and [core.OverageOn]. The present
// limits of the plan apply, with the overrides in force at the end of the range, or now if the range ends in the future. The overage of a counter that
// keys share is in the row without a key.
//
// A user that is deleted during the call may be missing. Each read of the store is a large query: an account runs one at a time. An error of write ends
// the report.
func (s *Service) StreamReport(ctx context.Context, account string, q ReportQuery, write func([]ReportRow) error) error {
	if err := s.checkDays(q.First, q.Last); err != nil {
		return err
	}
	q.User = q.User || q.Key
	r := &report{s: s, ctx: ctx, account: account, q: q, at: (q.Last + 1).Start().Add(-time.Nanosecond), plans: map[string]*core.Plan{}, write: write, rest: reportGroup{}, keyRows: reportGroup{}}
	if now := s.now(); now.Before(r.at) {
		r.at = now
	}
	if err := r.readPlans(); err != nil {
		return err
	}
	deleted, err := r.days([]core.CounterID{{Account: account}}, q.First)
	if err != nil {
		return err
	}
	if err := eachOnce(r, r.users, func(u *core.User) int64 { return u.ID }, r.ofUsers); err != nil {
		return err
	}
	r.rest.add(&q, "", deleted[0], 1)
	if err := r.flush(nil, nil, r.rest); err != nil {
		return err
	}
	return r.send()
}

// report is the state of one call of StreamReport.
type report struct {
	s       *Service
	ctx     context.Context
	account string
	q       ReportQuery
	begun   bool                  // the first read has succeeded
	at      time.Time             // the limits in force at this time apply
	plans   map[string]*core.Plan // by id
	exceeds bool                  // a plan has a limit that denies nothing
	write   func([]ReportRow) error
	rows    []ReportRow // not yet written
	rest    reportGroup // the rows without a key: of the present user, or of the whole account in a report without User
	keyRows reportGroup // the rows of the present key
}

// read runs one read of the store as a large query. Other queries of the account can run between two reads, so a slow client does not block them. With
// ErrTooManyRequests, only the first read of a report fails; later reads are retried.
func (r *report) read(fn func() error) error {
	err := r.s.runLargeQuery(r.ctx, r.account, reportRest, fn)
	for r.begun && errors.Is(err, ErrTooManyRequests) && r.ctx.Err() == nil {
		select {
		case <-r.ctx.Done():
		case <-time.After(stepRetry):
			err = r.s.runLargeQuery(r.ctx, r.account, reportRest, fn)
		}
	}
	r.begun = r.begun || err == nil
	return err
}

func (r *report) readPlans() error {
	list := func(p core.Page) ([]*core.Plan, int, error) { return r.s.store.Plans(r.ctx, r.account, p) }
	return r.read(func() error {
		return core.Each(r.ctx, core.ReadSize, list, func(pl *core.Plan) error {
			terms := pl.Terms()
			r.plans[pl.ID], r.exceeds = pl, r.exceeds || len(terms.ExceedLimits()) > 0
			return nil
		})
	})
}

// plan returns a plan, nil for a missing one.
func (r *report) plan(id string) *core.Plan {
	if r.plans[id] == nil && id != "" { // the plan is newer than readPlans
		if pl, err := r.s.store.Plan(r.ctx, r.account, id); err == nil {
			r.plans[id] = pl
		}
	}
	return r.plans[id]
}

func (r *report) planSeq(id string) int64 {
	if pl := r.plan(id); pl != nil {
		return pl.Seq
	}
	return 0
}

// limits returns the limits of a counter that have an overage, and the first day that OverageOn needs. The key is nil for the counter of the user.
func (r *report) limits(u *core.User, k *core.Key) (limits map[string]core.Limit, from core.Date) {
	from = r.q.First
	plan := u.PlanID
	if k != nil {
		plan = k.PlanID
	}
	pl := r.plan(plan)
	if pl == nil || !r.exceeds {
		return nil, from
	}
	terms := termsOf(pl, u, nil, r.at)
	limits = terms.ExceedLimits()
	for _, l := range limits {
		from = min(from, l.OverageFrom(r.q.First, u.Anchors))
	}
	return limits, from
}

func (r *report) users(p core.Page) (list []*core.User, total int, err error) {
	err = r.read(func() error {
		list, total, err = r.s.store.Users(r.ctx, r.account, core.UserFilter{}, p)
		return err
	})
	return list, total, err
}

// days returns the days of counters from a date on.
func (r *report) days(ids []core.CounterID, from core.Date) (lists [][]core.CounterDay, err error) {
	err = r.read(func() error {
		lists, err = r.s.store.DaysOf(r.ctx, ids, from, r.q.Last)
		return err
	})
	return lists, err
}

// flush adds the rows of a group, and empties the group.
func (r *report) flush(u *core.User, k *core.Key, g reportGroup) error {
	for _, c := range g.cells(r.planSeq) {
		r.rows = append(r.rows, ReportRow{User: u, Key: k, Plan: r.plan(c.plan), Meter: c.meter, Date: c.date, ReportNumbers: *g[c]})
		if len(r.rows) == reportRows {
			if err := r.send(); err != nil {
				return err
			}
		}
	}
	clear(g)
	return nil
}

// send writes the rows.
func (r *report) send() error {
	if len(r.rows) == 0 {
		return nil
	}
	err := r.write(r.rows)
	r.rows = r.rows[:0]
	return err
}

// maxPagesBack bounds the pages that eachOnce reads again because items before them were deleted.
const maxPagesBack = 1_000

// errShrinking means that a list shrinks faster than eachOnce reads it.
var errShrinking = core.Unavailable(errors.New("the resources of the account are deleted faster than they are read"))

// eachOnce calls fn with batches of at most [core.ReadSize] items of a list, each item once, although items may be deleted meanwhile. The list is sorted
// by the numbers of its items.
func eachOnce[T any](r *report, list func(core.Page) ([]T, int, error), number func(T) int64, fn func([]T) error) error {
	last, back := int64(-1), 0
	for p := (core.Page{Number: 1, Size: core.ReadSize}); ; {
		if err := r.ctx.Err(); err != nil { // the client has disconnected
			return err
		}
		items, at, full, err := pageAfter(last, p, number, list)
		if err != nil {
			return err
		}
		if back += p.Number - at.Number; back > maxPagesBack {
			return errShrinking
		}
		if len(items) > 0 {
			last = number(items[len(items)-1])
			if err := fn(items); err != nil {
				return err
			}
		}
		if !full {
			return nil
		}
		p.Number = at.Number + 1
	}
}

// pageAfter reads the page p of a list, and returns the items of the page whose numbers are larger than after. The list is sorted by the numbers of its
// items. A deletion moves later items to earlier pages. So pageAfter also reads the item before the page. While this item is missing, or its number is
// larger than after, pageAfter goes back a page. at is the page of the items. full reports that this page had as many items as fit.
func pageAfter[T any](after int64, p core.Page, number func(T) int64, list func(core.Page) ([]T, int, error)) (items []T, at core.Page, full bool, err error) {
	for {
		if items, _, err = list(p); err != nil {
			return nil, p, false, err
		}
		full = len(items) == p.Size
		if p.Number > 1 {
			before, _, err := list(core.Page{Number: p.Offset(), Size: 1})
			if err != nil {
				return nil, p, false, err
			}
			if len(before) == 0 || number(before[0]) > after {
				p.Number--
				continue
			}
		}
		return slices.DeleteFunc(items, func(item T) bool { return number(item) <= after }), p, full, nil
	}
}
