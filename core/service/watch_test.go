package service_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// shared is a store that other processes change. The watcher learns of a change only if the test
// reports it.
type shared struct {
	*memstore.Store
	watcher core.Watcher
	looks   atomic.Int64 // reads of keys, users, plans and owner's keys
}

func (s *shared) Watch(w core.Watcher) { s.watcher = w }

func (s *shared) KeyByDigest(ctx context.Context, d secrets.Digest) (*core.Key, error) {
	s.looks.Add(1)
	return s.Store.KeyByDigest(ctx, d)
}

func (s *shared) User(ctx context.Context, account string, id int64) (*core.User, error) {
	s.looks.Add(1)
	return s.Store.User(ctx, account, id)
}

func (s *shared) Plan(ctx context.Context, account, id string) (*core.Plan, error) {
	s.looks.Add(1)
	return s.Store.Plan(ctx, account, id)
}

func (s *shared) OwnerKeyByDigest(ctx context.Context, d secrets.Digest) (*core.OwnerKey, error) {
	s.looks.Add(1)
	return s.Store.OwnerKeyByDigest(ctx, d)
}

// watched is a service over a shared store, and a second service that changes the store.
type watched struct {
	*testing.T
	store         *shared
	here, there   *service.Service
	account, plan string
	key           *core.Key
	secret, owner string
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{T: t, store: &shared{Store: memstore.New()}}
	w.there = service.New(w.store.Store, service.Config{})
	w.here = service.New(w.store, service.Config{})
	a, _, owner, err := w.there.CreateAccount(t.Context(), "acme")
	w.ok(err)
	w.account, w.owner = a.ID, owner
	pl, err := w.there.CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("p"), Limit: core.Some(int64(1000)), Period: new("day")})
	w.ok(err)
	w.plan = pl.ID
	_, err = w.there.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("u")})
	w.ok(err)
	w.key, w.secret, err = w.there.CreateKey(t.Context(), a.ID, core.KeyPatch{Name: new("k"), UserID: new(int64(1)), PlanID: core.Optional[string]{Set: true, Value: &pl.ID}})
	w.ok(err)
	return w
}

func (w *watched) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// outcome returns the outcome of a request to the first service.
func (w *watched) outcome() service.Outcome {
	w.Helper()
	d, err := w.here.Validate(w.Context(), w.account, service.Request{Secret: w.secret, Endpoint: "/", Method: "GET", Cost: 1})
	w.ok(err)
	return d.Outcome
}

// looksOf returns the number of reads from the store during a call.
func (w *watched) looksOf(fn func()) int64 {
	before := w.store.looks.Load()
	fn()
	return w.store.looks.Load() - before
}

func (w *watched) disable() {
	w.Helper()
	_, err := w.there.UpdateKey(w.Context(), w.account, w.key.ID, core.KeyPatch{Status: new("inactive")})
	w.ok(err)
}

// Promise 3: without a lease, every request reads from the store.
func TestWatchedWithoutLease(t *testing.T) {
	w := newWatched(t)
	for range 3 {
		if looks := w.looksOf(func() { w.outcome() }); looks != 3 {
			t.Errorf("without a lease: got %d reads, want those of key, user and plan", looks)
		}
	}
	if looks := w.looksOf(func() { _, _ = w.here.Authenticate(t.Context(), w.owner) }); looks != 1 {
		t.Errorf("an owner's key: got %d reads, want 1", looks)
	}
	w.disable()
	if got := w.outcome(); got != service.Disabled {
		t.Errorf("got %s, want %s", got, service.Disabled)
	}
}

// During a lease the cache answers. A change is in force as soon as it is reported.
func TestWatchedLease(t *testing.T) {
	w := newWatched(t)
	w.store.watcher.RenewLease(time.Hour)
	w.outcome()
	if looks := w.looksOf(func() { w.outcome(); w.outcome() }); looks != 0 {
		t.Errorf("during a lease: got %d reads, want none", looks)
	}
	w.disable()
	if got := w.outcome(); got != service.Allowed {
		t.Errorf("before the report: got %s, want the cached outcome", got)
	}
	w.store.watcher.Changed(core.Change{Account: w.account, Digest: w.key.Digest})
	if got := w.outcome(); got != service.Disabled {
		t.Errorf("a key that was disabled: got %s", got)
	}
	_, err := w.there.UpdateKey(t.Context(), w.account, w.key.ID, core.KeyPatch{Status: new("active")})
	w.ok(err)
	w.store.watcher.Changed(core.Change{Account: w.account, Digest: w.key.Digest})
	for what, c := range map[string]core.Change{
		"user":        {Account: w.account, UserID: 1},
		"plan":        {Account: w.account, PlanID: w.plan},
		"key":         {Account: w.account, Digest: w.key.Digest},
		"another key": {Account: w.account, Digest: secrets.DigestOf("x")},
	} {
		w.outcome()
		want := int64(1)
		if what == "another key" {
			want = 0
		}
		w.store.watcher.Changed(c)
		if looks := w.looksOf(func() { w.outcome(); w.outcome() }); looks != want {
			t.Errorf("after a change of the %s: got %d reads, want %d", what, looks, want)
		}
	}
}

// After missed changes, and after the end of a lease, no cached value is used.
func TestWatchedChangesMissed(t *testing.T) {
	w := newWatched(t)
	for name, lose := range map[string]func(){
		"missed":               w.store.watcher.ChangesMissed,
		"lease ended":          func() { w.store.watcher.RenewLease(0) },
		"lease expired":        func() { w.store.watcher.RenewLease(time.Nanosecond) },
		"missed, then renewed": func() { w.store.watcher.ChangesMissed(); w.store.watcher.RenewLease(time.Hour) },
	} {
		w.store.watcher.RenewLease(time.Hour)
		w.outcome()
		_, err := w.here.Authenticate(t.Context(), w.owner)
		w.ok(err)
		lose()
		if looks := w.looksOf(func() { w.outcome() }); looks != 3 {
			t.Errorf("%s: got %d reads, want those of key, user and plan", name, looks)
		}
		if looks := w.looksOf(func() { _, _ = w.here.Authenticate(t.Context(), w.owner) }); looks != 1 {
			t.Errorf("%s: got %d reads of an owner's key, want 1", name, looks)
		}
	}
	w.store.watcher.RenewLease(time.Hour)
	w.store.watcher.ChangesMissed()
	if n := w.here.Stats().CachedKeys; n != 0 {
		t.Errorf("after missed changes: got %d cached keys, want none", n)
	}
}

// A prefix that another process has set is known as soon as it is reported: its keys are accepted.
func TestWatchedKeyPrefix(t *testing.T) {
	w := newWatched(t)
	w.store.watcher.RenewLease(time.Hour)
	set := func(prefix string) {
		_, err := w.there.UpdateAccount(t.Context(), w.account, core.AccountPatch{KeyPrefix: &prefix})
		w.ok(err)
		_, secret, err := w.there.RegenerateKey(t.Context(), w.account, w.key.ID, 0)
		w.ok(err)
		w.secret = secret

	}
	set("watched_a_")
	if got := w.outcome(); got != service.Allowed {
		t.Errorf("the first request: got %s", got)
	}
	set("watched_b_")
	if got := w.outcome(); got != service.Malformed {
		t.Errorf("before the report: got %s, want the cached prefixes", got)
	}
	w.store.watcher.Changed(core.Change{Account: w.account, KeyPrefix: "watched_b_"})
	if got := w.outcome(); got != service.Allowed {
		t.Errorf("after the report: got %s", got)
	}
}

var _ core.WatchedStore = (*shared)(nil)
