package badgerstore

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/limitkeeper/limitkeeper/core"
)

// noon has nanoseconds of nine digits.
var noon = time.Date(2026, time.March, 12, 12, 0, 0, 123456789, time.UTC)

// TestMetadataAsItIs: metadata comes back byte for byte.
func TestMetadataAsItIs(t *testing.T) {
	u := &core.User{Name: "<&>\u2028\x00", Metadata: json.RawMessage(`{"a":"<&>` + "\u2028" + `","n":1.0e+2,"b":{"z":1,"a":[]}}`)}
	record, err := encodeJSON(u)
	if err != nil {
		t.Fatalf("encodeJSON: %v", err)
	}
	got, err := decodeJSON[core.User](record)
	if err != nil {
		t.Fatalf("decodeJSON: %v", err)
	}
	if d := cmp.Diff(u, got); d != "" {
		t.Errorf("user (-want +got):\n%s", d)
	}
}

// TestLastHours: the last hours of the year 9999 in a zone west of UTC, which have
// the year 10000 in UTC, can be stored: whoever sends such a time gets no fault.
func TestLastHours(t *testing.T) {
	end := time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -5*3600))
	record, err := encodeJSON(&core.Key{ExpiresAt: &end})
	if err != nil {
		t.Fatalf("encodeJSON: %v", err)
	}
	got, err := decodeJSON[core.Key](record)
	if err != nil || !got.ExpiresAt.Equal(end) || got.ExpiresAt.Location() != time.UTC {
		t.Errorf("expires at: got %v, %v, want %v in UTC", got.ExpiresAt, err, end)
	}
}

var tallies = map[string]tally{
	"zero": {},
	"used": {Counter: core.Counter{
		Tallies:    [4]core.Tally{{Start: 1, Used: 2}, {Start: -3, Used: math.MaxInt64}, {Start: math.MaxInt64}, {}},
		LastUsedAt: noon, DeniedOmitted: 17,
	}, history: math.MaxUint64, entries: math.MaxInt64, newest: noon.AddDate(-3000, 0, 0), late: math.MaxInt64},
}

// TestTally: a counter comes back as it went in, and a record that is cut off is an
// error and not a lower count.
func TestTally(t *testing.T) {
	for name, want := range tallies {
		record := want.encode()
		got, err := decodeTally(record)
		if err != nil {
			t.Fatalf("%s: decodeTally: %v", name, err)
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(tally{}), cmpopts.IgnoreUnexported(core.Counter{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		for i := range record {
			if got, err := decodeTally(record[:i]); err == nil {
				t.Errorf("%s: the first %d of %d bytes: got %+v, want an error", name, i, len(record), got)
			}
		}
	}
	if got, err := decodeTally(nil); err != nil || got != (tally{}) {
		t.Errorf("no record: got %+v, %v, want the zero tally", got, err)
	}
}

// TestEntry: an entry comes back as it went in, and one that is cut off is an error.
func TestEntry(t *testing.T) {
	want := core.Entry{At: noon, KeyID: "key_1", UserID: math.MaxInt64, Endpoint: "/\x00\u2028", Method: "", IP: "::1", Cost: core.MaxCost, Denied: true}
	record := append([]byte{5}, encodeEntry(&want, true)...)
	got, latest, err := decodeEntry(record)
	if err != nil || latest != noon.Add(5) {
		t.Fatalf("decodeEntry: got latest %v, %v, want %v", latest, err, noon.Add(5))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("entry (-want +got):\n%s", d)
	}
	for i := range record {
		if got, _, err := decodeEntry(record[:i]); err == nil {
			t.Errorf("the first %d of %d bytes: got %+v, want an error", i, len(record), got)
		}
	}
}

// TestWrites: what goes through the journal is what was written.
func TestWrites(t *testing.T) {
	w := newWrites()
	w.put(path("set"), []byte("value"))
	w.put(path("empty"), []byte{})
	w.put(path("deleted"), nil)
	w.drop(core.CounterID{Account: "a", KeyID: "k"})
	w.drop(core.CounterID{Account: "a", UserID: -1})
	record := w.encode()
	got, err := decodeWrites(record)
	if err != nil {
		t.Fatalf("decodeWrites: %v", err)
	}
	if d := cmp.Diff(w, got, cmp.AllowUnexported(writes{}, write{})); d != "" {
		t.Errorf("writes (-want +got):\n%s", d)
	}
	if _, err := decodeWrites(record[:len(record)-1]); err == nil {
		t.Error("a record that is cut off: got no error")
	}
}

// TestPaths: no two things have the same path, whatever they are called.
func TestPaths(t *testing.T) {
	names := []string{"", "a", "b", "\x00", "\x01a", "ab", "plan", "keys", "\x00\x00\x00\x00\x00\x00\x00\x01"}
	seen := map[string]string{}
	add := func(what string, paths ...path) {
		for _, p := range paths {
			if other, ok := seen[string(p)]; ok && other != what {
				t.Errorf("%s and %s have the same path %q", what, other, p)
			}
			seen[string(p)] = what
		}
	}
	for _, a := range names {
		add("users of "+a, nodes(allUsers(a))...)
		add("plans of "+a, nodes(allPlans(a))...)
		add("last of "+a, lastPath(a, kindKey))
		for _, b := range names {
			what := a + "/" + b
			add("with plan "+what, nodes(usersWithPlan(a, b))...)
			add("on plan "+what, nodes(usersOnPlan(a, b))...)
			add("key "+what, keyIDPath(a, b))
			add("plan "+what, planIDPath(a, b))
			add("email "+what, emailPath(a, b))
			add("holding "+what, holdingPath(a, 1, b))
			add("counter "+what, counterPath(core.CounterID{Account: a, KeyID: b, UserID: 1}))
			for _, c := range names {
				what := what + "/" + c
				add("keys "+what, nodes(keysThat(a, core.KeyFilter{PlanID: &b, Status: core.KeyStatus(c)}))...)
				add("keys of a user "+what, nodes(keysThat(a, core.KeyFilter{UserID: 1, PlanID: &b, Status: core.KeyStatus(c)}))...)
			}
			add("keys of any plan "+what, nodes(keysThat(a, core.KeyFilter{Status: core.KeyStatus(b)}))...)
		}
	}
}

// nodes returns paths of nodes of a family.
func nodes(base path) []path {
	f := &family{base: base}
	return []path{f.node(nodeRoot, 0), f.node(nodeMid, 0), f.node(nodeMid, 1), f.node(nodeLeaf, 0), f.node(nodeLeaf, 1)}
}
