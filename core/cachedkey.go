package core

import (
	"context"
	"strings"
	"sync/atomic"
	"time"
	"unique"
)

// heldKey is a key in memory with the ways to its user and its plan: a decision on a
// key is one look-up, and a step from there.
type heldKey struct {
	user link[userRef, heldUser] // while it is not disabled
	plan link[planRef, Plan]     // its own

	counter, userCounter Handle // how the store finds them

	Key
}

// heldUser is a user in memory with the way to its plan. The plan that keys share
// hangs on the user, so that no key can see the user with the plan that it had before.
type heldUser struct {
	plan link[planRef, Plan]
	User
}

// link is the way from what names a thing to that thing in a cache. It is good as long
// as nothing was forgotten in the shard of the thing: so it is known to be good without
// a look at the thing, which at a million keys is the dearest part of a look-up.
type link[K comparable, V any] struct {
	to   atomic.Pointer[slot[K, V]]
	mark atomic.Uint64 // the shard of to, and its epoch when to was there
}

func markOf(epoch, shard uint64) uint64 { return epoch*cacheShards + shard%cacheShards }

// follow returns the thing, nil when it has to be looked up.
func (l *link[K, V]) follow(c *cache[K, V]) *V {
	mark := l.mark.Load() // first: what to is then was there in that epoch, or later
	s := l.to.Load()
	if s == nil || !c.lease.holds() || markOf(c.shards[mark%cacheShards].epoch.Load(), mark) != mark {
		return nil
	}
	return &s.value
}

// tie makes the link lead to s, unless that was forgotten.
func (l *link[K, V]) tie(c *cache[K, V], s *slot[K, V]) {
	sh := &c.shards[s.hash%cacheShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.present.find(s.hash, s.key) == s {
		l.to.Store(s)
		l.mark.Store(markOf(sh.epoch.Load(), s.hash))
	}
}

// through follows the link, or looks up k in c, which it leads to, and ties it. It adds
// to hits when memory answers.
func (l *link[K, V]) through(ctx context.Context, c *cache[K, V], k K, hits *uint64) (*V, error) {
	if v := l.follow(c); v != nil {
		*hits++
		return v, nil
	}
	s, err := c.find(ctx, k, hits)
	if err != nil {
		return nil, err
	}
	l.tie(c, s)
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

// watching passes on to the caches of a service what its store tells.
type watching struct{ s *Service }

// Changed implements [Watcher].
func (w watching) Changed(c Change) {
	switch {
	case c.UserID != 0:
		w.s.users.forget(userRef{c.Account, c.UserID})
	case c.PlanID != "":
		w.s.plans.forget(planRef{c.Account, c.PlanID})
	case c.Digest != Digest{}:
		w.s.keys.forget(c.Digest)
	case c.OwnerKey != Digest{}:
		w.s.ownerKeys.forget(c.OwnerKey)
	}
}

// RenewLease implements [Watcher].
func (w watching) RenewLease(d time.Duration) {
	l := w.s.lease
	if d <= 0 {
		l.until.Store(0)
		return
	}
	l.until.Store(int64(time.Since(l.begun) + d))
}

// ChangesMissed implements [Watcher].
func (w watching) ChangesMissed() {
	w.s.users.forgetAll()
	w.s.plans.forgetAll()
	w.s.keys.forgetAll()
	w.s.ownerKeys.forgetAll()
}
