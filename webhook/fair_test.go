package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A subject whose first event fails does not delay other subjects, however many of its events wait. All its events are delivered in order.
func TestManyWaitForOne(t *testing.T) {
	e := newEnv(t)
	r := newReceiver(t)
	var mu sync.Mutex
	failing := true
	r.answers(func(w http.ResponseWriter, _ *http.Request, id string) {
		mu.Lock()
		defer mu.Unlock()
		if failing && strings.HasPrefix(id, "a-") {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusOK)
	})
	w := e.webhook(r)
	want := e.put("a", 1, 1300)
	e.put("b", 1, 2)
	e.until("the other subject is delivered", 100*time.Millisecond, func() bool { return e.pending(w) == 1300 })
	e.put("c", 1, 2)
	e.until("a later subject is delivered", 100*time.Millisecond, func() bool { return e.pending(w) == 1300 })
	mu.Lock()
	failing = false
	mu.Unlock()
	e.until("all is delivered", time.Second, func() bool { return e.pending(w) == 0 })
	_, accepted := r.ids()
	if got := unique(bySubject(accepted)["a"]); !slices.Equal(got, want) {
		t.Errorf("got %d events of the subject, want %d in their order", len(got), len(want))
	}
}

// stuckSweep is a store whose sweep of an account never ends.
type stuckSweep struct {
	core.Store
	account string
}

func (s *stuckSweep) Events(ctx context.Context, account string, f core.EventFilter, after int64, n int) ([]*core.Event, int, error) {
	if account == s.account && !f.Pending && f.Webhook == "" {
		<-ctx.Done()
		return nil, 0, ctx.Err()
	}
	return s.Store.Events(ctx, account, f, after, n)
}

// An account with very many events to forget delays no delivery.
func TestSweepDelaysNothing(t *testing.T) {
	e := &env{t: t, clock: clocktest.New(time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC))}
	store := &stuckSweep{Store: memstore.New()}
	e.store = store
	e.svc = service.New(store, service.Config{Clock: e.clock.Wall})
	e.svc.Tune(service.Tunables{WebhookAllowPrivate: true})
	for _, to := range []*string{&store.account, &e.account} {
		a, _, _, err := e.svc.CreateAccount(t.Context(), "acme"+e.account+store.account)
		if err != nil {
			t.Fatal(err)
		}
		*to = a.ID
	}
	e.deliverer = startDeliverer(t, e.svc, store)
	r := newReceiver(t)
	w := e.webhook(r)
	e.put("a", 1, 3)
	e.until("the other account is served", 0, func() bool { return e.pending(w) == 0 })
	if got, _ := r.ids(); len(got) != 3 {
		t.Errorf("got %v", got)
	}
}

// partlyDown is a store whose events of an account cannot be read, as on a node of a Redis Cluster that is down.
type partlyDown struct {
	core.Store
	account string
	down    atomic.Bool
	slow    atomic.Bool // while down
	refused atomic.Int64
	watcher core.Watcher
}

// Watch makes the test report missed changes, as after a failover.
func (s *partlyDown) Watch(w core.Watcher) { s.watcher = w }

func (s *partlyDown) Events(ctx context.Context, account string, f core.EventFilter, after int64, n int) ([]*core.Event, int, error) {
	if account == s.account && s.down.Load() {
		if s.refused.Add(1); s.slow.Load() {
			time.Sleep(200 * time.Millisecond)
		}
		return nil, 0, core.Unavailable(errors.New("down"))
	}
	return s.Store.Events(ctx, account, f, after, n)
}

// newPartlyDown returns an account, and another one whose events cannot be read while the store is down. The deliverer is not started.
func newPartlyDown(t *testing.T) (e, other *env, store *partlyDown) {
	store = &partlyDown{Store: memstore.New()}
	e = &env{t: t, clock: clocktest.New(time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC)), store: store}
	e.svc = service.New(store, service.Config{Clock: e.clock.Wall})
	e.svc.Tune(service.Tunables{WebhookAllowPrivate: true})
	for _, to := range []*string{&store.account, &e.account} {
		a, _, _, err := e.svc.CreateAccount(t.Context(), "acme"+e.account+store.account)
		if err != nil {
			t.Fatal(err)
		}
		*to = a.ID
	}
	other = &env{t: t, clock: e.clock, store: store, svc: e.svc, account: store.account}
	return e, other, store
}

// An account whose part of the store is down delays no delivery of other accounts.
func TestPartOfStoreDown(t *testing.T) {
	e, other, store := newPartlyDown(t)
	w := e.webhook(newReceiver(t))
	other.webhook(newReceiver(t))
	e.put("a", 1, 3)
	store.down.Store(true)
	e.svc.ChangedWebhooks()
	e.deliverer = startDeliverer(t, e.svc, store)
	e.until("the other account is served after the start", 0, func() bool { return e.pending(w) == 0 })
	e.put("b", 1, 3)
	store.watcher.ChangesMissed()
	e.until("the other account is served after missed changes", 0, func() bool { return e.pending(w) == 0 })
}

// An account whose further events are read slowly, and in vain, slows no delivery of other accounts.
func TestPartOfStoreSlow(t *testing.T) {
	e, other, store := newPartlyDown(t)
	w, r := e.webhook(newReceiver(t)), newReceiver(t)
	other.webhook(r)
	var requests atomic.Int64
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) {
		if requests.Add(1) == 1 { // the first events are read
			store.slow.Store(true)
			store.down.Store(true)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	other.put("a", 1, 1300)
	e.deliverer = startDeliverer(t, e.svc, store)
	e.until("further events are needed", 0, func() bool { return store.refused.Load() > 0 })
	e.put("b", 1, 100)
	began := time.Now()
	e.until("the other account is served", 0, func() bool { return e.pending(w) == 0 })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the deliveries of the other account have taken %v", took)
	}
}

// Missed changes, as after a failover of Redis, do not end the pause of a webhook whose receiver is down.
func TestPauseAfterMissedChanges(t *testing.T) {
	e, _, store := newPartlyDown(t)
	r := newReceiver(t)
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusServiceUnavailable) })
	e.webhook(r)
	for i := range 100 {
		e.put(fmt.Sprint("key_", i), 1, 1)
	}
	e.deliverer = startDeliverer(t, e.svc, store)
	requests := func() int { got, _ := r.ids(); return len(got) }
	e.until("the receiver has failed", 100*time.Millisecond, func() bool { return requests() >= 8 })
	time.Sleep(100 * time.Millisecond) // for an attempt that is running
	before := requests()
	store.watcher.ChangesMissed()
	time.Sleep(200 * time.Millisecond)
	if n := requests() - before; n > 0 {
		t.Errorf("got %d requests during the pause", n)
	}
}
