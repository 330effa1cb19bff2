package service_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// moving is a key whose user and plans change while requests with it run.
type moving struct {
	*testing.T
	svc           *service.Service
	acct, key     string
	user          int64
	secret        string
	own, of, next string // plans: of the key, of its user, and the next one
}

func newMoving(t *testing.T, cached int) *moving {
	m := &moving{T: t, svc: service.New(memstore.New(), service.Config{Clock: func() time.Time { return at("2026-03-05T10:00:00Z") }})}
	m.svc.Tune(service.Tunables{KeyCache: cached})
	a, _, _, err := m.svc.CreateAccount(t.Context(), "acme")
	m.must(err)
	m.acct = a.ID
	for i, id := range []*string{&m.own, &m.of, &m.next} {
		pl, err := m.svc.CreatePlan(t.Context(), m.acct, core.PlanPatch{
			Name: new(fmt.Sprint("plan ", i)), Limit: core.Some(int64(core.MaxLimit)), Period: new("day")})
		m.must(err)
		*id = pl.ID
	}
	u, err := m.svc.CreateUser(t.Context(), m.acct, core.UserPatch{Name: new("ann"), PlanID: core.Some(m.of)})
	m.must(err)
	m.user = u.ID
	k, secret, err := m.svc.CreateKey(t.Context(), m.acct, core.KeyPatch{Name: new("k"), UserID: &u.ID})
	m.must(err)
	m.key, m.secret = k.ID, secret
	return m
}

func (m *moving) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *moving) validate(secret string) service.Decision {
	m.Helper()
	d, err := m.svc.Validate(context.Background(), m.acct, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
	m.must(err)
	return d
}

// expect fails unless the next decision has an outcome and, if plan is not "", a plan.
func (m *moving) expect(what string, want service.Outcome, plan string) {
	m.Helper()
	d := m.validate(m.secret)
	if d.Outcome != want {
		m.Fatalf("after %s: %s, want %s", what, d.Outcome, want)
	}
	if plan != "" && d.Plan.ID != plan {
		m.Fatalf("after %s: decided on %s, want %s", what, d.Plan.Name, plan)
	}
}

// Promise 3: under load, the next request sees every change of a key, its user or its plan, even if
// the cache is too small for the keys in use.
func TestChangesAreInForceUnderLoad(t *testing.T) {
	for _, cached := range []int{1, 1000} {
		t.Run(fmt.Sprintf("key_cache %d", cached), func(t *testing.T) {
			m := newMoving(t, cached)
			defer m.hammer()()
			for round := range 100 {
				m.round(int64(round))
			}
		})
	}
}

// hammer validates with the key without a pause, until it is stopped.
func (m *moving) hammer() (stop func()) {
	done := make(chan struct{})
	secret := m.secret
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				_, err := m.svc.Validate(context.Background(), m.acct, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
				if err != nil {
					m.Errorf("Validate: %v", err)
					return
				}
			}
		})
	}
	return func() { close(done); wg.Wait() }
}

func (m *moving) round(n int64) {
	ctx := m.Context()
	user := func(p core.UserPatch) {
		m.Helper()
		_, err := m.svc.UpdateUser(ctx, m.acct, m.user, p)
		m.must(err)
	}
	key := func(p core.KeyPatch) {
		m.Helper()
		_, err := m.svc.UpdateKey(ctx, m.acct, m.key, p)
		m.must(err)
	}
	user(core.UserPatch{Disabled: new(true)})
	m.expect("disabling the user", service.Disabled, "")
	user(core.UserPatch{Disabled: new(false), PlanID: core.Some(m.next)})
	m.expect("moving the user to another plan", service.Allowed, m.next)
	user(core.UserPatch{PlanID: core.Some(m.of)})
	m.expect("moving the user back", service.Allowed, m.of)
	key(core.KeyPatch{PlanID: core.Some(m.own)})
	m.expect("giving the key a plan", service.Allowed, m.own)
	key(core.KeyPatch{PlanID: core.Null[string](), Status: new("inactive")})
	m.expect("disabling the key", service.Disabled, "")
	key(core.KeyPatch{Status: new("active")})
	m.expect("enabling the key", service.Allowed, m.of)

	_, err := m.svc.UpdatePlan(ctx, m.acct, m.of, core.PlanPatch{Limit: core.Some(int64(1))})
	m.must(err)
	m.expect("lowering the limit", service.Denied, m.of)
	_, err = m.svc.UpdatePlan(ctx, m.acct, m.of, core.PlanPatch{Limit: core.Some(core.MaxLimit - n)})
	m.must(err)
	m.expect("raising the limit", service.Allowed, m.of)

	before := m.secret
	_, m.secret, err = m.svc.RegenerateKey(ctx, m.acct, m.key, 0)
	m.must(err)
	m.expect("regenerating the key", service.Allowed, m.of)
	if d := m.validate(before); d.Outcome != service.Unknown {
		m.Fatalf("the value from before the regeneration: %s, want %s", d.Outcome, service.Unknown)
	}
}

// Promise 3: the next request with a key of a deleted user is refused.
func TestDeletedUserUnderLoad(t *testing.T) {
	m := newMoving(t, 1000)
	defer m.hammer()()
	m.expect("nothing", service.Allowed, m.of)
	m.must(m.svc.DeleteUser(t.Context(), m.acct, m.user))
	m.expect("deleting the user", service.Unknown, "")
}

// A decision by the prices of the account allocates nothing.
func TestValidateAllocates(t *testing.T) {
	store, secrets := newBenchStore(1)
	s := service.New(store, service.Config{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := service.Request{Secret: secrets[0], Endpoint: "/v1/items/42?page=2", Method: "GET", IP: "203.0.113.9", CostByPrice: true}
	n := testing.AllocsPerRun(1000, func() {
		if d, err := s.Validate(ctx, benchAccount, r); err != nil || !d.Allowed() {
			t.Fatalf("Validate = %v, %v", d.Outcome, err)
		}
	})
	if n > 0 { // the average, rounded down: under the race detector sync.Pool drops a quarter of the values
		t.Errorf("a decision allocates %v times", n)
	}
}

// Each look-up is counted once, as a hit or as a miss.
func TestStatsCountLookUps(t *testing.T) {
	store, secrets := newBenchStore(2)
	s := service.New(store, service.Config{})
	for range 10 {
		for _, secret := range append(secrets, "lk_user_madeup") {
			_, err := s.Validate(t.Context(), benchAccount, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	// 2 keys with a user and a plan each, and a missing key.
	if got, want := s.Stats(), (service.Stats{CacheMisses: 7, CacheHits: 10*7 - 7, CachedKeys: 2}); got != want {
		t.Errorf("Stats() = %+v, want %+v", got, want)
	}
}

// The cached form of a key is bounded: it lacks the members that no decision needs.
func TestDecisionHoldsNoMore(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	acct, secret, id := oneKey(t, s, 10)
	k, err := s.UpdateKey(t.Context(), acct, id, core.KeyPatch{Metadata: object(`{"a":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.UpdateUser(t.Context(), acct, k.UserID, core.UserPatch{Metadata: object(`{"a":1}`), Email: core.Some("a@example.com"), ExternalID: core.Some("cus_1")}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.UpdatePlan(t.Context(), acct, k.PlanID, core.PlanPatch{Description: core.Some("long"), Features: core.Some([]string{"x"})}); err != nil {
		t.Fatal(err)
	}
	d, err := s.Validate(t.Context(), acct, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
	if err != nil || !d.Allowed() {
		t.Fatalf("Validate = %v, %v", d.Outcome, errors.Unwrap(err))
	}
	if d.User.Email != nil || d.Plan.Description != nil {
		t.Errorf("key %+v, user %+v, plan %+v: want no email or description", d.Key, d.User, d.Plan)
	}
	if d.Key.ID != id || d.Key.Name != k.Name || d.Key.Hint != k.Hint || d.User.Name != "ann" || d.Plan.Name != "basic" || d.Plan.ID != k.PlanID {
		t.Errorf("key %+v, user %+v, plan %+v: want the names as they were given", d.Key, d.User, d.Plan)
	}
}
