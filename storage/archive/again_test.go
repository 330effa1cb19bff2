package archive

import (
	"slices"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// TestImportAgainAfterRevoke: an owner's key of an account whose import was cut is revoked. The same import finishes.
func TestImportAgainAfterRevoke(t *testing.T) {
	from, to := filled(t, 5), memstore.New()
	if !cut(t, from, to, small(), 20, notDone) {
		t.Fatal("the import was not cut")
	}
	revoked := 0
	accounts, _, err := to.Accounts(t.Context(), core.Page{Number: 1, Size: 100})
	for _, a := range accounts {
		keys, _, failed := to.OwnerKeys(t.Context(), a.ID, core.Page{Number: 1, Size: 100})
		for _, k := range keys {
			_, failed = to.UpdateOwnerKey(t.Context(), a.ID, k.ID, func(k *core.OwnerKey) error {
				k.RevokedAt = new(time.Now())
				return nil
			})
			revoked++
		}
		if failed != nil {
			t.Fatal(failed)
		}
	}
	if err != nil || revoked == 0 {
		t.Fatalf("revoked %d owner's keys, %v", revoked, err)
	}
	if _, err := Import(t.Context(), to, FromStore(from, exporting()), small()); err != nil {
		t.Errorf("the same import: %v", err)
	}
}

// TestRestoreAgainBesideService: a restore was cut when the first of two accounts was complete. That account is changed, and the
// restore finishes the second one.
func TestRestoreAgainBesideService(t *testing.T) {
	o := small()
	o.EmptyOnly = true
	incomplete := func(a *core.Account) bool { return a.Incomplete() }
	for seed := range 40 {
		from := filled(t, seed)
		for at := 1; at < 2000; at++ {
			to := memstore.New()
			if !cut(t, from, to, o, at, notDone) {
				break
			}
			accounts, _, err := to.Accounts(t.Context(), core.Page{Number: 1, Size: 100})
			done := slices.IndexFunc(accounts, func(a *core.Account) bool { return a.Import != nil && a.Import.Complete })
			if err != nil || done < 0 || !slices.ContainsFunc(accounts, incomplete) {
				continue
			}
			if _, err := to.UpdateAccount(t.Context(), accounts[done].ID, func(a *core.Account) error {
				a.KeyPrefixes = append(a.KeyPrefixes, "changed_")
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			_, err = Import(t.Context(), to, FromStore(from, exporting()), o)
			accounts, _, _ = to.Accounts(t.Context(), core.Page{Number: 1, Size: 100})
			if err != nil || slices.ContainsFunc(accounts, incomplete) {
				t.Errorf("the same restore: %v; accounts %+v", err, accounts)
			}
			return
		}
	}
	t.Fatal("no restore was cut between two accounts")
}
