package service

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/limitkeeper/limitkeeper/core"
)

// cachedKey is a key in memory with references to its user and its plan: a decision takes one
// look-up, and then follows the references.
type cachedKey struct {
	user cacheRef[userRef, cachedUser] // unset while the user is disabled; flagged if the user is special
	plan cacheRef[planRef, cachedPlan] // if the key has a plan of its own

	recorded decisionHashes

	core.Key
}

// restrictions returns the restrictions of a key, nil for none and for a nil key.
func (k *cachedKey) restrictions() *core.Restrictions {
	if k == nil {
		return nil
	}
	return k.Restrictions
}

// cachedUser is a user in memory with a reference to its plan. Keys reach the shared plan through
// their user, so that no key sees the user with a former plan.
type cachedUser struct {
	plan     cacheRef[planRef, cachedPlan]
	recorded decisionHashes // of requests without a key
	core.User
}

// special reports whether the user has anchors or overrides. A decision reads them only for such a user.
func (u *cachedUser) special() bool { return len(u.Anchors) > 0 || u.Overrides != nil }

// cachedPlan is a plan in memory with a reference to the prices of its account. A decision reads the plan anyway, and then needs
// no look-up of the prices.
type cachedPlan struct {
	prices cacheRef[string, core.PriceList]
	core.Plan
}

// cacheRef is a reference to a value in a cache. It is valid while nothing was forgotten in the
// shard of the value. That is checked without reading the value, which at a million keys would be
// the most expensive part of a look-up. For the same reason a reference has a flag: one fact about
// the value.
type cacheRef[K comparable, V any] struct {
	to    atomic.Pointer[V]
	epoch atomic.Uint64 // shardEpoch of the shard of to, at a time when to was in it, and refFlag
}

// refFlag is the bit of cacheRef.epoch that holds the flag.
const refFlag = 1 << 63

// shardEpoch combines the epoch of a shard with the index of the shard.
func shardEpoch(epoch, shard uint64) uint64 { return epoch*cacheShards + shard%cacheShards }

// get returns the value and the flag. The value is nil if it must be looked up.
func (r *cacheRef[K, V]) get(c *cache[K, V]) (v *V, flag bool) {
	epoch := r.epoch.Load() // before to: to was in the shard in this epoch, or in a later one
	flag, epoch = epoch&refFlag != 0, epoch&^refFlag
	v = r.to.Load()
	if v == nil || !c.lease.holds() || shardEpoch(c.shards[epoch%cacheShards].epoch.Load(), epoch) != epoch {
		return nil, false
	}
	return v, flag
}

// set makes the reference point to v, the value of k, unless v was forgotten or evicted.
func (r *cacheRef[K, V]) set(c *cache[K, V], k K, v *V, flag bool) {
	at := c.shardOf(k)
	sh := &c.shards[at]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if present, _ := sh.values.Peek(k); present == v {
		epoch := shardEpoch(sh.epoch.Load(), at)
		if flag {
			epoch |= refFlag
		}
		r.to.Store(v)
		r.epoch.Store(epoch)
	}
}

// getOrFind returns the value of the reference. If the reference is not valid, getOrFind looks up k
// in c and sets the reference. It adds 1 to hits if it does not read from the store.
func (r *cacheRef[K, V]) getOrFind(ctx context.Context, c *cache[K, V], k K, hits *uint64) (*V, error) {
	if v, _ := r.get(c); v != nil {
		*hits++
		return v, nil
	}
	v, err := c.find(ctx, k, hits)
	if err != nil {
		return nil, err
	}
	r.set(c, k, v, false)
	return v, nil
}

// newCachedKey returns the cached form of a key: small, in few allocations, and without members
// that no decision needs.
func newCachedKey(k *core.Key, err error) (*cachedKey, error) {
	if err != nil {
		return nil, err
	}
	h := &cachedKey{Key: *k}
	h.Restrictions = k.Restrictions.Compiled()
	h.AccountID, h.PlanID, h.Status = core.Intern(h.AccountID), core.Intern(h.PlanID), core.Intern(h.Status)
	shareMemory(&h.ID, &h.Name, &h.Hint)
	return h, nil
}

// newCachedUser returns the cached form of a user.
func newCachedUser(u *core.User, err error) (*cachedUser, error) {
	if err != nil {
		return nil, err
	}
	h := &cachedUser{User: *u}
	h.Email = nil
	h.AccountID, h.PlanID = core.Intern(h.AccountID), core.Intern(h.PlanID)
	return h, nil
}

// newCachedPlan returns the cached form of a plan.
func newCachedPlan(pl *core.Plan, err error) (*cachedPlan, error) {
	if err != nil {
		return nil, err
	}
	h := &cachedPlan{Plan: *pl}
	h.Description, h.Limits = nil, slices.Clone(pl.Limits)
	for i := range h.Limits {
		h.Limits[i].Meter = core.Intern(h.Limits[i].Meter) // then [core.Counter] compares pointers
	}
	return h, nil
}

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
