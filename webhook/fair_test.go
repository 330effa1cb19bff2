package webhook_test

import (
	"context"
	"errors"
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
	watcher core.Watcher
}

// Watch makes the test report missed changes, as after a failover.
func (s *partlyDown) Watch(w core.Watcher) { s.watcher = w }

func (s *partlyDown) Events(ctx context.Context, account string, f core.EventFilter, after int64, n int) ([]*core.Event, int, error) {
	if account == s.account && s.down.Load() {
		return nil, 0, core.Unavailable(errors.New("down"))
	}
	return s.Store.Events(ctx, account, f, after, n)
}

// An account whose part of the store is down delays no delivery of other accounts.
func TestPartOfStoreDown(t *testing.T) {
	e := &env{t: t, clock: clocktest.New(time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC))}
	store := &partlyDown{Store: memstore.New()}
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
	r := newReceiver(t)
	w := e.webhook(r)
	own := e.account
	e.account = store.account
	e.webhook(newReceiver(t))
	e.account = own
	e.put("a", 1, 3)
	store.down.Store(true)
	e.svc.ChangedWebhooks()
	e.deliverer = startDeliverer(t, e.svc, store)
	e.until("the other account is served after the start", 0, func() bool { return e.pending(w) == 0 })
	e.put("b", 1, 3)
	store.watcher.ChangesMissed()
	e.until("the other account is served after missed changes", 0, func() bool { return e.pending(w) == 0 })
}
