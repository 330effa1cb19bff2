package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
)

// world is an account with users that have two keys each.
type world struct {
	s       *redisstore.Store
	account string
	keys    []core.Key
}

// newWorld creates an account with users in a store.
func newWorld(t testing.TB, s *redisstore.Store, users int) *world {
	t.Helper()
	w := &world{s: s, account: "acct_" + strconv.FormatInt(stores.Add(1), 10)}
	now := time.Now().UTC()
	err := s.CreateAccount(t.Context(), &core.Account{ID: w.account, Name: w.account, CreatedAt: now},
		&core.OwnerKey{ID: "okey_1", AccountID: w.account, Digest: secrets.DigestOf(w.account), CreatedAt: now})
	if err != nil {
		t.Fatalf("CreateAccount: %v", err)
	}
	for range users {
		w.addUser(t)
	}
	return w
}

// addUser adds a user with two keys.
func (w *world) addUser(t testing.TB) {
	t.Helper()
	var keys []core.Key
	err := w.s.Update(t.Context(), w.account, func(tx core.Tx) error {
		keys = nil
		u := &core.User{AccountID: w.account, Name: "user"}
		if err := tx.PutUser(u); err != nil {
			return err
		}
		for i := range 2 {
			id := fmt.Sprintf("key_%d", len(w.keys)+i)
			k := core.Key{AccountID: w.account, ID: id, UserID: u.ID, Status: core.KeyActive, Digest: secrets.DigestOf(w.account + id)}
			if err := tx.PutKey(&k); err != nil {
				return err
			}
			keys = append(keys, k)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	w.keys = append(w.keys, keys...)
}

// consumption returns a request with cost 1 that fits the limit: of the key's own counter, or also of its
// user's.
func consumption(k *core.Key, id string, shared bool) *core.Consumption {
	at := time.Now()
	return &core.Consumption{Account: k.AccountID, KeyID: k.ID, KeySeq: k.Seq, UserID: k.UserID, Shared: shared,
		Terms: core.Terms{PlanID: "plan_1", PlanName: "plan", Period: core.Year, Limit: core.MaxLimit}, Cost: 1,
		Entry:     core.Entry{At: at, KeyID: k.ID, UserID: k.UserID, Endpoint: "/", Method: "GET", Cost: 1},
		Retention: core.DefaultRetention, RequestID: id}
}

// call is a request with its result.
type call struct {
	key   int
	id    string
	begun time.Time
	took  time.Duration
	err   error // nil if allowed
}

// load is a set of goroutines that send requests. Requests with even keys have ids.
type load struct {
	w    *world
	quit context.CancelFunc
	done sync.WaitGroup

	waits bool // the store waits for a replica

	mu    sync.Mutex
	calls []call
}

// pause is the delay of each goroutine between two requests.
const pause = time.Millisecond

func (w *world) startLoad(t testing.TB, goroutines int) *load {
	ctx, quit := context.WithCancel(t.Context())
	l := &load{w: w, quit: quit}
	for g := range goroutines {
		l.done.Go(func() {
			for n := g; ctx.Err() == nil; n++ {
				c := call{key: n % len(w.keys)}
				if c.key%2 == 0 {
					c.id = fmt.Sprintf("%d-%d", g, n)
				}
				l.send(t, c)
				time.Sleep(pause)
			}
		})
	}
	t.Cleanup(func() { l.stop() })
	return l
}

// send sends a request and records its result. An error other than ErrUnavailable fails the test.
func (l *load) send(t testing.TB, c call) {
	c.begun = time.Now()
	v, err := l.w.s.Consume(context.Background(), consumption(&l.w.keys[c.key], c.id, true))
	c.took, c.err = time.Since(c.begun), err
	switch {
	case err != nil && !errors.Is(err, core.ErrUnavailable):
		t.Errorf("Consume: %v, want it allowed or ErrUnavailable", err)
	case err == nil && !v.Allowed:
		t.Errorf("Consume: denied with %d used, want it allowed", v.Usage.Used)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}

// stop stops the goroutines and returns all calls.
func (l *load) stop() []call {
	l.quit()
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

// callsSoFar returns the finished calls.
func (l *load) callsSoFar() []call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

func failed(c call) bool         { return c.err != nil }
func outcomeAllowed(c call) bool { return c.err == nil }

// filterCalls returns the calls that meet all conditions.
func filterCalls(calls []call, meant ...func(call) bool) []call {
	return slices.DeleteFunc(slices.Clone(calls), func(c call) bool {
		return slices.ContainsFunc(meant, func(is func(call) bool) bool { return !is(c) })
	})
}

func after(at time.Time) func(call) bool {
	return func(c call) bool { return c.begun.After(at) }
}

func before(at time.Time) func(call) bool {
	return func(c call) bool { return c.begun.Add(c.took).Before(at) }
}

// latencies returns the median and the maximum duration of calls.
func latencies(calls []call) (median, longest time.Duration) {
	all := make([]time.Duration, len(calls))
	for i, c := range calls {
		all[i] = c.took
	}
	return medianAndMax(all)
}

func medianAndMax(all []time.Duration) (median, longest time.Duration) {
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)-1]
}

// awaitAllowed waits until a request that started after from is allowed. It returns the time from from to
// its answer. After a minute it fails the test.
func (l *load) awaitAllowed(t testing.TB, from time.Time) time.Duration {
	t.Helper()
	return l.await(t, from, outcomeAllowed)
}

func (l *load) await(t testing.TB, from time.Time, meant ...func(call) bool) time.Duration {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if calls := filterCalls(l.callsSoFar(), append(meant, after(from))...); len(calls) > 0 {
			first := slices.MinFunc(calls, func(a, b call) int { return a.begun.Add(a.took).Compare(b.begun.Add(b.took)) })
			return first.begun.Add(first.took).Sub(from)
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("no such request within a minute")
		}
	}
}
