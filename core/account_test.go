package core_test

import (
	"errors"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

var first = core.Page{Number: 1, Size: 10}

// newService returns a service on an empty store, whose clock stands at *now.
func newService(now *time.Time) *core.Service {
	return core.NewService(memstore.New(), core.Config{Clock: func() time.Time { return *now }})
}

// Promise 3: an owner's key that is revoked is refused by the next request.
func TestOwnerKeys(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, k, secret, err := s.CreateAccount(t.Context(), "  acme ")
	if err != nil {
		t.Fatal(err)
	}
	if a.Name != "acme" || k.Digest != core.DigestOf(secret) || k.Hint != core.HintOf(secret) {
		t.Errorf("account %+v, key %+v do not belong to %q", a, k, secret)
	}
	if got, err := s.Authenticate(t.Context(), secret); err != nil || got.AccountID != a.ID {
		t.Errorf("Authenticate = %+v, %v, want account %s", got, err, a.ID)
	}
	for _, wrong := range []string{"", "lk_", core.NewOwnerSecret(), core.NewUserSecret(), secret + " "} {
		if _, err := s.Authenticate(t.Context(), wrong); !errors.Is(err, core.ErrInvalidOwnerKey) {
			t.Errorf("Authenticate(%q) = %v, want %v", wrong, err, core.ErrInvalidOwnerKey)
		}
	}
	second, other, err := s.CreateOwnerKey(t.Context(), a.ID, "deploy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RevokeOwnerKey(t.Context(), a.ID, k.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), secret); !errors.Is(err, core.ErrInvalidOwnerKey) {
		t.Errorf("a revoked key opens its account: %v", err)
	}
	if got, err := s.Authenticate(t.Context(), other); err != nil || got.ID != second.ID {
		t.Errorf("the other key does not: %v", err)
	}
	now = now.Add(time.Hour)
	again, err := s.RevokeOwnerKey(t.Context(), a.ID, k.ID)
	if err != nil || !again.RevokedAt.Equal(at("2026-03-05T10:00:00Z")) {
		t.Errorf("revoked again at %v, %v, want the first time to stay", again.RevokedAt, err)
	}
	if _, n, _ := s.OwnerKeys(t.Context(), a.ID, first); n != 2 {
		t.Errorf("%d owner's keys, want 2", n)
	}
	if _, err := s.RevokeOwnerKey(t.Context(), "acct_other", second.ID); !errors.Is(err, core.ErrOwnerKeyNotFound) {
		t.Errorf("another account revokes it: %v", err)
	}
}

func TestCreateAccountNames(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	for _, name := range []string{"acme", "Acme", "größe 7"} {
		if _, _, _, err := s.CreateAccount(t.Context(), name); err != nil {
			t.Errorf("CreateAccount(%q) = %v", name, err)
		}
	}
	if _, _, _, err := s.CreateAccount(t.Context(), "acme"); !errors.Is(err, core.ErrAccountExists) {
		t.Errorf("a name twice: %v, want %v", err, core.ErrAccountExists)
	}
	for _, name := range []string{"", " \t", longer(255), "\xff", "a\nb", "a\x00", "a\u0085b"} {
		if _, _, _, err := s.CreateAccount(t.Context(), name); core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("CreateAccount(%q) = %v, want a validation error", name, err)
		}
	}
	if list, n, _ := s.Accounts(t.Context(), first); n != 3 || list[0].Name != "acme" {
		t.Errorf("accounts %v, %d, want 3, the oldest first", list, n)
	}
}

// longer returns a string of n+1 characters.
func longer(n int) string {
	r := make([]rune, n+1)
	for i := range r {
		r[i] = 'é'
	}
	return string(r)
}

// The configuration may be loaded any number of times.
func TestEnsureAccount(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	secret := core.NewOwnerSecret()
	made, err := s.EnsureAccount(t.Context(), "acme", secret)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := s.EnsureAccount(t.Context(), "acme", secret); err != nil || found.ID != made.ID {
		t.Errorf("the second time: %+v, %v, want the same account", found, err)
	}
	if found, err := s.EnsureAccount(t.Context(), " acme\t", secret); err != nil || found.ID != made.ID {
		t.Errorf("with space around the name: %+v, %v, want the same account", found, err)
	}
	added := core.NewOwnerSecret()
	if _, err := s.EnsureAccount(t.Context(), "acme", added); err != nil {
		t.Errorf("another key: %v", err)
	}
	for _, sec := range []string{secret, added} {
		if k, err := s.Authenticate(t.Context(), sec); err != nil || k.AccountID != made.ID {
			t.Errorf("Authenticate = %+v, %v", k, err)
		}
	}
	if _, err := s.EnsureAccount(t.Context(), "other", secret); !errors.Is(err, core.ErrOwnerKeyExists) {
		t.Errorf("the key of another account: %v, want %v", err, core.ErrOwnerKeyExists)
	}
	if _, err := s.EnsureAccount(t.Context(), "acme", ""); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("no key: %v, want a validation error", err)
	}
	k, _ := s.Authenticate(t.Context(), added)
	_, _ = s.RevokeOwnerKey(t.Context(), made.ID, k.ID)
	if got, err := s.EnsureAccount(t.Context(), "acme", added); !errors.Is(err, core.ErrOwnerKeyRevoked) || got == nil || got.ID != made.ID {
		t.Errorf("a revoked key: %+v, %v, want the account and %v", got, err, core.ErrOwnerKeyRevoked)
	}
	if _, err := s.Authenticate(t.Context(), added); err == nil {
		t.Error("configuring a revoked key put it in force again")
	}
}
