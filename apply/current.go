package apply

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// current is an account as it was read from the store: its prices, webhooks and plans, and the users and keys that the file may change.
type current struct {
	account  *core.Account
	prices   *core.Prices
	webhooks []*core.Webhook
	plans    []*core.Plan
	users    []*core.User          // the kept users, by id
	keys     map[int64][]*core.Key // of each kept user

	holders  map[core.UserFilter]*core.User // the kept users by email and by external id, see [core.User.UniqueFilters]
	allUsers int                            // the number of all users, kept or not
}

// read reads an account. keep selects the users that are kept, with their keys.
func read(ctx context.Context, svc *service.Service, a *core.Account, keep func(*core.User) bool) (*current, error) {
	s := &current{account: a, keys: map[int64][]*core.Key{}, holders: map[core.UserFilter]*core.User{}}
	plans := func(p core.Page) ([]*core.Plan, int, error) { return svc.Plans(ctx, a.ID, p) }
	var err error
	if s.prices, err = svc.Prices(ctx, a.ID); err != nil {
		return nil, err
	}
	if s.webhooks, err = readWebhooks(ctx, svc, a.ID); err != nil {
		return nil, err
	}
	err = core.Each(ctx, core.ReadSize, plans, func(pl *core.Plan) error {
		s.plans = append(s.plans, pl)
		return nil
	})
	if err != nil {
		return nil, err
	}
	users := func(p core.Page) ([]*core.User, int, error) { return svc.Users(ctx, a.ID, core.UserFilter{}, p) }
	err = core.Each(ctx, core.ReadSize, users, func(u *core.User) error {
		s.allUsers++
		if keep(u) {
			s.users = append(s.users, u)
			s.keys[u.ID] = nil
			for _, f := range u.UniqueFilters() {
				s.holders[f] = u
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	keys := func(p core.Page) ([]*core.Key, int, error) { return svc.Keys(ctx, a.ID, core.KeyFilter{}, p) }
	return s, core.Each(ctx, core.ReadSize, keys, func(k *core.Key) error {
		if _, kept := s.keys[k.UserID]; kept {
			s.keys[k.UserID] = append(s.keys[k.UserID], k)
		}
		return nil
	})
}
