package service

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"
)

// The bounds of the negative cache.
const (
	maxAbsent = 16_384
	absentFor = time.Second
)

// cacheShards is the number of parts of a cache. Each part has a lock.
const cacheShards = 256

// cache keeps the values that the store holds under keys, up to a limit, in shards that are LRU caches. A bounded
// negative cache of its own remembers for a second the keys that the store does not hold, so that
// made-up keys evict no values. Concurrent misses of one key read from the store once.
//
// A caller that changes the store calls forget before it answers. No get that begins after forget
// returns the old value, not even from a look-up that began earlier. While the lease does not hold,
// other processes may change the store without notice: then every get asks the store.
type cache[K comparable, V any] struct {
	load     func(context.Context, K) (*V, error)
	notFound error // returned by load for a missing value
	clock    func() time.Time
	lease    *lease

	seed   maphash.Seed
	shards [cacheShards]shard[K, V]
	count  atomic.Int64 // values in all shards
	limit  atomic.Int64 // of count

	misses    atomic.Uint64 // look-ups that asked the store
	evictions atomic.Uint64 // values that were removed to make room
}

// shard is one part of a cache.
type shard[K comparable, V any] struct {
	flights singleflight.Group
	epoch   atomic.Uint64 // number of calls of forget; read without mu

	mu     sync.Mutex // held by changes of epoch, and by all use of values and absent
	values *simplelru.LRU[K, *V]
	absent *simplelru.LRU[K, time.Time] // expiry
}

func newCache[K comparable, V any](size int, clock func() time.Time, l *lease, notFound error,
	load func(context.Context, K) (*V, error)) *cache[K, V] {
	c := &cache[K, V]{load: load, notFound: notFound, clock: clock, lease: l, seed: maphash.MakeSeed()}
	removed := func(K, *V) { c.count.Add(-1) }
	for i := range c.shards { // NewLRU fails for sizes below 1 only
		c.shards[i].values, _ = simplelru.NewLRU(math.MaxInt, removed)
		c.shards[i].absent, _ = simplelru.NewLRU[K, time.Time](maxAbsent/cacheShards, nil)
	}
	c.resize(size)
	return c
}

// Len returns the number of values.
func (c *cache[K, V]) Len() int { return int(c.count.Load()) }

// get returns the value of k. It is shared: the caller must not change it.
func (c *cache[K, V]) get(ctx context.Context, k K) (*V, error) {
	var hits uint64
	return c.find(ctx, k, &hits)
}

// find is get, and adds 1 to hits if it does not read from the store.
func (c *cache[K, V]) find(ctx context.Context, k K, hits *uint64) (*V, error) {
	if !c.lease.holds() {
		c.misses.Add(1)
		return c.load(context.WithoutCancel(ctx), k)
	}
	at := c.shardOf(k)
	v, absent := c.shards[at].lookup(k, c.clock)
	if v == nil && !absent {
		return c.loadShared(ctx, at, k)
	}
	*hits++
	if absent {
		return nil, c.notFound
	}
	return v, nil
}

// shardOf returns the index of the shard of k. The random seed keeps clients from choosing keys of one shard.
func (c *cache[K, V]) shardOf(k K) uint64 { return maphash.Comparable(c.seed, k) % cacheShards }

// loadShared loads k from the store. Concurrent misses of the same epoch share one look-up, so that
// none joins a look-up that began before a change.
func (c *cache[K, V]) loadShared(ctx context.Context, at uint64, k K) (*V, error) {
	sh := &c.shards[at]
	epoch := sh.epoch.Load()
	v, err, _ := sh.flights.Do(fmt.Sprintf("%v@%d", k, epoch), func() (any, error) {
		if v, _ := sh.lookup(k, c.clock); v != nil { // added since find
			return v, nil
		}
		c.misses.Add(1)
		v, err := c.load(context.WithoutCancel(ctx), k)
		switch {
		case err == nil:
			c.add(at, k, v, epoch)
		case errors.Is(err, c.notFound):
			sh.addAbsent(k, c.clock().Add(absentFor), epoch)
		}
		return v, err
	})
	if err != nil {
		return nil, err
	}
	return v.(*V), nil
}

// add caches the result of a look-up, unless the epoch has changed since it began: then the result
// may be outdated.
func (c *cache[K, V]) add(at uint64, k K, v *V, epoch uint64) {
	sh := &c.shards[at]
	sh.mu.Lock()
	if sh.epoch.Load() == epoch {
		before := sh.values.Len()
		sh.values.Add(k, v)
		c.count.Add(int64(sh.values.Len() - before))
	}
	sh.mu.Unlock()
	c.trim(at, v)
}

// trim evicts values while the cache is over its limit, beginning in the shard at. It never evicts keep.
func (c *cache[K, V]) trim(at uint64, keep *V) {
	for c.count.Load() > c.limit.Load() {
		if c.shards[at%cacheShards].evict(keep) {
			c.evictions.Add(1)
		} else {
			at++
		}
	}
}

// forget drops the values of the keys. Look-ups in progress are neither cached nor joined.
func (c *cache[K, V]) forget(keys ...K) {
	for _, k := range keys {
		c.shards[c.shardOf(k)].forget(k)
	}
}

// forgetAll drops every value.
func (c *cache[K, V]) forgetAll() {
	for i := range c.shards {
		c.shards[i].forgetAll()
	}
}

// resize changes the limit.
func (c *cache[K, V]) resize(size int) {
	c.limit.Store(int64(max(size, 1)))
	c.trim(0, nil)
}

// lookup returns the value of k, and marks it as used. Without a value, absent reports whether the store was found not to
// hold k in the last second.
func (sh *shard[K, V]) lookup(k K, clock func() time.Time) (v *V, absent bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if v, ok := sh.values.Get(k); ok {
		return v, false
	}
	until, ok := sh.absent.Get(k)
	return nil, ok && clock().Before(until)
}

// addAbsent caches that the store does not hold k, unless the epoch has changed.
func (sh *shard[K, V]) addAbsent(k K, until time.Time, epoch uint64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.epoch.Load() == epoch {
		sh.absent.Add(k, until)
	}
}

// forget begins a new epoch without k.
func (sh *shard[K, V]) forget(k K) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.epoch.Add(1)
	sh.absent.Remove(k)
	sh.values.Remove(k)
}

// forgetAll begins a new epoch without values.
func (sh *shard[K, V]) forgetAll() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.epoch.Add(1)
	sh.absent.Purge()
	sh.values.Purge()
}

// evict removes the least recently used value, and reports whether there is one other than keep.
func (sh *shard[K, V]) evict(keep *V) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k, oldest, ok := sh.values.GetOldest()
	if ok && oldest == keep {
		sh.values.Get(k) // it becomes the newest
		_, oldest, ok = sh.values.GetOldest()
	}
	if !ok || oldest == keep {
		return false
	}
	sh.values.RemoveOldest()
	return true
}
