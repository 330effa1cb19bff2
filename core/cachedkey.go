package core

import (
	"context"
	"strings"
	"sync/atomic"
	"time"
	"unique"
)

// cachedKey is a key in memory with the ways to its user and its plan: a decision on a
// key is one look-up, and a step from there.
type cachedKey struct {
	user cacheRef[userRef, cachedUser] // while it is not disabled
	plan cacheRef[planRef, Plan]       // its own

	counter, userCounter Handle // how the store finds them

	Key
}

// cachedUser is a user in memory with the way to its plan. The plan that keys share
// hangs on the user, so that no key can see the user with the plan that it had before.
type cachedUser struct {
	plan cacheRef[planRef, Plan]
	User
}

// cacheRef is the way from what names a thing to that thing in a cache. It is good as long
// as nothing was forgotten in the shard of the thing: so it is known to be good without
// a look at the thing, which at a million keys is the dearest part of a look-up.
type cacheRef[K comparable, V any] struct {
	to   atomic.Pointer[cacheEntry[K, V]]
	mark atomic.Uint64 // the shard of to, and its epoch when to was there
}

func epochMark(epoch, shard uint64) uint64 { return epoch*cacheShards + shard%cacheShards }

// get returns the thing, nil when it has to be looked up.
func (l *cacheRef[K, V]) get(c *cache[K, V]) *V {
	mark := l.mark.Load() // first: what to is then was there in that epoch, or later
	s := l.to.Load()
	if s == nil || !c.lease.holds() || epochMark(c.shards[mark%cacheShards].epoch.Load(), mark) != mark {
		return nil
	}
	return &s.value
}

// set makes the link lead to s, unless that was forgotten.
func (l *cacheRef[K, V]) set(c *cache[K, V], s *cacheEntry[K, V]) {
	sh := &c.shards[s.hash%cacheShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.entries.find(s.hash, s.key) == s {
		l.to.Store(s)
		l.mark.Store(epochMark(sh.epoch.Load(), s.hash))
	}
}

// getOrFind follows the link, or looks up k in c, which it leads to, and ties it. It adds
// to hits when memory answers.
func (l *cacheRef[K, V]) getOrFind(ctx context.Context, c *cache[K, V], k K, hits *uint64) (*V, error) {
	if v := l.get(c); v != nil {
		*hits++
		return v, nil
	}
	s, err := c.find(ctx, k, hits)
	if err != nil {
		return nil, err
	}
	l.set(c, s)
	return &s.value, nil
}

// newCachedKey returns a key as it is held in memory: small, in few pieces, and without
// what no decision needs.
func newCachedKey(k *Key, err error) (*cachedKey, error) {
	if err != nil {
		return nil, err
	}
	h := &cachedKey{Key: *k}
	h.Metadata = nil
	h.AccountID, h.PlanID, h.Status = intern(h.AccountID), intern(h.PlanID), intern(h.Status)
	shareMemory(&h.ID, &h.Name, &h.Hint)
	return h, nil
}

// newCachedUser is holdKey for a user.
func newCachedUser(u *User, err error) (*cachedUser, error) {
	if err != nil {
		return nil, err
	}
	h := &cachedUser{User: *u}
	h.Metadata, h.Email = nil, nil
	h.AccountID, h.PlanID = intern(h.AccountID), intern(h.PlanID)
	return h, nil
}

// newCachedPlan is holdKey for a plan.
func newCachedPlan(pl *Plan, err error) (*Plan, error) {
	if err != nil {
		return nil, err
	}
	h := *pl
	h.Description, h.Features = nil, nil
	return &h, nil
}

// intern returns s in the memory of every other string that was the intern: many keys
// have one account, plan and status, and equal ones are compared at a glance.
func intern[S ~string](s S) S { return unique.Make(s).Value() }

// shareMemory puts strings into one piece of memory.
func shareMemory(parts ...*string) {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(*p)
	}
	all := b.String()
	for _, p := range parts {
		*p, all = all[:len(*p)], all[len(*p):]
	}
}

// invalidator passes on to the caches of a service what its store tells.
type invalidator struct{ s *Service }

// Changed implements [Watcher].
func (w invalidator) Changed(c Change) {
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
func (w invalidator) RenewLease(d time.Duration) {
	l := w.s.lease
	if d <= 0 {
		l.until.Store(0)
		return
	}
	l.until.Store(int64(time.Since(l.begun) + d))
}

// ChangesMissed implements [Watcher].
func (w invalidator) ChangesMissed() {
	w.s.users.forgetAll()
	w.s.plans.forgetAll()
	w.s.keys.forgetAll()
	w.s.ownerKeys.forgetAll()
}
