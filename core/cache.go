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
// key ask the store once.
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
func (o *cacheSize) Len() int { return int(max(0, o.entries.Load())) }

func (o *cacheSize) over() bool { return o.entries.Load() > o.limit.Load() }

// shard is one part of a cache.
type shard[K comparable, V any] struct {
	entries entryTable[K, V] // find needs no lock
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
	return &e.value, nil
}

// hash is never 0. The random seed keeps clients from choosing keys that collide.
func (c *cache[K, V]) hash(k K) uint64 { return maphash.Comparable(c.seed, k) | 1<<63 }

// find returns the entry of k. It adds 1 to hits if it does not ask the store.
func (c *cache[K, V]) find(ctx context.Context, k K, hits *uint64) (*cacheEntry[K, V], error) {
	if !c.lease.holds() {
		return c.loadUncached(ctx, k)
	}
	hash := c.hash(k)
	sh := &c.shards[hash%cacheShards]
	if e := sh.entries.find(hash, k); e != nil {
		e.markUsed()
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
func (c *cache[K, V]) loadUncached(ctx context.Context, k K) (*cacheEntry[K, V], error) {
	c.misses.Add(1)
	v, err := c.load(context.WithoutCancel(ctx), k)
	if err != nil {
		return nil, err
	}
	return &cacheEntry[K, V]{key: k, value: *v}, nil
}

// loadShared loads k from the store. Concurrent misses of the same epoch share one look-up, so that
// none joins a look-up that began before a change.
func (c *cache[K, V]) loadShared(ctx context.Context, sh *shard[K, V], hash uint64, k K) (*cacheEntry[K, V], error) {
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
	return v.(*cacheEntry[K, V]), nil
}

// add caches the result of a look-up, unless the epoch has changed since it began: then the result
// may be outdated.
func (c *cache[K, V]) add(sh *shard[K, V], hash uint64, k K, v *V, err error, epoch uint64) (*cacheEntry[K, V], error) {
	if err != nil {
		if errors.Is(err, c.notFound) {
			sh.addAbsent(k, c.clock().Add(absentFor), epoch)
		}
		return nil, err
	}
	e, added := sh.add(&cacheEntry[K, V]{hash: hash, key: k, value: *v}, epoch)
	if added {
		c.size.entries.Add(1)
		c.trim(hash, e)
	}
	return e, nil
}

// trim evicts entries while the cache is over its limit, beginning in the shard of hash. It never
// evicts keep.
func (c *cache[K, V]) trim(hash uint64, keep *cacheEntry[K, V]) {
	for i := hash; c.size.over(); {
		if c.shards[i%cacheShards].evict(keep) {
			c.size.entries.Add(-1)
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
func (sh *shard[K, V]) lookup(hash uint64, k K) (*cacheEntry[K, V], uint64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.entries.find(hash, k), sh.epoch.Load()
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
func (sh *shard[K, V]) add(e *cacheEntry[K, V], epoch uint64) (use *cacheEntry[K, V], added bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.epoch.Load() != epoch {
		return e, false
	}
	if other := sh.entries.find(e.hash, e.key); other != nil {
		return other, false
	}
	sh.entries.put(e)
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
	return sh.entries.remove(hash, k)
}

// forgetAll begins a new epoch, and returns the number of entries that were dropped.
func (sh *shard[K, V]) forgetAll() int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.epoch.Add(1)
	sh.absent = nil
	return sh.entries.clear()
}

func (sh *shard[K, V]) evict(keep *cacheEntry[K, V]) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.entries.evict(keep)
}

// cacheEntry is a cached value and its key.
type cacheEntry[K comparable, V any] struct {
	hash  uint64 // never 0
	key   K
	used  atomic.Bool // since the hand passed it
	value V           // never changes
}

// markUsed keeps the entry from being evicted next. It writes only if the mark is not set, so that
// processors can share the cache line of a busy entry.
func (e *cacheEntry[K, V]) markUsed() {
	if !e.used.Load() {
		e.used.Store(true)
	}
}

// entryTable is a hash table of entries with open addressing and linear probing. Changes hold the
// lock of the shard. find takes no lock; during a change it may miss an entry, and the caller then
// looks again under the lock.
//
// A map under a lock would do the same. Measured with a million keys in random order, 64 goroutines
// and 2 processors, in CPU time for each look-up: golang-lru 1.2 µs, its simplelru in 256 shards
// 0.8 µs, a map in 256 shards 0.5 µs, xsync.Map 0.5 µs, this table 0.3 µs. Nearly all of that time
// waits for memory: a look-up here reads one cache line of the table and the entry, and writes
// nothing.
type entryTable[K comparable, V any] struct {
	buckets atomic.Pointer[[]bucket[K, V]] // a power of two, or nil
	n       int                            // entries
	hand    int                            // index of the next candidate for eviction
}

// bucket is a position in the table. It repeats the hash of its entry, so that a search reads no
// other entries.
type bucket[K comparable, V any] struct {
	hash  atomic.Uint64 // 0: empty
	entry atomic.Pointer[cacheEntry[K, V]]
}

// set stores an entry, or nil for none. A concurrent find may see the hash of one entry with
// another entry, whose key then does not match.
func (p *bucket[K, V]) set(e *cacheEntry[K, V]) {
	var hash uint64
	if e != nil {
		hash = e.hash
	}
	p.entry.Store(e)
	p.hash.Store(hash)
}

const minBuckets = 4

// find returns the entry of a key, nil if there is none.
func (t *entryTable[K, V]) find(hash uint64, k K) *cacheEntry[K, V] {
	buckets := t.loadBuckets()
	if len(buckets) == 0 {
		return nil
	}
	for i := homeIndex(hash, buckets); ; i = nextIndex(i, buckets) {
		switch buckets[i].hash.Load() {
		case 0:
			return nil
		case hash:
			if e := buckets[i].entry.Load(); e != nil && e.key == k {
				return e
			}
		}
	}
}

func (t *entryTable[K, V]) loadBuckets() []bucket[K, V] {
	if p := t.buckets.Load(); p != nil {
		return *p
	}
	return nil
}

// homeIndex is where the search for a hash begins. The lowest bits of the hash select the shard.
func homeIndex[P any](hash uint64, buckets []P) int {
	return int(hash/cacheShards) & (len(buckets) - 1)
}

func nextIndex[P any](i int, buckets []P) int { return (i + 1) & (len(buckets) - 1) }

// put adds an entry whose key is not in the table.
func (t *entryTable[K, V]) put(e *cacheEntry[K, V]) {
	if buckets := t.loadBuckets(); 4*(t.n+1) > 3*len(buckets) {
		t.rebuild(max(minBuckets, 2*len(buckets)))
	}
	t.n++
	insertEntry(t.loadBuckets(), e)
}

func insertEntry[K comparable, V any](buckets []bucket[K, V], e *cacheEntry[K, V]) {
	i := homeIndex(e.hash, buckets)
	for buckets[i].hash.Load() != 0 {
		i = nextIndex(i, buckets)
	}
	buckets[i].set(e)
}

// rebuild moves the entries to a table of size buckets.
func (t *entryTable[K, V]) rebuild(size int) {
	buckets := make([]bucket[K, V], size)
	old := t.loadBuckets()
	for i := range old {
		if e := old[i].entry.Load(); e != nil {
			insertEntry(buckets, e)
		}
	}
	t.hand = 0
	t.buckets.Store(&buckets)
}

// remove removes the entry of a key, and reports whether there was one.
func (t *entryTable[K, V]) remove(hash uint64, k K) bool {
	buckets := t.loadBuckets()
	for i := range buckets {
		i = (homeIndex(hash, buckets) + i) & (len(buckets) - 1)
		switch e := buckets[i].entry.Load(); {
		case e == nil:
			return false
		case e.hash == hash && e.key == k:
			t.removeAt(i)
			return true
		}
	}
	return false
}

// clear removes all entries, and returns how many there were.
func (t *entryTable[K, V]) clear() int {
	n := t.n
	t.n, t.hand = 0, 0
	t.buckets.Store(nil)
	return n
}

// removeAt empties a bucket. It moves up the entries behind it whose probe sequence passes the gap,
// so that a search for them does not end at the gap.
func (t *entryTable[K, V]) removeAt(gap int) {
	buckets := t.loadBuckets()
	for i := nextIndex(gap, buckets); ; i = nextIndex(i, buckets) {
		e := buckets[i].entry.Load()
		if e == nil {
			break
		}
		mask := len(buckets) - 1
		if (i-homeIndex(e.hash, buckets))&mask >= (i-gap)&mask { // the probe sequence passes the gap
			buckets[gap].set(e)
			gap = i
		}
	}
	buckets[gap].set(nil)
	if t.n--; len(buckets) > minBuckets && 8*t.n < len(buckets) {
		t.rebuild(len(buckets) / 2)
	}
}

// evict removes an entry that was not used since the hand last passed it, but never keep. It
// reports whether there was an entry to remove. This is the CLOCK algorithm: it approximates LRU,
// which would have to write at every look-up.
func (t *entryTable[K, V]) evict(keep *cacheEntry[K, V]) bool {
	if t.n == 0 || t.n == 1 && keep != nil && t.find(keep.hash, keep.key) == keep {
		return false
	}
	buckets := t.loadBuckets()
	for tries := 2 * len(buckets); ; t.hand = nextIndex(t.hand, buckets) {
		tries--
		e := buckets[t.hand].entry.Load()
		if e == nil || e == keep {
			continue
		}
		if !e.used.Swap(false) || tries < 0 { // every entry may be in constant use
			t.removeAt(t.hand)
			return true
		}
	}
}
