package service

import (
	"cmp"
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// KeyUsage is the usage in the window of a key, under its plan.
type KeyUsage struct {
	core.LimitUsage                   // of the first limit of the plan
	Limits          []core.LimitUsage // of all limits, the primary one first
	ExhaustsAt      []time.Time       // the time at which each of Limits is used up at the present pace; zero: not before the reset
	Plan            *core.Plan
	LastUsedAt      time.Time // of the allowed requests of this key; zero: never
	LastRefusedAt   time.Time // of its refused requests, in whole seconds; zero: never
	DeniedOmitted   int64     // denied requests of this key that are not in the history
}

// KeyUsage returns the usage of the deciding counter of a key: the key's own counter if it has a
// plan of its own, else the counter of its user.
func (s *Service) KeyUsage(ctx context.Context, account, id string) (*KeyUsage, error) {
	usage, of, err := s.presentKeyUsage(ctx, account, id)
	if err != nil {
		return nil, err
	}
	all, err := s.forecasts(ctx, []forecastInput{{of, core.CounterID{Account: account, KeyID: id}, usage.Limits}})
	if err != nil {
		return nil, err
	}
	usage.ExhaustsAt = all[0]
	return usage, nil
}

// presentKeyUsage is KeyUsage without ExhaustsAt. It also returns the deciding counter.
func (s *Service) presentKeyUsage(ctx context.Context, account, id string) (usage *KeyUsage, of core.CounterID, err error) {
	err = s.store.View(ctx, account, func(v core.View) error {
		usage, of, err = s.keyUsage(v, account, id)
		return err
	})
	return usage, of, err
}

func (s *Service) keyUsage(v core.View, account, id string) (*KeyUsage, core.CounterID, error) {
	ofKey := core.CounterID{Account: account, KeyID: id}
	k, err := v.Key(id)
	if err != nil {
		return nil, ofKey, err
	}
	u, err := v.User(k.UserID)
	if err != nil {
		return nil, ofKey, err
	}
	pl, err := v.Plan(cmp.Or(k.PlanID, u.PlanID))
	if err != nil {
		return nil, ofKey, err
	}
	ofUser := core.CounterID{Account: account, UserID: k.UserID}
	cs, err := v.Counters([]core.CounterID{ofKey, ofUser})
	if err != nil {
		return nil, ofKey, err
	}
	own, counter, of := cs[0], cs[0], ofKey
	if k.PlanID == "" {
		counter, of = cs[1], ofUser
	}
	terms := termsOf(pl, u, k, s.now())
	limits := terms.Usages(&counter, &own, u.Anchors, s.now())
	return &KeyUsage{LimitUsage: limits[0], Limits: limits, Plan: pl,
		LastUsedAt: own.LastUsedAt, LastRefusedAt: own.LastRefusedAt(), DeniedOmitted: own.DeniedOmitted}, of, nil
}

// termsOf returns the terms of a key at a time. A nil key stands for the shared counter of the user.
func termsOf(pl *core.Plan, u *core.User, k *core.Key, at time.Time) core.Terms {
	terms := pl.Terms()
	terms.Override(u.Overrides, at)
	if k != nil {
		terms.Own = k.Own()
	}
	return terms
}

// LastRequests are the times of the last requests of a key; the zero time means never.
type LastRequests struct {
	UsedAt    time.Time // of the last allowed request
	RefusedAt time.Time // of the last refused request, in whole seconds
}

// LastRequests returns when each key was last used, and last refused.
func (s *Service) LastRequests(ctx context.Context, account string, keys []*core.Key) ([]LastRequests, error) {
	cs, err := countersOf(s.counters(ctx), keys, func(k *core.Key) core.CounterID { return core.CounterID{Account: account, KeyID: k.ID} })
	if err != nil {
		return nil, err
	}
	times := make([]LastRequests, len(cs))
	for i := range cs {
		times[i] = LastRequests{cs[i].LastUsedAt, cs[i].LastRefusedAt()}
	}
	return times, nil
}
