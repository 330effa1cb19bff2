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
		{"aliases", bomb.String(), "The aliases of the file expand to more than 3000000 values"},
		{"an alias in itself", "account: a\nusers: [{name: A, metadata: &m {m: *m}}]", "Must not be nested that deeply"},
		{"depth", "account: a\nusers: [{name: A, metadata: {m: " + deep + "}}]", "Must not be nested that deeply"},
		{"depth in JSON", `{"account": "a", "users": [{"name": "A", "metadata": {"m": ` + deep + `}}]}`, "Must not be nested that deeply"},
		{"UTF-8", "account: \xff", "The file must be valid UTF-8"},
		{"a merge key", "account: a\nplans:\n- &p {name: a}\n- {<<: *p, name: b}\n", "The name of a member must be a plain string"},
		{"a number in the metadata", "account: a\nusers: [{name: A, metadata: {m: 0x1F}}]", "Must be a value as in JSON"},
		{"a tag", "account: !secret a", "Must be a string; put it in quotation marks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := apply.Parse([]byte(tc.file))
			problems, ok := errors.AsType[*apply.Problems](err)
			if !ok {
				t.Fatalf("got %v, want problems", err)
			}
			for _, p := range problems.List {
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

// JSON and YAML are the same file, also with aliases, with the numbers and strings of both languages.
func TestJSON(t *testing.T) {
	b := newBench(t, memstore.New())
	b.apply(`{"account": "acme",
"plans": [{"name": "free \ud83d\ude00", "max_requests": 1e3, "request_period": "day"}],
"users": [{"name": "A", "metadata": {"n": 1.50, "t": [true, null, "x"]}}, {"name": "B", "metadata": {"n": 1.50, "t": [true, null, "x"]}}]}`,
		apply.Options{}, `+ plan "free 😀"`, `+ user "A"`, `+ user "B"`)
	b.apply(`account: acme
plans: [{name: free 😀, max_requests: 1_000, request_period: day}]
users:
- {name: A, metadata: &m {t: [true, null, x], n: 1.50}}
- {name: B, metadata: *m}
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
