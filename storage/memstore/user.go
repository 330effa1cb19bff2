package memstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// User implements [core.Store].
func (s *Store) User(_ context.Context, account string, id int64) (u *core.User, err error) {
	err = s.locked(func() error {
		u, err = s.of(account).user(id)
		return err
	})
	return u, err
}

// LastNumbers implements [core.Importer].
func (s *Store) LastNumbers(_ context.Context, account string) (n core.Numbers, err error) {
	err = s.locked(func() error {
		r := s.of(account)
		n = core.Numbers{User: r.lastUser, Plan: r.lastPlan, Key: r.lastKey}
		return nil
	})
	return n, err
}

// Users implements [core.Store].
func (s *Store) Users(_ context.Context, account string, f core.UserFilter, p core.Page) (list []*core.User, total int, err error) {
	err = s.locked(func() error {
		all := s.of(account).matchingUsers(f)
		list, total = page(all, p, copyOf), len(all)
		return nil
	})
	return list, total, err
}

func (r *resources) user(id int64) (*core.User, error) {
	u, ok := r.users[id]
	if !ok {
		return nil, core.ErrUserNotFound
	}
	return copyOf(u), nil
}

// matchingUsers returns the users that match, by ID.
func (r *resources) matchingUsers(f core.UserFilter) []*core.User {
	holders := r.keyHolders(f.OnPlan)
	var all []*core.User
	for _, u := range r.users {
		if userMatches(u, f, holders) {
			all = append(all, u)
		}
	}
	slices.SortFunc(all, func(a, b *core.User) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

func userMatches(u *core.User, f core.UserFilter, holders map[int64]bool) bool {
	switch {
	case f.Email != "":
		return u.Email != nil && core.FoldEmail(*u.Email) == core.FoldEmail(f.Email)
	case f.ExternalID != "":
		return u.ExternalID == f.ExternalID
	case f.PlanID != "":
		return u.PlanID == f.PlanID
	case f.OnPlan != "":
		return u.PlanID == f.OnPlan || holders[u.ID]
	case f.Anchored:
		return len(u.Anchors) > 0
	}
	return true
}

// keyHolders returns the users that have a key with the plan.
func (r *resources) keyHolders(plan string) map[int64]bool {
	users := map[int64]bool{}
	for _, k := range r.keys {
		if plan != "" && k.PlanID == plan {
			users[k.UserID] = true
		}
	}
	return users
}
