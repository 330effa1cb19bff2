package archive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// noon is a time of the random operations. Its nanoseconds have nine digits.
var noon = time.Date(2026, time.March, 12, 12, 0, 0, 123456789, time.UTC)

// forever is a retention within which nothing expires.
const forever = 200 * 365 * 24 * time.Hour

// small returns options with small pages, so that each list has many.
func small() ImportOptions {
	return ImportOptions{Retention: forever, page: 3, entryPage: 4, now: func() time.Time { return noon }}
}

// exporting returns the options of an export with small pages.
func exporting() ExportOptions { return ExportOptions{page: 3, entryPage: 4, compares: true} }

// inMemory opens a store in memory.
func inMemory() storetest.Opened {
	s := memstore.New()
	return storetest.Opened{Store: s, Reopen: func(testing.TB) core.Store {
		s = s.Reopen()
		return s
	}}
}

// filled returns a store after random operations. The same seed gives the same operations.
func filled(t testing.TB, seed int) *memstore.Store {
	t.Helper()
	return rapid.Custom(func(run *rapid.T) *memstore.Store {
		o := inMemory()
		storetest.FillAtRandom(run, t, &o)
		return o.Store.(*memstore.Store)
	}).Example(seed)
}

// archiveOfAllKinds returns an archive of a store that is filled at random. It has a record of each kind.
func archiveOfAllKinds(t testing.TB) []byte {
	t.Helper()
	for seed := range 60 {
		seen := map[string]bool{}
		archive := archiveOf(t, filled(t, seed))
		for line := range bytes.Lines(archive) {
			kind, _, _ := bytes.Cut(line, []byte(":"))
			seen[string(kind)] = true
		}
		if len(seen) == len(Kinds())+2 { // with the header and the trailer
			return archive
		}
	}
	t.Fatal("no store that is filled at random has records of all kinds")
	return nil
}

// tester is a test, or a random run of a test.
type tester interface {
	rapid.TB
	Context() context.Context
}

// whole is all that a store holds, to be compared.
type whole struct {
	Accounts []*core.Account
	Each     []account
}

type account struct {
	Owners    []*core.OwnerKey
	Webhooks  []*core.Webhook
	Outbox    []*core.Event
	Plans     []*core.Plan
	Users     []*core.User
	Keys      []*core.Key
	ByDigest  []string
	Access    *core.Access
	Counters  map[string]core.Counter
	Days      map[string][]core.CounterDay
	Histories map[string][]core.Entry
	Last      string // the last numbers
}

// everything reads all that a store holds.
func everything(t tester, s core.Importer) (all whole) {
	t.Helper()
	ctx, everything := t.Context(), core.Page{Number: 1, Size: 1 << 20}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	all.Accounts, _, err = s.Accounts(ctx, everything)
	must(err)
	for _, acct := range all.Accounts {
		if acct.Import != nil && !acct.Import.Complete {
			t.Errorf("account %s: got an incomplete import, want a complete one", acct.Name)
		}
		acct.Import = nil
		a := account{Counters: map[string]core.Counter{}, Days: map[string][]core.CounterDay{}, Histories: map[string][]core.Entry{}}
		a.Access, err = s.Access(ctx, acct.ID)
		must(err)
		a.Owners, _, err = s.OwnerKeys(ctx, acct.ID, everything)
		must(err)
		a.Webhooks, _, err = s.Webhooks(ctx, acct.ID, everything)
		must(err)
		a.Outbox, _, err = s.Events(ctx, acct.ID, core.EventFilter{}, 0, 1<<20)
		must(err)
		a.Plans, _, err = s.Plans(ctx, acct.ID, everything)
		must(err)
		a.Users, _, err = s.Users(ctx, acct.ID, core.UserFilter{}, everything)
		must(err)
		a.Keys, _, err = s.Keys(ctx, acct.ID, core.KeyFilter{}, everything)
		must(err)
		days := func(id core.CounterID) {
			list, err := s.CounterDays(ctx, id)
			must(err)
			a.Days[nameOf(id)] = slices.DeleteFunc(list, func(d core.CounterDay) bool { return d.Date.IsHour() && d.Date < oldestHour() })
		}
		days(core.CounterID{Account: acct.ID})
		var ids []core.CounterID
		for _, u := range a.Users {
			ids = append(ids, core.CounterID{Account: acct.ID, UserID: u.ID})
		}
		for _, k := range a.Keys {
			ids = append(ids, core.CounterID{Account: acct.ID, KeyID: k.ID})
			for _, d := range k.Digests() {
				found, err := s.KeyByDigest(ctx, d)
				must(err)
				a.ByDigest = append(a.ByDigest, found.ID)
			}
		}
		counters, err := s.Counters(ctx, ids)
		must(err)
		for i, id := range ids {
			for m := &counters[i].Meters; *m != nil; {
				if ((*m).Usage == core.PeriodUsage{}) { // as a missing meter
					*m = (*m).Next
				} else {
					m = &(*m).Next
				}
			}
			a.Counters[nameOf(id)] = counters[i]
			days(id)
			entries, total, err := s.History(ctx, id, time.Time{}, everything)
			must(err)
			if total != len(entries) {
				t.Errorf("history of %+v: got %d entries of %d", id, len(entries), total)
			}
			for i := range entries {
				entries[i].Late = 0 // another one if the store has dropped the entry that made it late
			}
			a.Histories[nameOf(id)] = entries
		}
		last, err := s.LastNumbers(ctx, acct.ID)
		must(err)
		a.Last = fmt.Sprint(last)
		all.Each = append(all.Each, a)
	}
	return all
}

// wantSame fails unless a store holds everything that is wanted and nothing else.
func wantSame(t tester, when string, want whole, s core.Importer) {
	t.Helper()
	got := everything(t, s)
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(core.Counter{})); d != "" {
		t.Fatalf("%s (-source +target):\n%.4000s", when, d)
	}
}

// mustImport imports everything from a store.
func mustImport(t tester, from, to core.Importer, o ImportOptions) Report {
	t.Helper()
	r, err := Import(t.Context(), to, FromStore(from, exporting()), o)
	if err != nil {
		t.Fatalf("Import: %v", err)
	}
	return r
}

// archiveOf returns the archive of a store.
func archiveOf(t tester, s core.Importer) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := Export(t.Context(), s, &b, exporting()); err != nil {
		t.Fatalf("Export: %v", err)
	}
	return b.Bytes()
}

// source returns a source that reads an archive.
func source(archive []byte) Source {
	return FromArchive(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
}

// oldestHour returns the first hour that an import takes over.
func oldestHour() core.Date { return newFilter(small(), nil, "").hour }

var hourOfRecord = regexp.MustCompile(`^\{"day":.*?"date":"(....-..-..T..:00:00Z)"`)

// body returns an archive without its header and trailer, which have the time and the SHA-256, and without the hours that an import leaves out.
func body(t tester, archive []byte) string {
	t.Helper()
	lines := strings.SplitAfter(string(archive), "\n")
	if len(lines) < 3 {
		t.Fatalf("archive: got %d lines, want at least 3", len(lines))
	}
	lines = slices.DeleteFunc(lines[1:len(lines)-2], func(line string) bool {
		m := hourOfRecord.FindStringSubmatch(line)
		if m == nil {
			return false
		}
		hour, err := core.ParseHour(m[1])
		return err == nil && hour < oldestHour()
	})
	return strings.Join(lines, "")
}
