package migrate

import (
	"context"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// After a run both stores have the same content, to the last entry. If this fails, customers lose data.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(16) {
		source := filled(t, seed, 400)
		want := everything(t, source)
		o := Options{Retention: forever}
		if seed%2 == 0 {
			o = small()
		}
		target := memstore.New()
		r := mustRun(t, source, target, o)
		wantSame(t, "in another store", want, target)
		wantSame(t, "in the source", want, source)
		wantReport(t, r, want)
		back := memstore.New()
		mustRun(t, target, back, o)
		wantSame(t, "back again", want, back)
	}
}

// wantReport fails unless a report counts everything.
func wantReport(t testing.TB, r Report, want whole) {
	t.Helper()
	var sum Report
	sum.Accounts = int64(len(want.Accounts))
	used := map[string]int64{}
	for _, a := range want.Each {
		sum.OwnerKeys += int64(len(a.Owners))
		sum.Plans += int64(len(a.Plans))
		sum.Users += int64(len(a.Users))
		sum.Keys += int64(len(a.Keys))
		for _, c := range a.Counters {
			for _, p := range core.Periods() {
				used[p.String()] += c.Requests[p]
			}
		}
		for _, u := range a.Users {
			sum.UserHistory.Source += int64(len(a.Histories[nameOfUser(u.ID)]))
		}
		for _, k := range a.Keys {
			sum.KeyHistory.Source += int64(len(a.Histories["key "+k.ID]))
		}
	}
	sum.UserHistory.Target, sum.KeyHistory.Target = sum.UserHistory.Source, sum.KeyHistory.Source
	sum.Used = used
	if !same(r, sum) {
		t.Errorf("report: got %+v, want %+v", r, sum)
	}
}

// A copy from memory to disk and, after reopening, back to memory loses nothing.
func TestRoundTripBadger(t *testing.T) {
	for seed := uint64(100); seed < 104; seed++ {
		source := filled(t, seed, 400)
		want := everything(t, source)
		dir := t.TempDir()
		open := func() *badgerstore.Store {
			s, err := badgerstore.Open(dir, badgerstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		disk := open()
		o := small()
		o.read = 50
		mustRun(t, source, disk, o)
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
		disk = open()
		defer disk.Close()
		wantSame(t, "on the disk", want, disk)
		back := memstore.New()
		mustRun(t, disk, back, o)
		wantSame(t, "in memory again", want, back)
	}
}

// A store on disk that has counted requests itself is copied completely.
func TestFromBadger(t *testing.T) {
	dir := t.TempDir()
	disk, err := badgerstore.Open(dir, badgerstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	newWorld(t, disk, 7, 600)
	if err := disk.Close(); err != nil { // so that all denials are recorded
		t.Fatal(err)
	}
	if disk, err = badgerstore.Open(dir, badgerstore.Options{}); err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	want := everything(t, disk)
	target := memstore.New()
	mustRun(t, disk, target, Options{Retention: forever})
	wantSame(t, "in memory", want, target)
}

// An empty store and empty accounts are copied without error.
func TestEmpty(t *testing.T) {
	source, target := memstore.New(), memstore.New()
	mustRun(t, source, target, Options{})
	w := &world{t: t, s: source, now: noon, acct: "acct"}
	w.must(source.CreateAccount(t.Context(), &core.Account{ID: "acct", Name: "acct"}, &core.OwnerKey{ID: "okey", AccountID: "acct"}))
	r := mustRun(t, source, target, Options{})
	if r.Accounts != 1 || r.OwnerKeys != 1 || r.Users != 0 {
		t.Errorf("report: got %+v, want one account", r)
	}
	wantSame(t, "an empty account", everything(t, source), target)
}

// The target gives no number that the source has given to a deleted resource, although it never had that resource.
func TestNumbers(t *testing.T) {
	source, target := memstore.New(), memstore.New()
	w := &world{t: t, s: source, now: noon, acct: "acct"}
	w.must(source.CreateAccount(t.Context(), &core.Account{ID: "acct", Name: "acct"}, &core.OwnerKey{ID: "okey", AccountID: "acct"}))
	put := func(id int64) {
		w.update(func(tx core.Tx) error {
			return firstOf(tx.PutUser(&core.User{AccountID: "acct", ID: id}), tx.PutPlan(&core.Plan{AccountID: "acct", ID: "plan", Seq: id}),
				tx.PutKey(&core.Key{AccountID: "acct", ID: "key", Seq: 3 * id, UserID: id}))
		})
		w.update(func(tx core.Tx) error { return firstOf(tx.DeletePlan("plan"), tx.DeleteKey("key")) })
	}
	for _, id := range []int64{5, 7, 7} {
		put(id)
		mustRun(t, source, target, Options{})
		if got, err := lastNumbers(t.Context(), target, "acct"); err != nil || got != (numbers{id, id, 3 * id}) {
			t.Errorf("last numbers of the target: got %+v, %v, want %d, %d, %d", got, err, id, id, 3*id)
		}
		wantSame(t, "with numbers that were given", everything(t, source), target)
	}
	w.update(func(tx core.Tx) error { return firstOf(tx.DeleteUser(5), tx.DeleteUser(7)) })
	fresh := memstore.New()
	mustRun(t, source, fresh, Options{})
	wantSame(t, "with no users at all", everything(t, source), fresh)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Entries older than the retention stay behind, and the comparison ignores them.
func TestRetention(t *testing.T) {
	source, target := filled(t, 3, 300), memstore.New()
	o := small()
	var newest time.Time
	for _, a := range everything(t, source).Each {
		for _, h := range a.Histories {
			for _, e := range h {
				if e.At.After(newest) {
					newest = e.At
				}
			}
		}
	}
	o.now = func() time.Time { return newest }
	o.Retention = newest.Sub(noon) / 2
	r := mustRun(t, source, target, o)
	if r.UserHistory.Target == 0 || r.UserHistory.Source != r.UserHistory.Target {
		t.Errorf("history: got %+v, want a part of it, all", r.UserHistory)
	}
	since := newest.Add(-o.Retention)
	ctx, page := context.Background(), core.Page{Number: 1, Size: 1 << 20}
	for _, a := range everything(t, source).Each {
		for _, u := range a.Users {
			of := ofUser(u.AccountID, u.ID)
			want, n, _ := source.History(ctx, of, since, page)
			got, all, err := target.History(ctx, of, time.Time{}, page)
			if err != nil || n != all || !same(want, got) {
				t.Errorf("history of %s: got %d entries, %v, want the %d since then", nameOf(of), all, err, n)
			}
		}
	}
}

// Progress is called regularly. At the end every Count is complete.
func TestProgress(t *testing.T) {
	source, target := filled(t, 5, 300), memstore.New()
	var told []Progress
	o := small()
	o.Workers = 1
	clock := noon
	o.now = func() time.Time { clock = clock.Add(20 * time.Millisecond); return clock }
	o.Progress = func(p Progress) { told = append(told, p) }
	r := mustRun(t, source, target, o)
	if len(told) < 5 {
		t.Fatalf("progress was told %d times, want often", len(told))
	}
	allDone(t, told[len(told)-1], r)

	for at := 40; at < 100; at += 5 { // and when it was cut off before
		half := memstore.New()
		cut(t, source, half, small(), at, halfDone)
		r := mustRun(t, source, half, o)
		allDone(t, told[len(told)-1], r)
	}
}

// allDone fails unless everything is done that is in the report.
func allDone(t *testing.T, last Progress, r Report) {
	t.Helper()
	for name, c := range map[string]Count{"accounts": last.Accounts, "owner's keys": last.OwnerKeys, "plans": last.Plans, "users": last.Users,
		"keys": last.Keys, "histories": last.Histories, "entries": last.Entries, "counters": last.Counters, "verified": last.Verified} {
		if c.Done != c.Total || c.Total == 0 {
			t.Errorf("%s: got %d of %d at the end, want all", name, c.Done, c.Total)
		}
	}
	if last.Users.Total != r.Users || last.Keys.Total != r.Keys || last.Verified.Total != r.Users+r.Keys {
		t.Errorf("totals: got %+v, want those of the report %+v", last, r)
	}
}
