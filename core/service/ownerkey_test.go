package service_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A regenerated owner's key works on until it is revoked, for a time, or not at all, as chosen.
func TestRegenerateOwnerKey(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	works := func(secret string) bool {
		_, err := s.Authenticate(t.Context(), secret)
		return err == nil
	}
	for _, tc := range []struct {
		name              string
		grace             time.Duration
		now, hour, decade bool
	}{
		{"until it is revoked", -1, true, true, true},
		{"for a time", time.Hour, true, false, false},
		{"not at all", 0, false, false, false},
	} {
		began := now
		old, secret, err := s.CreateOwnerKey(t.Context(), a.ID, core.OwnerKeySpec{Name: "deploy"})
		if err != nil {
			t.Fatal(err)
		}
		k, next, err := s.RegenerateOwnerKey(t.Context(), a.ID, old.ID, tc.grace)
		if err != nil || k.Name != "deploy" || k.ID == old.ID || next == secret {
			t.Fatalf("%s: got %+v, %v", tc.name, k, err)
		}
		for _, at := range []struct {
			after time.Duration
			want  bool
		}{{0, tc.now}, {time.Hour, tc.hour}, {87600 * time.Hour, tc.decade}} {
			now = began.Add(at.after)
			if works(secret) != at.want || !works(next) {
				t.Errorf("%s, after %v: the old key works: %t, want %t; the new key works: %t", tc.name, at.after, works(secret), at.want, works(next))
			}
		}
		if tc.grace >= 0 {
			_, _, err = s.RegenerateOwnerKey(t.Context(), a.ID, old.ID, -1)
			want(t, tc.name+", again", err, core.ErrOwnerKeyRevoked)
		}
	}
	_, _, err = s.RegenerateOwnerKey(t.Context(), a.ID, "okey_none", 0)
	want(t, "a missing key", err, core.ErrOwnerKeyNotFound)
	b, k, _, _ := s.CreateAccount(t.Context(), "other")
	_, _, err = s.RegenerateOwnerKey(t.Context(), a.ID, k.ID, 0)
	want(t, "a key of another account", err, core.ErrOwnerKeyNotFound)
	if _, _, err = s.RegenerateOwnerKey(t.Context(), b.ID, k.ID, service.MaxOwnerGrace+1); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("a grace above the maximum: got %v, want an error", err)
	}
}

// LastUsedAt of an owner's key is exact to the minute.
func TestOwnerKeyLastUsed(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, k, secret, _ := s.CreateAccount(t.Context(), "acme")
	lastUsed := func() *time.Time {
		k, err := s.OwnerKey(t.Context(), a.ID, k.ID)
		if err != nil {
			t.Fatal(err)
		}
		return k.LastUsedAt
	}
	if got := lastUsed(); got != nil {
		t.Errorf("before its use: got %v, want nil", got)
	}
	for _, step := range []struct{ ahead, want time.Duration }{{0, 0}, {59 * time.Second, 0}, {time.Second, time.Minute}, {time.Hour, 61 * time.Minute}} {
		now = now.Add(step.ahead)
		if _, err := s.Authenticate(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		if got, want := lastUsed(), at("2026-03-05T10:00:00Z").Add(step.want); got == nil || !got.Equal(want) {
			t.Errorf("after %v: got %v, want %v", step.ahead, got, want)
		}
	}
	if _, err := s.RevokeOwnerKey(t.Context(), a.ID, k.ID); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	before := lastUsed()
	_, err := s.Authenticate(t.Context(), secret)
	want(t, "a revoked key", err, service.ErrInvalidOwnerKey)
	if got := lastUsed(); !got.Equal(*before) {
		t.Errorf("a refused key: got used at %v, want %v", got, before)
	}
}

// An account has at most 100 owner's keys in force, however they are created.
func TestMaxOwnerKeys(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	c := newTenant(t, svc, "acme")
	for range service.MaxOwnerKeys - 2 { // the account has one from the start
		_, _, err := svc.CreateOwnerKey(t.Context(), c.id, core.OwnerKeySpec{Name: "k"})
		c.ok(err)
	}
	errs := make([]error, 8)
	var creators sync.WaitGroup
	for i := range errs {
		creators.Go(func() { _, _, errs[i] = svc.CreateOwnerKey(t.Context(), c.id, core.OwnerKeySpec{Name: "k"}) })
	}
	creators.Wait()
	created := 0
	for _, err := range errs {
		switch {
		case err == nil:
			created++
		case fieldOf(err) != "name":
			t.Errorf("got %v", err)
		}
	}
	if created != 1 {
		t.Errorf("%d of 8 creations at the same time succeeded, and there was room for 1", created)
	}
	if all, _, err := svc.OwnerKeys(t.Context(), c.id, core.Page{Number: 1, Size: 1}); err != nil {
		t.Fatal(err)
	} else if _, _, err := svc.RegenerateOwnerKey(t.Context(), c.id, all[0].ID, 0); err != nil {
		t.Errorf("a key cannot be replaced at the bound: %v", err)
	}
	keys, _, err := svc.OwnerKeys(t.Context(), c.id, core.Page{Number: 1, Size: 2})
	c.ok(err)
	_, err = svc.RevokeOwnerKey(t.Context(), c.id, keys[1].ID)
	c.ok(err)
	if _, _, err := svc.CreateOwnerKey(t.Context(), c.id, core.OwnerKeySpec{Name: "k"}); err != nil {
		t.Errorf("after one was revoked: %v", err)
	}
}

// An owner's key has the role and the expiry that were chosen, and keeps both when it is regenerated. A key without a role is an owner's.
func TestOwnerKeyRoleAndExpiry(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, first, _, _ := s.CreateAccount(t.Context(), "acme")
	if got := first.ItsRole(); got != core.RoleOwner {
		t.Errorf("role of the first key: got %s, want owner", got)
	}
	for _, tc := range []struct {
		spec  core.OwnerKeySpec
		field string
	}{
		{core.OwnerKeySpec{Name: " "}, "name"},
		{core.OwnerKeySpec{Name: "k", Role: "admin"}, "role"},
		{core.OwnerKeySpec{Name: "k", ExpiresAt: &now}, "expires_at"},
	} {
		_, _, err := s.CreateOwnerKey(t.Context(), a.ID, tc.spec)
		if e, ok := errors.AsType[*core.Error](err); !ok || e.Field != tc.field {
			t.Errorf("%+v: got %v, want an error of %s", tc.spec, err, tc.field)
		}
	}
	end := now.Add(24 * time.Hour)
	k, _, err := s.CreateOwnerKey(t.Context(), a.ID, core.OwnerKeySpec{Name: "k", Role: core.RoleViewer, ExpiresAt: &end})
	if err != nil {
		t.Fatal(err)
	}
	next, secret, err := s.RegenerateOwnerKey(t.Context(), a.ID, k.ID, 0)
	if err != nil || next.ItsRole() != core.RoleViewer || !next.ExpiresAt.Equal(end) {
		t.Fatalf("regenerated: got %+v, %v", next, err)
	}
	now = end.Add(-time.Millisecond)
	if _, err := s.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("before its end: got %v", err)
	}
	now = end
	_, err = s.Authenticate(t.Context(), secret)
	want(t, "at its end", err, service.ErrInvalidOwnerKey)
	if got := (&core.OwnerKey{}).ItsRole(); got != core.RoleOwner {
		t.Errorf("a key without a role: got %s, want owner", got)
	}
}

// An owner's key ends within the years that JSON has: another one could not be listed.
func TestOwnerKeyEndsBeforeYear10000(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	for text, refused := range map[string]bool{"9999-12-31T23:59:59Z": false, "9999-12-31T23:59:59-01:00": true} {
		_, _, err := s.CreateOwnerKey(t.Context(), a.ID, core.OwnerKeySpec{Name: "deploy", ExpiresAt: new(at(text))})
		if refused != (err != nil && core.ErrorCode(err) == core.CodeValidation) || !refused && err != nil {
			t.Errorf("%s: got %v, want a validation error: %t", text, err, refused)
		}
	}
}
