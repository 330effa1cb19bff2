package core

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
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
// counter of every key and user; an account runs one such query at a time.
func (s *Service) Closest(ctx context.Context, account string, most int) ([]NearLimit, error) {
	var closest []PlanCounter
	at, list := s.now(), func(p Page) ([]*Plan, int, error) { return s.store.Plans(ctx, account, p) }
	read := func(plans []*Plan) error {
		drawn, err := s.drawnOn(ctx, account, plans, at, most)
		closest = append(closest, drawn...)
		slices.SortStableFunc(closest, func(a, b PlanCounter) int { return cmp.Compare(b.share(), a.share()) })
		closest = closest[:min(len(closest), most)]
		return err
	}
	if err := s.inTurn(ctx, account, unbounded, func() error { return eachPage(ctx, list, read) }); err != nil {
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

// drawnOn returns the counters that have used the most of each of some plans.
func (s *Service) drawnOn(ctx context.Context, account string, plans []*Plan, at time.Time, most int) (list []PlanCounter, err error) {
	all := make([]Drawn, len(plans))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(plansAtOnce)
	for i, pl := range plans {
		g.Go(func() (err error) {
			if err = ctx.Err(); err == nil { // else nobody waits for it any more
				all[i], err = s.store.Drawn(ctx, account, pl.ID, pl.Period, at, most)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, pl := range plans {
		for _, u := range all[i].Most {
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
