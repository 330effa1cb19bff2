package core

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"

	"github.com/limitkeeper/limitkeeper/internal/cachetable"
)

// The bounds of the negative cache.
const (
	maxAbsent = 16_384
	absentFor = time.Second
)

// cacheShards is the number of parts of a cache. Each part has a lock for changes; a hit takes no
// lock.
const cacheShards = 256

// cache keeps the values that the store holds under keys, up to a limit. When it is full it evicts
// a value that was not used lately. A bounded negative cache of its own remembers for a second the
// keys that the store does not hold, so that made-up keys evict no values. Concurrent misses of one
// key read from the store once.
//
// A caller that changes the store calls forget before it answers. No get that begins after forget
// returns the old value, not even from a look-up that began earlier. While the lease does not hold,
// other processes may change the store without notice: then every get asks the store.
type cache[K comparable, V any] struct {
	load     func(context.Context, K) (*V, error)
	notFound error // returned by load for a missing value
	name     func(K) string
	clock    func() time.Time
	lease    *lease

	seed   maphash.Seed
	size   cacheSize
	shards [cacheShards]shard[K, V]
	misses atomic.Uint64 // look-ups that asked the store

	evictions atomic.Uint64
}

// lease says until when cached values may be used without asking the store. A nil lease always
// holds: no other process changes the store.
type lease struct {
	begun time.Time    // the zero of until
	until atomic.Int64 // nanoseconds since begun, by the monotonic clock
}

func (l *lease) holds() bool { return l == nil || int64(time.Since(l.begun)) < l.until.Load() }

// newLease returns nil, or for a store that other processes change a lease that does not hold yet.
func newLease(store Store) *lease {
	if _, watched := store.(WatchedStore); watched {
		return &lease{begun: time.Now()}
	}
	return nil
}

// cacheSize is the number of values in all shards, and its limit.
type cacheSize struct{ entries, limit atomic.Int64 }

// Len returns the number of values, give or take concurrent changes.
func (s *cacheSize) Len() int { return int(max(0, s.entries.Load())) }

func (s *cacheSize) over() bool { return s.entries.Load() > s.limit.Load() }

// shard is one part of a cache.
type shard[K comparable, V any] struct {
	entries cachetable.Table[K, V]
	flights singleflight.Group

	mu     sync.Mutex                   // held by changes
	absent *simplelru.LRU[K, time.Time] // expiry; nil before the first use
	epoch  atomic.Uint64                // number of calls of forget; read without mu
}

func newCache[K comparable, V any](size int, clock func() time.Time, l *lease, notFound error,
	name func(K) string, load func(context.Context, K) (*V, error)) *cache[K, V] {
	c := &cache[K, V]{load: load, notFound: notFound, name: name, clock: clock, lease: l, seed: maphash.MakeSeed()}
	c.resize(size)
	return c
}

// get returns the value of k. It is shared: the caller must not change it.
func (c *cache[K, V]) get(ctx context.Context, k K) (*V, error) {
	var hits uint64
	e, err := c.find(ctx, k, &hits)
	if err != nil {
		return nil, err
	}
	return &e.Value, nil
}

// hash is never 0. The random seed keeps clients from choosing keys that collide.
func (c *cache[K, V]) hash(k K) uint64 { return maphash.Comparable(c.seed, k) | 1<<63 }

// find returns the entry of k. It adds 1 to hits if it does not read from the store.
func (c *cache[K, V]) find(ctx context.Context, k K, hits *uint64) (*cachetable.Entry[K, V], error) {
	if !c.lease.holds() {
		return c.loadUncached(ctx, k)
	}
	hash := c.hash(k)
	sh := &c.shards[hash%cacheShards]
	if e := sh.entries.Find(hash, k); e != nil {
		e.MarkUsed()
		*hits++
		return e, nil
	}
	if sh.isAbsent(k, c.clock) {
		*hits++
		return nil, c.notFound
	}
	return c.loadShared(ctx, sh, hash, k)
}

// loadUncached loads k from the store and caches nothing.
func (c *cache[K, V]) loadUncached(ctx context.Context, k K) (*cachetable.Entry[K, V], error) {
	c.misses.Add(1)
	v, err := c.load(context.WithoutCancel(ctx), k)
	if err != nil {
		return nil, err
	}
	return cachetable.NewEntry(c.hash(k), k, *v), nil
}

// loadShared loads k from the store. Concurrent misses of the same epoch share one look-up, so that
// none joins a look-up that began before a change.
func (c *cache[K, V]) loadShared(ctx context.Context, sh *shard[K, V], hash uint64, k K) (*cachetable.Entry[K, V], error) {
	flight := c.name(k) + strconv.FormatUint(sh.epoch.Load(), 16)
	v, err, _ := sh.flights.Do(flight, func() (any, error) {
		e, epoch := sh.lookup(hash, k)
		if e != nil { // added since find
			return e, nil
		}
		c.misses.Add(1)
		v, err := c.load(context.WithoutCancel(ctx), k)
		return c.add(sh, hash, k, v, err, epoch)
	})
	if err != nil {
		return nil, err
	}
	return v.(*cachetable.Entry[K, V]), nil
}

// add caches the result of a look-up, unless the epoch has changed since it began: then the result
// may be outdated.
func (c *cache[K, V]) add(sh *shard[K, V], hash uint64, k K, v *V, err error, epoch uint64) (*cachetable.Entry[K, V], error) {
	if err != nil {
		if errors.Is(err, c.notFound) {
			sh.addAbsent(k, c.clock().Add(absentFor), epoch)
		}
		return nil, err
	}
	e, added := sh.add(cachetable.NewEntry(hash, k, *v), epoch)
	if added {
		c.size.entries.Add(1)
		c.trim(hash, e)
	}
	return e, nil
}

// trim evicts entries while the cache is over its limit, beginning in the shard of hash. It never
// evicts keep.
func (c *cache[K, V]) trim(hash uint64, keep *cachetable.Entry[K, V]) {
	for i := hash; c.size.over(); {
		if c.shards[i%cacheShards].evict(keep) {
			c.size.entries.Add(-1)
			c.evictions.Add(1)
		} else {
			i++
		}
	}
}

// forget drops the values of the keys. Look-ups in progress are neither cached nor joined.
func (c *cache[K, V]) forget(keys ...K) {
	for _, k := range keys {
		hash := c.hash(k)
		if c.shards[hash%cacheShards].forget(hash, k) {
			c.size.entries.Add(-1)
		}
	}
}

// forgetAll drops every value.
func (c *cache[K, V]) forgetAll() {
	for i := range c.shards {
		c.size.entries.Add(-int64(c.shards[i].forgetAll()))
	}
}

// resize changes the limit.
func (c *cache[K, V]) resize(size int) {
	c.size.limit.Store(int64(max(size, 1)))
	c.trim(0, nil)
}

// lookup returns the entry of k, nil if there is none, and the epoch.
func (sh *shard[K, V]) lookup(hash uint64, k K) (*cachetable.Entry[K, V], uint64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.entries.Find(hash, k), sh.epoch.Load()
}

// isAbsent reports whether the store was found not to hold k in the last second.
func (sh *shard[K, V]) isAbsent(k K, clock func() time.Time) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.absent == nil {
		return false
	}
	until, ok := sh.absent.Get(k)
	return ok && clock().Before(until)
}

// add adds an entry, unless the epoch has changed. It returns the entry to use: e, or the entry of
// another look-up of the same epoch.
func (sh *shard[K, V]) add(e *cachetable.Entry[K, V], epoch uint64) (use *cachetable.Entry[K, V], added bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.epoch.Load() != epoch {
		return e, false
	}
	if other := sh.entries.Find(e.Hash(), e.Key); other != nil {
		return other, false
	}
	sh.entries.Put(e)
	return e, true
}

// addAbsent caches that the store does not hold k, unless the epoch has changed.
func (sh *shard[K, V]) addAbsent(k K, until time.Time, epoch uint64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.epoch.Load() != epoch {
		return
	}
	if sh.absent == nil {
		sh.absent, _ = simplelru.NewLRU[K, time.Time](maxAbsent/cacheShards, nil) // fails for sizes below 1 only
	}
	sh.absent.Add(k, until)
}

// forget begins a new epoch, and reports whether k had an entry.
func (sh *shard[K, V]) forget(hash uint64, k K) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.epoch.Add(1)
	if sh.absent != nil {
		sh.absent.Remove(k)
	}
	return sh.entries.Remove(hash, k)
}

// forgetAll begins a new epoch, and returns the number of entries that were dropped.
func (sh *shard[K, V]) forgetAll() int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.epoch.Add(1)
	sh.absent = nil
	return sh.entries.Clear()
}

func (sh *shard[K, V]) evict(keep *cachetable.Entry[K, V]) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.entries.Evict(math.MaxInt, func(e *cachetable.Entry[K, V]) bool { return e != keep }) != nil
}

// cachedKey is a key in memory with references to its user and its plan: a decision takes one
// look-up, and then follows the references.
type cachedKey struct {
	user cacheRef[userRef, cachedUser] // unset while the user is disabled; flagged if the user has anchors
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
// the most expensive part of a look-up. For the same reason a reference has a flag: one fact about
// the value.
type cacheRef[K comparable, V any] struct {
	to    atomic.Pointer[cachetable.Entry[K, V]]
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
	e := r.to.Load()
	if e == nil || !c.lease.holds() || shardEpoch(c.shards[epoch%cacheShards].epoch.Load(), epoch) != epoch {
		return nil, false
	}
	return &e.Value, flag
}

// set makes the reference point to e, unless e was forgotten or evicted.
func (r *cacheRef[K, V]) set(c *cache[K, V], e *cachetable.Entry[K, V], flag bool) {
	sh := &c.shards[e.Hash()%cacheShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.entries.Find(e.Hash(), e.Key) == e {
		epoch := shardEpoch(sh.epoch.Load(), e.Hash())
		if flag {
			epoch |= refFlag
		}
		r.to.Store(e)
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
	e, err := c.find(ctx, k, hits)
	if err != nil {
		return nil, err
	}
	r.set(c, e, false)
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
	h.Metadata, h.Email, h.ExternalID = nil, nil, ""
	h.AccountID, h.PlanID = intern(h.AccountID), intern(h.PlanID)
	return h, nil
}

// newCachedPlan returns the cached form of a plan.
func newCachedPlan(pl *Plan, err error) (*Plan, error) {
	if err != nil {
		return nil, err
	}
	h := *pl
	h.Description, h.Features, h.Limits = nil, nil, slices.Clone(pl.Limits)
	for i := range h.Limits {
		h.Limits[i].Meter = intern(h.Limits[i].Meter) // as in counters: see MeterUsage
	}
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
		w.s.plans.forget(planRef{c.Account, c.PlanID})
		w.s.meters.forget(c.Account)
	case c.Digest != Digest{}:
		w.s.keys.forget(c.Digest)
	case c.OwnerKey != Digest{}:
		w.s.ownerKeys.forget(c.OwnerKey)
	case c.KeyPrefix != "":
		w.s.prefixes.forget(c.Account)
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
func (w invalidator) ChangesMissed() { w.s.ForgetAll() }

// ForgetAll empties the caches of resources. Call it after changes that were made with the [Store] itself.
func (s *Service) ForgetAll() {
	s.users.forgetAll()
	s.plans.forgetAll()
	s.meters.forgetAll()
	s.prefixes.forgetAll()
	s.keys.forgetAll()
	s.ownerKeys.forgetAll()
}
