package core

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// PlanUsage is the usage of everyone who draws on a plan, in the current window.
type PlanUsage struct {
	Plan  *Plan
	Users int   // who draw on it, by a key or as a user
	Used  int64 // the sum over the counters
}

// Average returns the usage of a user on average with two decimals, 0 without
// users.
func (u *PlanUsage) Average() float64 {
	if u.Users == 0 {
		return 0
	}
	return math.Round(float64(u.Used)/float64(u.Users)*100) / 100
}

// PlanUsage returns the usage of a plan. It reads the counter of every key and
// user that has the plan; when there are many, the account runs one such query at a time, see
// [ErrTooManyRequests].
func (s *Service) PlanUsage(ctx context.Context, account, id string) (*PlanUsage, error) {
	pl, err := s.store.Plan(ctx, account, id)
	if err != nil {
		return nil, err
	}
	_, users, err := s.store.Users(ctx, account, UserFilter{OnPlan: id}, Page{1, 1})
	if err != nil {
		return nil, err
	}
	_, keys, err := s.store.Keys(ctx, account, KeyFilter{PlanID: &id}, Page{1, 1})
	if err != nil {
		return nil, err
	}
	var drawn Drawn
	err = s.inTurn(ctx, account, users+keys, func() error {
		drawn, err = s.store.Drawn(ctx, account, id, pl.Period, s.now(), 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &PlanUsage{Plan: pl, Users: users, Used: drawn.Used}, nil
}

// Drawn is what the counters that draw on a plan have used in the window of a period.
type Drawn struct {
	Used int64          // the sum; it stays at the largest number rather than overflow
	Most []CounterUsage // those that have used the most, the most first
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
func (d *Drawn) Add(n int, id CounterID, seq int64, u Usage) {
	if u.Used <= 0 {
		return
	}
	d.Used = addLimit(d.Used, u.Used)
	c := CounterUsage{id, seq, u}
	i, _ := slices.BinarySearchFunc(d.Most, &c, func(has CounterUsage, c *CounterUsage) int { return has.compare(c) })
	if i >= n {
		return
	}
	d.Most = slices.Insert(d.Most, i, c)
	d.Most = d.Most[:min(len(d.Most), n)]
}
