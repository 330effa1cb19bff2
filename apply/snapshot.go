package apply

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
)

// snapshot is an account as it was read from the store: its plans, and the users and keys that the file may change. It
// is a [core.Tx] that keeps its writes to itself, for [core.Service.Preview].
type snapshot struct {
	account  *core.Account
	otherKey func(id string) (*core.Key, error) // reads a key that was not kept
	plans    []*core.Plan
	users    []*core.User // the kept users, by id
	keys     map[int64][]*core.Key

	planByID map[string]*core.Plan
	userByID map[int64]*core.User
	keyByID  map[string]*core.Key
	holders  map[core.UserFilter]int64 // the kept users by email and by external id, see [core.User.UniqueFilters]

	// The counts of all resources, kept or not.
	allUsers, allKeys int
	usersOn, keysOn   map[string]int // by plan
	keysWithoutPlan   map[int64]int  // by kept user
	lastUser          int64          // the id of the last user, stored or new
}

// read reads an account. keep selects the users that are kept, with their keys.
func read(ctx context.Context, svc *core.Service, a *core.Account, keep func(*core.User) bool) (*snapshot, error) {
	s := &snapshot{account: a, otherKey: func(id string) (*core.Key, error) { return svc.Key(ctx, a.ID, id) },
		keys: map[int64][]*core.Key{}, planByID: map[string]*core.Plan{}, userByID: map[int64]*core.User{}, keyByID: map[string]*core.Key{},
		holders: map[core.UserFilter]int64{}, usersOn: map[string]int{}, keysOn: map[string]int{}, keysWithoutPlan: map[int64]int{}}
	err := eachPage(func(p core.Page) ([]*core.Plan, int, error) { return svc.Plans(ctx, a.ID, p) }, func(pl *core.Plan) {
		s.plans = append(s.plans, pl)
		s.planByID[pl.ID] = pl
	})
	if err != nil {
		return nil, err
	}
	users := func(p core.Page) ([]*core.User, int, error) { return svc.Users(ctx, a.ID, core.UserFilter{}, p) }
	err = eachPage(users, func(u *core.User) {
		s.allUsers++
		s.usersOn[u.PlanID]++
		s.lastUser = u.ID
		if keep(u) {
			s.users = append(s.users, u)
			s.userByID[u.ID] = u
			for _, f := range u.UniqueFilters() {
				s.holders[f] = u.ID
			}
		}
	})
	if err != nil {
		return nil, err
	}
	keys := func(p core.Page) ([]*core.Key, int, error) { return svc.Keys(ctx, a.ID, core.KeyFilter{}, p) }
	return s, eachPage(keys, func(k *core.Key) {
		s.allKeys++
		s.keysOn[k.PlanID]++
		if s.userByID[k.UserID] == nil {
			return
		}
		s.keys[k.UserID] = append(s.keys[k.UserID], k)
		s.keyByID[k.ID] = k
		if k.PlanID == "" {
			s.keysWithoutPlan[k.UserID]++
		}
	})
}

// eachPage calls fn with each item of a list.
func eachPage[T any](list func(core.Page) ([]T, int, error), fn func(T)) error {
	for p := (core.Page{Number: 1, Size: 1000}); ; p.Number++ {
		items, _, err := list(p)
		if err != nil {
			return err
		}
		for _, item := range items {
			fn(item)
		}
		if len(items) < p.Size {
			return nil
		}
	}
}

// User implements [core.Tx].
func (s *snapshot) User(id int64) (*core.User, error) {
	return found(s.userByID[id], core.ErrUserNotFound)
}

// Plan implements [core.Tx].
func (s *snapshot) Plan(id string) (*core.Plan, error) {
	return found(s.planByID[id], core.ErrPlanNotFound)
}

// Key implements [core.Tx]. The batch also asks for keys that were not kept, when they have a digest of the file.
func (s *snapshot) Key(id string) (*core.Key, error) {
	if k := s.keyByID[id]; k != nil {
		return found(k, nil)
	}
	return s.otherKey(id)
}

// found returns a copy of a resource.
func found[T any](v *T, notFound error) (*T, error) {
	if v == nil {
		return nil, notFound
	}
	c := *v
	return &c, nil
}

// CountUsers implements [core.Tx], for no filter and for a plan.
func (s *snapshot) CountUsers(f core.UserFilter) (int, error) {
	if f.PlanID != "" {
		return s.usersOn[f.PlanID], nil
	}
	return s.allUsers, nil
}

// CountKeys implements [core.Tx], for no filter, for a plan, for a user, and for the keys of a user without a plan.
func (s *snapshot) CountKeys(f core.KeyFilter) (int, error) {
	switch {
	case f.UserID == 0 && f.PlanID != nil:
		return s.keysOn[*f.PlanID], nil
	case f.UserID == 0:
		return s.allKeys, nil
	case f.PlanID == nil:
		return len(s.keys[f.UserID]), nil
	}
	return s.keysWithoutPlan[f.UserID], nil
}

// Plans implements [core.Tx].
func (s *snapshot) Plans(p core.Page) ([]*core.Plan, int, error) {
	first := min(p.Offset(), len(s.plans))
	return s.plans[first:min(first+p.Size, len(s.plans))], len(s.plans), nil
}

// PutUser implements [core.Tx].
func (s *snapshot) PutUser(u *core.User) error {
	for _, f := range u.UniqueFilters() {
		if holder := s.holders[f]; holder != 0 && holder != u.ID {
			return f.Duplicate()
		}
	}
	if u.ID == 0 {
		s.lastUser++
		u.ID = s.lastUser
	}
	s.free(u.ID)
	for _, f := range u.UniqueFilters() {
		s.holders[f] = u.ID
	}
	return nil
}

// free forgets the stored email and external id of a user.
func (s *snapshot) free(id int64) {
	for _, f := range s.userByID[id].UniqueFilters() {
		if s.holders[f] == id {
			delete(s.holders, f)
		}
	}
}

// DeleteUser implements [core.Tx].
func (s *snapshot) DeleteUser(id int64) error {
	s.free(id)
	return nil
}

// PutPlan implements [core.Tx].
func (*snapshot) PutPlan(*core.Plan) error { return nil }

// PutKey implements [core.Tx].
func (*snapshot) PutKey(*core.Key) error { return nil }

// DeletePlan implements [core.Tx].
func (*snapshot) DeletePlan(string) error { return nil }

// DeleteKey implements [core.Tx].
func (*snapshot) DeleteKey(string) error { return nil }

var _ core.Tx = (*snapshot)(nil)
