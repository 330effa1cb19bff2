package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// noon is the time of most requests: Thursday, 2026-03-12, inside a day, a week, a month and a
// year. Its nanoseconds have nine digits.
var noon = time.Date(2026, time.March, 12, 12, 0, 0, 123456789, time.UTC)

// forever is a retention within which no entry expires, whatever the time is.
const forever = 200 * 365 * 24 * time.Hour

func newAccount(id string) (*core.Account, *core.OwnerKey) {
	return &core.Account{ID: id, Name: "name of " + id, CreatedAt: noon}, newOwnerKey(id, "okey_1")
}

func newOwnerKey(account, id string) *core.OwnerKey {
	return &core.OwnerKey{AccountID: account, ID: id, Name: id, Digest: core.DigestOf(account + id),
		Hint: "lk_…" + id, CreatedAt: noon}
}

func newUser(account, name string) *core.User {
	return &core.User{AccountID: account, Name: name, CreatedAt: noon, UpdatedAt: noon}
}

func newPlan(account, id string) *core.Plan {
	return &core.Plan{AccountID: account, ID: id, Name: "name of " + id, Limit: 1000, Period: core.Month,
		CreatedAt: noon, UpdatedAt: noon}
}

// newKey returns a new key. plan may be "".
func newKey(account, id string, user int64, plan string) *core.Key {
	return &core.Key{AccountID: account, ID: id, Name: "name of " + id, UserID: user, PlanID: plan,
		Status: core.KeyActive, Digest: digest(account, id, 1), Hint: "lk_user_…" + id,
		CreatedAt: noon, UpdatedAt: noon}
}

// digest returns the digest of the nth value of a key.
func digest(account, key string, n int) core.Digest {
	return core.DigestOf(fmt.Sprintf("%s/%s/%d", account, key, n))
}

// accountOf returns the account of a user, plan or key.
func accountOf(thing any) string {
	switch x := thing.(type) {
	case *core.User:
		return x.AccountID
	case *core.Plan:
		return x.AccountID
	case *core.Key:
		return x.AccountID
	}
	panic(fmt.Sprintf("%T is not a resource", thing))
}

// putting returns a transaction that stores users, plans and keys. It may run more than once.
func putting(things ...any) func(core.Tx) error {
	var renew []func()
	for _, thing := range things {
		number := numberOf(thing)
		if *number == 0 {
			renew = append(renew, func() { *number = 0 })
		}
	}
	return func(tx core.Tx) error {
		for _, again := range renew {
			again()
		}
		for _, thing := range things {
			if err := put(tx, thing); err != nil {
				return err
			}
		}
		return nil
	}
}

// numberOf returns the member to which the store writes the number of a new resource.
func numberOf(thing any) *int64 {
	switch x := thing.(type) {
	case *core.User:
		return &x.ID
	case *core.Plan:
		return &x.Seq
	case *core.Key:
		return &x.Seq
	}
	panic(fmt.Sprintf("%T is not a resource", thing))
}

func put(tx core.Tx, thing any) error {
	switch x := thing.(type) {
	case *core.User:
		return tx.PutUser(x)
	case *core.Plan:
		return tx.PutPlan(x)
	case *core.Key:
		return tx.PutKey(x)
	}
	panic(fmt.Sprintf("%T is no resource", thing))
}

// Fill creates n users with numbered names, emails and external ids, each with a key on one new plan. It returns
// the plan and the keys in the order of creation.
func Fill(t testing.TB, s core.Store, account string, n int) (*core.Plan, []*core.Key) {
	t.Helper()
	const batch = 100
	pl := newPlan(account, "plan_fill")
	if err := s.Update(t.Context(), account, putting(pl)); err != nil {
		t.Fatalf("Fill: %v", err)
	}
	keys := make([]*core.Key, 0, n)
	for len(keys) < n {
		var users []*core.User
		var things []any
		for i := len(keys); i < min(len(keys)+batch, n); i++ {
			u := newUser(account, fmt.Sprintf("user %d", i+1))
			u.Email, u.ExternalID = new(fmt.Sprintf("user%d@example.com", i+1)), fmt.Sprintf("cus_%d", i+1)
			users, things = append(users, u), append(things, u)
		}
		if err := s.Update(t.Context(), account, putting(things...)); err != nil {
			t.Fatalf("Fill: %v", err)
		}
		things = things[:0]
		for _, u := range users {
			k := newKey(account, fmt.Sprintf("key_fill%d", u.ID), u.ID, pl.ID)
			keys, things = append(keys, k), append(things, k)
		}
		if err := s.Update(t.Context(), account, putting(things...)); err != nil {
			t.Fatalf("Fill: %v", err)
		}
	}
	return pl, keys
}
