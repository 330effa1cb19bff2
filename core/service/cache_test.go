package service

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// source is a store of one value. Its loads can be made to wait.
type source struct {
	value atomic.Int64 // below 0: absent
	loads atomic.Int64
	gate  chan struct{} // if not nil, a load waits here after its read
	began chan struct{}
}

var errAbsent = errors.New("absent")

func (s *source) load(context.Context, int) (*int64, error) {
	s.loads.Add(1)
	v := s.value.Load()
	if s.gate != nil {
		s.began <- struct{}{}
		<-s.gate
	}
	if v < 0 {
		return nil, errAbsent
	}
	return &v, nil
}

func newTestCache(s *source, clock func() time.Time) *cache[int, int64] {
	return newCache(10, clock, nil, errAbsent, s.load)
}

func TestCacheAsksOnce(t *testing.T) {
	s := &source{gate: make(chan struct{}), began: make(chan struct{}, 100)}
	c := newTestCache(s, time.Now)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := c.get(t.Context(), 1); err != nil {
				t.Error(err)
			}
		})
	}
	<-s.began
	close(s.gate)
	wg.Wait()
	if _, err := c.get(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if n := s.loads.Load(); n != 1 {
		t.Errorf("the store was asked %d times, want once", n)
	}
}

// Promise 3: a look-up that began before a revocation can neither restore the old value nor be
// joined by a later request.
func TestCacheForgetDuringALookUp(t *testing.T) {
	s := &source{gate: make(chan struct{}), began: make(chan struct{}, 100)}
	s.value.Store(1)
	c := newTestCache(s, time.Now)
	old := make(chan int64)
	go func() {
		v, _ := c.get(context.Background(), 1)
		old <- *v
	}()
	<-s.began
	s.value.Store(2)
	c.forget(1)

	fresh := make(chan int64)
	go func() {
		v, _ := c.get(context.Background(), 1)
		fresh <- *v
	}()
	<-s.began // the request after the revocation reads the store
	close(s.gate)
	if got := <-old; got != 1 {
		t.Errorf("the look-up in progress = %d, want 1", got)
	}
	if got := <-fresh; got != 2 {
		t.Errorf("the request after the revocation = %d, want 2", got)
	}
	s.gate = nil
	if v, err := c.get(t.Context(), 1); err != nil || *v != 2 {
		t.Errorf("cached %v, %v, want 2", *v, err)
	}
}

func TestCacheHoldsTheAbsentBriefly(t *testing.T) {
	now := time.Unix(0, 0)
	s := &source{}
	s.value.Store(-1)
	c := newTestCache(s, func() time.Time { return now })
	for range 5 {
		if _, err := c.get(t.Context(), 1); !errors.Is(err, errAbsent) {
			t.Fatalf("err = %v, want %v", err, errAbsent)
		}
	}
	if n := s.loads.Load(); n != 1 {
		t.Errorf("the store was asked %d times, want once", n)
	}
	s.value.Store(7)
	c.forget(1) // the creator calls forget
	if v, err := c.get(t.Context(), 1); err != nil || *v != 7 {
		t.Errorf("after it was created: %v, %v", v, err)
	}
	s.value.Store(-1)
	c.forget(1)
	_, _ = c.get(t.Context(), 1)
	s.value.Store(8) // by another node, which cannot call forget
	now = now.Add(absentFor)
	if v, err := c.get(t.Context(), 1); err != nil || *v != 8 {
		t.Errorf("after a while: %v, %v", v, err)
	}
}

func TestCacheHoldsNoErrorsAndIsBounded(t *testing.T) {
	fault := errors.New("disk")
	fail := true
	c := newCache(10, time.Now, nil, errAbsent, func(_ context.Context, k int) (*int, error) {
		if fail {
			return nil, fault
		}
		return &k, nil
	})
	if _, err := c.get(t.Context(), 1); !errors.Is(err, fault) {
		t.Errorf("err = %v, want %v", err, fault)
	}
	fail = false
	for k := range 100 {
		if v, err := c.get(t.Context(), k); err != nil || *v != k {
			t.Fatalf("get(%d) = %v, %v", k, v, err)
		}
	}
	if n := c.Len(); n != 10 {
		t.Errorf("%d values cached, want 10", n)
	}
	c.resize(3)
	if n := c.Len(); n != 3 {
		t.Errorf("%d values cached after the resize, want 3", n)
	}
}

// A request does not join a look-up that began before changes were missed: that look-up may have
// read an outdated value.
func TestCacheForgetAllDetaches(t *testing.T) {
	s := &source{gate: make(chan struct{}), began: make(chan struct{}, 10)}
	c := newTestCache(s, time.Now)
	var wg sync.WaitGroup
	get := func(want int64) {
		wg.Go(func() {
			if v, err := c.get(t.Context(), 1); err != nil || *v != want {
				t.Errorf("got %v, %v, want %d", v, err, want)
			}
		})
		<-s.began // its own look-up
	}
	get(0)
	s.value.Store(7)
	c.forgetAll()
	get(7)
	close(s.gate)
	wg.Wait()
}
