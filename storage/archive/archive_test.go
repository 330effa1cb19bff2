package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// After an import the store has everything that the other had, and exports the same lines. If this fails, a backup loses
// the data of customers.
func TestRoundTrip(t *testing.T) {
	roundTrips(t, 20, small(), inMemory, inMemory)
	roundTrips(t, 20, ImportOptions{Retention: forever, now: small().now}, inMemory, inMemory)
}

// The same holds for stores on disk, as source and as target.
func TestRoundTripBadger(t *testing.T) {
	disk := func() storetest.Opened { return onDisk(t) }
	roundTrips(t, 5, small(), disk, inMemory, disk)
}

// roundTrips fills the first store at random, copies everything from it to the second, from there to the next, and so on, n
// times. Each store must have everything after it was opened again, and must export the same bytes, but for the header and
// the trailer. After a failure rapid looks for a shorter run that fails.
func roundTrips(t *testing.T, n int, o ImportOptions, open ...func() storetest.Opened) {
	t.Helper()
	rapid.Check(t, func(run *rapid.T) { // rapid makes 100 runs or more
		if n == 0 {
			return
		}
		left := n - 1
		n = -1 // unless the run passes
		source := open[0]()
		storetest.FillAtRandom(run, t, &source)
		roundTrip(run, t, o, source, open[1:]...)
		n = left
	})
}

func roundTrip(run *rapid.T, t *testing.T, o ImportOptions, first storetest.Opened, others ...func() storetest.Opened) {
	from := first.Store.(core.Importer)
	want, archive := everything(run, from), archiveOf(run, from)
	for i, open := range others {
		to := open()
		r, err := Import(t.Context(), to.Store.(core.Importer), source(archive), o)
		if err := errors.Join(err, to.Store.Close()); err != nil {
			run.Fatalf("Import %d: %v", i+1, err)
		}
		if r.Events != r.Records[KindEvent] || len(r.Accounts) != 2 || r.Records[KindAccount] != 2 {
			run.Errorf("report: got %+v, want two accounts and all events", r)
		}
		reopened := to.Reopen(t).(core.Importer)
		wantSame(run, fmt.Sprintf("after import %d", i+1), want, reopened)
		again := archiveOf(run, reopened)
		if d := cmp.Diff(body(run, archive), body(run, again)); d != "" {
			run.Fatalf("the archive after import %d (-source +target):\n%.4000s", i+1, d)
		}
		archive = again
	}
	wantSame(run, "the source afterwards", want, from)
}

// onDisk opens a store on disk.
func onDisk(t *testing.T) storetest.Opened {
	dir := t.TempDir()
	return storetest.Opened{Store: openBadger(t, dir), Reopen: func(testing.TB) core.Store { return openBadger(t, dir) }}
}

func openBadger(t *testing.T, dir string) *badgerstore.Store {
	t.Helper()
	s, err := badgerstore.Open(dir, badgerstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// An account without resources is a whole account. An archive without accounts is refused.
func TestEmpty(t *testing.T) {
	from, to := memstore.New(), memstore.New()
	if _, err := Import(t.Context(), to, FromStore(from, exporting()), small()); !errors.Is(err, ErrRefused) {
		t.Errorf("no accounts: got %v, want ErrRefused", err)
	}
	addAccount(t, from, "empty")
	mustImport(t, from, to, small())
	wantSame(t, "an empty account", everything(t, from), to)
}

func addAccount(t testing.TB, s core.Store, name string) {
	t.Helper()
	a := &core.Account{ID: "acct_" + name, Name: name, CreatedAt: noon}
	k := &core.OwnerKey{ID: "okey_" + name, AccountID: a.ID, Name: "owner", Hint: "lk_…wxyz", Digest: secrets.DigestOf(name), CreatedAt: noon}
	if err := s.CreateAccount(t.Context(), a, k); err != nil {
		t.Fatal(err)
	}
}

// The target gives no number that the source has given to a deleted resource, although it never had that resource.
func TestNumbers(t *testing.T) {
	from, to := memstore.New(), memstore.New()
	addAccount(t, from, "a")
	update := func(fn func(core.Tx) error) {
		t.Helper()
		if err := from.Update(t.Context(), "acct_a", fn); err != nil {
			t.Fatal(err)
		}
	}
	update(func(tx core.Tx) error {
		return errors.Join(tx.PutUser(&core.User{AccountID: "acct_a", ID: 5, Name: "u"}), tx.PutUser(&core.User{AccountID: "acct_a", ID: 7, Name: "u"}),
			tx.PutPlan(&core.Plan{AccountID: "acct_a", ID: "plan", Seq: 6, Limit: 1}),
			tx.PutKey(&core.Key{AccountID: "acct_a", ID: "key", Name: "k", Hint: "…", Seq: 21, UserID: 5, Status: core.KeyActive, Digest: secrets.DigestOf("key")}))
	})
	update(func(tx core.Tx) error {
		return errors.Join(tx.DeletePlan("plan"), tx.DeleteKey("key"), tx.DeleteUser(7))
	})
	mustImport(t, from, to, small())
	if got, err := to.LastNumbers(t.Context(), "acct_a"); err != nil || got != (core.Numbers{User: 7, Plan: 6, Key: 21}) {
		t.Errorf("last numbers of the target: got %+v, %v, want 7, 6, 21", got, err)
	}
	wantSame(t, "with numbers that were given", everything(t, from), to)
}

// Entries that are older than the retention stay behind.
func TestRetention(t *testing.T) {
	from, to := filled(t, 3), memstore.New()
	var oldest, newest time.Time
	for _, a := range everything(t, from).Each {
		for _, h := range a.Histories {
			for _, e := range h {
				if e.At.After(newest) {
					newest = e.At
				}
				if oldest.IsZero() || e.At.Before(oldest) {
					oldest = e.At
				}
			}
		}
	}
	o := small()
	o.now, o.Retention = func() time.Time { return newest }, newest.Sub(oldest)/2
	r := mustImport(t, from, to, o)
	since, kept := newest.Add(-o.Retention), int64(0)
	for _, a := range everything(t, to).Each {
		for _, h := range a.Histories {
			for _, e := range h {
				kept++
				if !e.At.After(since) {
					t.Fatalf("an entry of %v was imported, want none before %v", e.At, since)
				}
			}
		}
	}
	if kept == 0 || kept != r.Events {
		t.Errorf("events: got %d, and %d in the report, want the same, above 0", kept, r.Events)
	}
}

// The options select one account, and leave the histories out.
func TestOneAccount(t *testing.T) {
	from, to := filled(t, 4), memstore.New()
	addAccount(t, to, "other")
	o := small()
	o.Account, o.NoHistory = everything(t, from).Accounts[1].Name, true
	r, err := Import(t.Context(), to, source(archiveOf(t, from)), o)
	if err != nil || len(r.Accounts) != 1 || r.Records[KindEvent] != 0 || r.Records[KindUser] == 0 {
		t.Fatalf("got %+v, %v, want one account without events", r, err)
	}
	var one, same bytes.Buffer
	only := exporting()
	only.Account, only.NoHistory = o.Account, true
	if _, err := Export(t.Context(), from, &one, only); err != nil {
		t.Fatal(err)
	}
	if _, err := Export(t.Context(), to, &same, only); err != nil {
		t.Fatal(err)
	}
	if body(t, one.Bytes()) != body(t, same.Bytes()) {
		t.Error("the account differs from its source")
	}
	o.Account = "nobody"
	if _, err := Import(t.Context(), to, source(archiveOf(t, from)), o); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), `no account "nobody"`) {
		t.Errorf("an account that is not there: got %v, want ErrRefused", err)
	}
}

// A dry run writes nothing. The same import again changes nothing, also after the account was used.
func TestAgain(t *testing.T) {
	archive, to := archiveOfAllKinds(t), memstore.New()
	o := small()
	o.DryRun = true
	if r, err := Import(t.Context(), to, source(archive), o); err != nil || r.Records[KindKey] == 0 {
		t.Fatalf("dry run: got %+v, %v, want the records", r, err)
	}
	if all := everything(t, to); len(all.Accounts) != 0 {
		t.Fatalf("after a dry run: got %d accounts, want none", len(all.Accounts))
	}
	o.DryRun = false
	for range 2 {
		if _, err := Import(t.Context(), to, source(archive), o); err != nil {
			t.Fatalf("Import: %v", err)
		}
		addUser(t, to)
	}
	if _, n, _ := to.Users(t.Context(), everything(t, to).Accounts[0].ID, core.UserFilter{}, core.Page{Number: 1, Size: 1}); n < 2 {
		t.Errorf("users: got %d, want the two later ones, too", n)
	}
}

// addUser adds a user to the first account of a store.
func addUser(t *testing.T, s core.Importer) {
	t.Helper()
	id := everything(t, s).Accounts[0].ID
	if err := s.Update(t.Context(), id, func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: id, Name: "later"}) }); err != nil {
		t.Fatal(err)
	}
}

// A restore refuses a store with an account of another import.
func TestRestoreAfterImport(t *testing.T) {
	first, second, to := memstore.New(), memstore.New(), memstore.New()
	addAccount(t, first, "a")
	addAccount(t, second, "b")
	mustImport(t, first, to, small())
	before := everything(t, to)
	_, err := Import(t.Context(), to, source(archiveOf(t, second)), ImportOptions{EmptyOnly: true})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "it has accounts that the archive does not have") {
		t.Errorf("got %v, want ErrRefused: the store is not empty", err)
	}
	wantSame(t, "after a restore that was refused", before, to)
}

// A second restore succeeds only if the store still equals the archive: a store that has counted since then is not as it was.
func TestRestoreAgain(t *testing.T) {
	archive, to, o := archiveOfAllKinds(t), memstore.New(), small()
	o.EmptyOnly = true
	for _, unchanged := range []bool{false, true} {
		if r, err := Import(t.Context(), to, source(archive), o); err != nil || r.Unchanged != unchanged {
			t.Fatalf("got %+v, %v, want unchanged: %t", r, err, unchanged)
		}
	}
	addUser(t, to)
	before := everything(t, to)
	if _, err := Import(t.Context(), to, source(archive), o); !errors.Is(err, ErrDiffers) || !strings.Contains(err.Error(), "has changed since an earlier restore") {
		t.Errorf("got %v, want ErrDiffers", err)
	}
	wantSame(t, "after the last restore", before, to)
}

// Of two runs of an import at the same time, the later one takes over. If the earlier run went on, it would overwrite counters
// that have counted since the later run was complete.
func TestTwoRuns(t *testing.T) {
	archive, to, taken := archiveOfAllKinds(t), memstore.New(), false
	var counted whole
	second := func(ctx context.Context, sink Sink) error {
		return source(archive)(ctx, sinkFunc(func(ctx context.Context, r Record) error {
			if w, ok := sink.(*filter).to.(*writing); ok && r.Kind == KindCounter && !taken {
				taken = true
				if _, err := Import(ctx, w.to, source(archive), small()); err != nil {
					t.Fatalf("the later run: %v", err)
				}
				used := core.Counter{At: r.Value.(*Counter).At.Unix(), Requests: core.PeriodUsage{core.Lifetime: 1 << 40}}
				if err := to.SetCounters(ctx, []core.CounterID{r.Value.(*Counter).CounterID}, []core.Counter{used}); err != nil {
					t.Fatal(err)
				}
				counted = everything(t, to)
			}
			return sink.Put(ctx, r)
		}))
	}
	if _, err := Import(t.Context(), to, second, small()); !errors.Is(err, ErrTakenOver) {
		t.Errorf("the earlier run: got %v, want ErrTakenOver", err)
	}
	wantSame(t, "after the earlier run", counted, to)
}

type sinkFunc func(context.Context, Record) error

func (f sinkFunc) Put(ctx context.Context, r Record) error { return f(ctx, r) }

// A store with an account whose import has not finished is not exported: a restore would make it a whole account, and an archive
// without the account is no backup. Nothing is written. Other accounts can be exported alone.
func TestIncompleteAccount(t *testing.T) {
	from, to := memstore.New(), memstore.New()
	addAccount(t, from, "whole")
	addAccount(t, from, "cut")
	mustImport(t, from, to, small())
	_, err := to.UpdateAccount(t.Context(), "acct_cut", func(a *core.Account) error {
		a.Import.Complete = false
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `account "cut" is incomplete: run the restore or import again`
	for _, account := range []string{"", "cut"} {
		var out bytes.Buffer
		if _, err := Export(t.Context(), to, &out, ExportOptions{Account: account}); err == nil || err.Error() != want || out.Len() > 0 {
			t.Errorf("account %q: got %q, %v, want nothing and %q", account, &out, err, want)
		}
	}
	if _, err := Import(t.Context(), memstore.New(), FromStore(to, ExportOptions{}), small()); err == nil || err.Error() != want {
		t.Errorf("to another store: got %v, want %q", err, want)
	}
	if _, err := Export(t.Context(), to, io.Discard, ExportOptions{Account: "whole"}); err != nil {
		t.Errorf("the other account: %v", err)
	}
}

// A target with other accounts of the same names, ids, or keys is refused, and nothing is written.
func TestRefused(t *testing.T) {
	from := memstore.New()
	addAccount(t, from, "a")
	err := from.Update(t.Context(), "acct_a", func(tx core.Tx) error {
		return errors.Join(tx.PutUser(&core.User{AccountID: "acct_a", ID: 1, Name: "u"}),
			tx.PutKey(&core.Key{AccountID: "acct_a", ID: "key_1", Name: "k", Hint: "…", UserID: 1, Status: core.KeyActive, Digest: secrets.DigestOf("value")}))
	})
	if err != nil {
		t.Fatal(err)
	}
	archive := archiveOf(t, from)
	account := func(id, name, owner string) func(*memstore.Store) error {
		return func(s *memstore.Store) error {
			return s.CreateAccount(t.Context(), &core.Account{ID: id, Name: name}, &core.OwnerKey{ID: "okey", AccountID: id, Name: "o", Hint: "…", Digest: secrets.DigestOf(owner)})
		}
	}
	for name, tc := range map[string]struct {
		fill func(*memstore.Store) error
		o    ImportOptions
		want string
	}{
		"the account":         {account("acct_a", "a", "other"), small(), `line 2: account: the store already has the account "a". An import only adds accounts: choose others with --account, or another store`},
		"the name":            {account("acct_b", "a", "other"), small(), `line 2: account: the store has another account "a": its id is acct_b, and acct_a in the archive. An import only adds accounts`},
		"the id":              {account("acct_a", "b", "other"), small(), `line 2: account: the store has the account acct_a with the name "b"`},
		"an owner's key":      {account("acct_b", "b", "a"), small(), "line 3: owner_key okey_a: the store has this key in another account"},
		"a store for restore": {account("acct_b", "b", "b"), ImportOptions{EmptyOnly: true}, `the store is not empty: it has the account "b"`},
		"an earlier restore": {func(s *memstore.Store) error {
			return s.CreateAccount(t.Context(), &core.Account{ID: "acct_a", Name: "a", Import: &core.AccountImport{SHA256: "00", Complete: true}},
				&core.OwnerKey{ID: "okey_a", AccountID: "acct_a", Name: "o", Hint: "…", Digest: secrets.DigestOf("a")})
		}, ImportOptions{EmptyOnly: true}, `the store already has the account "a", from another import. Restore into an empty store`},
		"a key": {func(s *memstore.Store) error {
			return errors.Join(account("acct_b", "b", "b")(s), s.Update(t.Context(), "acct_b", func(tx core.Tx) error {
				return errors.Join(tx.PutUser(&core.User{AccountID: "acct_b", ID: 1, Name: "u"}),
					tx.PutKey(&core.Key{AccountID: "acct_b", ID: "key_2", Name: "k", Hint: "…", Status: core.KeyActive, UserID: 1, Digest: secrets.DigestOf("value")}))
			}))
		}, small(), "line 5: key key_1: a key of the store has the same value"},
	} {
		t.Run(name, func(t *testing.T) {
			to := memstore.New()
			if err := tc.fill(to); err != nil {
				t.Fatal(err)
			}
			before := everything(t, to)
			_, err := Import(t.Context(), to, source(archive), tc.o)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want ErrRefused with %q", err, tc.want)
			}
			wantSame(t, "after it was refused", before, to)
		})
	}
}

// Every problem is named with its line: the first 100, and then their number. Nothing is written.
func TestProblems(t *testing.T) {
	from := memstore.New()
	addAccount(t, from, "a")
	err := from.Update(t.Context(), "acct_a", func(tx core.Tx) error {
		var errs []error
		for i := range int64(300) {
			errs = append(errs, tx.PutUser(&core.User{AccountID: "acct_a", ID: i + 1, Name: fmt.Sprint("user ", i)}))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Fatal(err)
	}
	archive := string(archiveOf(t, from))
	for name, tc := range map[string]struct {
		change func(line int, text string) string
		want   []string
		total  int
	}{
		"three": {func(line int, text string) string {
			switch line {
			case 10:
				return strings.Replace(text, `"name"`, `"nmae"`, 1)
			case 20:
				return strings.Replace(text, `"id":17`, `"id":"17"`, 1)
			case 30:
				return strings.Replace(text, `"name"`, `"plan_id":"plan_9","name"`, 1)
			}
			return text
		}, []string{`line 10: user: json: unknown field "nmae"`, "line 20: user: json: cannot unmarshal string into Go struct field User.id of type int64",
			"line 30: user 27: its plan plan_9 is not in the archive"}, 4},
		"all": {func(_ int, text string) string {
			return strings.Replace(text, `"account_id":"acct_a"`, `"account_id":"acct_b"`, 1)
		},
			[]string{`line 3: owner_key: it belongs to the account "acct_b", and stands after the account "acct_a"`, "and 202 more"}, 302},
	} {
		t.Run(name, func(t *testing.T) {
			lines := strings.SplitAfter(archive, "\n")
			for i := range lines {
				lines[i] = tc.change(i+1, lines[i])
			}
			to := memstore.New()
			_, err := Import(t.Context(), to, source([]byte(strings.Join(lines, ""))), small())
			p, ok := errors.AsType[*Problems](err)
			if !ok || !errors.Is(err, ErrRefused) {
				t.Fatalf("got %v, want Problems", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %.2000v, want %q in it", err, want)
				}
			}
			if p.Total != tc.total || len(p.First) > 100 {
				t.Errorf("problems: got %d, %d of them listed, want %d, at most 100", p.Total, len(p.First), tc.total)
			}
			if all := everything(t, to); len(all.Accounts) != 0 {
				t.Errorf("got %d accounts, want none", len(all.Accounts))
			}
		})
	}
}

// Every way to damage an archive is found, and nothing is written.
func TestDamaged(t *testing.T) {
	archive := archiveOfAllKinds(t)
	lines := bytes.SplitAfter(archive, []byte("\n"))
	lines = lines[:len(lines)-1]
	cases := map[string][]byte{
		"empty": {}, "without a header": bytes.Join(lines[1:], nil), "with a line at the end": append(bytes.Clone(archive), "{}\n"...),
		"another version":  bytes.Replace(archive, []byte(`"version":1`), []byte(`"version":2`), 1),
		"another program":  []byte("# not this\n"),
		"a newer kind":     bytes.Replace(archive, []byte("\n{\"plan\":"), []byte("\n{\"webhook\":"), 1),
		"without a record": bytes.Join(append(bytesOf(lines[:7]), lines[8:]...), nil),
	}
	for i := range 16 {
		cases[fmt.Sprintf("cut at %d/16", i)] = archive[:len(archive)*i/16]
	}
	seen := map[string]bool{}
	for i, line := range lines {
		kind, _, _ := strings.Cut(string(line), ":")
		if seen[kind] {
			continue
		}
		seen[kind] = true
		for at := i % 9; at < len(line); at += 9 {
			flipped := bytesOf(lines)
			flipped[i] = bytes.Clone(line)
			flipped[i][at] ^= 1 << (at % 8)
			cases[fmt.Sprintf("a flipped bit in byte %d of line %d, %s", at, i+1, kind)] = bytes.Join(flipped, nil)
		}
		if i+1 < len(lines) {
			swapped := bytesOf(lines)
			swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			cases[fmt.Sprintf("lines %d and %d swapped", i+1, i+2)] = bytes.Join(swapped, nil)
		}
		twice := append(bytesOf(lines[:i+1]), lines[i:]...)
		cases[fmt.Sprintf("line %d twice", i+1)] = bytes.Join(twice, nil)
	}
	if len(seen) != len(Kinds())+2 {
		t.Errorf("kinds: got %d in the archive, want all of them, a header and a trailer", len(seen))
	}
	for name, damaged := range cases {
		to := memstore.New()
		_, err := Import(t.Context(), to, source(damaged), small())
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: got %v, want ErrDamaged or ErrRefused", name, err)
		}
		if _, n, _ := to.Accounts(t.Context(), core.Page{Number: 1, Size: 1}); n != 0 {
			t.Errorf("%s: got %d accounts, want none", name, n)
		}
	}
}

// bytesOf returns a copy of a list of lines.
func bytesOf(lines [][]byte) [][]byte { return append([][]byte(nil), lines...) }

// Compressed archives are read without a name, and damage to them is found.
func TestCompressed(t *testing.T) {
	from := filled(t, 8)
	archive := archiveOf(t, from)
	for _, name := range []string{"backup.ndjson", "backup.ndjson.gz", "backup.ndjson.zst"} {
		var file bytes.Buffer
		w, err := Compress(name, &file)
		if err == nil {
			_, err = w.Write(archive)
		}
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		to := memstore.New()
		if _, err := Import(t.Context(), to, source(file.Bytes()), small()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantSame(t, name, everything(t, from), to)
		if name == "backup.ndjson" {
			continue
		}
		if file.Len() > len(archive)/2 {
			t.Errorf("%s: got %d bytes of %d, want less than half", name, file.Len(), len(archive))
		}
		for i := range 16 {
			damaged := bytes.Clone(file.Bytes())
			damaged[len(damaged)*i/16] ^= 4
			if text, err := Decompress(bytes.NewReader(damaged)); err == nil {
				if same, err := io.ReadAll(text); err == nil && bytes.Equal(same, archive) {
					continue // a copy of the same text from another place
				}
			}
			_, err := Import(t.Context(), memstore.New(), source(damaged), small())
			_, cut := Import(t.Context(), memstore.New(), source(file.Bytes()[:file.Len()*i/16]), small())
			for _, err := range []error{err, cut} {
				if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrRefused) {
					t.Errorf("%s damaged or cut at %d/16: got %v, want ErrDamaged or ErrRefused", name, i, err)
				}
			}
		}
	}
}

// No text makes an import panic or leave an account behind, unless the archive is whole.
func FuzzImport(f *testing.F) {
	archive := archiveOf(f, filled(f, 9))
	f.Add(archive)
	for _, line := range bytes.SplitAfter(archive, []byte("\n")) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		to := memstore.New()
		_, err := Import(t.Context(), to, source(text), small())
		_, n, _ := to.Accounts(t.Context(), core.Page{Number: 1, Size: 1})
		if err != nil && n != 0 && !errors.Is(err, ErrDiffers) {
			t.Errorf("got %v and %d accounts, want none", err, n)
		}
	})
}

// The trailer counts the records.
func TestTrailer(t *testing.T) {
	archive := archiveOf(t, filled(t, 1))
	r, err := NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	if r.Header.Version != Version || r.Header.Source != "limitkeeper" || time.Since(r.Header.Time) > time.Hour {
		t.Errorf("header: got %+v", r.Header)
	}
	n := Counts{}
	for {
		next, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n[next.Kind]++
	}
	var last struct{ End Trailer }
	lines := bytes.Split(bytes.TrimSpace(archive), []byte("\n"))
	if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(n) != fmt.Sprint(last.End.Records) {
		t.Errorf("records: got %v, and %v in the trailer", n, last.End.Records)
	}
}

// The archive in docs/archive.md is a whole archive, with a record of each kind.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/archive.md")
	if err != nil {
		t.Fatal(err)
	}
	_, archive, _ := strings.Cut(string(text), "```json\n")
	archive, _, _ = strings.Cut(archive, "```")
	to := memstore.New()
	r, err := Import(t.Context(), to, source([]byte(archive)), small())
	if err != nil || len(r.Records) != len(Kinds()) {
		t.Fatalf("got %+v, %v, want all kinds", r, err)
	}
	if got := body(t, archiveOf(t, to)); got != body(t, []byte(archive)) {
		t.Errorf("exported again:\n%s", got)
	}
}

// docs/archive.schema.json describes each line, and no line with another member, a missing member or another type.
func TestSchema(t *testing.T) {
	text, err := os.ReadFile("../../docs/archive.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema openapi3.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	check := func(line []byte) error {
		var v any
		text := bytes.ReplaceAll(line, []byte("1e400"), []byte("1e40")) // metadata may have a number that is no float64
		if err := json.Unmarshal(text, &v); err != nil {
			return err
		}
		return schema.VisitJSON(v)
	}
	seen := map[string]bool{}
	for _, line := range bytes.Split(bytes.TrimSpace(archiveOfAllKinds(t)), []byte("\n")) {
		if err := check(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		kind, members, _ := bytes.Cut(line, []byte(`":{`))
		if seen[string(kind)] {
			continue
		}
		seen[string(kind)] = true
		_, rest, _ := bytes.Cut(members, []byte(","))
		for name, other := range map[string]string{
			"an unknown member": fmt.Sprintf(`%s":{"unknown":1,%s`, kind, members),
			"a missing member":  fmt.Sprintf(`%s":{%s`, kind, rest),
			"an unknown kind":   fmt.Sprintf(`%ss":{%s`, kind, members),
			"a string":          `{"` + string(kind[2:]) + `":"text"}`,
		} {
			if err := check([]byte(other)); err == nil {
				t.Errorf("%s: %s: got no error", name, other)
			}
		}
	}
	if len(seen) != len(Kinds())+2 {
		t.Errorf("kinds: got %d, want all of them, a header and a trailer", len(seen))
	}
}
