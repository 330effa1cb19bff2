package badgerstore

import (
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// A record that Badger cannot apply is refused before it is in the event log. Otherwise each start would replay it, and fail.
func TestRecordTooLarge(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	owner := func(account string) *core.OwnerKey {
		return &core.OwnerKey{ID: "okey_" + account, AccountID: account, Digest: secrets.DigestOf(account)}
	}
	if err := s.CreateAccount(t.Context(), &core.Account{ID: "a", Name: "a"}, owner("a")); err != nil {
		t.Fatal(err)
	}
	user := func(u core.User) func() error {
		u.AccountID = "a"
		return func() error {
			return s.Update(t.Context(), "a", func(tx core.Tx) error { return tx.PutUser(&u) })
		}
	}
	for name, put := range map[string]func() error{
		"a long name of an account": func() error {
			return s.CreateAccount(t.Context(), &core.Account{ID: "b", Name: strings.Repeat("n", 65_100)}, owner("b"))
		},
		"a long external id": user(core.User{ExternalID: strings.Repeat("x", 65_100)}),
		"a long email":       user(core.User{Email: new(strings.Repeat("e", 200_000))}),
		"a large record":     user(core.User{Name: strings.Repeat("n", 256<<10)}),
	} {
		if err := put(); err == nil || !strings.Contains(err.Error(), "does not fit into the database") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := user(core.User{Name: "ok"})(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openIn(t, dir, Options{})
	if _, total, err := s.Users(t.Context(), "a", core.UserFilter{}, core.Page{Number: 1, Size: 10}); err != nil || total != 1 {
		t.Errorf("after the restart: %d users, %v", total, err)
	}
}
