package service

import (
	"cmp"
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

// counterTerms is a counter of a user, or of one of its keys, with the limits of this counter. Without a plan and limits of the key, its terms are
// unlimited.
type counterTerms struct {
	core.CounterID
	user  *core.User
	key   *core.Key // nil for the counter of the user
	plan  *core.Plan
	terms core.Terms
}

func (c counterTerms) id() core.CounterID { return c.CounterID }

// newCounterTerms returns the counter of a key, or for a nil key the counter of the user, with its limits. The counter of a key without a plan of its
// own has only the limits of the key.
func (s *Service) newCounterTerms(ctx context.Context, account string, u *core.User, k *core.Key) (c counterTerms, err error) {
	c = counterTerms{CounterID: core.CounterID{Account: account, UserID: u.ID}, user: u, key: k, terms: core.Terms{Limit: core.Unlimited}}
	id := u.PlanID
	if k != nil {
		c.CounterID = core.CounterID{Account: account, KeyID: k.ID}
		id = cmp.Or(k.PlanID, u.PlanID)
	}
	if id != "" {
		pl, err := s.plans.get(ctx, planRef{account, id})
		switch {
		case errors.Is(err, core.ErrPlanNotFound): // deleted just now
			return c, nil
		case err != nil:
			return c, err
		}
		c.plan = &pl.Plan
	}
	switch {
	case k != nil && k.PlanID == "":
		c.terms.Own = k.Own()
	case c.plan != nil:
		c.terms = termsOf(c.plan, u, k, s.now())
	}
	return c, nil
}

// eachAtOnce calls read for each index below n. A local store runs one call after the other. Any other store runs 16 calls concurrently, because
// they mostly wait for the network.
func (s *Service) eachAtOnce(ctx context.Context, n int, read func(ctx context.Context, i int) error) error {
	if s.isLocal() {
		for i := range n {
			if err := read(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error { return read(ctx, i) })
	}
	return g.Wait()
}

// counterTermsOf returns the counters with the ids. It leaves out the counters of deleted keys and users.
func (s *Service) counterTermsOf(ctx context.Context, ids []core.CounterID) (list []counterTerms, err error) {
	all := make([]counterTerms, len(ids))
	err = s.eachAtOnce(ctx, len(ids), func(ctx context.Context, i int) (err error) {
		id, user := ids[i], ids[i].UserID
		var k *core.Key
		if id.KeyID != "" {
			if k, err = s.store.Key(ctx, id.Account, id.KeyID); err == nil {
				user = k.UserID
			}
		}
		var u *cachedUser
		if err == nil {
			u, err = s.users.get(ctx, userRef{id.Account, user})
		}
		if err == nil {
			all[i], err = s.newCounterTerms(ctx, id.Account, &u.User, k)
		}
		if errors.Is(err, core.ErrKeyNotFound) || errors.Is(err, core.ErrUserNotFound) {
			err = nil
		}
		return err
	})
	for _, c := range all {
		if c.user != nil {
			list = append(list, c)
		}
	}
	return list, err
}

// usagesOf returns the usage of each counter under each of its limits. It leaves out a primary limit that is unlimited.
func (s *Service) usagesOf(ctx context.Context, list []counterTerms) ([][]core.LimitUsage, error) {
	counters, err := countersOf(s.counters(ctx), list, counterTerms.id)
	if err != nil {
		return nil, err
	}
	return s.usagesIn(list, counters), nil
}

// usagesIn returns the usages of a list, as usagesOf does, from counters that were read.
func (s *Service) usagesIn(list []counterTerms, counters []core.Counter) [][]core.LimitUsage {
	usages, now := make([][]core.LimitUsage, len(list)), s.now()
	for i := range list {
		for _, u := range list[i].terms.Usages(&counters[i], &counters[i], list[i].user.Anchors, now) {
			if !u.Limit.Unlimited() {
				usages[i] = append(usages[i], u)
			}
		}
	}
	return usages
}
