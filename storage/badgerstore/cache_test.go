package badgerstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// TestHardlyAnyCounters: however little room there is for counters, a request has room
// for the two that it needs, also when both are kept in the same place.
func TestHardlyAnyCounters(t *testing.T) {
	const keys = 3 * shards
	for _, cache := range []int{1, 2} {
		s := openAlone(t, t.TempDir(), Options{CounterCache: cache})
		known(t, s, numbered("key_", keys)...)
		together := 0
		for i, id := range numbered("key_", keys) {
			together += boolToInt(keyRef(t, s, id).shard() == userRef(t, s, int64(i%8+1)).shard())
			consume(t, s, request(id, int64(i%8+1), 1, noon))
		}
		if together == 0 {
			t.Error("no key and user are in the same place: the test shows nothing")
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

// TestFewCounters: requests are decided exactly when there is no room for their
// counters in memory, while they are folded and while they are not, and the room is not
// exceeded by much.
func TestFewCounters(t *testing.T) {
	const callers, keys, rounds = 16, 300, 4
	s := openIn(t, t.TempDir(), Options{CounterCache: 1})
	known(t, s, numbered("key_", keys)...)
	var allowed atomic.Int64
	var callersGroup, folding sync.WaitGroup
	var done atomic.Bool
	folding.Go(func() {
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
	folding.Wait()
	if got := allowed.Load(); got != keys*rounds {
		t.Errorf("allowed: got %d, want %d for each of %d keys", got, rounds, keys)
	}
	for n := range keys {
		wantUsed(t, s, ofKey(fmt.Sprint("key_", n)), rounds)
	}
	writeCheckpoint(t, s) // denials that were left out are kept until then
	known(t, s, numbered("key_new", keys)...)
	for n := range keys {
		consume(t, s, request(fmt.Sprint("key_new", n), 1, rounds, noon))
	}
	if got := int(s.counters.count.Load()); got > minPerShard*shards {
		t.Errorf("counters in memory: got %d, want %d at most", got, minPerShard*shards)
	}
}

// A request that found a counter before it locked the shard never uses a counter that was evicted
// meanwhile: else two copies of one counter count, and requests are lost.
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
