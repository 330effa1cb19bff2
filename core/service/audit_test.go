package service_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// Entries are kept for 400 days. TrimAudit removes older ones, more than one call of the store takes, and no others.
func TestTrimAudit(t *testing.T) {
	now := time.Date(2026, time.March, 14, 9, 0, 0, 0, time.UTC)
	store := memstore.New()
	s := service.New(store, service.Config{Clock: func() time.Time { return now }})
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	const old = core.MaxImport + 10
	for range old {
		if err := store.AppendAudit(t.Context(), a.ID, []core.AuditEntry{{At: now, Action: "usage.adjust"}}); err != nil {
			t.Fatal(err)
		}
	}
	found := func() int {
		t.Helper()
		p, err := s.Audit(t.Context(), a.ID, service.AuditFilter{}, core.Page{Number: 1, Size: 1})
		if err != nil {
			t.Fatal(err)
		}
		return p.Found
	}
	const ofCreation = 2 // of the account and its owner's key
	for _, step := range []struct {
		by   time.Duration
		want int
	}{{core.AuditRetention, old + ofCreation}, {48 * time.Hour, 1}} {
		now = now.Add(step.by)
		if step.want == 1 {
			if _, err := s.CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("p"), Limit: core.Some(int64(1)), Period: new("month")}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.TrimAudit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := found(); got != step.want {
			t.Errorf("after %v: got %d entries, want %d", step.by, got, step.want)
		}
	}
}

// stuckAudit is a store that cannot remove entries of the audit log of an account.
type stuckAudit struct {
	core.Store
	account string
}

func (s *stuckAudit) RemoveAudit(ctx context.Context, account string, first, last int64) (more bool, err error) {
	if account == s.account {
		return false, core.Unavailable(errors.New("down"))
	}
	return s.Store.RemoveAudit(ctx, account, first, last)
}

// An account whose audit log cannot be trimmed keeps no later account from being trimmed.
func TestTrimAuditBesideStuckAccount(t *testing.T) {
	store := &stuckAudit{Store: memstore.New()}
	now := time.Date(2026, time.March, 14, 9, 0, 0, 0, time.UTC)
	s := service.New(store, service.Config{Clock: func() time.Time { return now }})
	first, second := newTenant(t, s, "first"), newTenant(t, s, "second")
	store.account = first.id
	now = now.Add(core.AuditRetention + 48*time.Hour)
	if err := s.TrimAudit(t.Context()); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("got %v, want the error of the first account", err)
	}
	for _, x := range []struct {
		*tenant
		trimmed bool
	}{{first, false}, {second, true}} {
		p, err := s.Audit(t.Context(), x.id, service.AuditFilter{}, core.Page{Number: 1, Size: 1})
		if err != nil || (p.Found == 0) != x.trimmed {
			t.Errorf("account %s: got %d entries, error %v, want none: %v", x.id, p.Found, err, x.trimmed)
		}
	}
}

// An adjustment that is not made leaves no entry, and a repeated one leaves one.
func TestAuditOfAdjustments(t *testing.T) {
	s := service.New(memstore.New(), service.Config{})
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	u, err := s.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("u")})
	if err != nil {
		t.Fatal(err)
	}
	call := service.AdjustmentCall{Adjustment: core.Adjustment{Meter: core.MeterRequests, Value: 1, Reason: "r"}, RequestID: "one"}
	for i := range 3 {
		if _, repeated, err := s.AdjustUser(t.Context(), a.ID, u.ID, call); err != nil || repeated != (i > 0) {
			t.Fatalf("adjustment %d: got repeated %v, error %v", i, repeated, err)
		}
	}
	if _, _, err := s.AdjustUser(t.Context(), a.ID, 99, call); !errors.Is(err, core.ErrUserNotFound) {
		t.Errorf("a missing user: got error %v, want %v", err, core.ErrUserNotFound)
	}
	p, err := s.Audit(t.Context(), a.ID, service.AuditFilter{Action: "usage.adjust", Target: fmt.Sprint(u.ID)}, core.Page{Number: 1, Size: 10})
	if err != nil || p.Found != 1 {
		t.Errorf("entries of adjustments: got %d, error %v, want 1", p.Found, err)
	}
}
