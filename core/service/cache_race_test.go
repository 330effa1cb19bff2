package service

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Promise 3: under load, every get that begins after a change was reported returns the new value or
// a later one, even in a cache so small that all entries are evicted continuously.
func TestCacheForgetUnderLoad(t *testing.T) {
	const keys, callers, changes = 64, 8, 3000
	var stored, told [keys]atomic.Int64
	c := newCache(keys/2, time.Now, nil, errAbsent, func(_ context.Context, k int) (*int64, error) {
		v := stored[k].Load()
		if v%5 == 4 { // then the key is absent
			return nil, errAbsent
		}
		return &v, nil
	})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				k := rand.IntN(keys)
				floor := told[k].Load()
				v, err := c.get(context.Background(), k)
				switch {
				case errors.Is(err, errAbsent):
					if now := stored[k].Load(); floor%5 != 4 && now == floor {
						t.Errorf("key %d is absent, want version %d", k, floor)
					}
				case err != nil:
					t.Error(err)
				case *v < floor:
					t.Errorf("key %d has version %d, after the change to %d was reported", k, *v, floor)
				}
			}
		})
	}
	for range changes {
		k := rand.IntN(keys)
		v := stored[k].Add(1)
		c.forget(k)
		told[k].Store(v)
	}
	close(stop)
	wg.Wait()
	if n := c.Len(); n > keys/2 {
		t.Errorf("%d values cached, want at most %d", n, keys/2)
	}
}

// Promise 3: concurrent look-ups of one key after the last change leave one entry, so that the next
// change finds it.
func TestCacheRemembersOnce(t *testing.T) {
	s := &source{}
	c := newTestCache(s, time.Now)
	const k = 1
	at := c.shardOf(k)
	sh := &c.shards[at]
	v := int64(7)
	for range 2 {
		c.add(at, k, &v, sh.epoch.Load())
	}
	if n := c.Len(); n != 1 {
		t.Errorf("%d values cached, want 1", n)
	}
	c.forget(k)
	if v, _ := sh.lookup(k, time.Now); v != nil || c.Len() != 0 {
		t.Errorf("cached after forget: %v, and %d values", v, c.Len())
	}
}

// A flood of unknown keys costs one read of the store for each key, and none for repeated ones. It
// takes bounded memory and evicts no values.
func TestCacheUnderAFlood(t *testing.T) {
	const known, flood = 1000, 100_000
	var loads atomic.Int64
	c := newCache(known, func() time.Time { return time.Unix(0, 0) }, nil, errAbsent,
		func(_ context.Context, k int) (*int, error) {
			loads.Add(1)
			if k >= known {
				return nil, errAbsent
			}
			return &k, nil
		})
	get := func(from, to int) int64 {
		before := loads.Load()
		for k := from; k < to; k++ {
			if _, err := c.get(t.Context(), k); (err == nil) != (k < known) {
				t.Fatalf("get(%d): %v", k, err)
			}
		}
		return loads.Load() - before
	}
	get(0, known)
	if n := get(known, known+flood); n != flood {
		t.Errorf("%d reads of the store for %d unknown keys, want one for each", n, flood)
	}
	if n := get(known+flood-5000, known+flood); n != 0 {
		t.Errorf("%d reads of the store for 5000 repeated unknown keys, want none", n)
	}
	if n := get(0, known); n != 0 {
		t.Errorf("%d reads of the store for cached keys, want none", n)
	}
	absent := 0
	for i := range c.shards {
		absent += c.shards[i].absent.Len()
	}
	if n := c.Len(); n != known || absent > maxAbsent {
		t.Errorf("%d values and %d unknown keys cached, want %d and at most %d", n, absent, known, maxAbsent)
	}
}

// A cache of one entry keeps the last key.
func TestCacheOfOne(t *testing.T) {
	s := &source{}
	c := newCache(1, time.Now, nil, errAbsent, s.load)
	for k := range 1000 {
		_, _ = c.get(t.Context(), k)
		if _, err := c.get(t.Context(), k); err != nil || s.loads.Load() != int64(k+1) || c.Len() != 1 {
			t.Fatalf("get(%d): %v, %d loads, %d cached", k, err, s.loads.Load(), c.Len())
		}
	}
}

// A hit allocates nothing.
func TestCacheHitAllocatesNothing(t *testing.T) {
	c := newCache(10, time.Now, nil, core.ErrKeyNotFound,
		func(_ context.Context, d secrets.Digest) (*core.Key, error) { return &core.Key{Digest: d}, nil })
	d := secrets.DigestOf("lk_user_a")
	if n := testing.AllocsPerRun(100, func() { _, _ = c.get(context.Background(), d) }); n != 0 {
		t.Errorf("a hit allocates %v times, want never", n)
	}
}
