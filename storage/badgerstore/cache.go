package badgerstore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/cachetable"
)

// DefaultCounterCache is the default number of counters in memory: one for each key in core's key
// cache, and one for the user of each key.
const DefaultCounterCache = 200_000

// shards is the number of parts of the counter cache. Each part has a lock. All counters of a page
// are in one shard.
const shards = 256

// minPerShard is the number of counters that fit into a shard even if the cache is full. A request
// needs two counters at once, and they may be in one shard, together with the counters of other
// requests.
const minPerShard = 16

// counter is a counter in memory. The lock of its shard guards all fields but ref, which never changes.
type counter struct {
	ref
	gone    bool // removed from the table of its shard
	dirty   bool // its page is older
	daysSet bool // SetDays has replaced the days since the running checkpoint took the counter
	savedBy savedBy

	onPage int64 // the position up to which its page has the events: days has what the archive lacks since then

	changes uint32        // number of changes
	busy    chan struct{} // closed when a load or a deletion ends; nil if the counter can be used
	counterState
	shortChain [shortLinks]int64 // memory of a short chain, beside the counter to save a cache miss
}

// savedBy says what gives the state of a counter together with its page. Only a counter that its events give is evictable before the
// next checkpoint. It is one byte: with 8 bytes more, a counter in memory would take 32 bytes more.
type savedBy uint8

const (
	byEvents  savedBy = iota
	byRecord          // a record of the event log that has the whole state: see import.go
	byNothing         // the next checkpoint appends such a record
)

// shortLinks is the maximum length of the chain of a history of up to 247 entries. Most longer
// histories have no longer chain.
const shortLinks = 7

// setStateLocked sets a counter to a state that was read from its page and its events. The page
// has the events up to onPage.
func (s *shard) setStateLocked(c *counter, t counterState, onPage int64) {
	c.counterState, c.onPage = t, onPage
	c.chain = append(c.shortChain[:0], t.chain...)
	c.dirty = t.applied != onPage
	delete(s.pending, c.ref)
}

// pendingEvents describes the events of a counter that its page does not have yet.
type pendingEvents struct {
	position int64 // of the last event
	events   int32 // number of events
}

// shard is a part of the counter cache. Its lock guards all fields. Only find works without it.
type shard struct {
	mu    sync.Mutex
	table cachetable.Table[ref, counter]
	all   *counterCache

	// pending has the counters that are not in memory and differ from their pages.
	pending map[ref]pendingEvents

	written uint64 // number of counters that checkpoints have written to their pages. If it grows during a load, the load reads again

	requestIDs requestIDs
	open       map[ref][]*openHold // the open holds of each counter that has counted them, sorted by until

	// buckets has the token buckets that are not full, also of counters that are not in memory, and some full ones. No file has
	// them: a bucket is full after a restart.
	buckets cachetable.Table[ref, bucket]

	hits uint64 // look-ups of decide that found the counter

	_ [64]byte // keeps two shards out of one cache line
}

// counterCache keeps counters in memory, up to a limit. When it is full it evicts a counter that was
// not used lately and whose state can be read from its page and its events. It exceeds the limit by
// counters that cannot be evicted yet, and by minPerShard counters in each shard.
//
// A counter is busy while a goroutine loads it, and while its key or user is deleted. A busy counter
// is in its table without a state, so that no other goroutine loads it: the others wait for busy.
type counterCache struct {
	shards [shards]shard
	limit  atomic.Int64
	count  atomic.Int64 // number of counters

	misses    atomic.Uint64 // counters that were read from the database
	evictions atomic.Uint64

	written func() int64 // returns the position up to which the event log can be read
}

func newCounterCache(limit int, written func() int64) *counterCache {
	all := &counterCache{written: written}
	for i := range all.shards {
		all.shards[i].all = all
		all.shards[i].pending = map[ref]pendingEvents{}
		all.shards[i].requestIDs.positions = map[requestKey]int64{}
		all.shards[i].open = map[ref][]*openHold{}
	}
	all.resize(limit)
	return all
}

// resize changes the limit. It evicts counters until the cache has no more than limit counters.
func (all *counterCache) resize(limit int) {
	all.limit.Store(int64(limit))
	over := func() bool { return all.count.Load() > int64(limit) }
	all.each(func(s *shard) {
		for tries := 2 * s.table.Len(); tries > 0 && over(); tries -= maxCandidates {
			for s.evictLocked(all.written()) && over() {
			}
		}
	})
}

// each calls fn with each shard, under its lock.
func (all *counterCache) each(fn func(*shard)) {
	for i := range all.shards {
		s := &all.shards[i]
		s.mu.Lock()
		fn(s)
		s.mu.Unlock()
	}
}

// shard returns the shard of a counter.
func (all *counterCache) shard(r ref) *shard { return &all.shards[r.shardIndex()] }

// hashFactor is 2⁶⁴ divided by the golden ratio. Multiplied by consecutive numbers it gives products
// whose upper bits are spread evenly.
const hashFactor = 0x9E3779B97F4A7C15

// shardIndex returns the index of the shard of a counter. It is the same for all counters of a page.
func (r ref) shardIndex() int {
	h := uint64(r.number>>pageBits)<<8 ^ uint64(r.account)<<1 ^ uint64(r.kind>>1&1)
	return int(h * hashFactor >> 56)
}

// hash returns the hash of a ref for the table of its shard. It is never 0.
func (r ref) hash() uint32 {
	h := (uint64(r.number)<<1 | uint64(r.kind>>1&1)) * hashFactor
	return uint32((h^uint64(r.account))*hashFactor>>32) | 1<<31
}

// lock locks the shards of two counters, in the order of their indexes.
func (all *counterCache) lock(a, b ref) {
	i, j := a.shardIndex(), b.shardIndex()
	all.shards[min(i, j)].mu.Lock()
	if i != j {
		all.shards[max(i, j)].mu.Lock()
	}
}

func unlock(of, other *shard) {
	of.mu.Unlock()
	if of != other {
		other.mu.Unlock()
	}
}

// find returns the counter of a ref, nil if it is not in memory, and keeps it from being evicted
// next. It needs no lock: a goroutine that calls it before it locks the shard waits for main memory
// outside of the lock. Such a goroutine then calls confirmLocked before it reads the counter.
func (s *shard) find(r ref) *counter {
	if e := s.table.Find(r.hash(), r); e != nil {
		e.MarkUsed()
		return &e.Value
	}
	return nil
}

// confirmLocked returns the counter of a ref, nil if it is not in memory. c is the result of a find
// before the shard was locked: the counter may have been evicted or added since.
func (s *shard) confirmLocked(r ref, c *counter) *counter {
	if c == nil || c.gone {
		return s.find(r)
	}
	return c
}

// prefetch reads from the cache lines of a counter that most requests change. The CPU loads these lines in parallel, before
// decide takes the lock of the event log. The caller holds the lock of the shard, and ignores the result. Without the result,
// or inlined, the compiler would remove the reads. With a million keys in random order, prefetch and prefetchText reduce the
// CPU time of decide from 1.6 to 1.1 us (CPU profile of BenchmarkSustained in bench/store).
//
//go:noinline
func (t *counterState) prefetch() int64 {
	word := t.Today + t.entries
	if len(t.days) > 0 {
		word += t.days[0].used
	}
	return word
}

// prefetchText reads the first byte of the id of a key, so that the CPU loads the id while decide searches the counters. The
// caller ignores the result.
//
//go:noinline
func prefetchText(text string) byte {
	if text == "" {
		return 0
	}
	return text[0]
}

// peekLocked is find without protection from eviction.
func (s *shard) peekLocked(r ref) *counter {
	if e := s.table.Find(r.hash(), r); e != nil {
		return &e.Value
	}
	return nil
}

// addLocked adds a counter that is not in memory. If the cache is full, it evicts others.
func (s *shard) addLocked(r ref, written int64) *counter {
	s.all.count.Add(1)
	for range 2 { // one more than it adds, so that a cache over its limit shrinks
		if s.all.count.Load() > s.all.limit.Load() && s.table.Len() >= minPerShard {
			s.evictLocked(written)
		}
	}
	e := cachetable.NewEntry(r.hash(), r, counter{ref: r})
	e.MarkUsed()
	s.table.Put(e)
	return &e.Value
}

// maxCandidates is the number of counters that evictLocked looks at. It bounds the work under the
// lock of a shard whose counters cannot be evicted yet or are in constant use.
const maxCandidates = 32

// evictLocked evicts a counter, and reports whether it found one. The event log can be read up to
// the position written.
func (s *shard) evictLocked(written int64) bool {
	e := s.table.Evict(maxCandidates, func(e *cachetable.Entry[ref, counter]) bool { return e.Value.evictable(written) })
	if e == nil {
		return false
	}
	c := &e.Value
	if c.dirty {
		s.pending[c.ref] = pendingEvents{position: c.applied}
	}
	s.removedLocked(c)
	s.all.evictions.Add(1)
	return true
}

// hits returns the number of look-ups of decide that found the counter.
func (all *counterCache) hits() (sum uint64) {
	all.each(func(s *shard) { sum += s.hits })
	return sum
}

// evictable reports whether the state of a counter can be read from its page and its events.
func (c *counter) evictable(written int64) bool {
	return c.busy == nil && c.applied < written && c.savedBy == byEvents
}

// bucket is the token bucket of a counter, and the units that the rate of the last request gives back in a millisecond.
type bucket struct {
	core.Bucket
	perMillisecond int64
}

// fullAt returns when the bucket is full, in Unix milliseconds.
func (b *bucket) fullAt() int64 { return b.At + b.Taken/b.perMillisecond }

// maxBuckets is the largest number of buckets in a shard: a million in all shards. A bucket takes about 80 bytes.
const maxBuckets = 1 << 20 / shards

// bucketCandidates is the number of buckets that takeLocked looks at to drop one. With 4, at most a quarter of the buckets are full in
// the long run: each new bucket then drops one.
const bucketCandidates = 4

// bucketLocked returns the bucket of a counter, a full one if there is none.
func (s *shard) bucketLocked(of ref) core.Bucket {
	if e := s.buckets.Find(of.hash(), of); e != nil {
		return e.Value.Bucket
	}
	return core.Bucket{}
}

// ownBucket names the bucket for the own rate of a key. The bucket of the key itself is for the rate of its plan.
func ownBucket(key ref) ref {
	key.kind = kindOwnRate
	return key
}

// takeLocked takes a token out of a bucket. With a nil rate it does nothing. If the bucket is missing, it adds one, and drops a
// full one among a few others. With maxBuckets in the shard, it drops the first of these to get full, even if that is not full yet.
func (s *shard) takeLocked(of ref, rate *core.Rate, at time.Time) {
	if rate == nil {
		return
	}
	e := s.buckets.Find(of.hash(), of)
	if e == nil {
		var first *cachetable.Entry[ref, bucket]
		full := s.buckets.Evict(bucketCandidates, func(e *cachetable.Entry[ref, bucket]) bool {
			if first == nil || e.Value.fullAt() < first.Value.fullAt() {
				first = e
			}
			return e.Value.Full(e.Value.perMillisecond, at.UnixMilli())
		})
		if full == nil && s.buckets.Len() >= maxBuckets {
			s.buckets.Remove(first.Key.hash(), first.Key)
		}
		e = cachetable.NewEntry(of.hash(), of, bucket{})
		s.buckets.Put(e)
	}
	e.Value.Take(rate, at)
	e.Value.perMillisecond = rate.PerMillisecond()
}

// removeLocked removes a counter from memory.
func (s *shard) removeLocked(c *counter) {
	s.table.Remove(c.hash(), c.ref)
	s.removedLocked(c)
}

// removedLocked records that a counter was removed from the table. Callers of find may still hold it.
func (s *shard) removedLocked(c *counter) {
	c.gone, c.chain, c.days = true, nil, nil
	s.all.count.Add(-1)
}

// changedLocked records a change of a counter.
func (c *counter) changedLocked() {
	c.dirty = true
	c.changes++
}

// markBusy makes counters busy until clearBusy, while their keys or users are deleted.
func (all *counterCache) markBusy(refs []ref, written int64) {
	for _, of := range refs {
		sh := all.shard(of)
		c := sh.lockIdle(of)
		if c == nil {
			c = sh.addLocked(of, written)
		}
		c.busy = make(chan struct{})
		sh.mu.Unlock()
	}
}

// clearBusy makes the counters of markBusy idle. It removes the counters if their keys or users were deleted.
func (all *counterCache) clearBusy(refs []ref, deleted bool) {
	for _, of := range refs {
		sh := all.shard(of)
		sh.mu.Lock()
		c := sh.peekLocked(of)
		close(c.busy)
		c.busy = nil
		if deleted || !c.dirty { // markBusy adds counters without their state
			sh.removeLocked(c)
		}
		if deleted {
			delete(sh.pending, of)
			for _, b := range []ref{of, ownBucket(of)} {
				sh.buckets.Remove(b.hash(), b)
			}
		}
		sh.mu.Unlock()
	}
}
