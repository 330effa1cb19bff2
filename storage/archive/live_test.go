package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// site is an account on Redis that changes while it is exported: before is called before each page is read.
type site struct {
	*redisstore.Store
	t      *testing.T
	prefix int
	before func(list string, after int64)
}

func (s *site) PlansAfter(ctx context.Context, account string, seq int64, n int) ([]*core.Plan, error) {
	s.before("plans", seq)
	return s.Store.PlansAfter(ctx, account, seq, n)
}

func (s *site) UsersAfter(ctx context.Context, account string, id int64, n int) ([]*core.User, error) {
	s.before("users", id)
	return s.Store.UsersAfter(ctx, account, id, n)
}

func (s *site) KeysAfter(ctx context.Context, account string, seq int64, n int) ([]*core.Key, error) {
	s.before("keys", seq)
	return s.Store.KeysAfter(ctx, account, seq, n)
}

// newSite returns an account with plans 1 and 2, and a number of users with a key each. The keys were used once.
func newSite(t *testing.T, prefix, users int, addresses ...string) *site {
	t.Helper()
	s := &site{Store: openRedis(t, prefix, addresses...), t: t, prefix: prefix, before: func(string, int64) {}}
	addAccount(t, s, "a")
	s.putPlan(1)
	s.putPlan(2)
	for i := range users {
		s.put(fmt.Sprintf("key_%d", i+1))
		s.consume(fmt.Sprintf("key_%d", i+1), false)
	}
	return s
}

func (s *site) update(fn func(core.Tx) error) {
	s.t.Helper()
	if err := s.Update(context.Background(), "acct_a", fn); err != nil {
		s.t.Error(err)
	}
}

func (s *site) putPlan(n int) {
	s.t.Helper()
	s.update(func(tx core.Tx) error {
		return tx.PutPlan(&core.Plan{AccountID: "acct_a", ID: fmt.Sprintf("plan_%d", n), Name: "plan", Limit: 100, Period: core.Month, CreatedAt: noon})
	})
}

// put stores a new user with a key, and returns the ID of the user.
func (s *site) put(key string) (user int64) {
	s.t.Helper()
	s.update(func(tx core.Tx) error {
		u := &core.User{AccountID: "acct_a", Name: "of " + key, Email: new(key + "@example.com"), ExternalID: "cus " + key, PlanID: "plan_1", CreatedAt: noon}
		err := tx.PutUser(u)
		user = u.ID
		return errors.Join(err, tx.PutKey(s.newKey(key, user)))
	})
	return user
}

func (s *site) newKey(id string, user int64) *core.Key {
	return &core.Key{AccountID: "acct_a", ID: id, Name: id, Hint: "…", UserID: user, Status: core.KeyActive, Digest: secrets.DigestOf(s.t.Name() + id), CreatedAt: noon}
}

func (s *site) deleteUser(id int64) {
	s.t.Helper()
	s.update(func(tx core.Tx) error { return tx.DeleteUser(id) })
}

func (s *site) changeKey(id string, change func(*core.Key)) {
	s.t.Helper()
	s.update(func(tx core.Tx) error {
		k, err := tx.Key(id)
		if err != nil {
			return err
		}
		change(k)
		return tx.PutKey(k)
	})
}

func (s *site) changeUser(id int64, change func(*core.User)) {
	s.t.Helper()
	s.update(func(tx core.Tx) error {
		u, err := tx.User(id)
		if err != nil {
			return err
		}
		change(u)
		return tx.PutUser(u)
	})
}

// consume sends a request with a cost on a second meter.
func (s *site) consume(key string, denied bool) {
	s.t.Helper()
	k, err := s.Key(context.Background(), "acct_a", key)
	if err != nil {
		s.t.Error(err)
		return
	}
	costs := []core.MeterCost{{Meter: "tokens", Cost: 7}}
	c := &core.Consumption{Account: "acct_a", KeyID: key, KeySeq: k.Seq, UserID: k.UserID, Shared: true, Cost: 1, Retention: forever, Costs: costs,
		Terms: core.Terms{PlanID: "plan_1", Period: core.Year, Limit: core.MaxLimit},
		Entry: core.Entry{At: noon, KeyID: key, UserID: k.UserID, Method: "GET", Endpoint: "/", Cost: 1, Costs: costs}}
	if denied {
		c.Limit, c.Entry.Denied = 0, true
	}
	if _, err := s.Consume(context.Background(), c); err != nil {
		s.t.Error(err)
	}
}

// imported imports an archive of the site into a new store in memory. The export holds a number of records back, 0 for the default.
func (s *site) imported(held int) (*memstore.Store, error) {
	s.t.Helper()
	var b strings.Builder
	o := exporting()
	o.held = held
	if _, err := Export(s.t.Context(), s, &b, o); err != nil {
		return nil, err
	}
	to := memstore.New()
	if _, err := Import(s.t.Context(), to, source([]byte(b.String())), small()); err != nil {
		s.t.Fatalf("Import: %v", err)
	}
	return to, nil
}

// A change during an export loses no resource that stays, and makes no archive that an import refuses. If it would, the export
// begins the account again, or fails if it has written records of the account.
func TestLiveExport(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for n, tc := range []struct {
		name   string
		list   string // the change is before a page of this list
		after  int64  // with a number that the page follows
		change func(s *site)
		gone   string // the users and keys that the archive lacks, of users 1 to 10 and keys 1 to 10
		fails  string // the error if records of the account are written
	}{
		{"users of earlier pages deleted", "users", 6, func(s *site) { s.deleteUser(1); s.deleteUser(2); s.deleteUser(4) }, "key_1 key_2 key_4", ""},
		{"user of a later page deleted", "users", 3, func(s *site) { s.deleteUser(9) }, "user_9 key_9", ""},
		{"user of the page deleted", "users", 3, func(s *site) { s.deleteUser(5); s.deleteUser(6) }, "user_5 user_6 key_5 key_6", ""},
		{"all users deleted but one", "users", 3, func(s *site) {
			for id := range int64(9) {
				s.deleteUser(id + 1)
			}
		}, "user_4 user_5 user_6 user_7 user_8 user_9 key_1 key_2 key_3 key_4 key_5 key_6 key_7 key_8 key_9", ""},
		{"exported users deleted before their keys", "keys", 3, func(s *site) { s.deleteUser(2); s.deleteUser(8) }, "key_8", ""},
		{"keys of earlier pages deleted", "keys", 9, func(s *site) {
			for i := range 5 {
				s.update(func(tx core.Tx) error { return tx.DeleteKey(fmt.Sprintf("key_%d", i+1)) })
			}
		}, "", ""},
		{"user created", "users", 6, func(s *site) { s.putPlan(3); s.put("key_new"); s.consume("key_new", false) }, "", ""},
		{"user created before the keys", "keys", 0, func(s *site) { s.putPlan(3); s.put("key_new"); s.consume("key_new", false) }, "", ""},
		{"key moved", "keys", 3, func(s *site) { s.changeKey("key_7", func(k *core.Key) { k.UserID = 2 }) }, "", ""},
		{"plan deleted", "plans", 0, func(s *site) { s.update(func(tx core.Tx) error { return tx.DeletePlan("plan_2") }) }, "", ""},
		// The state while another process deletes the many keys of a user, which is deleted already.
		{"keys of a deleted user", "users", 3, func(s *site) {
			slot := fmt.Sprintf("test%d:{acct_a}", s.prefix)
			server.Do(t, "DEL", slot+"u:9")
			server.Do(t, "ZREM", slot+"users", "9")
		}, "user_9 key_9", ""},
		{"new plan of a user", "users", 6, func(s *site) {
			s.putPlan(3)
			s.changeUser(9, func(u *core.User) { u.PlanID = "plan_3" })
		}, "", "user 9: it changed"},
		{"new plan of a key", "keys", 6, func(s *site) {
			s.putPlan(3)
			s.changeKey("key_9", func(k *core.Key) { k.PlanID = "plan_3" })
		}, "", "key key_9: it changed"},
		{"new user of a key", "users", 9, func(s *site) {
			user := s.put("key_new")
			s.changeKey("key_3", func(k *core.Key) { k.UserID = user })
		}, "", "key key_3: it changed"},
		{"email of another user", "users", 3, func(s *site) {
			s.changeUser(1, func(u *core.User) { u.Email = nil })
			s.changeUser(9, func(u *core.User) { u.Email = new("key_1@example.com") })
		}, "", "user 9: it changed"},
		{"external id of a deleted user", "users", 3, func(s *site) {
			s.deleteUser(1)
			s.changeUser(9, func(u *core.User) { u.ExternalID = "cus key_1" })
		}, "user_1 key_1", "user 9: it changed"},
		{"value of another key", "keys", 3, func(s *site) {
			s.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") })
			s.changeKey("key_9", func(k *core.Key) { k.Digest = secrets.DigestOf(s.t.Name() + "key_1") })
		}, "key_1", "key key_9: it changed"},
	} {
		test := func(t *testing.T, prefix, held int) {
			t.Parallel()
			s, done := newSite(t, prefix, 10, server.Addr()), false
			s.before = func(list string, after int64) {
				if !done && list == tc.list && after == tc.after {
					done = true
					tc.change(s)
				}
			}
			to, err := s.imported(held)
			if fails := tc.fails != "" && held > 0; fails || err != nil {
				if !fails || !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("Export: got %v, want %q if records are written", err, tc.fails)
				}
				return
			}
			var want, got []string
			for i := range 10 {
				want = append(want, fmt.Sprintf("user_%d", i+1), fmt.Sprintf("key_%d", i+1))
			}
			want = slices.DeleteFunc(want, func(name string) bool { return slices.Contains(strings.Fields(tc.gone), name) })
			all := everything(t, to).Each[0]
			for _, u := range all.Users {
				got = append(got, fmt.Sprintf("user_%d", u.ID))
			}
			for _, k := range all.Keys {
				got = append(got, k.ID)
			}
			if tc.fails != "" { // begun again, the export may have new ones
				got = slices.DeleteFunc(got, func(name string) bool { return name == "user_11" || name == "key_new" })
			}
			slices.Sort(want)
			slices.Sort(got)
			if d := cmp.Diff(want, got); d != "" || !done {
				t.Errorf("the archive, changed %t (-want +got):\n%s", done, d)
			}
		}
		t.Run(tc.name, func(t *testing.T) { test(t, 2*n, 0) })
		t.Run(tc.name+", written", func(t *testing.T) { test(t, 2*n+1, 1) })
	}
}

// load is what clients do during an export.
type load struct {
	*site
	stop  chan struct{}
	all   sync.WaitGroup
	pause sync.RWMutex // the clients wait while it is locked

	sent, answered [busyKeys]atomic.Int64
}

const (
	busyKeys  = 6   // of users of their own, whose slots are on all masters
	idleUsers = 120 // that stay; another 60 are deleted
)

// run calls fn again and again until the end.
func (l *load) run(fn func(n int)) {
	l.all.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-l.stop:
				return
			default:
				l.pause.RLock()
				fn(n)
				l.pause.RUnlock()
			}
		}
	})
}

// begin stores the users and starts the clients. Of the users, every third one is deleted sooner or later, the oldest first.
func (l *load) begin() {
	var doomed []int64
	for i := range idleUsers {
		l.put(fmt.Sprintf("idle_%d", i))
		l.consume(fmt.Sprintf("idle_%d", i), false)
		if i%2 == 0 {
			doomed = append(doomed, l.put(fmt.Sprintf("doomed_%d", i)))
		}
		if n := i / 20; i%20 == 0 {
			l.put(fmt.Sprintf("busy_%d", n))
			l.request(n)
		}
	}
	for i := range busyKeys {
		l.run(func(n int) {
			l.request(i)
			if n%7 == 0 {
				l.consume(fmt.Sprintf("busy_%d", i), true)
			}
		})
	}
	l.run(func(n int) {
		if n <= len(doomed) {
			l.deleteUser(doomed[n-1])
		}
		user, key := l.put(fmt.Sprintf("new_%d", n)), fmt.Sprintf("new_%d", n)
		l.consume(key, false)
		l.putPlan(10 + n)
		l.changeUser(user, func(u *core.User) { u.PlanID = fmt.Sprintf("plan_%d", 10+n) })
		if n%2 == 0 {
			l.deleteUser(user)
			l.update(func(tx core.Tx) error { return tx.DeletePlan(fmt.Sprintf("plan_%d", 10+n)) })
		}
	})
}

// request sends a request with a key, and notes when.
func (l *load) request(i int) {
	l.sent[i].Add(1)
	l.consume(fmt.Sprintf("busy_%d", i), false)
	l.answered[i].Add(1)
}

// An account that changes while the accounts before it are exported is exported as it is then.
func TestLiveExportOfChangedAccount(t *testing.T) {
	s := newSite(t, 0, 1, redistest.Start(t).Addr())
	addAccount(t, s, "z")
	s.before = func(string, int64) {
		if _, err := s.UpdateAccount(t.Context(), "acct_z", func(a *core.Account) error { a.KeyPrefixes = []string{"acme_"}; return nil }); err != nil {
			t.Error(err)
		}
	}
	var b strings.Builder
	if _, err := Export(t.Context(), s, &b, ExportOptions{}); err != nil || strings.Count(b.String(), "acme_") != 1 {
		t.Errorf("got %v, and the prefix %d times in the archive, want once", err, strings.Count(b.String(), "acme_"))
	}
}

// Exports while clients send requests, and create and delete users, keys and plans. Each archive can be imported into each kind of
// store. It has what stays, as it is on Redis, with every request that was answered before the export and none that was sent after
// it. A counter and its days are of one instant. A failure means that a backup loses data, or cannot be restored.
func TestLiveExportUnderLoad(t *testing.T) {
	t.Parallel()
	l := &load{site: newSite(t, 0, 0, redistest.StartCluster(t).Addrs()...), stop: make(chan struct{})}
	l.begin()
	defer l.all.Wait()
	defer close(l.stop)
	round := func(to core.Importer) {
		var answered, sent [busyKeys]int64
		for i := range answered {
			answered[i] = l.answered[i].Load()
		}
		archive := archiveOf(t, l)
		l.pause.Lock()
		defer l.pause.Unlock()
		for i := range sent {
			sent[i] = l.sent[i].Load()
		}
		if _, err := Import(t.Context(), to, source(archive), small()); err != nil {
			t.Fatalf("Import: %v", err)
		}
		l.compare(everything(t, l.Store).Each[0], everything(t, to).Each[0])
		var used [busyKeys]int64
		for i := range used {
			used[i] = wantDays(t, to, fmt.Sprintf("busy_%d", i))
			if used[i] < answered[i] || used[i] > sent[i] {
				t.Errorf("key %d: got %d requests, want at least the %d answered before the export, at most the %d sent until its end", i, used[i], answered[i], sent[i])
			}
		}
		t.Logf("%d bytes, requests: %v of %v sent", len(archive), used, sent)
	}
	round(memstore.New())
	round(openBadger(t, t.TempDir()))
	round(memstore.New())
}

// compare fails unless an archive has the plans, users and keys that stay, each once and as they are on Redis, and the usage of those
// that no client uses.
func (l *load) compare(redis, archive account) {
	l.t.Helper()
	var users, keys int
	for _, u := range archive.Users {
		if strings.HasPrefix(u.Name, "of idle_") || strings.HasPrefix(u.Name, "of busy_") {
			users++
		}
	}
	for _, k := range archive.Keys {
		if strings.HasPrefix(k.ID, "idle_") || strings.HasPrefix(k.ID, "busy_") {
			keys++
		}
	}
	if users != idleUsers+busyKeys || keys != users || len(archive.Plans) < 2 {
		l.t.Errorf("the archive has %d users, %d keys and %d plans that stay, want %d, as many and 2", users, keys, len(archive.Plans), idleUsers+busyKeys)
	}
	for _, u := range redis.Users {
		i := slices.IndexFunc(archive.Users, func(other *core.User) bool { return other.ID == u.ID })
		if i >= 0 && strings.HasPrefix(u.Name, "of idle_") {
			owner := nameOf(core.CounterID{UserID: u.ID})
			want, got := redis.Counters[owner], archive.Counters[owner]
			if d := cmp.Diff(u, archive.Users[i]) + cmp.Diff(redis.Days[owner], archive.Days[owner]); d != "" || !want.Same(&got) {
				l.t.Errorf("user %d has the counter %+v, want %+v (-redis +archive):\n%s", u.ID, got, want, d)
			}
		}
	}
	for _, k := range redis.Keys {
		i := slices.IndexFunc(archive.Keys, func(other *core.Key) bool { return other.ID == k.ID })
		if i >= 0 {
			if d := cmp.Diff(k, archive.Keys[i]); d != "" {
				l.t.Errorf("key %s (-redis +archive):\n%s", k.ID, d)
			}
		}
	}
}

// wantDays returns the requests that a key has counted, and fails unless its days and its other meter say the same, and its history,
// which is read later, has as many or more.
func wantDays(t *testing.T, s core.Importer, key string) int64 {
	t.Helper()
	of := core.CounterID{Account: "acct_a", KeyID: key}
	counters, err := s.Counters(t.Context(), []core.CounterID{of})
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := s.History(t.Context(), of, time.Time{}, core.Page{Number: 1, Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	days, err := s.CounterDays(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	used, listed := counters[0].Requests[core.Lifetime], int64(0)
	for _, e := range entries {
		if !e.Denied {
			listed++
		}
	}
	if tokens := counters[0].Meter("tokens")[core.Lifetime]; len(days) != 2 || days[0].Allowed != used || listed < min(used, redisstore.DefaultHistory) || tokens != 7*used ||
		!days[1].Date.IsHour() || new(days[1].Totals(false)).Of(core.MeterRequests).Allowed != used {
		t.Errorf("%s has counted %d requests and %d tokens, with days %+v and %d requests in its history", key, used, tokens, days, listed)
	}
	return used
}
