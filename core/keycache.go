package core

import (
	"context"
	"errors"
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"
)

// The bounds of what is remembered of unknown keys.
const (
	absentSize = 16_384
	absentFor  = time.Second
)

// cacheShards is in how many parts a cache is divided. Those who add and forget hold
// the lock of a part; those who find what they look for hold none.
const cacheShards = 256

// cache remembers what the store holds under a key, up to a bound: then what was not
// used lately is forgotten. It also remembers briefly, in bounded room of its own,
// what the store does not hold, so that made-up keys push out no others. A miss asks
// the store once, however many wait for it.
//
// Whoever changes the store calls forget before answering: no get that begins after
// it returns what was before, not even by way of a look-up that began earlier. While
// the lease does not hold, others may change the store unheard: then the store is asked
// each time.
type cache[K comparable, V any] struct {
	load     func(context.Context, K) (*V, error)
	notFound error // what load returns for what the store does not hold
	name     func(K) string
	clock    func() time.Time
	lease    *lease

	seed    maphash.Seed
	present occupancy
	shards  [cacheShards]shard[K, V]
	misses  atomic.Uint64 // look-ups that asked the store
}

// occupancy is how much is remembered, in all shards.
type occupancy struct{ held, bound atomic.Int64 }

// Len returns how much is remembered, give or take what is being added and forgotten.
func (o *occupancy) Len() int { return int(max(0, o.held.Load())) }

func (o *occupancy) over() bool { return o.held.Load() > o.bound.Load() }

// shard is one part of a cache.
type shard[K comparable, V any] struct {
	present slots[K, V] // looked into without mu
	flights singleflight.Group

	mu     sync.Mutex                   // held to add and to forget
	absent *simplelru.LRU[K, time.Time] // until when; nil before the first
	epoch  atomic.Uint64                // counts the calls of forget; read without mu
}

func newCache[K comparable, V any](size int, clock func() time.Time, l *lease, notFound error,
	name func(K) string, load func(context.Context, K) (*V, error)) *cache[K, V] {
	c := &cache[K, V]{load: load, notFound: notFound, name: name, clock: clock, lease: l, seed: maphash.MakeSeed()}
	c.resize(size)
	return c
}

// get returns what is held under k. It is shared: the caller must not change it.
func (c *cache[K, V]) get(ctx context.Context, k K) (*V, error) {
	var hits uint64
	s, err := c.find(ctx, k, &hits)
	if err != nil {
		return nil, err
	}
	return &s.value, nil
}

// hash is never 0. Its seed keeps it from anyone who would choose keys by it.
func (c *cache[K, V]) hash(k K) uint64 { return maphash.Comparable(c.seed, k) | 1<<63 }

// find returns the slot of k, and adds to hits when memory answers.
func (c *cache[K, V]) find(ctx context.Context, k K, hits *uint64) (*slot[K, V], error) {
	if !c.lease.holds() {
		return c.read(ctx, k)
	}
	hash := c.hash(k)
	sh := &c.shards[hash%cacheShards]
	if s := sh.present.find(hash, k); s != nil {
		s.use()
		*hits++
		return s, nil
	}
	if sh.isAbsent(k, c.clock) {
		*hits++
		return nil, c.notFound
	}
	return c.ask(ctx, sh, hash, k)
}

// read loads k from the store and remembers nothing.
func (c *cache[K, V]) read(ctx context.Context, k K) (*slot[K, V], error) {
	c.misses.Add(1)
	v, err := c.load(context.WithoutCancel(ctx), k)
	if err != nil {
		return nil, err
	}
	return &slot[K, V]{key: k, value: *v}, nil
}

// ask loads k from the store, together with everyone who asks for it meanwhile: in the
// same epoch, so that nobody joins a look-up that began before a change.
func (c *cache[K, V]) ask(ctx context.Context, sh *shard[K, V], hash uint64, k K) (*slot[K, V], error) {
	flight := c.name(k) + strconv.FormatUint(sh.epoch.Load(), 16) // none that began before a change
	v, err, _ := sh.flights.Do(flight, func() (any, error) {
		s, epoch := sh.look(hash, k)
		if s != nil { // since find looked
			return s, nil
		}
		c.misses.Add(1)
		v, err := c.load(context.WithoutCancel(ctx), k)
		return c.add(sh, hash, k, v, err, epoch)
	})
	if err != nil {
		return nil, err
	}
	return v.(*slot[K, V]), nil
}

// add remembers the outcome of a look-up, unless something was forgotten since it
// began: then it may be what was before.
func (c *cache[K, V]) add(sh *shard[K, V], hash uint64, k K, v *V, err error, epoch uint64) (*slot[K, V], error) {
	if err != nil {
		if errors.Is(err, c.notFound) {
			sh.addAbsent(k, c.clock().Add(absentFor), epoch)
		}
		return nil, err
	}
	s, added := sh.add(&slot[K, V]{hash: hash, key: k, value: *v}, epoch)
	if added {
		c.present.held.Add(1)
		c.trim(hash, s)
	}
	return s, nil
}

// trim makes room, in the shard of the hash as long as there is something else than
// the slot to keep.
func (c *cache[K, V]) trim(hash uint64, keep *slot[K, V]) {
	for i := hash; c.present.over(); {
		if c.shards[i%cacheShards].evict(keep) {
			c.present.held.Add(-1)
		} else {
			i++
		}
	}
}

// forget drops what is remembered under the keys. Look-ups under way are neither
// remembered nor joined.
func (c *cache[K, V]) forget(keys ...K) {
	for _, k := range keys {
		hash := c.hash(k)
		if c.shards[hash%cacheShards].forget(hash, k) {
			c.present.held.Add(-1)
		}
	}
}

// forgetAll drops everything.
func (c *cache[K, V]) forgetAll() {
	for i := range c.shards {
		c.present.held.Add(-int64(c.shards[i].forgetAll()))
	}
}

// resize changes how much is remembered.
func (c *cache[K, V]) resize(size int) {
	c.present.bound.Store(int64(max(size, 1)))
	c.trim(0, nil)
}

// look returns what is remembered under k, nil for nothing, and the epoch.
func (sh *shard[K, V]) look(hash uint64, k K) (*slot[K, V], uint64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.present.find(hash, k), sh.epoch.Load()
}

// isAbsent reports whether the store was asked for k a moment ago and has it not.
func (sh *shard[K, V]) isAbsent(k K, clock func() time.Time) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.absent == nil {
		return false
	}
	until, ok := sh.absent.Get(k)
	return ok && clock().Before(until)
}

// add adds a slot, unless the epoch is over. It returns the slot to use, which is
// another's when two look-ups of the epoch were under way: one that was forgotten
// before it began to read is not joined.
func (sh *shard[K, V]) add(s *slot[K, V], epoch uint64) (use *slot[K, V], added bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.epoch.Load() != epoch {
		return s, false
	}
	if other := sh.present.find(s.hash, s.key); other != nil {
		return other, false
	}
	sh.present.put(s)
	return s, true
}

// addAbsent remembers that the store has no k, unless the epoch is over.
func (sh *shard[K, V]) addAbsent(k K, until time.Time, epoch uint64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.epoch.Load() != epoch {
		return
	}
	if sh.absent == nil {
		sh.absent, _ = simplelru.NewLRU[K, time.Time](absentSize/cacheShards, nil) // fails for sizes below 1 only
	}
	sh.absent.Add(k, until)
}

// forget ends the epoch, and reports whether something was remembered under k.
func (sh *shard[K, V]) forget(hash uint64, k K) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.epoch.Add(1)
	if sh.absent != nil {
		sh.absent.Remove(k)
	}
	return sh.present.remove(hash, k)
}

// forgetAll ends the epoch, and returns how much was remembered.
func (sh *shard[K, V]) forgetAll() int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.epoch.Add(1)
	sh.absent = nil
	return sh.present.clear()
}

func (sh *shard[K, V]) evict(keep *slot[K, V]) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.present.evict(keep)
}
