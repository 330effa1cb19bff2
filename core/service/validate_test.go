package service_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

func TestRequestCheck(t *testing.T) {
	ok := service.Request{Secret: "lk_user_a", Endpoint: "/", Method: "GET", Cost: 1}
	tests := []struct {
		name   string
		change func(*service.Request)
		field  string
	}{
		{"fine", func(*service.Request) {}, ""},
		{"largest cost", func(r *service.Request) { r.Cost = core.MaxCost }, ""},
		{"a look", func(r *service.Request) { r.Cost = 0 }, ""},
		{"no key", func(r *service.Request) { r.Secret = "" }, "api_key"},
		{"no endpoint", func(r *service.Request) { r.Endpoint = "" }, "endpoint"},
		{"long endpoint", func(r *service.Request) { r.Endpoint = longer(2048) }, "endpoint"},
		{"no method", func(r *service.Request) { r.Method = "" }, "method"},
		{"long method", func(r *service.Request) { r.Method = strings.Repeat("X", 33) }, "method"},
		{"long address", func(r *service.Request) { r.IP = longer(128) }, "ip_address"},
		{"cost below 0", func(r *service.Request) { r.Cost = -1 }, "cost"},
		{"cost too large", func(r *service.Request) { r.Cost = core.MaxCost + 1 }, "cost"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := ok
			tt.change(&r)
			err := r.Check()
			if fieldOf(err) != tt.field || (err != nil && core.ErrorCode(err) != core.CodeInvalidRequest) {
				t.Errorf("Check() = %v, want an error of %q", err, tt.field)
			}
		})
	}
}

// Promise 4: a history entry contains no secret and is bounded.
func TestHistoryIsCleaned(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	acct, secret, key := oneKey(t, s, 10)
	r := service.Request{Secret: secret, Method: "GET" + strings.Repeat("T", 100), Cost: 1, IP: "203.0.113.9",
		Endpoint: "/x?api_key=" + secret + "&y=\xff\n" + strings.Repeat("é", 2000)}
	if d, err := s.Validate(t.Context(), acct, r); err != nil || !d.Allowed() {
		t.Fatalf("Validate = %+v, %v", d, err)
	}
	entries, n, err := s.KeyHistory(t.Context(), acct, key, first)
	if err != nil || n != 1 {
		t.Fatalf("history of %d, %v", n, err)
	}
	e := entries[0]
	if strings.Contains(e.Endpoint, secret[8:]) || !strings.HasPrefix(e.Endpoint, "/x?api_key=lk_***&y=\uFFFD\uFFFDéé") {
		t.Errorf("endpoint %.60q, want the secret masked and valid UTF-8", e.Endpoint)
	}
	if len(e.Endpoint) > core.MaxEntryEndpoint || len(e.Endpoint) < core.MaxEntryEndpoint-3 || !strings.HasSuffix(e.Endpoint, "é") || len(e.Method) != 32 {
		t.Errorf("endpoint of %d bytes, method of %d, want them cut between characters", len(e.Endpoint), len(e.Method))
	}
}

// oneKey creates a plan of limit requests a day, a user and a key.
func oneKey(t *testing.T, s *service.Service, limit int64) (acct, secret, id string) {
	t.Helper()
	acct = account(t, s)
	pl, err := s.CreatePlan(t.Context(), acct, core.PlanPatch{Name: new("basic"), Limit: core.Some(limit), Period: new("day")})
	if err != nil {
		t.Fatal(err)
	}
	u, err := s.CreateUser(t.Context(), acct, core.UserPatch{Name: new("ann")})
	if err != nil {
		t.Fatal(err)
	}
	k, secret, err := s.CreateKey(t.Context(), acct, core.KeyPatch{Name: new("k"), UserID: &u.ID, PlanID: core.Some(pl.ID)})
	if err != nil {
		t.Fatal(err)
	}
	return acct, secret, k.ID
}

// Promise 1: of 2,000 requests by 64 goroutines on a quota of 1,000, exactly 1,000 are allowed.
func TestValidateIsExact(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	acct, secret, _ := oneKey(t, s, 1000)
	var left, allowed atomic.Int64
	left.Store(2000)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				d, err := s.Validate(context.Background(), acct, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
				if err != nil {
					t.Error(err)
				} else if d.Allowed() {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := allowed.Load(); got != 1000 {
		t.Errorf("%d passed, want 1000", got)
	}
}

// Changing and deleting a plan under load is never an error: a request is decided under the old
// plan or under the new one.
func TestValidateWhilePlansMove(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	acct, secret, key := oneKey(t, s, core.MaxLimit)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				d, err := s.Validate(context.Background(), acct, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
				if err != nil || !d.Allowed() {
					t.Errorf("Validate = %v, %v", d.Outcome, err)
					return
				}
			}
		})
	}
	for range 300 {
		k, err := s.Key(t.Context(), acct, key)
		if err != nil {
			t.Fatal(err)
		}
		pl, err := s.CreatePlan(t.Context(), acct, core.PlanPatch{Name: new("next"), Limit: core.Some(int64(core.MaxLimit)), Period: new("day")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.UpdateKey(t.Context(), acct, key, core.KeyPatch{PlanID: core.Some(pl.ID)}); err != nil {
			t.Fatal(err)
		}
		if err := s.DeletePlan(t.Context(), acct, k.PlanID); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
}

// brokenStore is a store that cannot be reached.
type brokenStore struct{ core.Store }

func (brokenStore) Consume(context.Context, *core.Consumption) (core.ConsumeResult, error) {
	return core.ConsumeResult{}, core.Unavailable(errors.New("disk full"))
}

// If the store fails, Validate returns an error and no decision.
func TestValidateWithoutStore(t *testing.T) {
	mem := memstore.New()
	acct, secret, _ := oneKey(t, service.New(mem, service.Config{}), 10)
	decided := 0
	s := service.New(brokenStore{mem}, service.Config{OnDecision: func(*service.Decision) { decided++ }})
	d, err := s.Validate(t.Context(), acct, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
	if !errors.Is(err, core.ErrUnavailable) || d.Outcome != "" || decided != 0 {
		t.Errorf("Validate = %+v, %v, %d decisions reported, want %v and none", d, err, decided, core.ErrUnavailable)
	}
	_ = mem.Close()
	if _, err := s.Authenticate(t.Context(), secrets.NewOwnerSecret()); core.ErrorCode(err) != core.CodeUnavailable {
		t.Errorf("Authenticate = %v, want %v", err, core.ErrUnavailable)
	}
}
