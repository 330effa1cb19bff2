package core

import (
	"context"
	"strings"
	"sync/atomic"
	"time"
	"unique"

	"github.com/limitkeeper/limitkeeper/internal/cachetable"
)

// cachedKey is a key in memory with references to its user and its plan: a decision takes one
// look-up, and then follows the references.
type cachedKey struct {
	user cacheRef[userRef, cachedUser] // unset while the user is disabled
	plan cacheRef[planRef, Plan]       // if the key has a plan of its own

	Key
}

// cachedUser is a user in memory with a reference to its plan. Keys reach the shared plan through
// their user, so that no key sees the user with a former plan.
type cachedUser struct {
	plan cacheRef[planRef, Plan]
	User
}

// cacheRef is a reference to a value in a cache. It is valid while nothing was forgotten in the
// shard of the value. That is checked without reading the value, which at a million keys would be
// the most expensive part of a look-up.
type cacheRef[K comparable, V any] struct {
	to    atomic.Pointer[cachetable.Entry[K, V]]
	epoch atomic.Uint64 // shardEpoch of the shard of to, at a time when to was in it
}

// shardEpoch combines the epoch of a shard with the index of the shard.
func shardEpoch(epoch, shard uint64) uint64 { return epoch*cacheShards + shard%cacheShards }

// get returns the value, nil if it must be looked up.
func (r *cacheRef[K, V]) get(c *cache[K, V]) *V {
	epoch := r.epoch.Load() // before to: to was in the shard in this epoch, or in a later one
	e := r.to.Load()
	if e == nil || !c.lease.holds() || shardEpoch(c.shards[epoch%cacheShards].epoch.Load(), epoch) != epoch {
		return nil
	}
	return &e.Value
}

// set makes the reference point to e, unless e was forgotten or evicted.
func (r *cacheRef[K, V]) set(c *cache[K, V], e *cachetable.Entry[K, V]) {
	sh := &c.shards[e.Hash()%cacheShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.entries.Find(e.Hash(), e.Key) == e {
		r.to.Store(e)
		r.epoch.Store(shardEpoch(sh.epoch.Load(), e.Hash()))
	}
}

// getOrFind returns the value of the reference. If the reference is not valid, getOrFind looks up k
// in c and sets the reference. It adds 1 to hits if it does not ask the store.
func (r *cacheRef[K, V]) getOrFind(ctx context.Context, c *cache[K, V], k K, hits *uint64) (*V, error) {
	if v := r.get(c); v != nil {
		*hits++
		return v, nil
	}
	e, err := c.find(ctx, k, hits)
	if err != nil {
		return nil, err
	}
	r.set(c, e)
	return &e.Value, nil
}

// newCachedKey returns the cached form of a key: small, in few allocations, and without members
// that no decision needs.
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

// newCachedUser returns the cached form of a user.
func newCachedUser(u *User, err error) (*cachedUser, error) {
	if err != nil {
		return nil, err
	}
	h := &cachedUser{User: *u}
	h.Metadata, h.Email = nil, nil
	h.AccountID, h.PlanID = intern(h.AccountID), intern(h.PlanID)
	return h, nil
}

// newCachedPlan returns the cached form of a plan.
func newCachedPlan(pl *Plan, err error) (*Plan, error) {
	if err != nil {
		return nil, err
	}
	h := *pl
	h.Description, h.Features = nil, nil
	return &h, nil
}

// intern returns s in the memory that all equal strings share: many keys have the same account,
// plan and status.
func intern[S ~string](s S) S { return unique.Make(s).Value() }

// shareMemory moves strings into one allocation.
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

// invalidator applies the reports of a [WatchedStore] to the caches of a service.
type invalidator struct{ s *Service }

// Changed implements [Watcher].
func (w invalidator) Changed(c Change) {
	switch {
	case c.UserID != 0:
		w.s.users.forget(userRef{c.Account, c.UserID})
	case c.PlanID != "":
		w.s.forgetPlan(c.Account, c.PlanID)
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
	w.s.meters.forgetAll()
	w.s.keys.forgetAll()
	w.s.ownerKeys.forgetAll()
}
