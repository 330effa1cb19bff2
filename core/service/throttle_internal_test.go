package service

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/signin"
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
type localStore struct{ core.HistoryIndex }

// noAccounts is a store without accounts.
type noAccounts struct{ core.Store }

func (noAccounts) AccountByName(context.Context, string) (*core.Account, error) {
	return nil, core.ErrAccountNotFound
}

func (noAccounts) Access(context.Context, string) (*core.Access, error) {
	return nil, core.ErrAccountNotFound
}

// Large queries of a store without a network leave one processor to requests. While they have the others, no password is hashed.
func TestProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	for _, test := range []struct {
		store core.Store
		want  int
	}{{localStore{}, 2}, {nil, 3}} {
		synctest.Test(t, func(t *testing.T) {
			s := &Service{store: test.store, largeQueries: newLargeQueries(), processors: newProcessors()}
			s.SignIn = signin.New(noAccounts{}, time.Now, s.processors)
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
			var wg sync.WaitGroup
			for _, account := range []string{"a", "b", "c"} {
				wg.Go(func() {
					if err := s.runQuery(t.Context(), account, wholeAccount, work); err != nil {
						t.Error(err)
					}
				})
			}
			busy := func() bool {
				_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "Acme", Password: "a password"}, signin.Client{})
				return err == signin.ErrBusy
			}
			time.Sleep(time.Second)
			if got := busy(); got != (test.want == 2) {
				t.Errorf("store %T: no processor for a password: %t", test.store, got)
			}
			wg.Wait()
			if most != test.want {
				t.Errorf("store %T: %d tasks at once, want %d", test.store, most, test.want)
			}
		})
	}
}
