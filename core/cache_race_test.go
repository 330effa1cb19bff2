package core

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Promise 3: under load, whoever asks after a change was told of sees it, or a later
// one, while the cache is so small that everything is also evicted all the time.
func TestCacheForgetUnderLoad(t *testing.T) {
	const keys, callers, changes = 64, 8, 3000
	var stored, told [keys]atomic.Int64
	c := newCache(keys/2, time.Now, nil, errAbsent, strconv.Itoa, func(_ context.Context, k int) (*int64, error) {
		v := stored[k].Load()
		if v%5 == 4 { // then it is not there
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
					t.Errorf("key %d has version %d, after the change to %d was told", k, *v, floor)
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
	if n := c.size.Len(); n > keys/2 {
		t.Errorf("%d values remembered, want at most %d", n, keys/2)
	}
}

// Promise 3: two look-ups of one key that were both begun after the last change leave
// one thing to forget, so that the next change finds it.
func TestCacheRemembersOnce(t *testing.T) {
	s := &source{}
	c := newTestCache(s, time.Now)
	const k = 1
	hash := c.hash(k)
	sh := &c.shards[hash%cacheShards]
	v := int64(7)
	for range 2 {
		if _, err := c.add(sh, hash, k, &v, nil, sh.epoch.Load()); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.size.Len(); n != 1 {
		t.Errorf("%d values remembered, want 1", n)
	}
	sh.forget(hash, k)
	if s, _ := sh.lookup(hash, k); s != nil {
		t.Errorf("remembered after it was forgotten: %v", s.value)
	}
}

// A flood of made-up keys costs one look-up for each, and none when they come again;
// it takes bounded room and pushes out nobody.
func TestCacheUnderAFlood(t *testing.T) {
	const known, flood = 1000, 100_000
	var loads atomic.Int64
	c := newCache(known, func() time.Time { return time.Unix(0, 0) }, nil, errAbsent, strconv.Itoa,
		func(_ context.Context, k int) (*int, error) {
			loads.Add(1)
			if k >= known {
				return nil, errAbsent
			}
			return &k, nil
		})
	ask := func(from, to int) int64 {
		before := loads.Load()
		for k := from; k < to; k++ {
			if _, err := c.get(t.Context(), k); (err == nil) != (k < known) {
				t.Fatalf("get(%d): %v", k, err)
			}
		}
		return loads.Load() - before
	}
	ask(0, known)
	if n := ask(known, known+flood); n != flood {
		t.Errorf("the store was asked %d times for %d made-up keys, want once for each", n, flood)
	}
	if n := ask(known+flood-5000, known+flood); n != 0 {
		t.Errorf("the store was asked %d times for 5000 made-up keys that came again, want never", n)
	}
	if n := ask(0, known); n != 0 {
		t.Errorf("the store was asked %d times for keys that were in memory, want never", n)
	}
	absent := 0
	for i := range c.shards {
		absent += c.shards[i].absent.Len()
	}
	if n := c.size.Len(); n != known || absent > maxAbsent {
		t.Errorf("%d values and %d made-up keys remembered, want %d and at most %d", n, absent, known, maxAbsent)
	}
}

// However few are remembered, the one that was asked for last is.
func TestCacheOfOne(t *testing.T) {
	s := &source{}
	c := newCache(1, time.Now, nil, errAbsent, strconv.Itoa, s.load)
	for k := range 1000 {
		_, _ = c.get(t.Context(), k)
		if _, err := c.get(t.Context(), k); err != nil || s.loads.Load() != int64(k+1) || c.size.Len() != 1 {
			t.Fatalf("get(%d): %v, %d loads, %d remembered", k, err, s.loads.Load(), c.size.Len())
		}
	}
}

// A hit makes no garbage.
func TestCacheHitAllocatesNothing(t *testing.T) {
	c := newCache(10, time.Now, nil, ErrKeyNotFound, func(d Digest) string { return string(d[:]) },
		func(_ context.Context, d Digest) (*Key, error) { return &Key{Digest: d}, nil })
	d := DigestOf("lk_user_a")
	if n := testing.AllocsPerRun(100, func() { _, _ = c.get(context.Background(), d) }); n != 0 {
		t.Errorf("a hit allocates %v times, want never", n)
	}
}
