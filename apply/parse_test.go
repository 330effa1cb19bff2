package apply_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A file that is too large, or that grows too large with its aliases, is refused before it takes much memory.
func TestBounds(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 9 {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), i)
	}
	bomb.WriteString("users: [{name: A, metadata: {m: *a9}}]\n")
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	for _, tc := range []struct{ name, file, want string }{
		{"size", "#" + strings.Repeat("x", apply.MaxSize), "The file is larger than 16 MiB"},
		{"parts", "users: [" + strings.Repeat("a,", 1_000_001) + "]", "The file has more than 1000000 lines, list items, commas and brackets"},
		{"aliases", bomb.String(), "Aliases are not supported: write the value in place of *a9"},
		{"an alias in itself", "account: a\nusers: [{name: A, metadata: &m {m: *m}}]", "Aliases are not supported: write the value in place of *m"},
		{"depth", "account: a\nusers: [{name: A, metadata: {m: " + deep + "}}]", "Must not be nested that deeply"},
		{"depth in JSON", `{"account": "a", "users": [{"name": "A", "metadata": {"m": ` + deep + `}}]}`, "Must not be nested that deeply"},
		{"UTF-8", "account: \xff", "The file must be valid UTF-8"},
		{"a merge key", "account: a\nplans:\n- &p {name: a}\n- {<<: *p, name: b}\n", "Merge keys (<<) are not supported: write the members in their place"},
		{"a number in the metadata", "account: a\nusers: [{name: A, metadata: {m: 0x1F}}]", "Must be a value as in JSON"},
		{"a tag", "account: !secret a", "Must be a string; put it in quotation marks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := apply.Parse([]byte(tc.file))
			problems, ok := errors.AsType[*apply.Problems](err)
			if !ok {
				t.Fatalf("got %v, want problems", err)
			}
			for _, p := range problems.First {
				if p.Text == tc.want {
					return
				}
			}
			t.Errorf("got %v, want %q", err, tc.want)
		})
	}
}

// The name of an unknown member cannot change a terminal, or add a line to the problems.
func TestControlCharacters(t *testing.T) {
	_, err := apply.Parse([]byte(`{"account": "a", "\u001b[31mred\nline 9: ": 1}`))
	if want := "line 1: \ufffd[31mred\ufffdline 9: : Unknown member"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %q, want %q at the end", err, want)
	}
}

// The first 100 problems are listed, with the number of the others.
func TestManyProblems(t *testing.T) {
	_, err := apply.Parse([]byte("account: acme\nusers:\n" + strings.Repeat("- {}\n", 150)))
	if err == nil || !strings.HasPrefix(err.Error(), "150 problems, nothing was changed:\n  line 3: users[0]: ") || !strings.HasSuffix(err.Error(), "\n  and 50 more") {
		t.Errorf("got %v, want 100 problems and 50 more", err)
	}
}

// JSON and YAML are the same file, with the numbers and strings of both languages.
func TestJSON(t *testing.T) {
	b := newBench(t, memstore.New())
	b.apply(`{"account": "acme",
"plans": [{"name": "free \ud83d\ude00", "max_requests": 1e3, "request_period": "day"}],
"users": [{"name": "A", "metadata": {"n": 1.50, "t": [true, null, "x"]}}, {"name": "B", "metadata": {"n": 1.50, "t": [true, null, "x"]}}]}`,
		apply.Options{}, `+ plan "free 😀"`, `+ user "A"`, `+ user "B"`)
	b.apply(`account: acme
plans: [{name: free 😀, max_requests: 1_000, request_period: day}]
users:
- {name: A, metadata: {t: [true, null, x], n: 1.50}}
- {name: B, metadata: {n: 1.50, t: [true, null, x]}}
`, apply.Options{})
	_, err := apply.Parse([]byte("{\"account\": \"acme\",\n\"plans\": [\n{\"name\": \"a\",\n\"max\": 1}]}"))
	if err == nil || !strings.Contains(err.Error(), "line 4: plans[0].max: Unknown member") {
		t.Errorf("got %v, want an unknown member in line 4", err)
	}
}

// Parse never fails but with problems, and applying a file that it accepts never fails but with problems. The second run
// finds no changes.
func FuzzParse(f *testing.F) {
	f.Add(first)
	f.Add(`{"account": "acme", "plans": [{"name": "a", "max_requests": null, "limits": [{"meter": "t", "max": 1, "period": "day"}]}]}`)
	f.Add("accounts:\n- account: acme\n  users: [{external_id: x, name: A, keys: []}, {email: a@b.example, name: B, plan: null}]\n")
	f.Add("account: acme\nusers: [{name: &n A, metadata: &m {a: [*n]}, keys: [{name: k, metadata: *m, status: inactive}]}]\n")
	f.Fuzz(func(t *testing.T, file string) {
		b := newBench(t, memstore.New())
		before := b.dump()
		r, err := b.try(file, apply.Options{Account: "acme"})
		if err != nil {
			if _, ok := errors.AsType[*apply.Problems](err); !ok {
				t.Fatalf("got %v, want problems", err)
			}
			if d := cmp.Diff(before, b.dump()); d != "" {
				t.Fatalf("the account has changed:\n%s", d)
			}
			return
		}
		if r.Error != "" {
			t.Fatal(r.Error)
		}
		if r, err = b.try(file, apply.Options{Account: "acme"}); err != nil || r.Changes() > 0 {
			t.Fatalf("the second run: %+v, %v, want no changes", r, err)
		}
	})
}

// What people write wrong, and the problems that they read.
func TestMessages(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"a misspelt member":         {"account: acme\nplan:\n- name: a\n", "  line 2: plan: Unknown member: did you mean plans?"},
		"a rate of other gateways":  {"account: acme\nplans:\n- name: a\n  rate: 10/s\n", "  line 4: plans[0].rate: Must be a rate, such as {\"requests\": 10, \"per\": \"second\", \"burst\": 20}"},
		"a new plan with a name":    {"account: acme\nplans:\n- name: new\n", "  line 3: plans[0].max_requests: Max requests is required\n  line 3: plans[0].request_period: Request period is required"},
		"account and accounts":      {"account: acme\naccounts:\n- account: acme\n  plans: []\nplans: []\n", "  line 1: account: Must not stand beside accounts: put it into an item of accounts\n  line 5: plans: Must not stand beside accounts"},
		"a member of a plan":        {"account: acme\nplans:\n- name: a\nmax_requests: 1\n", "  line 4: max_requests: Unknown member: it is a member of a plan, so check the indentation"},
		"the value of a key":        {"account: acme\nusers:\n- name: a\n  keys:\n  - name: k\n    key: lk_user_0\n", "  line 6: users[0].keys[0].key: Unknown member: a file has no values of keys. Give the SHA-256 of the value as key_sha256"},
		"a wrong indentation":       {"account: acme\nplans:\n- name: a\n  max_requests: 1\n   request_period: day\nusers:\n- name: x\n", "  line 5: This is no YAML: mapping values are not allowed in this context"},
		"a member out of its list":  {"account: acme\nplans:\n- name: a\n  max_requests: 1\n request_period: day\n", "  line 5: This is no YAML: did not find expected key"},
		"a rule and a member":       {"account: acme\nplan: 1\nplans:\n- name: a\n  max_requests: -1\n", "  line 2: plan: Unknown member: did you mean plans?\n  line 5: plans[0].max_requests: Max requests must be"},
		"two rules":                 {"account: acme\nplans:\n- {name: a, request_period: day,\n  max_requests: 0}\n- {name: b, max_requests: 1,\n  request_period: fortnight}\n", "  line 4: plans[0].max_requests: Max requests must be greater than 0 and at most 9007199254740991\n  line 6: plans[1].request_period: Request period must be"},
		"three rules of a plan":     {"account: acme\nplans:\n- name: a\n  max_requests: 0\n  request_period: fortnight\n  rate: {requests: 0, per: second}\n", "  line 4: plans[0].max_requests: Max requests must be greater than 0 and at most 9007199254740991\n  line 5: plans[0].request_period: Request period must be one of day, week, month, year\n  line 6: plans[0].rate: "},
		"a type and rules of a key": {"account: acme\nusers:\n- name: a\n  keys:\n  - name: 5\n    status: off\n    metadata: {a: " + strings.Repeat("x", 4096) + "}\n", "  line 5: users[0].keys[0].name: Must be a string; put it in quotation marks\n  line 6: users[0].keys[0].status: Status must be active or inactive\n  line 7: users[0].keys[0].metadata: Metadata must be at most 4 KiB"},
		"a wrong part of a rate":    {"account: acme\nplans:\n- name: a\n  rate: {requests: x, per: second}\n  request_period: minute\n", "  line 4: plans[0].rate.requests: Must be a whole number in decimal digits\n  line 5: plans[0].request_period: Request period must be one of day, week, month, year"},
		"a digest in two accounts":  {"accounts:\n- account: acme\n  users:\n  - {name: a, keys: [{name: k, key_sha256: " + digest + "}]}\n- account: b\n  users:\n  - name: a\n    keys:\n    - name: k\n      key_sha256: " + digest, "  line 10: accounts[1].users[0].keys[0].key_sha256: Two of the keys have the key_sha256 \"" + digest + "\": the other is in line 4"},
		"a wrong part of a limit":   {"account: acme\nplans:\n- name: a\n  limits: [{meter: a,\n    max: x, period: day}]\n  is_active:\n  request_period: minute\n", "  line 5: plans[0].limits[0].max: Must be a whole number in decimal digits\n  line 6: plans[0].is_active: Must be true or false, not null\n  line 7: plans[0].request_period: "},
		"a wrong name of a user":    {"account: acme\nusers:\n- name: 12\n- name: null\n- external_id: 1\n- email: null\n", "  line 3: users[0].name: Must be a string; put it in quotation marks\n  line 4: users[1].name: Must be a string, not null\n  line 5: users[2].external_id: Must be a string; put it in quotation marks\n  line 6: users[3]: A user needs an external_id, an email or a name"},
		"members of an account":     {"account: acme\nplans:\n- name: a\n  users: []\nusers:\n- name: a\n  key_prefix: a\n", "  line 4: plans[0].users: Unknown member: it is a member of an account, so check the indentation\n  line 7: users[0].key_prefix: Unknown member: it is a member of an account, so check the indentation"},
		"an email and a status":     {"account: acme\nusers:\n- name: a\n  email: x\n  keys:\n  - {name: k, status: off}\n", "  line 4: users[0].email: Invalid email format\n  line 6: users[0].keys[0].status: "},
	} {
		_, err := newBench(t, memstore.New()).try(tc.file, apply.Options{})
		if err == nil || !strings.Contains(err.Error(), "\n"+tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}
