package core

import (
	"cmp"
	"context"
	"slices"
)

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

// Closest returns the counters of an account that are the closest to their limits, at most
// so many, the closest first. Counters that nothing has used are left out. It reads the
// counter of every key and user.
func (s *Service) Closest(ctx context.Context, account string, most int) ([]NearLimit, error) {
	c := closest{s: s, account: account, most: most, sum: summing{s: s, account: account, at: s.now(), plans: map[string]*Plan{}}}
	err := s.eachUser(ctx, account, UserFilter{}, func(users []*User) error {
		var ids []CounterID
		var list []NearLimit
		for _, u := range users {
			if u.PlanID != "" {
				ids, list = append(ids, CounterID{Account: account, UserID: u.ID}), append(list, NearLimit{User: u})
			}
		}
		return c.add(ctx, ids, list)
	})
	if err != nil {
		return nil, err
	}
	err = s.eachKey(ctx, account, KeyFilter{}, func(keys []*Key) error {
		var ids []CounterID
		var list []NearLimit
		for _, k := range keys {
			if k.PlanID != "" {
				ids, list = append(ids, CounterID{Account: account, KeyID: k.ID}), append(list, NearLimit{Key: k})
			}
		}
		return c.add(ctx, ids, list)
	})
	if err != nil {
		return nil, err
	}
	for i := range c.list {
		if n := &c.list[i]; n.User == nil {
			if n.User, err = s.store.User(ctx, account, n.Key.UserID); err != nil {
				return nil, err
			}
		}
	}
	return c.list, nil
}

// closest gathers the counters that are the closest to their limits.
type closest struct {
	s       *Service
	account string
	most    int
	sum     summing
	list    []NearLimit
}

// add looks at more counters.
func (c *closest) add(ctx context.Context, ids []CounterID, list []NearLimit) error {
	counters, err := c.s.store.Counters(ctx, ids)
	if err != nil {
		return err
	}
	for i := range list {
		n := &list[i]
		plan := ""
		if n.Key != nil {
			plan = n.Key.PlanID
		} else {
			plan = n.User.PlanID
		}
		if n.Plan, err = c.sum.plan(ctx, plan); err != nil {
			return err
		}
		if n.Usage = counters[i].Usage(n.Plan.Period, c.sum.at); n.Used > 0 {
			c.list = append(c.list, *n)
		}
	}
	slices.SortStableFunc(c.list, func(a, b NearLimit) int { return cmp.Compare(b.share(), a.share()) })
	c.list = c.list[:min(len(c.list), c.most)]
	return nil
}

// share returns the part of the limit that is used.
func (n *NearLimit) share() float64 { return float64(n.Used) / float64(max(n.Plan.Limit, 1)) }
