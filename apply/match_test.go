package apply_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A user is found by its external id, else by its email, else by its name. Emails may move between users.
func TestUsers(t *testing.T) {
	eachStore(t, func(b *bench) {
		b.apply("account: acme\nusers: [{name: A, email: a@example.com}, {name: A}, {external_id: cus_2, name: B, email: b@example.com}]", apply.Options{},
			`+ user "A" (a@example.com)`, `+ user "A"`, `+ user "B" (b@example.com)`)
		// by the email, which gives the external id
		b.apply("account: acme\nusers: [{external_id: cus_1, email: A@example.com}, {name: A}]", apply.Options{},
			`~ user "A" (a@example.com): email "a@example.com" → "A@example.com", external_id null → "cus_1"`)
		// the email of the first user becomes free, and the second user gets it
		b.apply("account: acme\nusers: [{external_id: cus_2, email: a@example.com}, {external_id: cus_1, email: null}]", apply.Options{},
			`~ user "A" (A@example.com): email "A@example.com" → null`,
			`~ user "B" (b@example.com): email "b@example.com" → "a@example.com"`)
		b.refuse("account: acme\nusers:\n- {external_id: cus_2}\n- {email: a@example.com}\n", apply.Options{},
			`line 4: users[1]: This is the user 3, and so is the user in line 3`)
		b.refuse("account: acme\nusers: [{external_id: cus_3, name: C, email: a@example.com}]", apply.Options{},
			`line 2: users[0].email: A user with this email exists already`)
		// a plan of the user for the plans of its keys, and back
		b.apply(`account: acme
plans: [{name: p, max_requests: 1, request_period: day}]
users: [{external_id: cus_2, plan: p, keys: [{name: k}]}]`, apply.Options{}, `+ plan "p"`, `~ user "B" (a@example.com): plan null → "p"`, `+ key "k" of user "B"`)
		b.apply("account: acme\nusers: [{external_id: cus_2, plan: null, keys: [{name: k, plan: p}]}]", apply.Options{},
			`~ key "k" of user "B": plan null → "p"`, `~ user "B" (a@example.com): plan "p" → null`)
		b.apply("account: acme\nusers: [{external_id: cus_2, plan: p, keys: [{name: k, plan: null}]}]", apply.Options{},
			`~ user "B" (a@example.com): plan null → "p"`, `~ key "k" of user "B": plan "p" → null`)
		b.refuse("account: acme\nusers: [{external_id: cus_2, plan: null}]", apply.Options{},
			`line 2: users[0].plan: The plan cannot be removed while keys without a plan of their own draw on it: 1 key`)
	})
}

// Each account of a file has a transaction of its own, and all are checked before the first one changes.
func TestAccounts(t *testing.T) {
	b := newBench(t, memstore.New())
	if _, _, _, err := b.svc.CreateAccount(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	file := "accounts:\n- account: acme\n  users: [{name: A}]\n- account: other\n  users: [{name: B}]\n"
	b.refuse(file+"  plans: [{name: p}]\n", apply.Options{}, `line 6: accounts[1].plans[0].max_requests: Max requests is required`,
		`line 6: accounts[1].plans[0].request_period: Request period is required`)
	b.refuse(file+"- account: acme\n", apply.Options{}, `line 6: accounts[2].account: Two of the accounts have the account "acme": the other is in line 2`)
	b.refuse("accounts: [{users: []}]", apply.Options{}, `line 1: accounts[0]: The member account is missing: it names the account`)
	b.refuse("account: acme\n", apply.Options{Account: "other"}, `The file has no account "other"`)
	b.apply(file, apply.Options{Account: "other"}, `+ user "B"`)
	b.apply(file, apply.Options{}, `+ user "A"`)
	b.apply("users: [{name: C}]", apply.Options{Account: "acme"}, `+ user "C"`)

	broken := *b
	broken.svc = service.New(&brokenStore{b.store, 0, 2}, service.Config{})
	keys := "accounts:\n- account: other\n  users: [{name: D}]\n- account: acme\n  plans: [{name: p, max_requests: 1, request_period: day}]\n  users: [{name: A, plan: p, keys: [{name: k}]}]\n"
	r, err := broken.try(keys, apply.Options{})
	if err != nil || len(r.Accounts) != 1 || r.Error != `account "acme": the disk is gone` {
		t.Errorf("got %+v, %v, want the changes of other and the error of acme", r, err)
	}
}

// racingStore runs another change before a transaction begins: after a number of others.
type racingStore struct {
	core.Store
	others int
	race   func()
}

func (s *racingStore) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if s.others--; s.others < 0 && s.race != nil {
		race := s.race
		s.race = nil
		race()
	}
	return s.Store.Update(ctx, account, fn)
}

// A change by another request between the reading of the account and a transaction is seen, in the preview and in the transaction that
// stores: nothing is created twice or overwritten by a comparison that is out of date.
func TestRace(t *testing.T) {
	const file = "account: acme\nplans: [{name: p, max_requests: 5, request_period: day}]\nusers: [{name: A, plan: p, keys: [{name: k}]}]"
	for _, previews := range []int{0, 1} {
		racing := &racingStore{Store: memstore.New()}
		b := newBench(t, racing)
		other := *b
		other.svc = service.New(racing.Store, service.Config{})
		race := func(fn func()) { racing.others, racing.race = previews, fn }
		race(func() {
			other.apply(file, apply.Options{}, `+ plan "p"`, `+ user "A"`, `+ key "k" of user "A"`)
		})
		b.apply(file, apply.Options{})
		race(func() {
			other.apply(strings.Replace(file, "5", "6", 1), apply.Options{}, `~ plan "p": max_requests 5 → 6`)
		})
		b.apply(strings.Replace(file, "5", "7", 1), apply.Options{}, `~ plan "p": max_requests 6 → 7`)
		race(func() {
			other.apply("account: acme\nusers: []", apply.Options{Prune: true}, `- key "k" of user "A"`, `- user "A"`)
		})
		b.apply("account: acme\nusers: []", apply.Options{Prune: true})
		if racing.race != nil {
			t.Error("the last change did not run")
		}
	}
}

// A value of a key of another account, or of another user of the account, is refused before anything changes. It can move
// from a key that is deleted.
func TestDigestOfAnotherKey(t *testing.T) {
	eachStore(t, func(b *bench) {
		if _, _, _, err := b.svc.CreateAccount(t.Context(), "other"); err != nil {
			b.Fatal(err)
		}
		file := "plans: [{name: p, max_requests: 5, request_period: day}]\nusers: [{name: A, plan: p, keys: [{name: k, key_sha256: " + digest + "}]}]"
		created := []string{`+ plan "p"`, `+ user "A"`, `+ key "k" of user "A"`}
		b.apply(file, apply.Options{Account: "other"}, created...)
		b.refuse(file, apply.Options{Account: "acme"}, `line 2: users[0].keys[0].key_sha256: Another key has this value`)
		b.apply("users: []", apply.Options{Account: "other", Prune: true}, `- key "k" of user "A"`, `- user "A"`)
		b.apply(file, apply.Options{Account: "acme"}, created...)
		second := strings.Replace(file, "name: A", "name: B", 1)
		b.refuse(second, apply.Options{Account: "acme"}, `line 2: users[0].keys[0].key_sha256: Another key has this value`)
		b.apply(second, apply.Options{Account: "acme", Prune: true}, `- key "k" of user "A"`, `- user "A"`, `+ user "B"`, `+ key "k" of user "B"`)
	})
}

// No value of a key is in the problems, even if the file has it in the wrong place.
func TestSecretsAreMasked(t *testing.T) {
	b := newBench(t, memstore.New())
	before := b.dump()
	secret := secrets.NewUserSecret(secrets.DefaultKeyPrefix)
	for _, file := range []string{
		"account: acme\nusers: [{name: A, keys: [{name: k, key_sha256: " + secret + ", " + secret + ": x}]}]",
		"account: " + secret, secret, "{" + secret + ": [", "account: acme\nusers: [{name: A, plan: " + secret + "}]",
		"account: acme\nplans: [{name: " + secret + "}, {name: " + secret + "}]",
	} {
		_, err := b.try(file, apply.Options{})
		if _, ok := errors.AsType[*apply.Problems](err); !ok || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v, want problems without the secret", file, err)
		}
	}
	if d := cmp.Diff(before, b.dump()); d != "" {
		t.Errorf("the account has changed:\n%s", d)
	}
}
