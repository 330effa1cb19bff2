package core

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// An account runs one large query at a time, and maxWaitingQueries wait. The next one is refused at once.
func TestTooManyLargeQueries(t *testing.T) {
	s := &Service{largeQueries: newLargeQueries()}
	unlock, err := s.largeQueries.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error)
	for range maxWaitingQueries + 1 {
		go func() { results <- s.runQuery(t.Context(), "a", wholeAccount, func() error { return nil }) }()
	}
	if err := <-results; !errors.Is(err, ErrTooManyRequests) { // the others wait
		t.Errorf("got error %v, want %v", err, ErrTooManyRequests)
	}
	unlock()
	for range maxWaitingQueries {
		if err := <-results; err != nil {
			t.Errorf("a query that waited: %v", err)
		}
	}
}

// localStore has an index of histories.
type localStore struct{ HistoryIndex }

// Large queries of a store without a network, and hashes of passwords, leave one processor to requests.
func TestProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	for _, test := range []struct {
		store Store
		want  int
	}{{localStore{}, 2}, {nil, 4}} {
		synctest.Test(t, func(t *testing.T) {
			s := &Service{store: test.store, largeQueries: newLargeQueries(), processors: newProcessors()}
			s.hasher = newHasher(s.processors)
			var mu sync.Mutex
			var now, most int
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				now += n
				most = max(most, now)
			}
			work := func() error {
				count(1)
				defer count(-1)
				time.Sleep(time.Minute / 2)
				return nil
			}
			s.hasher.idKey = func(_, _ []byte, _, _ uint32, _ uint8, n uint32) []byte { _ = work(); return make([]byte, n) }
			var wg sync.WaitGroup
			for _, account := range []string{"a", "b", "c"} {
				wg.Go(func() {
					if err := s.runQuery(t.Context(), account, wholeAccount, work); err != nil {
						t.Error(err)
					}
				})
			}
			_, err := s.hasher.hash(t.Context(), 0, "a password")
			wg.Wait()
			if (err != nil && err != ErrBusy) || most != test.want {
				t.Errorf("store %T: %d tasks at once (%v), want %d", test.store, most, err, test.want)
			}
		})
	}
}
