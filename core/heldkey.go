package core

import (
	"context"
	"strings"
	"sync/atomic"
	"unique"
)

// heldKey is a key in memory with the ways to its user and its plan: a decision on a
// key is one look-up, and a step from there.
type heldKey struct {
	Key
	user link[userRef, heldUser]
	plan link[planRef, Plan] // its own
}

// heldUser is a user in memory with the way to its plan. The plan that keys share
// hangs on the user, so that no key can see the user with the plan that it had before.
type heldUser struct {
	User
	plan link[planRef, Plan]
}

// link is the way from what names something to the thing, once it has been walked.
// It ends where the thing was forgotten, and is found again.
type link[K comparable, V any] struct{ to atomic.Pointer[slot[K, V]] }

// follow returns what is held under k in c, the same k and c each time, and adds to
// hits when memory answers.
func (l *link[K, V]) follow(ctx context.Context, c *cache[K, V], k K, hits *uint64) (*V, error) {
	if s := l.to.Load(); s != nil && s.use() {
		*hits++
		return &s.value, nil
	}
	s, err := c.find(ctx, k, hits)
	if err != nil {
		return nil, err
	}
	l.to.Store(s) // one that is gone by now is only looked up once more
	return &s.value, nil
}

// holdKey returns a key as it is held in memory: small, in few pieces, and without
// what no decision needs.
func holdKey(k *Key, err error) (*heldKey, error) {
	if err != nil {
		return nil, err
	}
	h := &heldKey{Key: *k}
	h.Metadata = nil
	h.AccountID, h.PlanID, h.Status = same(h.AccountID), same(h.PlanID), same(h.Status)
	together(&h.ID, &h.Name, &h.Hint)
	return h, nil
}

// holdUser is holdKey for a user.
func holdUser(u *User, err error) (*heldUser, error) {
	if err != nil {
		return nil, err
	}
	h := &heldUser{User: *u}
	h.Metadata, h.Email = nil, nil
	h.AccountID, h.PlanID = same(h.AccountID), same(h.PlanID)
	return h, nil
}

// holdPlan is holdKey for a plan.
func holdPlan(pl *Plan, err error) (*Plan, error) {
	if err != nil {
		return nil, err
	}
	h := *pl
	h.Description, h.Features = nil, nil
	return &h, nil
}

// same returns s in the memory of every other string that was the same: many keys
// have one account, plan and status, and equal ones are compared at a glance.
func same[S ~string](s S) S { return unique.Make(s).Value() }

// together puts strings into one piece of memory.
func together(parts ...*string) {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(*p)
	}
	all := b.String()
	for _, p := range parts {
		*p, all = all[:len(*p)], all[len(*p):]
	}
}
