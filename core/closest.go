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
	type near struct {
		CounterUsage
		plan *Plan
	}
	share := func(n near) float64 { return float64(n.Used) / float64(max(n.plan.Limit, 1)) }
	var closest []near
	at := s.now()
	err := eachPage(ctx, func(p Page) ([]*Plan, int, error) { return s.store.Plans(ctx, account, p) }, func(plans []*Plan) error {
		for _, pl := range plans {
			drawn, err := s.store.Drawn(ctx, account, pl.ID, pl.Period, at, most)
			if err != nil {
				return err
			}
			for _, u := range drawn.Most {
				closest = append(closest, near{u, pl})
			}
			slices.SortStableFunc(closest, func(a, b near) int { return cmp.Compare(share(b), share(a)) })
			closest = closest[:min(len(closest), most)]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	list := make([]NearLimit, 0, len(closest))
	for _, c := range closest {
		n := NearLimit{Plan: c.plan, Usage: c.Usage}
		n.User, n.Key, err = s.ownerOf(ctx, c.CounterID)
		switch ErrorCode(err) {
		case CodeUserNotFound, CodeAPIKeyNotFound: // deleted just now
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

// ownerOf returns the user of a counter, and its key when it is that of one.
func (s *Service) ownerOf(ctx context.Context, id CounterID) (u *User, k *Key, err error) {
	user := id.UserID
	if id.KeyID != "" {
		if k, err = s.store.Key(ctx, id.Account, id.KeyID); err != nil {
			return nil, nil, err
		}
		user = k.UserID
	}
	u, err = s.store.User(ctx, id.Account, user)
	return u, k, err
}
