package service_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// Everything of a deleted account answers like something that does not exist, beginning with the next request, and its name is free at once. Then
// everything of it is removed.
func TestDeleteAccount(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	store := memstore.New()
	s := service.New(store, service.Config{Clock: func() time.Time { return now }})
	d := newDoors(t, s)
	link, unknown := d.link(), d.answers("", true)
	a, err := s.DeleteAccount(t.Context(), d.account)
	d.ok(err)
	if a.Status() != core.StatusDeleting {
		t.Errorf("got %+v, want an account that is being deleted", a)
	}
	compare := func(when string) {
		t.Helper()
		got := d.answers(link, false)
		for door, want := range unknown {
			if got[door] != want {
				t.Errorf("%s: %s: got %q, an unknown one answers %q", when, door, got[door], want)
			}
		}
	}
	compare("before anything is removed")
	for what, err := range map[string]error{
		"rename":  second(s.RenameAccount(t.Context(), d.account, "new")),
		"enable":  second(s.SetAccountDisabled(t.Context(), d.account, false)),
		"again":   second(s.DeleteAccount(t.Context(), d.account)),
		"missing": second(s.DeleteAccount(t.Context(), "acct_none")),
	} {
		if !errors.Is(err, core.ErrAccountNotFound) {
			t.Errorf("%s: got %v, want %v", what, err, core.ErrAccountNotFound)
		}
	}
	d.ok(s.ExpireHolds(t.Context()))
	d.ok(s.RankAccounts(t.Context()))
	if n, err := s.AccountSize(t.Context(), d.account); err != nil || n == 0 {
		t.Errorf("keys and users left: got %d, %v", n, err)
	}
	var last service.Purge
	d.ok(s.PurgeAccounts(t.Context(), func(p service.Purge) { last = p }))
	if !last.Done || last.Account.ID != d.account {
		t.Errorf("the progress ends with %+v, want Done", last)
	}
	compare("after everything is removed")
	if list, n, err := s.Accounts(t.Context(), first); err != nil || n != 0 {
		t.Errorf("accounts: got %v, %d, %v, want none", list, n, err)
	}
	again, err := s.EnsureAccount(t.Context(), doorName, d.owner)
	if err != nil || again.ID == d.account {
		t.Errorf("a new account with the name and the owner's key: got %+v, %v", again, err)
	}
}

func second[T any](_ T, err error) error { return err }

// The name of an account is free as soon as its deletion begins, and an account that is being deleted is no former one of that name.
func TestNameOfDeletedAccount(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, _, _, err := s.CreateAccount(t.Context(), "first")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RenameAccount(t.Context(), a.ID, "second"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeleteAccount(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		if found, err := s.RenamedAccount(t.Context(), name); found != nil || err != nil {
			t.Errorf("%s: got the renamed account %+v, %v, want none", name, found, err)
		}
		if _, _, _, err := s.CreateAccount(t.Context(), name); err != nil {
			t.Errorf("a new account %q: %v", name, err)
		}
	}
	if err := s.PurgeAccounts(t.Context(), func(service.Purge) {}); err != nil {
		t.Fatal(err)
	}
	if list, n, _ := s.Accounts(t.Context(), first); n != 2 {
		t.Errorf("accounts: got %v, want the two new ones", list)
	}
}

// failingPurge is a store that cannot remove one account.
type failingPurge struct {
	*memstore.Store
	account string
}

func (s *failingPurge) PurgeAccount(ctx context.Context, id string) (bool, error) {
	if id == s.account {
		return true, core.ErrUnavailable
	}
	return s.Store.PurgeAccount(ctx, id)
}

// An error of one account does not keep the others, and the next call goes on.
func TestPurgeGoesOn(t *testing.T) {
	store := &failingPurge{Store: memstore.New()}
	s := service.New(store, service.Config{})
	for _, name := range []string{"a", "b"} {
		a, _, _, err := s.CreateAccount(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.DeleteAccount(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		if name == "a" {
			store.account = a.ID
		}
	}
	if err := s.PurgeAccounts(t.Context(), func(service.Purge) {}); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, core.ErrUnavailable)
	}
	if _, n, _ := s.Accounts(t.Context(), first); n != 1 {
		t.Errorf("got %d accounts, want 1: the other one is removed", n)
	}
	store.account = ""
	if err := s.PurgeAccounts(t.Context(), func(service.Purge) {}); err != nil {
		t.Error(err)
	}
	if _, n, _ := s.Accounts(t.Context(), first); n != 0 {
		t.Errorf("got %d accounts, want none", n)
	}
}
