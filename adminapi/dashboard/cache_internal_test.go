package dashboard

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Concurrent calls share one computation. It runs again after the expiry, an error or a panic.
func TestResultCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &request{s: &Server{}, r: httptest.NewRequest("GET", "/", nil)}
		m := &q.s.results
		var times atomic.Int64
		slow := func(context.Context) (int64, error) {
			time.Sleep(100 * time.Millisecond) // so that it is kept for five seconds
			return times.Add(1), nil
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if n, err := cached(q, "slow", slow); n != 1 || err != nil {
					t.Errorf("got %d, %v, want 1", n, err)
				}
			})
		}
		wg.Wait()
		m.entries["slow"].until = time.Now()
		if n, _ := cached(q, "slow", slow); n != 2 {
			t.Errorf("later: got %d, want 2", n)
		}
		failure := errors.New("no")
		for range 2 {
			_, err := cached(q, "failed", func(context.Context) (int64, error) { times.Add(1); return 0, failure })
			if !errors.Is(err, failure) {
				t.Errorf("got %v, want %v", err, failure)
			}
		}
		if times.Load() != 4 {
			t.Errorf("got %d times, want 4: a failure is not kept", times.Load())
		}
		for range 2 {
			func() {
				defer func() { _ = recover() }()
				_, err := cached(q, "panic", func(context.Context) (int64, error) { panic("no") })
				t.Errorf("a panic: got %v, want it handed on each time", err)
			}()
		}
		if n, _ := cached(q, "another", slow); n != 5 || len(m.entries) > 2 {
			t.Errorf("another name: got %d with %d kept", n, len(m.entries))
		}
	})
}
