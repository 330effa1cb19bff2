package service_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

var first = core.Page{Number: 1, Size: 10}

// newService returns a service on an empty store. Its clock shows *now.
func newService(now *time.Time) *service.Service {
	return service.New(memstore.New(), service.Config{Clock: func() time.Time { return *now }})
}

// Promise 3: the next request with a revoked owner's key is refused.
func TestOwnerKeys(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, k, secret, err := s.CreateAccount(t.Context(), "  acme ")
	if err != nil {
		t.Fatal(err)
	}
	if a.Name != "acme" || k.Digest != secrets.DigestOf(secret) || k.Hint != secrets.HintOf(secret) {
		t.Errorf("account %+v, key %+v do not belong to %q", a, k, secret)
	}
	if got, err := s.Authenticate(t.Context(), secret); err != nil || got.AccountID != a.ID {
		t.Errorf("Authenticate = %+v, %v, want account %s", got, err, a.ID)
	}
	for _, wrong := range []string{"", "lk_", secrets.NewOwnerSecret(), secrets.NewUserSecret(secrets.DefaultKeyPrefix), secret + " "} {
		if _, err := s.Authenticate(t.Context(), wrong); !errors.Is(err, service.ErrInvalidOwnerKey) {
			t.Errorf("Authenticate(%q) = %v, want %v", wrong, err, service.ErrInvalidOwnerKey)
		}
	}
	second, other, err := s.CreateOwnerKey(t.Context(), a.ID, core.OwnerKeySpec{Name: "deploy"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RevokeOwnerKey(t.Context(), a.ID, k.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), secret); !errors.Is(err, service.ErrInvalidOwnerKey) {
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

// Loading a configuration any number of times has the effect of loading it once.
func TestEnsureAccount(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	secret := secrets.NewOwnerSecret()
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
	added := secrets.NewOwnerSecret()
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

// An account cannot exceed its caps on users, keys and plans, even by concurrent creations. A
// deletion makes room.
func TestCaps(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	b, _, _, _ := s.CreateAccount(t.Context(), "other")
	plan := core.PlanPatch{Name: new("plan"), Limit: core.Some(int64(1)), Period: new("day")}
	pl, _ := s.CreatePlan(t.Context(), a.ID, plan)
	u, _ := s.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("user"), PlanID: core.Some(pl.ID)})
	_, _, err = s.CreateKey(t.Context(), a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
	if err != nil {
		t.Fatal(err)
	}
	tunables := service.DefaultTunables()
	tunables.MaxUsers, tunables.MaxKeys, tunables.MaxPlans = 2, 3, 4
	s.Tune(tunables)
	create := map[string]func() error{
		"2 users; the operator can raise it with the option max_users": func() error {
			_, err := s.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("user")})
			return err
		},
		"3 keys; the operator can raise it with the option max_keys": func() error {
			_, _, err := s.CreateKey(t.Context(), a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
			return err
		},
		"4 plans; the operator can raise it with the option max_plans": func() error {
			_, err := s.CreatePlan(t.Context(), a.ID, plan)
			return err
		},
	}
	for what, create := range create {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				err := create()
				if err != nil && (core.ErrorCode(err) != core.CodeValidation || !strings.HasSuffix(err.Error(), "its cap of "+what)) {
					t.Errorf("%s: got %v", what, err)
				}
			})
		}
		wg.Wait()
	}
	left := func(wantUsers, wantKeys, wantPlans int) {
		t.Helper()
		_, users, _ := s.Users(t.Context(), a.ID, core.UserFilter{}, core.Page{Number: 1, Size: 1})
		_, keys, _ := s.Keys(t.Context(), a.ID, core.KeyFilter{}, core.Page{Number: 1, Size: 1})
		_, plans, _ := s.Plans(t.Context(), a.ID, core.Page{Number: 1, Size: 1})
		if users != wantUsers || keys != wantKeys || plans != wantPlans {
			t.Errorf("got %d users, %d keys, %d plans, want %d, %d, %d", users, keys, plans, wantUsers, wantKeys, wantPlans)
		}
	}
	left(2, 3, 4)
	if _, err := s.CreatePlan(t.Context(), b.ID, plan); err != nil {
		t.Errorf("another account: %v", err)
	}
	if _, err := s.UpdateUser(t.Context(), a.ID, u.ID, core.UserPatch{Name: new("changed")}); err != nil {
		t.Errorf("a change at the cap: %v", err)
	}
	if err := s.DeleteUser(t.Context(), a.ID, u.ID+1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("user")}); err != nil {
		t.Errorf("after one was deleted: %v", err)
	}
	tunables.MaxUsers = 1
	s.Tune(tunables)
	left(2, 3, 4)
	s.Tune(service.Tunables{}) // the defaults
	if _, err := s.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("user")}); err != nil {
		t.Errorf("with the default cap: %v", err)
	}
}

// The service refuses an account until its import is complete: its counters may be too low.
func TestAccountBeingImported(t *testing.T) {
	store := memstore.New()
	s := service.New(store, service.Config{})
	a, _, secret, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	mark := func(i *core.AccountImport) {
		t.Helper()
		_, err := store.UpdateAccount(t.Context(), a.ID, func(a *core.Account) error {
			a.Import = i
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s.ForgetAll()
	}
	check := func(when string, want error) {
		t.Helper()
		_, byName := s.AccountByName(t.Context(), "acme")
		_, byID := s.Account(t.Context(), a.ID)
		_, byKey := s.Authenticate(t.Context(), secret)
		for _, err := range []error{byName, byID, byKey} {
			if !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", when, err, want)
			}
		}
	}
	check("a new account", nil)
	mark(&core.AccountImport{SHA256: "1"})
	check("an incomplete import", core.ErrUnavailable)
	mark(&core.AccountImport{SHA256: "1", Complete: true})
	check("a complete import", nil)
}

// at returns a time in the form of RFC 3339.
func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t
}

// want fails unless err wraps want.
func want(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}
