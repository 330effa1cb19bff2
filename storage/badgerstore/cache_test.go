package badgerstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestHardlyAnyCounters: with a counter cache of 1 or 2 counters, each request still gets its two counters, also when both
// are in the same shard.
func TestHardlyAnyCounters(t *testing.T) {
	const keys = 3 * shards
	for _, cache := range []int{1, 2} {
		s := openAlone(t, t.TempDir(), Options{CounterCache: cache})
		known(t, s, numbered("key_", keys)...)
		together := 0
		for i, id := range numbered("key_", keys) {
			together += boolToInt(keyRef(t, s, id).shardIndex() == userRef(t, s, int64(i%8+1)).shardIndex())
			consume(t, s, request(id, int64(i%8+1), 1, noon))
		}
		if together == 0 {
			t.Error("no key and user are in the same shard: the test proves nothing")
		}
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				for i := range keys {
					consume(t, s, request(fmt.Sprint("key_", i), int64(i%8+1), 1, noon))
				}
			})
		}
		group.Wait()
	}
}

// TestFewCounters: with a counter cache of 1 counter, requests are decided exactly, also during checkpoints. The cache
// exceeds its limit by minPerShard counters in each shard at most.
func TestFewCounters(t *testing.T) {
	const callers, keys, rounds = 16, 300, 4
	s := openIn(t, t.TempDir(), Options{CounterCache: 1})
	known(t, s, numbered("key_", keys)...)
	var allowed atomic.Int64
	var callersGroup, checkpoints sync.WaitGroup
	var done atomic.Bool
	checkpoints.Go(func() {
		for !done.Load() {
			writeCheckpoint(t, s)
		}
	})
	for i := range callers {
		callersGroup.Go(func() {
			for j := range keys * rounds {
				n := (i*37 + j) % keys
				if consume(t, s, request(fmt.Sprint("key_", n), int64(n%7+1), rounds, noon)) {
					allowed.Add(1)
				}
			}
		})
	}
	callersGroup.Wait()
	done.Store(true)
	checkpoints.Wait()
	if got := allowed.Load(); got != keys*rounds {
		t.Errorf("allowed: got %d, want %d for each of %d keys", got, rounds, keys)
	}
	for n := range keys {
		wantUsed(t, s, ofKey(fmt.Sprint("key_", n)), rounds)
	}
	writeCheckpoint(t, s) // a counter with omitted denials is not evicted before a checkpoint
	known(t, s, numbered("key_new", keys)...)
	for n := range keys {
		consume(t, s, request(fmt.Sprint("key_new", n), 1, rounds, noon))
	}
	if got := int(s.counters.count.Load()); got > minPerShard*shards {
		t.Errorf("counters in memory: got %d, want %d at most", got, minPerShard*shards)
	}
}

// TestConfirmEvictedCounter: a request finds a counter before it locks the shard. It does not use the counter when another
// request has evicted it meanwhile. A failure means that two copies of one counter count, and that counts are lost.
func TestConfirmEvictedCounter(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{})
	known(t, s, "key")
	consume(t, s, request("key", 1, 10, noon))
	of := keyRef(t, s, "key")
	sh := s.counters.shard(of)
	confirmed := func(c *counter) *counter {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return sh.confirmLocked(of, c)
	}
	old := sh.find(of)
	if got := confirmed(old); old == nil || got != old {
		t.Errorf("in memory: got %p, want %p", got, old)
	}
	if err := s.events.Flush(); err != nil {
		t.Fatal(err)
	}
	evict(t, s, of)
	if got := confirmed(old); got != nil {
		t.Errorf("evicted: got a counter, want none")
	}
	consume(t, s, request("key", 1, 10, noon))
	if got := confirmed(old); got == nil || got == old || got != sh.find(of) {
		t.Errorf("loaded again: got %p, want the new counter, not %p", got, old)
	}
}

// TestEvictedBucket: a counter that was evicted keeps its token bucket, so that no more than its rate passes. The bucket of a
// deleted key is dropped.
func TestEvictedBucket(t *testing.T) {
	const keys = 1000
	s := openIn(t, t.TempDir(), Options{CounterCache: 1})
	known(t, s, numbered("key_", keys)...)
	pass := func(at time.Time) (passed int) {
		for _, id := range numbered("key_", keys) {
			c := request(id, 1, 100, at)
			c.Rate = &core.Rate{Requests: 1, Per: core.PerMinute, Burst: 1}
			passed += boolToInt(consume(t, s, c))
		}
		return passed
	}
	if got := pass(noon); got != keys {
		t.Errorf("at first: %d requests passed, want %d", got, keys)
	}
	if got := int(s.counters.count.Load()); got > keys/2 {
		t.Errorf("%d counters are in memory: the test proves nothing", got)
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 0}, {59 * time.Second, 0}, {time.Minute, keys}, {time.Minute, 0}} {
		if got := pass(noon.Add(step.after)); got != step.want {
			t.Errorf("after %v: %d requests passed, want %d", step.after, got, step.want)
		}
	}
	update(t, s, func(tx core.Tx) error { return tx.DeleteKey("key_0") })
	if got := s.counters.bucketCount(); got != keys-1 {
		t.Errorf("after a deletion: got %d buckets, want %d", got, keys-1)
	}
}

// TestBucketsInMemory: most full buckets are dropped while others are added, and there are never more than maxBuckets in a shard.
func TestBucketsInMemory(t *testing.T) {
	all := newCounterCache(1, nil)
	const (
		keys  = 160_000
		short = 6000 // milliseconds until a token is back
	)
	add := func(n, at int64) {
		of := ref{n << pageBits, 1, kindKey} // the next one is in another shard
		rate := &core.Rate{Requests: core.Token / short, Per: core.PerMinute, Burst: 1}
		all.shard(of).takeLocked(of, rate, time.UnixMilli(at))
	}
	for n := range int64(keys) {
		add(n, n)
	}
	if got := all.bucketCount(); got > 3*short {
		t.Errorf("got %d buckets, %d of which are not full", got, short)
	}
	for n := range int64(maxBuckets*shards + 100_000) {
		add(1e6+n, 1e9)
	}
	if got := all.bucketCount(); got < maxBuckets*shards*99/100 || got > maxBuckets*shards {
		t.Errorf("got %d buckets, want about %d", got, maxBuckets*shards)
	}
}

// bucketCount returns the number of token buckets in memory.
func (all *counterCache) bucketCount() (n int) {
	for i := range all.shards {
		n += all.shards[i].buckets.Len()
	}
	return n
}
