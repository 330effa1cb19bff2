package core

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// PlanTotals is what the counters that draw on a plan have used in the window of a period.
type PlanTotals struct {
	Used int64          // the sum; it stays at the largest number rather than overflow
	Top  []CounterUsage // those that have used the most, the most first
}

// CounterUsage is what one counter that draws on a plan says of a period.
type CounterUsage struct {
	CounterID
	Seq int64 // that of the key, 0 when it is a user's
	Usage
}

// compare orders counters by how much they have used, the most first. Of those that have
// used the same the users come first, by their ids, and then the keys, by their Seq.
func (u *CounterUsage) compare(other *CounterUsage) int {
	return cmp.Or(cmp.Compare(other.Used, u.Used), cmp.Compare(u.Seq, other.Seq), cmp.Compare(u.UserID, other.UserID))
}

// Add adds a counter, of which Most keeps up to n. One that has used nothing changes
// nothing.
func (d *PlanTotals) Add(n int, id CounterID, seq int64, u Usage) {
	if u.Used <= 0 {
		return
	}
	d.Used = addSaturating(d.Used, u.Used)
	c := CounterUsage{id, seq, u}
	i, _ := slices.BinarySearchFunc(d.Top, &c, func(has CounterUsage, c *CounterUsage) int { return has.compare(c) })
	if i >= n {
		return
	}
	d.Top = slices.Insert(d.Top, i, c)
	d.Top = d.Top[:min(len(d.Top), n)]
}

// PlanCounter is a counter and the plan that limits it.
type PlanCounter struct {
	Plan *Plan
	CounterUsage
}

// usedShare returns the part of the limit that is used. It is 1 or more when nothing is left.
func (c *PlanCounter) usedShare() float64 { return float64(c.Used) / float64(max(c.Plan.Limit, 1)) }

// NearLimit is a counter and how far it is used up: that of a key with a plan of its own,
// or that which the other keys of a user share.
type NearLimit struct {
	User *User
	Key  *Key // nil when it is the user's
	Plan *Plan
	Usage
}

// Percentage returns how much of the limit is used, in percent.
func (n *NearLimit) Percentage() float64 { return Percentage(n.Used, n.Plan.Limit) }

// NearLimits returns the counters of an account that are the closest to their limits, at most
// so many, the closest first. Counters that nothing has used are left out. It reads the
// counter of every key and user; an account runs one such query at a time.
func (s *Service) NearLimits(ctx context.Context, account string, most int) ([]NearLimit, error) {
	var closest []PlanCounter
	at, list := s.now(), func(p Page) ([]*Plan, int, error) { return s.store.Plans(ctx, account, p) }
	read := func(plans []*Plan) error {
		drawn, err := s.topCounters(ctx, account, plans, at, most)
		closest = append(closest, drawn...)
		slices.SortStableFunc(closest, func(a, b PlanCounter) int { return cmp.Compare(b.usedShare(), a.usedShare()) })
		closest = closest[:min(len(closest), most)]
		return err
	}
	if err := s.runQuery(ctx, account, manyCounters, func() error { return eachPage(ctx, list, read) }); err != nil {
		return nil, err
	}
	return s.nearLimits(ctx, closest)
}

// nearLimits finds whose counters they are.
func (s *Service) nearLimits(ctx context.Context, closest []PlanCounter) ([]NearLimit, error) {
	list := make([]NearLimit, 0, len(closest))
	for _, d := range closest {
		n, err := s.nearLimit(ctx, d)
		switch ErrorCode(err) {
		case CodeUserNotFound, CodeAPIKeyNotFound: // deleted just now
			continue
		}
		if err != nil {
			return nil, err
		}
		if n != nil {
			list = append(list, *n)
		}
	}
	return list, nil
}

// plansAtOnce is for how many plans it is added up at the same time: mostly that is waiting for
// the store.
const plansAtOnce = 16

// topCounters returns the counters that have used the most of each of some plans.
func (s *Service) topCounters(ctx context.Context, account string, plans []*Plan, at time.Time, most int) (list []PlanCounter, err error) {
	all := make([]PlanTotals, len(plans))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(plansAtOnce)
	for i, pl := range plans {
		g.Go(func() (err error) {
			if err = ctx.Err(); err == nil { // else nobody waits for it any more
				all[i], err = s.store.PlanTotals(ctx, account, pl.ID, pl.Period, at, most)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, pl := range plans {
		for _, u := range all[i].Top {
			list = append(list, PlanCounter{pl, u})
		}
	}
	return list, nil
}

// nearLimit finds whose counter it is, nil when that draws on another plan by now.
func (s *Service) nearLimit(ctx context.Context, d PlanCounter) (n *NearLimit, err error) {
	n = &NearLimit{Plan: d.Plan, Usage: d.Usage}
	user, plan := d.UserID, ""
	if d.KeyID != "" {
		if n.Key, err = s.store.Key(ctx, d.Account, d.KeyID); err != nil {
			return nil, err
		}
		user, plan = n.Key.UserID, n.Key.PlanID
	}
	if n.User, err = s.store.User(ctx, d.Account, user); err != nil {
		return nil, err
	}
	if n.Key == nil {
		plan = n.User.PlanID
	}
	if plan != d.Plan.ID {
		return nil, nil
	}
	return n, nil
}

// Remaining returns how much of limit is left, never less than 0.
func Remaining(used, limit int64) int64 { return max(0, limit-used) }

// Percentage returns used of limit in percent with two decimals, 0 when there is
// no limit.
func Percentage(used, limit int64) float64 {
	if limit == 0 {
		return 0
	}
	return math.Round(float64(used)/float64(limit)*10000) / 100
}

// addSaturating adds two limits and stays at the largest number rather than overflow.
func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
