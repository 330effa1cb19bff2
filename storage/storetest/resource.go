package storetest

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// noon is the time of most requests: Thursday, 2026-03-12, inside a day, a week, a month and a
// year. Its nanoseconds have nine digits.
var noon = time.Date(2026, time.March, 12, 12, 0, 0, 123456789, time.UTC)

// forever is a retention within which no entry expires, whatever the time is.
const forever = 200 * 365 * 24 * time.Hour

// awkward is text with characters that stores often treat specially.
const awkward = "Ünïcode 日本 \x00\x01/:%{}\u2028\"'\\ <&> 👩‍👩‍👧"

// awkwardName is a name as core accepts it, with such characters.
const awkwardName = "Ünïcode 日本 /:%{}\u2028\"'\\ <&> 👩‍👩‍👧"

// awkwardJSON is compact JSON that another encoder would change.
var awkwardJSON = json.RawMessage(`{"b":1e400,"a":12345678901234567890,"<&>":"\u00e9é\/","e":[{},null,1.0],"z":0.10}`)

func newAccount(id string) (*core.Account, *core.OwnerKey) {
	return &core.Account{ID: id, Name: "name of " + id, CreatedAt: noon}, newOwnerKey(id, "okey_1")
}

func newOwnerKey(account, id string) *core.OwnerKey {
	return &core.OwnerKey{AccountID: account, ID: id, Name: id, Digest: secrets.DigestOf(account + id),
		Hint: "lk_…" + id, CreatedAt: noon, Role: core.RoleSupport}
}

// someAccess returns an Access with every member set.
func someAccess() core.Access {
	return core.Access{
		Password: "$argon2id$v=19$Ünïcode \x00",
		Links:    []core.SignInLink{{Digest: secrets.DigestOf("link 1"), ExpiresAt: noon.In(abroad)}, {Digest: secrets.DigestOf("link 2"), ExpiresAt: noon}},
		People: []core.Person{{ID: "person_1", Name: awkwardName, Email: "one@example.com", Role: core.RoleOwner, Password: "$argon2id$v=19$Ünïcode \x00", CreatedAt: noon, SeenAt: noon.In(abroad)},
			{ID: "person_2", Name: "two", Email: "two@example.com", Role: core.RoleViewer, CreatedAt: noon,
				Invitation: &core.SignInLink{Digest: secrets.DigestOf("invitation"), ExpiresAt: noon.In(abroad)}}},
		Sessions: []core.Session{{Digest: secrets.DigestOf("session 1"), PersonID: "person_1", Address: "192.0.2.1", UserAgent: "Mozilla/5.0 (X11; Linux)", ByLink: true, CreatedAt: noon, SeenAt: noon.Add(time.Nanosecond)},
			{Digest: secrets.DigestOf("session 2"), CreatedAt: noon.Add(time.Hour), SeenAt: noon.Add(time.Hour), FormsAfter: noon,
				SpentForms: []core.FormToken{{ID: "form 1", At: noon}, {ID: "form 2", At: noon.Add(time.Minute)}}}},
		Browsers: []core.Browser{{Digest: secrets.DigestOf("browser 1"), SeenAt: noon, PersonID: "person_1"}, {Digest: secrets.DigestOf("browser 2"), SeenAt: noon.Add(time.Hour)}},
	}
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
func digest(account, key string, n int) secrets.Digest {
	return secrets.DigestOf(fmt.Sprintf("%s/%s/%d", account, key, n))
}

// membersOf returns the account of a user, plan or key, the member to which the store writes the number of a new one, and what puts it.
func membersOf(thing any) (account string, number *int64, put func(core.Tx) error) {
	switch x := thing.(type) {
	case *core.User:
		return x.AccountID, &x.ID, func(tx core.Tx) error { return tx.PutUser(x) }
	case *core.Plan:
		return x.AccountID, &x.Seq, func(tx core.Tx) error { return tx.PutPlan(x) }
	case *core.Key:
		return x.AccountID, &x.Seq, func(tx core.Tx) error { return tx.PutKey(x) }
	}
	panic(fmt.Sprintf("%T is not a resource", thing))
}

// putting returns a transaction that stores users, plans and keys. It may run more than once.
func putting[T any](things ...T) func(core.Tx) error {
	var puts []func(core.Tx) error
	for _, thing := range things {
		_, number, put := membersOf(thing)
		given := *number
		puts = append(puts, func(tx core.Tx) error {
			*number = given
			return put(tx)
		})
	}
	return func(tx core.Tx) error {
		for _, put := range puts {
			if err := put(tx); err != nil {
				return err
			}
		}
		return nil
	}
}

// Fill creates n users with numbered names, emails and external ids, each with a key on one new plan. It returns
// the plan and the keys in the order of creation.
func Fill(t testing.TB, s core.Store, account string, n int) (*core.Plan, []*core.Key) {
	t.Helper()
	pl := newPlan(account, "plan_fill")
	var users []*core.User
	for i := range n {
		u := newUser(account, fmt.Sprintf("user %d", i+1))
		u.Email, u.ExternalID = new(fmt.Sprintf("user%d@example.com", i+1)), fmt.Sprintf("cus_%d", i+1)
		users = append(users, u)
	}
	putAll(t, s, pl)
	putAll(t, s, users...)
	keys := make([]*core.Key, 0, n)
	for _, u := range users {
		keys = append(keys, newKey(account, fmt.Sprintf("key_fill%d", u.ID), u.ID, pl.ID))
	}
	putAll(t, s, keys...)
	return pl, keys
}

// putAll stores resources of one account, 100 in each transaction.
func putAll[T any](t testing.TB, s core.Store, things ...T) {
	t.Helper()
	for len(things) > 0 {
		some := things[:min(100, len(things))]
		account, _, _ := membersOf(some[0])
		if err := s.Update(t.Context(), account, putting(some...)); err != nil {
			t.Fatalf("Update: %v", err)
		}
		things = things[len(some):]
	}
}
