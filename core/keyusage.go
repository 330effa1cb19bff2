package core

import (
	"context"
	"time"
)

// KeyUsage is the usage in the window of a key, under its plan.
type KeyUsage struct {
	LimitUsage                 // of the first limit of the plan
	Limits        []LimitUsage // of all limits, the primary one first
	Plan          *Plan
	LastUsedAt    time.Time // of this key; zero: never
	DeniedOmitted int64     // denied requests of this key that are not in the history
}

// KeyUsage returns the usage of the deciding counter of a key: the key's own counter if it has a
// plan of its own, else the counter of its user.
func (s *Service) KeyUsage(ctx context.Context, account, id string) (*KeyUsage, error) {
	k, err := s.store.Key(ctx, account, id)
	if err != nil {
		return nil, err
	}
	u, err := s.store.User(ctx, account, k.UserID)
	if err != nil {
		return nil, err
	}
	pl, shared, err := s.planOf(ctx, k, u)
	if err != nil {
		return nil, err
	}
	cs, err := s.store.Counters(ctx, []CounterID{
		{Account: account, KeyID: id}, {Account: account, UserID: k.UserID}})
	if err != nil {
		return nil, err
	}
	own, counter := cs[0], cs[0]
	if shared {
		counter = cs[1]
	}
	limits := pl.LimitUsages(&counter, u.Anchors, s.now())
	return &KeyUsage{LimitUsage: limits[0], Limits: limits, Plan: pl,
		LastUsedAt: own.LastUsedAt, DeniedOmitted: own.DeniedOmitted}, nil
}

// planOf returns the plan that limits a key, and whether it is the plan of the user.
func (s *Service) planOf(ctx context.Context, k *Key, u *User) (pl *Plan, shared bool, err error) {
	plan := k.PlanID
	if plan == "" {
		plan, shared = u.PlanID, true
	}
	pl, err = s.store.Plan(ctx, k.AccountID, plan)
	return pl, shared, err
}

// LastUsed returns when each key was last used; the zero time means never.
func (s *Service) LastUsed(ctx context.Context, account string, keys []*Key) ([]time.Time, error) {
	ids := make([]CounterID, len(keys))
	for i, k := range keys {
		ids[i] = CounterID{Account: account, KeyID: k.ID}
	}
	cs, err := s.store.Counters(ctx, ids)
	if err != nil {
		return nil, err
	}
	times := make([]time.Time, len(cs))
	for i := range cs {
		times[i] = cs[i].LastUsedAt
	}
	return times, nil
}
