package archive

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// site is an account on Redis. between runs after the instant of a snapshot, and before its first read.
type site struct {
	*redisstore.Store
	t       *testing.T
	between func()
}

func (s *site) SnapshotAccount(ctx context.Context, account string) (core.AccountSnapshot, error) {
	snapshot, err := s.Store.SnapshotAccount(ctx, account)
	if err == nil && s.between != nil {
		s.between()
	}
	return snapshot, err
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

func (s *site) update(fn func(core.Tx) error) {
	s.t.Helper()
	s.must(s.Update(context.Background(), "acct_a", fn))
}

// put stores a new user with a key, and returns the ID of the user.
func (s *site) put(key string) (user int64) {
	s.t.Helper()
	s.update(func(tx core.Tx) error {
		u := &core.User{AccountID: "acct_a", Name: "of " + key, PlanID: "plan_1", CreatedAt: noon}
		if err := tx.PutUser(u); err != nil {
			return err
		}
		user = u.ID
		return tx.PutKey(&core.Key{AccountID: "acct_a", ID: key, Name: key, Hint: "…", UserID: u.ID, Status: core.KeyActive, Digest: core.DigestOf(s.t.Name() + key), CreatedAt: noon})
	})
	return user
}

// putManyKeys stores user 6 with as many keys as a store deletes in several steps, and uses one of them.
func (s *site) putManyKeys() {
	s.t.Helper()
	s.update(func(tx core.Tx) error {
		err := tx.PutUser(&core.User{AccountID: "acct_a", Name: "many", CreatedAt: noon})
		for i := range 600 {
			id := fmt.Sprintf("many_%d", i)
			err = errors.Join(err, tx.PutKey(&core.Key{AccountID: "acct_a", ID: id, Name: id, Hint: "…", UserID: 6, Status: core.KeyActive, Digest: core.DigestOf(s.t.Name() + id), CreatedAt: noon}))
		}
		return err
	})
	s.consume("many_7", nil)
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

func (s *site) move(key string, user int64) {
	s.t.Helper()
	s.changeKey(key, func(k *core.Key) { k.UserID = user })
}

// consume sends a request with a cost on a second meter.
func (s *site) consume(key string, change func(*core.Consumption)) {
	s.t.Helper()
	k, err := s.Key(context.Background(), "acct_a", key)
	if err != nil {
		s.t.Error(err)
		return
	}
	c := &core.Consumption{Account: "acct_a", KeyID: key, KeySeq: k.Seq, UserID: k.UserID, Shared: k.PlanID == "", Cost: 1, Retention: forever,
		Costs: []core.MeterCost{{Meter: "tokens", Cost: 7}}, Terms: core.Terms{PlanID: "plan_1", Period: core.Year, Limit: core.MaxLimit},
		Entry: core.Entry{At: noon, KeyID: key, UserID: k.UserID, Method: "GET", Endpoint: "/", Cost: 1, Costs: []core.MeterCost{{Meter: "tokens", Cost: 7}}}}
	if change != nil {
		change(c)
	}
	if _, err := s.Consume(context.Background(), c); err != nil {
		s.t.Error(err)
	}
}

// The changes of a request.
func denied(c *core.Consumption)   { c.Limit, c.Entry.Denied = 0, true }
func nextDay(c *core.Consumption)  { c.Entry.At = noon.Add(24 * time.Hour) }
func dayAfter(c *core.Consumption) { c.Entry.At = noon.Add(48 * time.Hour) }
func early(c *core.Consumption)    { c.Entry.At = noon.Add(-36 * time.Hour) }
func adjusted(c *core.Consumption) {
	c.Adjustment = &core.Adjustment{Meter: "tokens", Value: 100, Reason: "grant"}
	c.Cost, c.Costs, c.Entry.Cost, c.Entry.Costs = 0, nil, 0, nil
}
func adjustedUser(c *core.Consumption) {
	adjusted(c)
	c.KeyID, c.KeySeq, c.Entry.KeyID, c.Shared = "", 0, "", true
}
func otherMeter(c *core.Consumption) {
	c.Costs = []core.MeterCost{{Meter: "images", Cost: 2}}
	c.Entry.Costs = c.Costs
}

// newSite returns an account with plans 1 and 2, and users 1 to 5 with keys key_1 to key_5. User 5 and its key were never used.
func newSite(t *testing.T, n int, addresses []string) *site {
	t.Helper()
	s := &site{Store: openRedis(t, n, addresses...), t: t}
	addAccount(t, s, "a")
	_, err := s.UpdateAccess(t.Context(), "acct_a", func(a *core.Access) error { a.Password = passwordHash("hash"); return nil })
	s.must(err)
	s.update(func(tx core.Tx) error {
		err := tx.PutPlan(&core.Plan{AccountID: "acct_a", ID: "plan_1", Name: "one", Limit: 100, Period: core.Month, CreatedAt: noon})
		if err != nil {
			return err
		}
		return tx.PutPlan(&core.Plan{AccountID: "acct_a", ID: "plan_2", Name: "two", Limit: 100, Period: core.Month, CreatedAt: noon})
	})
	for i := range 5 {
		key := fmt.Sprintf("key_%d", i+1)
		s.put(key)
		for n := range 5 * (4 - i) {
			s.consume(key, nil)
			switch n {
			case 0:
				s.consume(key, early) // the histories are not in order
			case 1:
				s.consume(key, denied)
			case 2:
				s.consume(key, adjusted)
			}
		}
	}
	return s
}

// static hides that a store can export an account as of one instant.
type static struct{ core.Importer }

// changesAfter are changes after the instant of a snapshot.
var changesAfter = map[string]func(*site){
	"nothing":         func(*site) {},
	"request":         func(s *site) { s.consume("key_1", nil) },
	"early request":   func(s *site) { s.consume("key_1", early) },
	"first request":   func(s *site) { s.consume("key_5", nil) },
	"denial":          func(s *site) { s.consume("key_1", denied) },
	"new day":         func(s *site) { s.consume("key_1", nextDay); s.consume("key_1", nextDay) },
	"two new days":    func(s *site) { s.consume("key_1", nextDay); s.consume("key_1", dayAfter) },
	"denial next day": func(s *site) { s.consume("key_1", func(c *core.Consumption) { nextDay(c); denied(c) }) },
	"adjustment":      func(s *site) { s.consume("key_1", adjusted) },
	"user adjustment": func(s *site) { s.consume("key_1", adjustedUser) },
	"other meter":     func(s *site) { s.consume("key_4", otherMeter) },
	"many requests": func(s *site) {
		for range 200 {
			s.consume("key_2", nil)
		}
	},
	"delete key": func(s *site) { s.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") }) },
	"use, delete key": func(s *site) {
		s.consume("key_1", early)
		s.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") })
	},
	"delete user":      func(s *site) { s.consume("key_2", nil); s.update(func(tx core.Tx) error { return tx.DeleteUser(2) }) },
	"delete idle user": func(s *site) { s.update(func(tx core.Tx) error { return tx.DeleteUser(5) }) },
	"delete key of idle user": func(s *site) {
		s.update(func(tx core.Tx) error { return tx.DeleteKey("key_5") })
		s.put("key_6")
		s.move("key_6", 5)
		s.consume("key_6", nil)
	},
	"move key of idle user": func(s *site) {
		s.move("key_5", 1)
		s.put("key_6")
		s.move("key_6", 5)
		s.consume("key_6", nil)
	},
	"move key":      func(s *site) { s.move("key_1", 2) },
	"move, use key": func(s *site) { s.consume("key_1", nil); s.move("key_1", 5); s.consume("key_1", early) },
	"move there, back": func(s *site) {
		s.move("key_1", 2)
		s.consume("key_1", nil)
		s.move("key_1", 1)
		s.consume("key_1", nil)
	},
	"move, delete user": func(s *site) { s.move("key_1", 2); s.update(func(tx core.Tx) error { return tx.DeleteUser(2) }) },
	"delete user with many keys": func(s *site) {
		s.update(func(tx core.Tx) error { return tx.DeleteUser(6) })
	},
	"import": func(s *site) {
		for _, of := range []core.CounterID{{Account: "acct_a", UserID: 1}, {Account: "acct_a", KeyID: "key_2"}, {Account: "acct_a", KeyID: "key_5"}} {
			s.must(s.SetCounters(context.Background(), []core.CounterID{of}, make([]core.Counter, 1)))
			s.must(s.SetDays(context.Background(), of, []core.CounterDay{{Date: core.DateOf(noon) - 9, Traffic: core.Traffic{Allowed: 3}}}))
			s.must(s.SetHistory(context.Background(), of, []core.Entry{{At: noon.Add(time.Hour), KeyID: of.KeyID, UserID: 1, Cost: 1}}, forever))
			s.must(s.AppendHistory(context.Background(), of, []core.Entry{{At: noon, KeyID: of.KeyID, UserID: 1, Cost: 1}}, forever))
		}
	},
	"create": func(s *site) { s.put("key_6"); s.consume("key_6", nil) },
	"create, delete": func(s *site) {
		user := s.put("key_6")
		s.consume("key_6", nil)
		s.update(func(tx core.Tx) error { return tx.DeleteUser(user) })
	},
	"create, move key": func(s *site) { s.put("key_6"); s.consume("key_6", nil); s.move("key_6", 1) },
	"update plan": func(s *site) {
		s.update(func(tx core.Tx) error {
			p, err := tx.Plan("plan_1")
			if err != nil {
				return err
			}
			p.Limit = 7
			return tx.PutPlan(p)
		})
	},
	"delete plan": func(s *site) { s.update(func(tx core.Tx) error { return tx.DeletePlan("plan_2") }) },
	"update user": func(s *site) {
		s.update(func(tx core.Tx) error {
			return tx.PutUser(&core.User{AccountID: "acct_a", ID: 1, Name: "new", PlanID: "plan_2", CreatedAt: noon})
		})
	},
	"disable key": func(s *site) { s.changeKey("key_1", func(k *core.Key) { k.Status = core.KeyInactive }) },
	"regenerate": func(s *site) {
		s.changeKey("key_1", func(k *core.Key) {
			k.Previous, k.Digest = []core.GraceValue{{Digest: k.Digest, Until: noon}}, core.DigestOf(s.t.Name()+"new")
		})
	},
	"sign-in": func(s *site) {
		_, err := s.UpdateAccess(context.Background(), "acct_a", func(a *core.Access) error { a.Password = passwordHash("othe"); return nil })
		s.must(err)
	},
	"account": func(s *site) {
		_, err := s.UpdateAccount(context.Background(), "acct_a", func(a *core.Account) error { a.Meters = []string{"x"}; return nil })
		s.must(err)
	},
	"owner's key": func(s *site) {
		s.must(s.CreateOwnerKey(context.Background(), &core.OwnerKey{ID: "okey_2", AccountID: "acct_a", Name: "o", Hint: "…", Digest: core.DigestOf(s.t.Name() + "owner")}))
		_, err := s.UpdateOwnerKey(context.Background(), "acct_a", "okey_a", func(k *core.OwnerKey) error { k.Name = "other"; return nil })
		s.must(err)
	},
}

// An export has exactly the state of its instant, whatever changes afterwards, and leaves nothing on Redis. A failure means that
// a restore from a backup has counts without the key that made them, or a key without its counts.
func TestRedisInstant(t *testing.T) {
	changesAfter["everything"] = func(s *site) {
		for name, change := range changesAfter {
			if !strings.Contains(name, "delete") && name != "everything" {
				change(s)
			}
		}
	}
	for name, start := range map[string]func(*testing.T) []*redistest.Server{
		"server":  func(t *testing.T) []*redistest.Server { return []*redistest.Server{redistest.Start(t)} },
		"cluster": func(t *testing.T) []*redistest.Server { return redistest.StartCluster(t).Nodes() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers, n := start(t), 0
			var addresses []string
			for _, s := range servers {
				addresses = append(addresses, s.Addr())
			}
			for name, change := range changesAfter {
				n++
				t.Run(name, func(t *testing.T) {
					s := newSite(t, n, addresses)
					if name == "delete user with many keys" {
						s.putManyKeys()
					}
					testInstant(t, s, name, change)
					for _, server := range servers {
						for _, pattern := range []string{"*snapshots", "*before:*", "*z", "*zh", "*zh:*"} {
							if left := server.Do(t, "KEYS", fmt.Sprintf("test%d:%s", n, pattern)); left != "" {
								t.Errorf("the export has left %s", left)
							}
						}
					}
					for user := range 7 {
						hash := fmt.Sprintf("test%d:{acct_a/%d}c", n, user)
						for _, server := range servers {
							if z, err := server.Try("HGET", hash, "z"); err == nil && z != "" {
								t.Errorf("the export has left %q in %s", z, hash)
							}
						}
					}
				})
			}
		})
	}
}

func testInstant(t *testing.T, s *site, name string, change func(*site)) {
	want := body(t, archiveOf(t, static{s.Store}))
	s.between = func() { change(s) }
	archive := archiveOf(t, s)
	if d := cmp.Diff(want, body(t, archive)); d != "" {
		t.Errorf("the archive (-instant +archive):\n%.4000s", d)
	}
	if after := body(t, archiveOf(t, static{s.Store})); (after == want) != (name == "nothing") && name != "create, delete" {
		t.Errorf("the state after the change: got the same %v", after == want)
	}
	if _, err := Import(t.Context(), memstore.New(), source(archive), small()); err != nil {
		t.Errorf("Import: %v", err)
	}
	s.between = nil
	var b bytes.Buffer
	if _, err := Export(t.Context(), s, &b, exporting()); err != nil {
		t.Errorf("a second export: %v", err)
	}
	if d := cmp.Diff(body(t, archiveOf(t, static{s.Store})), body(t, b.Bytes())); d != "" {
		t.Errorf("the second archive (-store +archive):\n%.4000s", d)
	}
}

// load is what clients do while an export is taken.
type load struct {
	*site
	stop  chan struct{}
	all   sync.WaitGroup
	pause sync.RWMutex // the clients wait while it is locked

	sent, answered [keysUnderLoad]atomic.Int64
}

// keysUnderLoad is the number of keys of users of their own, whose slots are on all masters.
const keysUnderLoad = 12

func loadKey(i int) string { return fmt.Sprintf("busy_%d", i) }

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

// request sends a request with a key, and notes when.
func (l *load) request(i int) {
	l.sent[i].Add(1)
	l.consume(loadKey(i), nil)
	l.answered[i].Add(1)
}

// begin starts the clients. Keys 0 and 1 belong to the client of causality, and the others to clients that send as fast as they can.
func (l *load) begin() {
	for i := range keysUnderLoad {
		l.put(loadKey(i))
		l.request(i)
	}
	l.run(func(n int) { // request n of key 1 and the name of plan 2 follow request n of key 0
		l.request(0)
		l.request(1)
		l.update(func(tx core.Tx) error {
			p, err := tx.Plan("plan_2")
			if err != nil {
				return err
			}
			p.Name = fmt.Sprint(n)
			return tx.PutPlan(p)
		})
		_, err := l.UpdateOwnerKey(context.Background(), "acct_a", "okey_a", func(k *core.OwnerKey) error { k.Name = fmt.Sprint(n); return nil })
		l.must(err)
	})
	for i := 2; i < keysUnderLoad; i++ {
		l.run(func(n int) {
			l.request(i)
			if n%7 == 0 {
				l.consume(loadKey(i), denied)
			}
			if n%5 == 0 {
				l.consume(loadKey(i), func(c *core.Consumption) { adjusted(c); c.Adjustment.Value = 0 })
			}
		})
	}
	l.run(func(n int) { // resources that come and go
		key := fmt.Sprintf("new_%d", n)
		user := l.put(key)
		l.consume(key, nil)
		l.move(key, 1)
		l.consume(key, nil)
		l.changeKey(key, func(k *core.Key) { k.Status = core.KeyInactive })
		if n%3 > 0 {
			l.move(key, user)
		}
		if n%3 > 1 {
			l.update(func(tx core.Tx) error { return tx.DeleteUser(user) })
		}
	})
}

// An export under load is a cut: it has every request that was answered before it began, none that was sent after its instant,
// and no effect without its cause in another slot. It imports cleanly into an empty store.
func TestRedisInstantUnderLoad(t *testing.T) {
	t.Parallel()
	l := &load{site: newSite(t, 0, redistest.StartCluster(t).Addrs()), stop: make(chan struct{})}
	l.begin()
	defer l.all.Wait()
	defer close(l.stop)
	round := func() {
		var answered, sent [keysUnderLoad]int64
		for i := range answered {
			answered[i] = l.answered[i].Load()
		}
		l.between = func() {
			for i := range sent {
				sent[i] = l.sent[i].Load()
			}
		}
		archive := archiveOf(t, l)
		l.pause.Lock()
		defer l.pause.Unlock()
		to := memstore.New()
		if _, err := Import(t.Context(), to, source(archive), small()); err != nil {
			t.Fatalf("Import: %v", err)
		}
		var used [keysUnderLoad]int64
		for i := range used {
			used[i] = wantWhole(t, to, loadKey(i))
			if used[i] < answered[i] || used[i] > sent[i] {
				t.Errorf("key %d: got %d requests, want at least the %d answered before the export, at most the %d sent until its instant", i, used[i], answered[i], sent[i])
			}
		}
		plan, err := to.Plan(t.Context(), "acct_a", "plan_2")
		if err != nil {
			t.Fatal(err)
		}
		owners, _, err := to.OwnerKeys(t.Context(), "acct_a", core.Page{Number: 1, Size: 10})
		if err != nil {
			t.Fatal(err)
		}
		last := used[0] - 1 // one request was sent before the load
		for what, got := range map[string]string{"key 1": fmt.Sprint(used[1] - 1), "the plan": plan.Name, "the owner's key": owners[0].Name} {
			if got != fmt.Sprint(last) && got != fmt.Sprint(last-1) && last > 1 {
				t.Errorf("%s is at step %s while key 0 is at step %d, want the same step or the one before", what, got, last)
			}
		}
		t.Logf("%d bytes, requests: %v of %v sent", len(archive), used, sent)
	}
	for range 4 {
		round()
	}
}

// wantWhole returns the requests that a key has counted, and checks that its days and its history say the same.
func wantWhole(t *testing.T, s core.Importer, key string) int64 {
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
		if !e.Denied && e.Adjustment == nil {
			listed++
		}
	}
	if tokens := counters[0].Meter("tokens")[core.Lifetime]; len(days) != 1 || days[0].Allowed != used || listed != used || tokens != 7*used {
		t.Errorf("%s has counted %d requests and %d tokens, with days %+v and %d requests in its history", key, used, tokens, days, listed)
	}
	return used
}

// passwordHash returns the hash of a password, with a salt of four letters.
func passwordHash(salt string) string {
	encoded := base64.RawStdEncoding.EncodeToString
	return "$argon2id$v=19$m=19456,t=2,p=1$" + encoded([]byte(salt)) + "$" + encoded(make([]byte, 32))
}
