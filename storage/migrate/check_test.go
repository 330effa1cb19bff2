package migrate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// acme is a store with one account, two users and two keys, one of which was used.
func acme(t testing.TB) *memstore.Store {
	t.Helper()
	s := memstore.New()
	w := &world{t: t, s: s, now: noon, acct: "acct_a"}
	w.must(s.CreateAccount(context.Background(), newAccount("acct_a", "acme"), newOwner("acct_a", "okey_1")))
	w.update(func(tx core.Tx) error {
		return firstOf(tx.PutUser(&core.User{AccountID: "acct_a", ID: 1, Name: "one", UpdatedAt: noon}),
			tx.PutUser(&core.User{AccountID: "acct_a", ID: 2, Name: "two", UpdatedAt: noon}),
			tx.PutPlan(&core.Plan{AccountID: "acct_a", ID: "plan_1", Seq: 1, UpdatedAt: noon}),
			tx.PutKey(newKey("key_1", 1, 1)), tx.PutKey(newKey("key_2", 2, 2)))
	})
	use(t, s, "key_1", 1, noon)
	return s
}

func newAccount(id, name string) *core.Account {
	return &core.Account{ID: id, Name: name, CreatedAt: noon}
}

func newOwner(account, id string) *core.OwnerKey {
	return &core.OwnerKey{ID: account + id, AccountID: account, Digest: core.DigestOf(account + id), CreatedAt: noon}
}

func newKey(id string, seq, user int64) *core.Key {
	return &core.Key{AccountID: "acct_a", ID: id, Seq: seq, UserID: user, Status: core.KeyActive, Digest: core.DigestOf(id), UpdatedAt: noon}
}

// use makes a request with a key.
func use(t testing.TB, s core.Store, key string, user int64, at time.Time) {
	t.Helper()
	c := &core.Consumption{Account: "acct_a", KeyID: key, UserID: user, Cost: 1, Terms: core.Terms{Limit: 1000}, Retention: forever,
		Entry: core.Entry{At: at, KeyID: key, UserID: user, Cost: 1}}
	if v, err := s.Consume(context.Background(), c); err != nil || !v.Allowed {
		t.Fatalf("Consume: got %t, %v", v.Allowed, err)
	}
}

// A target with other content is refused before the first write. Otherwise the accounts and the usage of the target
// would be lost.
func TestRefused(t *testing.T) {
	ctx := context.Background()
	update := func(s core.Store, fn func(core.Tx) error) error { return s.Update(ctx, "acct_a", fn) }
	for name, tc := range map[string]struct {
		change func(s *memstore.Store) error // of a target that is a copy, or is empty
		empty  bool
		want   string
	}{
		"another account": {empty: true, want: `it has the account "other" (acct_b), which the source does not have`,
			change: func(s *memstore.Store) error {
				return s.CreateAccount(ctx, newAccount("acct_b", "other"), newOwner("acct_b", "okey_1"))
			}},
		"one account more": {want: `it has the account "other" (acct_b)`,
			change: func(s *memstore.Store) error {
				return s.CreateAccount(ctx, newAccount("acct_b", "other"), newOwner("acct_b", "okey_1"))
			}},
		"the name under another ID": {empty: true, want: `its account "acme" is another one than that of the source: its ID is acct_b, and that of the source acct_a`,
			change: func(s *memstore.Store) error {
				return s.CreateAccount(ctx, newAccount("acct_b", "acme"), newOwner("acct_b", "okey_1"))
			}},
		"another name": {empty: true, want: `it has the account "emca" (acct_a), which the source does not have`,
			change: func(s *memstore.Store) error {
				return s.CreateAccount(ctx, newAccount("acct_a", "emca"), newOwner("acct_a", "okey_1"))
			}},
		"another owner's key": {want: `the account "acme" has the owner's key acct_aokey_2 there, which the source does not have`,
			change: func(s *memstore.Store) error { return s.CreateOwnerKey(ctx, newOwner("acct_a", "okey_2")) }},
		"another first owner's key": {empty: true, want: `has the owner's key acct_aokey_9 there`,
			change: func(s *memstore.Store) error {
				return s.CreateAccount(ctx, newAccount("acct_a", "acme"), newOwner("acct_a", "okey_9"))
			}},
		"another user": {want: `the account "acme" has user 3 there, which the source does not have`,
			change: func(s *memstore.Store) error {
				return update(s, func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: "acct_a"}) })
			}},
		"another plan": {want: `the account "acme" has the plan plan_2 there, which the source does not have`,
			change: func(s *memstore.Store) error {
				return update(s, func(tx core.Tx) error { return tx.PutPlan(&core.Plan{AccountID: "acct_a", ID: "plan_2"}) })
			}},
		"another key": {want: `the account "acme" has the key key_3 there, which the source does not have`,
			change: func(s *memstore.Store) error {
				return update(s, func(tx core.Tx) error { return tx.PutKey(newKey("key_3", 0, 1)) })
			}},
		"a changed user": {want: `user 2 of the account "acme" was changed there after it was changed in the source`,
			change: func(s *memstore.Store) error {
				return update(s, func(tx core.Tx) error {
					return tx.PutUser(&core.User{AccountID: "acct_a", ID: 2, UpdatedAt: noon.Add(1)})
				})
			}},
		"a changed plan": {want: `the plan plan_1 of the account "acme" was changed there`,
			change: func(s *memstore.Store) error {
				return update(s, func(tx core.Tx) error {
					return tx.PutPlan(&core.Plan{AccountID: "acct_a", ID: "plan_1", Seq: 1, UpdatedAt: noon.Add(1)})
				})
			}},
		"a changed key": {want: `the key key_1 of the account "acme" was changed there`,
			change: func(s *memstore.Store) error {
				k := newKey("key_1", 1, 1)
				k.UpdatedAt = noon.Add(1)
				return update(s, func(tx core.Tx) error { return tx.PutKey(k) })
			}},
		"a key that was used": {want: `key key_1 of the account "acme" was used there at 2026-03-12T12:00:01Z, after it was used in the source`,
			change: func(s *memstore.Store) error { use(t, s, "key_1", 1, noon.Add(time.Second)); return nil }},
		"a key that was used there alone": {want: `key key_2 of the account "acme" was used there`,
			change: func(s *memstore.Store) error { use(t, s, "key_2", 2, noon.Add(-time.Hour)); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			source, target := acme(t), memstore.New()
			if !tc.empty {
				mustRun(t, source, target, small())
			}
			if err := tc.change(target); err != nil {
				t.Fatal(err)
			}
			before := everything(t, target)
			_, err := Run(t.Context(), source, &cutOff{Importer: target, left: 0}, small())
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want ErrRefused with %q", err, tc.want)
			}
			wantSame(t, "the target that was refused", before, target)
		})
	}
}

// A target that has the second account and not the first could not be put in order.
func TestRefusedOrder(t *testing.T) {
	source, target := acme(t), memstore.New()
	for _, s := range []core.Store{source, target} {
		if err := s.CreateAccount(t.Context(), newAccount("acct_b", "second"), newOwner("acct_b", "okey_1")); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Run(t.Context(), source, target, small())
	if want := `it has the account "second", and not one that is older`; !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want ErrRefused with %q", err, want)
	}
}

// A fault of either store ends the run with that fault.
func TestFaults(t *testing.T) {
	source, target := acme(t), memstore.New()
	closed := memstore.New()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), closed, target, small()); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("from a closed store: got %v, want ErrUnavailable", err)
	}
	if _, err := Run(t.Context(), source, closed, small()); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("to a closed store: got %v, want ErrUnavailable", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, source, target, small()); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: got %v, want that", err)
	}
}
