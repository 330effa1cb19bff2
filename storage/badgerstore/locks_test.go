package badgerstore

import (
	"fmt"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// A transaction, or a change of the sign-in, of one account that does not end delays no other account, however many there are.
func TestAccountsAreLockedApart(t *testing.T) {
	t.Parallel()
	s := openIn(t, t.TempDir(), Options{})
	const accounts = 100
	id := func(i int) string { return fmt.Sprintf("acct_%d", i) }
	for i := range accounts {
		if err := s.CreateAccount(t.Context(), &core.Account{ID: id(i), Name: id(i)}, &core.OwnerKey{ID: "okey", AccountID: id(i), Digest: secrets.DigestOf(id(i))}); err != nil {
			t.Fatal(err)
		}
	}
	begun, end := make(chan bool, 2), make(chan bool)
	wait := func() error { begun <- true; <-end; return nil }
	done := make(chan error, 2)
	go func() { done <- s.Update(t.Context(), id(0), func(core.Tx) error { return wait() }) }()
	go func() {
		_, err := s.UpdateAccess(t.Context(), id(0), func(*core.Access) error { return wait() })
		done <- err
	}()
	<-begun
	<-begun
	for i := 1; i < accounts; i++ { // hangs if it waits
		if err := s.Update(t.Context(), id(i), func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: id(i), Name: "u"}) }); err != nil {
			t.Error(err)
		}
		if _, err := s.UpdateAccess(t.Context(), id(i), func(*core.Access) error { return nil }); err != nil {
			t.Error(err)
		}
		if _, err := s.UpdateOwnerKey(t.Context(), id(i), "okey", func(*core.OwnerKey) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	close(end)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
