package apply_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// bench is an account in a store.
type bench struct {
	*testing.T
	store   core.Store
	svc     *service.Service
	account string
}

// eachStore runs a test on each kind of store.
func eachStore(t *testing.T, fn func(b *bench)) {
	for name, open := range map[string]func(*testing.T) core.Store{
		"memstore": func(*testing.T) core.Store { return memstore.New() },
		"badgerstore": func(t *testing.T) core.Store {
			s, err := badgerstore.Open(t.TempDir(), badgerstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
	} {
		t.Run(name, func(t *testing.T) { fn(newBench(t, open(t))) })
	}
}

func newBench(t *testing.T, store core.Store) *bench {
	t.Helper()
	b := &bench{t, store, service.New(store, service.Config{}), ""}
	a, _, _, err := b.svc.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	b.account = a.ID
	return b
}

// try applies a file.
func (b *bench) try(file string, o apply.Options) (*apply.Result, error) {
	b.Helper()
	f, err := apply.Parse([]byte(file))
	if err != nil {
		return nil, err
	}
	return apply.Run(b.Context(), b.svc, f, o)
}

// apply applies a file, and checks the lines of its changes.
func (b *bench) apply(file string, o apply.Options, want ...string) *apply.Result {
	b.Helper()
	r, err := b.try(file, o)
	if err != nil {
		b.Fatal(err)
	}
	got := []string{}
	for _, a := range r.Accounts {
		for _, c := range a.Changes {
			got = append(got, c.String())
		}
	}
	if d := cmp.Diff(append([]string{}, want...), got); d != "" {
		b.Errorf("changes (-want +got):\n%s", d)
	}
	return r
}

// refuse checks the lines of the problems of a file, and that the account stays as it is.
func (b *bench) refuse(file string, o apply.Options, want ...string) {
	b.Helper()
	before := b.dump()
	_, err := b.try(file, o)
	problems, ok := errors.AsType[*apply.Problems](err)
	if !ok {
		b.Fatalf("got %v, want problems", err)
	}
	var got []string
	for _, p := range problems.First {
		got = append(got, p.String())
	}
	if d := cmp.Diff(want, got); d != "" {
		b.Errorf("problems (-want +got):\n%s", d)
	}
	if d := cmp.Diff(before, b.dump()); d != "" {
		b.Errorf("the account has changed:\n%s", d)
	}
}

// dump returns everything in the account, with the times of the last changes.
func (b *bench) dump() (lines []string) {
	b.Helper()
	page := core.Page{Number: 1, Size: 1000}
	a, err := b.svc.Account(b.Context(), b.account)
	prices, err0 := b.svc.Prices(b.Context(), b.account)
	plans, _, err1 := b.svc.Plans(b.Context(), b.account, page)
	users, _, err2 := b.svc.Users(b.Context(), b.account, core.UserFilter{}, page)
	keys, _, err3 := b.svc.Keys(b.Context(), b.account, core.KeyFilter{}, page)
	if err := errors.Join(err, err0, err1, err2, err3); err != nil {
		b.Fatal(err)
	}
	add := func(resource any) {
		text, err := json.Marshal(resource)
		if err != nil {
			b.Fatal(err)
		}
		lines = append(lines, string(text))
	}
	add(a)
	add(prices)
	for _, p := range plans {
		add(p)
	}
	for _, u := range users {
		add(u)
	}
	for _, k := range keys {
		add(k)
	}
	return lines
}

const digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" // of "test"

const first = `
account: acme
key_prefix: acme_live_
plans:
  - name: free
    max_requests: 100
    request_period: day
  - name: pro
    description: For companies
    max_requests: 1_000
    request_period: month
    limits: [{meter: tokens, max: 50000, period: month}]
    rate: {requests: 10, per: second}
    features: [sso]
users:
  - name: Acme
    email: ops@acme.example
    plan: pro
    metadata: {tier: gold, seats: 3}
    custom_start: 2026-03-14
    keys:
      - name: ci
      - name: imported
        plan: free
        key_sha256: ` + digest + `
        expires_at: 2099-01-31T00:00:00Z
  - name: Bob
    plan: free
`

// The first run creates everything, the second run changes nothing, and a changed file changes the members that differ.
func TestApply(t *testing.T) {
	eachStore(t, func(b *bench) {
		created := []string{`~ account "acme": key_prefix "lk_user_" → "acme_live_"`, `+ plan "free"`, `+ plan "pro"`,
			`+ user "Acme" (ops@acme.example)`, `+ key "ci" of user "Acme"`, `+ key "imported" of user "Acme"`, `+ user "Bob"`}
		before := b.dump()
		b.apply(first, apply.Options{DryRun: true}, created...)
		if r, err := b.try(first, apply.Options{DryRun: true}); err != nil || len(r.Accounts[0].Keys) != 0 {
			b.Errorf("the dry run: got %+v, %v, want no keys", r, err)
		}
		if d := cmp.Diff(before, b.dump()); d != "" {
			b.Fatalf("a dry run has changed the account:\n%s", d)
		}
		r := b.apply(first, apply.Options{}, created...)
		made := r.Accounts[0].Keys
		if len(made) != 1 || made[0].Name != "ci" || made[0].User != "Acme" || !strings.HasPrefix(made[0].APIKey, "acme_live_") {
			b.Errorf("got the new keys %+v, want the key ci", made)
		}
		d, err := b.svc.Validate(b.Context(), b.account, service.Request{Secret: made[0].APIKey, Endpoint: "/", Method: "GET", Cost: 1})
		if err != nil || !d.Allowed() {
			b.Errorf("the new key: %+v, %v, want it allowed", d, err)
		}

		before = b.dump()
		r = b.apply(first, apply.Options{})
		if len(r.Accounts[0].Keys) != 0 {
			b.Errorf("the second run made keys: %+v", r.Accounts[0].Keys)
		}
		b.apply(first, apply.Options{Prune: true})
		if d := cmp.Diff(before, b.dump()); d != "" {
			b.Errorf("the second run has changed the account:\n%s", d)
		}

		second := strings.NewReplacer("max_requests: 1_000", "max_requests: 2000", "description: For companies", "description: null",
			"seats: 3", "seats: 4", digest, "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
			"plan: free\n        key_sha256", "plan: null\n        status: inactive\n        key_sha256").Replace(first)
		b.apply(second, apply.Options{},
			`~ plan "pro": description "For companies" → null, max_requests 1000 → 2000`,
			`~ user "Acme" (ops@acme.example): metadata {"tier":"gold","seats":3} → {"tier":"gold","seats":4}`,
			`~ key "imported" of user "Acme": plan "free" → null, status "active" → "inactive", key_sha256 "sha256_…0a08" → "sha256_…c752"`)
		b.apply(second, apply.Options{})
	})
}

// A file with one changed plan writes that plan only: every other resource keeps its version.
func TestUnchangedEntriesAreNotStored(t *testing.T) {
	eachStore(t, func(b *bench) {
		file := `account: acme
plans:
  - {name: A, max_requests: 5, request_period: month, features: [x], rate: {requests: 1, per: second, burst: 2}}
  - {name: B, max_requests: 5, request_period: month}
users:
  - {name: Ann, external_id: x1, plan: A, metadata: {b: 2, a: 1}, custom_start: 2026-01-15, keys: [{name: k1, metadata: {c: 1}, expires_at: 2127-01-01T00:00:00Z}]}
  - {name: Bob, external_id: x2, plan: A, email: bob@example.com, keys: [{name: k1, plan: B, status: inactive}]}
`
		if _, err := b.try(file, apply.Options{}); err != nil {
			b.Fatal(err)
		}
		versions := func() map[string]time.Time {
			all := map[string]time.Time{}
			every := core.Page{Number: 1, Size: 100}
			plans, _, err1 := b.store.Plans(b.Context(), b.account, every)
			users, _, err2 := b.store.Users(b.Context(), b.account, core.UserFilter{}, every)
			keys, _, err3 := b.store.Keys(b.Context(), b.account, core.KeyFilter{}, every)
			if err := errors.Join(err1, err2, err3); err != nil {
				b.Fatal(err)
			}
			for _, p := range plans {
				all["plan "+p.Name] = p.UpdatedAt
			}
			for _, u := range users {
				all["user "+u.Name] = u.UpdatedAt
			}
			for _, k := range keys {
				all["key "+k.ID] = k.UpdatedAt
			}
			return all
		}
		before := versions()
		if _, err := b.try(strings.Replace(file, "name: B, max_requests: 5", "name: B, max_requests: 6", 1), apply.Options{}); err != nil {
			b.Fatal(err)
		}
		after := versions()
		for name, at := range before {
			if changed := !after[name].Equal(at); changed != (name == "plan B") {
				b.Errorf("%s: changed %t", name, changed)
			}
		}
		if len(before) != 6 || len(after) != 6 {
			b.Errorf("got %d resources, then %d, want 6", len(before), len(after))
		}
	})
}

// Only --prune deletes resources that the file lacks, and only in the lists that the file has.
func TestPrune(t *testing.T) {
	eachStore(t, func(b *bench) {
		b.apply(first, apply.Options{}, `~ account "acme": key_prefix "lk_user_" → "acme_live_"`, `+ plan "free"`, `+ plan "pro"`,
			`+ user "Acme" (ops@acme.example)`, `+ key "ci" of user "Acme"`, `+ key "imported" of user "Acme"`, `+ user "Bob"`)
		b.apply("account: acme\nplans: []\nusers: []\n", apply.Options{})
		b.apply("account: acme\n", apply.Options{Prune: true})
		b.refuse("account: acme\nplans: [{name: pro}]\n", apply.Options{Prune: true},
			`plan "free": The plan is in use: 1 key and 1 user have it`)
		b.refuse("account: acme\nplans: [{name: pro}]\nusers:\n- {name: Bob, plan: free}\n", apply.Options{Prune: true},
			`line 4: users[0].plan: The plan "free" is not in the file, so it would be deleted`)
		b.apply("account: acme\nusers: [{email: OPS@acme.example, keys: [{name: ci}]}, {name: Bob}]\n", apply.Options{Prune: true},
			`- key "imported" of user "Acme"`,
			`~ user "Acme" (ops@acme.example): email "ops@acme.example" → "OPS@acme.example"`)
		b.apply("account: acme\nplans: [{name: pro}]\nusers: [{email: OPS@acme.example}]\n", apply.Options{Prune: true},
			`- user "Bob"`, `- plan "free"`)
		b.apply("account: acme\nplans: []\nusers: []\n", apply.Options{Prune: true},
			`- key "ci" of user "Acme"`, `- user "Acme" (OPS@acme.example)`, `- plan "pro"`)
	})
}

// An external id that is the value of a key, of the account or of the file, is refused: it would be stored in clear.
func TestExternalIDIsNoKey(t *testing.T) {
	eachStore(t, func(b *bench) {
		digest := fmt.Sprintf("%x", sha256.Sum256([]byte("imported-value")))
		users := "account: acme\nplans: [{name: free, max_requests: 10, request_period: day}]\nusers:\n- {name: A, plan: free, keys: [{name: k, key_sha256: " + digest + "}]}\n"
		same := "- {external_id: imported-value, name: B, plan: free}\n"
		b.refuse(users+same, apply.Options{}, `line 5: users[1].external_id: External id must not be an API key`)
		b.apply(users, apply.Options{}, `+ plan "free"`, `+ user "A"`, `+ key "k" of user "A"`)
		b.refuse("account: acme\nusers:\n"+same, apply.Options{}, `line 3: users[0].external_id: External id must not be an API key`)
		b.apply("account: acme\nusers: [{name: A, keys: []}]\n", apply.Options{Prune: true}, `- key "k" of user "A"`)
		b.apply("account: acme\nusers:\n"+same, apply.Options{}, `+ user "B"`)
		b.refuse(users, apply.Options{}, `line 4: users[0].keys[0].key_sha256: The key is the external id of the user 2, stored in clear: give the user another external id first`)
	})
}

// A problem names line, path and reason; all problems of a file are listed, and nothing is changed.
func TestProblems(t *testing.T) {
	eachStore(t, func(b *bench) {
		for _, tc := range []struct {
			name, file string
			want       []string
		}{
			{"types and unknown members", `account: acme
plans:
  - name: free
    max_requests: many
    request_period: day
    is_actve: true
  - name: 12
    max_requests: 010
users:
  - name: Acme
    plan: free
    plan: pro
    keys:
      - key_sha256: abc
        expires_at: soon
`, []string{
				`line 4: plans[0].max_requests: Must be a whole number in decimal digits`,
				`line 6: plans[0].is_actve: Unknown member: did you mean is_active?`,
				`line 7: plans[1].name: Must be a string; put it in quotation marks`,
				`line 8: plans[1].max_requests: Must be a whole number in decimal digits`,
				`line 12: users[0].plan: Must not be given twice: it is in line 11 too`,
				`line 14: users[0].keys[0].name: Name is required`,
				`line 14: users[0].keys[0].key_sha256: Must be the SHA-256 of the value of the key, as 64 hexadecimal digits or in base64`,
				`line 15: users[0].keys[0].expires_at: Must be a time as in RFC 3339, such as 2030-01-31T00:00:00Z`,
			}},
			{"rules of core", `account: acme
key_prefix: Acme
plans:
  - name: free
    max_requests: 0
    request_period: day
  - name: half
users:
  - name: Acme
    plan: free
    email: nobody
    keys:
      - name: ci
  - name: Bob
    keys:
      - name: ci
        status: broken
      - name: old
        expires_at: 2001-01-01T00:00:00Z
`, []string{
				`line 2: key_prefix: A key prefix has letters a to z, digits and _ only, and not 'A'`,
				`line 5: plans[0].max_requests: Max requests must be greater than 0 and at most 9007199254740991`,
				`line 7: plans[1].max_requests: Max requests is required`,
				`line 7: plans[1].request_period: Request period is required`,
				`line 11: users[0].email: Invalid email format`,
				`line 17: users[1].keys[0].status: Status must be active or inactive`,
				`line 19: users[1].keys[1].expires_at: Expires at must be in the future`,
			}},
			{"names twice", `account: acme
plans: [{name: free, max_requests: 1, request_period: day}, {name: " free", max_requests: 1, request_period: day}]
users:
  - {name: A, email: a@example.com}
  - {name: B, email: A@EXAMPLE.com}
  - {name: C, keys: [{name: k, key_sha256: ` + digest + `}, {name: k}]}
  - {name: C}
  - {email: null}
  - {name: D, keys: [{name: l, key_sha256: n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=}]}
`, []string{
				`line 2: plans[1].name: Two of the plans have the name "free": the other is in line 2`,
				`line 5: users[1].email: Two of the users have the email "a@example.com": the other is in line 4`,
				`line 6: users[2].keys[1].name: Two of the keys have the name "k": the other is in line 6`,
				`line 7: users[3].name: Two of the users have the name "C": the other is in line 6`,
				`line 8: users[4]: A user needs an external_id, an email or a name`,
				`line 9: users[5].keys[0].key_sha256: Two of the keys have the key_sha256 "` + digest + `": the other is in line 6`,
			}},
			{"missing plan and account", "account: acme\nusers: [{name: A, plan: gold}]", []string{
				`line 2: users[0].plan: There is no plan "gold" in the file or in the account`}},
			{"no such account", "account: other", []string{
				`line 1: account: There is no account "other": create it with limitkeeper account create`}},
			{"no account", "plans: []", []string{`The file names no account: add the member account, or give --account`}},
			{"a syntax error", "account: acme\nplans: [\n", []string{`line 2: This is no YAML: did not find expected node content`}},
			{"not an object", "[]", []string{`line 1: Must be an object with members`}},
			{"empty", " # nothing\n", []string{`The file is empty`}},
			{"two documents", "account: acme\n---\naccount: acme\n", []string{`line 2: The file must have one document only`}},
			{"a secret is masked", "account: acme\nusers: [{name: lk_user_0123456789abcdef, plan: lk_user_0123456789abcdef}]", []string{
				`line 2: users[0].plan: There is no plan "lk_***" in the file or in the account`}},
		} {
			b.T.Run(tc.name, func(t *testing.T) {
				(&bench{t, b.store, b.svc, b.account}).refuse(tc.file, apply.Options{}, tc.want...)
			})
		}
	})
}

// Two resources with the name of an entry are an error that names both.
func TestAmbiguity(t *testing.T) {
	b := newBench(t, memstore.New())
	create := func(name string) string {
		pl, err := b.svc.CreatePlan(b.Context(), b.account, core.PlanPatch{Name: &name, Limit: core.Some(int64(1)), Period: new("day")})
		if err != nil {
			b.Fatal(err)
		}
		return pl.ID
	}
	one, two := create("pro"), create("pro")
	for range 2 {
		u, err := b.svc.CreateUser(b.Context(), b.account, core.UserPatch{Name: new("Bob"), PlanID: core.Some(one)})
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := b.svc.CreateKey(b.Context(), b.account, core.KeyPatch{Name: new("k"), UserID: new(min(u.ID, 1))}); err != nil {
			b.Fatal(err)
		}
	}
	plans := "The account has 2 plans with the name \"pro\": " + one + ", " + two + ". Rename or delete all but one"
	b.refuse("account: acme\nplans:\n- {name: pro}\n", apply.Options{}, "line 3: plans[0]: "+plans)
	b.refuse("account: acme\nusers:\n- {name: A, plan: pro}\n", apply.Options{}, "line 3: users[0]: "+plans)
	b.refuse("account: acme\nusers:\n- {name: Bob}\n", apply.Options{},
		`line 3: users[0]: The account has 2 users with the name "Bob": 1, 2. Rename or delete all but one`)
	if _, err := b.svc.UpdateUser(b.Context(), b.account, 1, core.UserPatch{Email: core.Some("bob@example.com")}); err != nil {
		b.Fatal(err)
	}
	b.refuse("account: acme\nusers:\n- {email: bob@example.com, keys: [{name: k}]}\n- {name: Bob}", apply.Options{},
		keysTwice(b, "line 3: users[0].keys[0]: "))
}

// keysTwice returns the problem for the two keys of user 1.
func keysTwice(b *bench, at string) string {
	keys, _, err := b.svc.Keys(b.Context(), b.account, core.KeyFilter{UserID: 1}, core.Page{Number: 1, Size: 2})
	if err != nil || len(keys) != 2 {
		b.Fatal(keys, err)
	}
	return at + `The account has 2 keys with the name "k": ` + keys[0].ID + ", " + keys[1].ID + ". Rename or delete all but one"
}

// brokenStore fails in the middle of a transaction: after a number of keys. The first transactions, the previews, do not fail.
type brokenStore struct {
	core.Store
	keys, previews int
}

type brokenTx struct {
	core.Tx
	left *int
}

var errBroken = errors.New("the disk is gone")

func (s *brokenStore) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	left := s.keys
	if s.previews--; s.previews >= 0 {
		return s.Store.Update(ctx, account, fn)
	}
	return s.Store.Update(ctx, account, func(tx core.Tx) error { return fn(brokenTx{tx, &left}) })
}

func (tx brokenTx) PutKey(k *core.Key) error {
	if *tx.left--; *tx.left < 0 {
		return errBroken
	}
	return tx.Tx.PutKey(k)
}

// A change that fails in the middle of the transaction leaves nothing behind. The next run makes all changes.
func TestFailureInTheMiddle(t *testing.T) {
	eachStore(t, func(b *bench) {
		file := strings.Replace(first, "key_prefix: acme_live_\n", "", 1)
		before := b.dump()
		for n := range 2 {
			broken := *b
			broken.svc = service.New(&brokenStore{b.store, n, 1}, service.Config{})
			if r, err := broken.try(file, apply.Options{}); !errors.Is(err, errBroken) {
				b.Fatalf("got %+v, %v, want the error of the store", r, err)
			}
			if d := cmp.Diff(before, b.dump()); d != "" {
				b.Fatalf("the account has changed:\n%s", d)
			}
		}
		if r, err := b.try(file, apply.Options{}); err != nil || r.Changes() != 6 {
			b.Errorf("got %+v, %v, want 6 changes", r, err)
		}
	})
}
