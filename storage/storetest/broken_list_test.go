package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenLists = []defect{
	{name: "returns the length of the page as the total", caughtBy: "machine",
		open: userLists(func(us []*core.User, _ int, _ core.UserFilter, p core.Page) ([]*core.User, int) {
			page := cut(us, p)
			return page, len(page)
		})},
	{name: "loses a user at the end of a bucket", caughtBy: "list/large",
		open: userLists(func(us []*core.User, n int, _ core.UserFilter, p core.Page) ([]*core.User, int) {
			if len(us) > 1024 {
				us = slices.Delete(us, 1023, 1024)
			}
			return cut(us, p), n
		})},
	{name: "returns page 1 for a huge page number", caughtBy: "machine",
		open: userLists(func(us []*core.User, n int, _ core.UserFilter, p core.Page) ([]*core.User, int) {
			if p.Number > 1<<32 {
				p.Number = 1
			}
			return cut(us, p), n
		})},
	{name: "counts all users, ignoring the filter", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return countsEverybody{s} })},
	{name: "finds users by a part of their address", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return findsParts{s} })},
	{name: "finds users by a part of their external id", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return findsParts{s} })},
	{name: "loses the index of external ids when it is closed", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store {
			if _, accounts, _ := s.Accounts(context.Background(), core.Page{Number: 1, Size: 1}); accounts == 0 {
				return s // opened for the first time
			}
			return relistedUsers{s, func(us []*core.User, n int, f core.UserFilter, p core.Page) ([]*core.User, int) {
				if f.ExternalID != "" {
					return nil, 0
				}
				return cut(us, p), n
			}}
		})},
	{name: "lists a user once for each key on a plan", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return listsTwice{s} })},
	{name: "leaves out users with the plan itself", caughtBy: "machine",
		open: userLists(func(us []*core.User, n int, f core.UserFilter, p core.Page) ([]*core.User, int) {
			if f.OnPlan != "" {
				us = slices.DeleteFunc(us, func(u *core.User) bool { return u.PlanID == f.OnPlan })
			}
			return cut(us, p), len(us)
		})},
	{name: "sorts plans by id", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return sortsPlans{s} })},
	{name: "sorts keys by time", caughtBy: "machine",
		open: keyLists(func(ks []*core.Key, _ core.KeyFilter) []*core.Key {
			slices.SortStableFunc(ks, func(a, b *core.Key) int { return a.CreatedAt.Compare(b.CreatedAt) })
			return ks
		})},
	{name: "treats the filter for no plan as any plan", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return noPlanIsAny{s} })},
	{name: "finds keys by any part of their hint", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return anyPartOfHint{s} })},
	{name: "lists only the keys with a plan of their own under a plan", caughtBy: "machine",
		open: keyLists(func(ks []*core.Key, f core.KeyFilter) []*core.Key {
			return slices.DeleteFunc(ks, func(k *core.Key) bool { return f.UnderPlan != "" && k.PlanID == "" })
		})},
	{name: "leaves the keys of a user under its former plan", caughtBy: "list/under plan", open: wrapped(newFormerPlans)},
	{name: "ignores the status of keys under a plan", caughtBy: "list/under plan",
		open: wrapped(func(s core.Store) core.Store { return anyStatusUnder{s} })},
	{name: "does not combine filters", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return oneFilter{s} })},
	{name: "lists the keys of accounts whose names begin alike", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return listsAlike{s} })},
}

// relistedUsers makes the pages of users itself, from all matches.
type relistedUsers struct {
	core.Store
	page func([]*core.User, int, core.UserFilter, core.Page) ([]*core.User, int)
}

func userLists(page func([]*core.User, int, core.UserFilter, core.Page) ([]*core.User, int)) func() Opened {
	return wrapped(func(s core.Store) core.Store { return relistedUsers{s, page} })
}

func (s relistedUsers) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	all, n, err := s.Store.Users(ctx, account, f, core.Page{Number: 1, Size: 1 << 20})
	us, n := s.page(all, n, f, p)
	return us, n, err
}

// relistedKeys is relistedUsers for keys.
type relistedKeys struct {
	core.Store
	alter func([]*core.Key, core.KeyFilter) []*core.Key
}

func keyLists(alter func([]*core.Key, core.KeyFilter) []*core.Key) func() Opened {
	return wrapped(func(s core.Store) core.Store { return relistedKeys{s, alter} })
}

func (s relistedKeys) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	all, n, err := s.Store.Keys(ctx, account, f, core.Page{Number: 1, Size: 1 << 20})
	return cut(s.alter(all, f), p), n, err
}

type countsEverybody struct{ core.Store }

func (s countsEverybody) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	us, _, err := s.Store.Users(ctx, account, f, p)
	if err != nil {
		return nil, 0, err
	}
	_, n, err := s.Store.Users(ctx, account, core.UserFilter{}, p)
	return us, n, err
}

type findsParts struct{ core.Store }

func (s findsParts) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	if f.Email == "" && f.ExternalID == "" {
		return s.Store.Users(ctx, account, f, p)
	}
	all, _, err := s.Store.Users(ctx, account, core.UserFilter{}, core.Page{Number: 1, Size: 1 << 20})
	all = slices.DeleteFunc(all, func(u *core.User) bool {
		if f.ExternalID != "" {
			return !strings.Contains(u.ExternalID, f.ExternalID)
		}
		return u.Email == nil || !strings.Contains(core.FoldEmail(*u.Email), core.FoldEmail(f.Email))
	})
	return cut(all, p), len(all), err
}

type listsTwice struct{ core.Store }

func (s listsTwice) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	all, n, err := s.Store.Users(ctx, account, f, core.Page{Number: 1, Size: 1 << 20})
	if f.OnPlan == "" || err != nil {
		return cut(all, p), n, err
	}
	var us []*core.User
	for _, u := range all {
		_, keys, _ := s.Keys(ctx, account, core.KeyFilter{UserID: u.ID, PlanID: &f.OnPlan}, p)
		us = append(us, slices.Repeat([]*core.User{u}, max(keys, 1))...)
	}
	return cut(us, p), len(us), nil
}

type sortsPlans struct{ core.Store }

func (s sortsPlans) Plans(ctx context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	all, n, err := s.Store.Plans(ctx, account, core.Page{Number: 1, Size: 1 << 20})
	slices.SortFunc(all, func(a, b *core.Plan) int { return cmp.Compare(a.ID, b.ID) })
	return cut(all, p), n, err
}

type anyPartOfHint struct{ core.Store }

func (s anyPartOfHint) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	if f.HintTail == "" {
		return s.Store.Keys(ctx, account, f, p)
	}
	all, _, err := s.Store.Keys(ctx, account, core.KeyFilter{}, core.Page{Number: 1, Size: 1 << 20})
	all = slices.DeleteFunc(all, func(k *core.Key) bool { return !strings.Contains(k.Hint, f.HintTail) })
	return cut(all, p), len(all), err
}

type noPlanIsAny struct{ core.Store }

func (s noPlanIsAny) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	if f.PlanID != nil && *f.PlanID == "" {
		f.PlanID = nil
	}
	return s.Store.Keys(ctx, account, f, p)
}

type oneFilter struct{ core.Store }

func (s oneFilter) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	if f.UserID != 0 {
		f.Status = ""
	}
	return s.Store.Keys(ctx, account, f, p)
}

type listsAlike struct{ core.Store }

func (s listsAlike) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	var ks []*core.Key
	accounts, _, err := s.Accounts(ctx, core.Page{Number: 1, Size: 1 << 20})
	for _, a := range accounts {
		if strings.HasPrefix(a.ID, account) {
			some, _, _ := s.Store.Keys(ctx, a.ID, f, core.Page{Number: 1, Size: 1 << 20})
			ks = append(ks, some...)
		}
	}
	return cut(ks, p), len(ks), err
}

// formerPlans lists keys under the first plan of their user.
type formerPlans struct {
	core.Store
	mu    sync.Mutex
	first map[string]string // by account and user
}

func newFormerPlans(s core.Store) core.Store {
	return &formerPlans{Store: s, first: map[string]string{}}
}

func (s *formerPlans) planOf(account string, id int64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprint(account, id)
	if u, err := s.User(context.Background(), account, id); err == nil && s.first[name] == "" {
		s.first[name] = u.PlanID
	}
	return s.first[name]
}

func (s *formerPlans) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	if f.UnderPlan == "" {
		return s.Store.Keys(ctx, account, f, p)
	}
	all, _, err := s.Store.Keys(ctx, account, core.KeyFilter{Status: f.Status}, core.Page{Number: 1, Size: 1 << 20})
	all = slices.DeleteFunc(all, func(k *core.Key) bool { return cmp.Or(k.PlanID, s.planOf(account, k.UserID)) != f.UnderPlan })
	return cut(all, p), len(all), err
}

// anyStatusUnder ignores the status of keys under a plan.
type anyStatusUnder struct{ core.Store }

func (s anyStatusUnder) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	if f.UnderPlan != "" {
		f.Status = ""
	}
	return s.Store.Keys(ctx, account, f, p)
}
