package keyimport

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// world is an account over a store.
type world struct {
	t       testing.TB
	store   core.Importer
	svc     *service.Service
	account string
	pro     string // the id of a plan of 100 requests a month
	writes  int    // until the store fails; 0 for never
}

// failing fails after a number of transactions and of calls of SetCounters.
type failing struct {
	core.Importer
	w *world
}

func (f failing) step() error {
	if f.w.writes > 0 {
		if f.w.writes--; f.w.writes == 0 {
			return core.Unavailable(errors.New("no power"))
		}
	}
	return nil
}

func (f failing) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if err := f.step(); err != nil {
		return err
	}
	return f.Importer.Update(ctx, account, fn)
}

func (f failing) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	if err := f.step(); err != nil {
		return err
	}
	return f.Importer.SetCounters(ctx, ids, counters)
}

func newWorld(t testing.TB, store core.Importer) *world {
	t.Helper()
	w := &world{t: t}
	w.store = failing{store, w}
	w.svc = service.New(w.store, service.Config{})
	a, _, _, err := w.svc.CreateAccount(t.Context(), "acme")
	w.ok(err)
	w.account = a.ID
	pl, err := w.svc.CreatePlan(t.Context(), w.account, core.PlanPatch{Name: new("pro"), Limit: core.Some(int64(100)), Period: new("month")})
	w.ok(err)
	w.pro = pl.ID
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) run(csv string, o Options) (Report, error) {
	o.Account = "acme"
	return Run(w.t.Context(), w.svc, w.store, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(csv)), nil }, o)
}

// usage validates a key and returns the outcome, and the requests of the window with this one.
func (w *world) usage(key string) (service.Outcome, int64) {
	w.t.Helper()
	d, err := w.svc.Validate(w.t.Context(), w.account, service.Request{Secret: key, Endpoint: "/", Method: "GET", Cost: 1})
	w.ok(err)
	return d.Outcome, d.Usage.Used
}

// counts returns the numbers of users and keys.
func (w *world) counts() string {
	one := core.Page{Number: 1, Size: 1}
	_, users, err := w.svc.Users(w.t.Context(), w.account, core.UserFilter{}, one)
	w.ok(err)
	_, keys, err := w.svc.Keys(w.t.Context(), w.account, core.KeyFilter{}, one)
	w.ok(err)
	a, err := w.svc.Account(w.t.Context(), w.account)
	w.ok(err)
	return fmt.Sprint(users, " users ", keys, " keys ", a.KeyPrefixes, a.AnyKeyForm)
}

// eachStore runs a test over a store in memory and over Badger.
func eachStore(t *testing.T, fn func(*world)) {
	t.Run("memory", func(t *testing.T) { fn(newWorld(t, memstore.New())) })
	t.Run("badger", func(t *testing.T) {
		s, err := badgerstore.Open(t.TempDir(), badgerstore.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		fn(newWorld(t, s))
	})
}

func digest(key string) []byte { d := secrets.DigestOf(key); return d[:] }

// The keys of a file work with their values, users are created once, and the usage counts. The same file again changes
// nothing.
func TestImport(t *testing.T) {
	eachStore(t, func(w *world) {
		ann, err := w.svc.CreateUser(t.Context(), w.account, core.UserPatch{Name: new("Ann"), Email: core.Some("ann@example.com"), PlanID: core.Some(w.pro)})
		w.ok(err)
		file := "\ufeffkey,key_sha256,user_external_id,user_email,user_name,plan,status,expires_at,metadata.team,used,name\n" +
			"acme_live_1a2b3c4d5e6f,,u1,u1@example.com,One,pro,,,red,40,ci\n" +
			"acme_test_1a2b3c4d5e6f,,u1,,,pro,inactive,,,,\n" +
			"\"sk_live_9z8y7x6w5v4u3t\",,,new@example.com,," + w.pro + ",active,2099-01-01,,,\n" +
			"lk_user_fromanotherserver,,,ANN@example.com,,,,,,30,\n" +
			"acme_live_secondofannnnn," + hex.EncodeToString(digest("acme_live_secondofannnnn")) + ",,ann@example.com,,,,,,25,\n" +
			"acme_live_onlyaname12345,,,,Bo,pro,,2099-01-01T00:00:00Z,,,\n"
		report, err := w.run(file, Options{})
		w.ok(err)
		want := Report{Rows: 6, Keys: 6, Users: 3, Used: 2, KeyPrefixes: []string{"acme_live_", "acme_test_", "sk_live_"}}
		if fmt.Sprint(report) != fmt.Sprint(want) {
			t.Errorf("report %+v, want %+v", report, want)
		}
		if got := w.counts(); got != "4 users 6 keys [acme_live_ acme_test_ sk_live_] false" {
			t.Error(got)
		}
		for key, want := range map[string]int64{"acme_live_1a2b3c4d5e6f": 41, "sk_live_9z8y7x6w5v4u3t": 1, "lk_user_fromanotherserver": 56, "acme_live_onlyaname12345": 1} {
			if outcome, used := w.usage(key); outcome != service.Allowed || used != want {
				t.Errorf("%s: %v with %d requests, want %d", key, outcome, used, want)
			}
		}
		if outcome, _ := w.usage("acme_test_1a2b3c4d5e6f"); outcome != service.Disabled {
			t.Errorf("an inactive key: %v", outcome)
		}
		if u, err := w.svc.User(t.Context(), w.account, ann.ID); err != nil || u.Name != "Ann" {
			t.Errorf("the user of the account: %+v, %v", u, err)
		}
		d := secrets.DigestOf("acme_live_1a2b3c4d5e6f")
		if k, err := w.store.KeyByDigest(t.Context(), d); err != nil || k.Hint != "acme_live_…5e6f" || k.Name != "ci" || string(k.Metadata) != `{"team":"red"}` {
			t.Errorf("key %+v, %v", k, err)
		}

		report, err = w.run(file, Options{})
		w.ok(err)
		if want := (Report{Rows: 6, AlreadyThere: 6}); fmt.Sprint(report) != fmt.Sprint(want) {
			t.Errorf("again: report %+v, want %+v", report, want)
		}
		if _, used := w.usage("acme_live_1a2b3c4d5e6f"); used != 42 {
			t.Errorf("again: %d requests, want 42", used)
		}
	})
}

// A file with digests makes the account accept keys of any form, unless the prefix is given. Both forms of a digest are
// read.
func TestDigests(t *testing.T) {
	file := "key_sha256,user_name,plan\n" +
		hex.EncodeToString(digest("0123456789abcdef0123456789abcdef")) + ",a,pro\n" +
		base64.StdEncoding.EncodeToString(digest("x1")) + ",b,pro\n" + base64.RawURLEncoding.EncodeToString(digest("acme_x2")) + ",b,pro\n"
	eachStore(t, func(w *world) {
		report, err := w.run(file, Options{})
		w.ok(err)
		if !report.AnyKeyForm || report.Users != 2 {
			t.Errorf("report %+v", report)
		}
		for _, key := range []string{"0123456789abcdef0123456789abcdef", "x1", "acme_x2"} {
			if outcome, _ := w.usage(key); outcome != service.Allowed {
				t.Errorf("%s: %v", key, outcome)
			}
		}
		for key, want := range map[string]service.Outcome{"nobody": service.Unknown, "no.body": service.Malformed, "": service.Malformed} {
			if key != "" {
				if outcome, _ := w.usage(key); outcome != want {
					t.Errorf("%s: %v, want %v", key, outcome, want)
				}
			}
		}
	})
	w := newWorld(t, memstore.New())
	report, err := w.run(file, Options{KeyPrefixes: []string{"acme_"}})
	w.ok(err)
	if report.AnyKeyForm || report.Unchanged() {
		t.Errorf("with a prefix: %+v", report)
	}
	if report, err = w.run(file, Options{KeyPrefixes: []string{"acme_"}}); err != nil || !report.Unchanged() || report.AlreadyThere != 3 {
		t.Errorf("again, with a prefix: %+v, %v", report, err)
	}
	for key, want := range map[string]service.Outcome{"x1": service.Malformed, "acme_x2": service.Allowed} {
		if outcome, _ := w.usage(key); outcome != want {
			t.Errorf("%s with the prefix given: %v, want %v", key, outcome, want)
		}
	}
}

// Every mistake is named with its line, and nothing is changed.
func TestBadLines(t *testing.T) {
	columns := "key,key_sha256,user_external_id,user_email,user_name,plan,status,expires_at,used\n"
	rows := func(lines ...string) string { return columns + strings.Join(lines, "\n") + "\n" }
	zero := strings.Repeat("0", 64)
	eachStore(t, func(w *world) {
		other, _, _, err := w.svc.CreateAccount(t.Context(), "other")
		w.ok(err)
		pl, err := w.svc.CreatePlan(t.Context(), other.ID, core.PlanPatch{Name: new("p"), Limit: core.Some(int64(1)), Period: new("day")})
		w.ok(err)
		u, err := w.svc.CreateUser(t.Context(), other.ID, core.UserPatch{Name: new("u"), PlanID: core.Some(pl.ID)})
		w.ok(err)
		_, theirs, err := w.svc.CreateKey(t.Context(), other.ID, core.KeyPatch{Name: new("k"), UserID: &u.ID})
		w.ok(err)
		_, err = w.svc.CreatePlan(t.Context(), w.account, core.PlanPatch{Name: new("free"), Limit: core.Null[int64]()})
		w.ok(err)
		for range 2 {
			_, err = w.svc.CreatePlan(t.Context(), w.account, core.PlanPatch{Name: new("twin"), Limit: core.Null[int64]()})
			w.ok(err)
		}
		_, err = w.svc.CreateUser(t.Context(), w.account, core.UserPatch{Name: new("m"), ExternalID: core.Some("m"), Email: core.Some("m@x.org")})
		w.ok(err)
		_, err = w.svc.CreateUser(t.Context(), w.account, core.UserPatch{Name: new("n"), ExternalID: core.Some("n"), Email: core.Some("n@x.org")})
		w.ok(err)
		before := w.counts()
		for _, c := range []struct{ file, want string }{
			{"", "line 1: the file is empty"},
			{"\xff\xfek\x00e\x00y\x00", "line 1: the file is not text in UTF-8: save the file as UTF-8"},
			{"key;plan\nacme-key-1;pro\n", "line 1: the header line has no comma: want columns separated by commas"},
			{"key,colour,plan,metadata.\n", `line 1: unknown column "colour", "metadata."`},
			{"key,plan,key\n", `line 1: the column "key" is there twice`},
			{"plan\n", "line 1: no column key"},
			{"key" + strings.Repeat(",metadata.x", 64) + "\n", "line 1: 65 columns"},
			{rows("k1,,a,,,pro,,,", "k2,,a,,,pro"), "line 3: 6 fields: want 9"},
			{rows(`k"1,,a,,,pro,,,`), "line 2: no valid CSV"},
			{rows(`"k1,,a,,,pro,,,`), "line 2: no valid CSV"},
			{rows("k1,,a,,,pro,,,", strings.Repeat("x", 80<<10)+",,a,,,pro,,,"), "64 KiB"},
			{rows(",,a,,,pro,,,"), "line 2: key or key_sha256 is required"},
			{rows("k.1,,a,,,pro,,,"), "line 2: key: want 1 to 256 letters"},
			{rows("lk_" + strings.Repeat("a", 29) + ",,a,,,pro,,,"), "line 2: key: the value has the form of an owner's key"},
			{rows("k1," + zero + ",a,,,pro,,,"), "line 2: key_sha256 is not the SHA-256 of key"},
			{rows(",abc,a,,,pro,,,"), "line 2: key_sha256: want the 32 bytes"},
			{rows("k1,,a,,,pro,,,", "k1,,a,,,pro,,,"), "line 3: the key is on line 2, too"},
			{rows(theirs + ",,a,,,pro,,,"), "line 2: another account has this key"},
			{rows("k1,,a,,,gold,,,"), `line 2: plan: the account has no plan "gold"`},
			{rows("k1,,a,,,twin,,,"), `line 2: plan: several plans are called "twin"`},
			{rows("k1,,a,,,,,,"), "line 2: plan: the user has no plan"},
			{rows("k1,,,,,pro,,,"), "line 2: user_external_id, user_email or user_name is required"},
			{rows("k1,,a,a@x.org,,pro,,,", "k2,,a,b@x.org,,pro,,,"), "line 3: user_email: the user has another one"},
			{rows("k1,,a,a@x.org,,pro,,,", "k2,,b,a@x.org,,pro,,,"), "line 3: user_external_id: the user has another one"},
			{rows("k1,,a,a@x.org,,pro,,,", "k2,,b,b@x.org,,pro,,,", "k3,,a,b@x.org,,pro,,,"), "line 4: user_email: another user has it on line 3"},
			{rows("k1,,a,,Ann,pro,,,", "k2,,a,,Bob,pro,,,"), "line 3: user_name: the user has another name on line 2"},
			{rows("k1,,m,n@x.org,,pro,,,"), "line 2: user_email: it belongs to another user"},
			{rows("k1,,m,a@x.org,,pro,,,"), "line 2: user_email: the user with this user_external_id has another email"},
			{rows("k1,,a,m@x.org,,pro,,,"), "line 2: user_external_id: the user with this user_email has another one"},
			{rows("k1,,a,nowhere,,pro,,,"), "line 2: user_email: Invalid email"},
			{rows("k1,,a,,,pro,paused,,"), "line 2: status: Status must be"},
			{rows("k1,,a,,,pro,,tomorrow,"), "line 2: expires_at: want a time"},
			{rows("k1,,a,,,pro,,2001-01-01,"), "line 2: expires_at: Expires at must be in the future"},
			{rows("k1,,a,,,pro,,,-1"), "line 2: used: want a whole number"},
			{rows("k1,,a,,,free,,,5"), `line 2: used: the plan "free" has no limit of requests`},
			{rows("k1,,\xff,,,pro,,,"), "line 2: user_external_id: want valid UTF-8"},
		} {
			_, err := w.run(c.file, Options{})
			if _, ok := errors.AsType[*Problems](err); !ok || !strings.Contains(err.Error(), c.want) || !strings.HasSuffix(err.Error(), "Nothing was changed.") {
				t.Errorf("%.60q: %v, want %s", c.file, err, c.want)
			}
		}
		good := "k9,,z,,,pro,,,"
		_, err = w.run(rows(good, "k1,,a,,,gold,,,", good, "k3,,a,,,pro,,,x", "k4,,a,,,pro,,,"), Options{})
		p, ok := errors.AsType[*Problems](err)
		if !ok || len(p.First) != 3 || fmt.Sprint(p.First[0].Line, p.First[1].Line, p.First[2].Line) != "3 4 5" {
			t.Errorf("three bad lines: %v", err)
		}
		var many []string
		for i := range 250 {
			many = append(many, fmt.Sprintf("k%d,,a,,,gold,,,", i))
		}
		if _, err = w.run(rows(many...), Options{}); !strings.Contains(fmt.Sprint(err), "and 150 more\n") {
			t.Errorf("250 bad lines: %.200v", err)
		}
		w.svc.Tune(service.Tunables{MaxKeys: 2})
		if _, err = w.run(rows("k1,,a,,,pro,,,", "k2,,a,,,pro,,,", "k3,,a,,,pro,,,"), Options{}); !strings.Contains(fmt.Sprint(err), "cap of 2 keys") {
			t.Errorf("over the cap: %v", err)
		}
		if got := w.counts(); got != before {
			t.Errorf("after bad files: %s, want %s", got, before)
		}
	})
}

// An import that is interrupted at any write is finished by running it again.
func TestInterrupted(t *testing.T) {
	var file strings.Builder
	file.WriteString("key,user_external_id,plan,used\n")
	const rows = 2500
	for i := range rows {
		fmt.Fprintf(&file, "acme_%06d,u%d,%s,7\n", i, i%700, "pro")
	}
	file.WriteString("acme_ann1,ann,,3\nacme_ann2,ann,,4\n")
	for at := 1; ; at++ {
		w := newWorld(t, memstore.New())
		_, err := w.svc.CreateUser(t.Context(), w.account, core.UserPatch{Name: new("Ann"), ExternalID: core.Some("ann"), PlanID: core.Some(w.pro)})
		w.ok(err)
		w.writes = at
		_, err = w.run(file.String(), Options{})
		done := err == nil
		if !done && !errors.Is(err, core.ErrUnavailable) {
			t.Fatal(err)
		}
		w.writes = 0
		report, err := w.run(file.String(), Options{})
		w.ok(err)
		if report.Keys+report.AlreadyThere != rows+2 {
			t.Errorf("after write %d: %+v", at, report)
		}
		for key, want := range map[string]int64{"acme_000000": 8, "acme_001500": 8, "acme_002499": 8, "acme_ann1": 8} {
			if outcome, used := w.usage(key); outcome != service.Allowed || used != want {
				t.Errorf("after write %d: %s: %v with %d requests, want %d", at, key, outcome, used, want)
			}
		}
		if done {
			if at < 7 {
				t.Errorf("%d writes in all", at-1)
			}
			return
		}
	}
}

// Any file is read to its end, or refused, without a panic. A row that is accepted has a digest.
func FuzzReader(f *testing.F) {
	f.Add([]byte("key,user_name,plan\nk1,a,pro\n\"k\n2\",b,pro\n"))
	f.Add([]byte("\ufeffkey_sha256,metadata.x,used\n" + strings.Repeat("ab", 32) + ",\"a\"\"b\",9\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := newReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		for range len(file) + 1 {
			w, err := r.next()
			bad, _ := errors.AsType[badRow](w.err)
			if err == io.EOF || bad.last {
				return
			}
			if w.err == nil && !w.hasDigest {
				t.Fatal("a row without a digest")
			}
		}
		t.Fatal("the reader does not end")
	})
}

// One million digests are imported on Badger: set LIMITKEEPER_IMPORT_ROWS=1000000, and GOMEMLIMIT=260MiB for the limit that the
// command has. The log has the largest anonymous memory of the process; the mapped files of the store come on top.
func TestMillion(t *testing.T) {
	var n int
	if _, err := fmt.Sscan(os.Getenv("LIMITKEEPER_IMPORT_ROWS"), &n); err != nil {
		t.Skip("LIMITKEEPER_IMPORT_ROWS is not set")
	}
	s, err := badgerstore.Open(t.TempDir(), badgerstore.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w := newWorld(t, s)
	file, err := os.CreateTemp(t.TempDir(), "")
	w.ok(err)
	var text bytes.Buffer
	text.WriteString("key_sha256,user_external_id,plan\n")
	for i := range n {
		fmt.Fprintf(&text, "%x,customer-%d,pro\n", digest(fmt.Sprintf("acme_%d", i)), i/4)
		if text.Len() > 1<<20 {
			_, _ = text.WriteTo(file)
		}
	}
	_, _ = text.WriteTo(file)
	cpu := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	runtime.GC()
	start, before := time.Now(), cpu()
	pass, memory := "", 0
	report, err := Run(t.Context(), w.svc, w.store, func() (io.ReadCloser, error) { return os.Open(file.Name()) },
		Options{Account: "acme", KeyPrefixes: []string{"acme_"}, Progress: func(name string, rows int) {
			status, _ := os.ReadFile("/proc/self/status")
			_, anonymous, _ := strings.Cut(string(status), "RssAnon:")
			var kb int
			_, _ = fmt.Sscan(anonymous, &kb)
			memory = max(memory, kb>>10)
			if name != pass {
				t.Logf("%s begins after %v, CPU time %v", name, time.Since(start), cpu()-before)
				pass = name
			}
		}})
	w.ok(err)
	t.Logf("%+v in %v, CPU time %v, memory at most %d MiB", report, time.Since(start), cpu()-before, memory)
	if outcome, _ := w.usage(fmt.Sprintf("acme_%d", n-1)); outcome != service.Allowed {
		t.Errorf("the last key: %v", outcome)
	}
}
