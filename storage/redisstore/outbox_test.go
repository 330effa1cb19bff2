package redisstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// slowFailover keeps a Cluster from replacing a master that is stopped briefly.
var slowFailover = []string{"--cluster-node-timeout", "15000"}

// crashTest simulates a process that dies between a commit and its tasks: the master of the counters is
// stopped, the master of the account is not.
type crashTest struct {
	c     *redistest.Cluster
	o     redisstore.Options
	w     *world
	first int   // first of two keys of a user whose slot is not on the account's master
	other int64 // another user, on a third master
}

func newCrashTest(t *testing.T, c *redistest.Cluster) *crashTest {
	t.Helper()
	d := &crashTest{c: c, o: faulty(c.Addrs()...)}
	d.w = newWorld(t, openFaulty(t, d.o), 1)
	seen := map[*redistest.Server]bool{d.w.masterOf(t, c, "{"+d.w.account+"}"): true}
	for found := 0; found < 2; d.w.addUser(t) {
		k := len(d.w.keys) - 2
		master := d.masterOf(t, d.w.keys[k].UserID)
		if seen[master] {
			continue
		}
		seen[master] = true
		if found++; found == 1 {
			d.first = k
		} else {
			d.other = d.w.keys[k].UserID
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		if err := d.send(t, id); err != nil {
			t.Fatalf("Consume: %v", err)
		}
	}
	return d
}

func (w *world) masterOf(t testing.TB, c *redistest.Cluster, name string) *redistest.Server {
	t.Helper()
	var slot int
	if _, err := fmt.Sscan(c.Nodes()[0].Do(t, "CLUSTER", "KEYSLOT", name), &slot); err != nil {
		t.Fatal(err)
	}
	return c.MasterOf(slot)
}

func (d *crashTest) masterOf(t testing.TB, user int64) *redistest.Server {
	t.Helper()
	return d.w.masterOf(t, d.c, fmt.Sprintf("{%s/%d}", d.w.account, user))
}

// send sends a request with the current version of the key.
func (d *crashTest) send(t testing.TB, id string) error {
	v, err := d.w.s.Consume(t.Context(), consumption(&d.w.keys[d.first], id, true))
	if err == nil && !v.Allowed {
		t.Error("Consume: denied")
	}
	return err
}

// crashAfter runs a transaction while the master of a user is stopped, then continues as a new process.
func (d *crashTest) crashAfter(t testing.TB, user int64, fn func(core.Tx) error) {
	t.Helper()
	master := d.masterOf(t, user)
	master.Pause()
	if err := d.w.s.Update(t.Context(), d.w.account, fn); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("Update: %v, want ErrUnavailable while a master is stopped", err)
	}
	_ = d.w.s.Close()
	master.Resume()
	d.w.s = openFaulty(t, d.o)
	until(t, "the server to go on", func() bool {
		_, err := d.w.s.Counters(t.Context(), []core.CounterID{{Account: "none", UserID: user}})
		return err == nil
	})
}

// When a process dies after it has moved a key, and before the counter has moved, the next process
// finishes the move. Nothing is lost, counted twice, or counted in two slots.
func TestDiesWhileMoving(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, slowFailover...)
	next := map[string]func(t *testing.T, d *crashTest) error{
		"request": func(t *testing.T, d *crashTest) error { return d.send(t, "a") },
		"reader": func(t *testing.T, d *crashTest) error {
			_, err := d.w.s.Counters(t.Context(), []core.CounterID{{Account: d.w.account, KeyID: d.w.keys[d.first].ID}})
			return err
		},
		"writer": func(t *testing.T, d *crashTest) error {
			return d.w.s.Update(t.Context(), d.w.account, func(tx core.Tx) error {
				return tx.PutPlan(&core.Plan{AccountID: d.w.account, ID: "plan_1"})
			})
		},
	}
	for name, away := range map[string]string{"request": "to", "reader": "from", "writer": "from"} {
		t.Run(name, func(t *testing.T) {
			d := newCrashTest(t, c)
			was := d.w.keys[d.first]
			d.crashWhileMoving(t, away)
			until(t, "a process that can finish the move", func() bool {
				err := next[name](t, d)
				if err != nil {
					t.Log(err)
				}
				return err == nil
			})
			if _, err := d.w.s.Consume(t.Context(), consumption(&was, "", true)); !errors.Is(err, core.ErrKeyNotFound) {
				t.Errorf("Consume with the key as a key of its former user: %v, want ErrKeyNotFound", err)
			}
			for _, id := range []string{"a", "b", "c", "d", "d"} {
				if err := d.send(t, id); err != nil {
					t.Errorf("Consume: %v", err)
				}
			}
			if used, entries := d.w.used(t, was.ID, 0), d.w.entries(t, was.ID, 0); used != 4 || entries != 4 {
				t.Errorf("the key has counted %d, its history has %d; want the 4 requests, each once", used, entries)
			}
			if used := d.w.used(t, "", was.UserID); used != 3 {
				t.Errorf("the former user has counted %d, want 3", used)
			}
			for of, want := range map[core.DaysFilter]int{{KeyID: was.ID}: 4, {UserID: was.UserID}: 3, {UserID: d.other}: 1} {
				of.Account = d.w.account
				if n := d.w.onDays(t, of); n != want {
					t.Errorf("%+v was allowed %d on its days, want %d", of, n, want)
				}
			}
		})
	}
}

// crashWhileMoving moves the key while the master of the old or the new user is stopped.
func (d *crashTest) crashWhileMoving(t testing.TB, away string) {
	t.Helper()
	k := &d.w.keys[d.first]
	user := k.UserID
	if away == "to" {
		user = d.other
	}
	d.crashAfter(t, user, func(tx core.Tx) error {
		k, err := tx.Key(k.ID)
		if err != nil {
			return err
		}
		k.UserID = d.other
		return tx.PutKey(k)
	})
	k.UserID = d.other
}

// When a process dies after a deletion, and before the counters are deleted, the next read deletes them.
// Afterwards nothing counts there.
func TestDiesWhileDeleting(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, slowFailover...)
	t.Run("key", func(t *testing.T) {
		d := newCrashTest(t, c)
		k := d.w.keys[d.first]
		d.crashAfter(t, k.UserID, func(tx core.Tx) error { return tx.DeleteKey(k.ID) })
		d.wantDeleted(t, k.ID, 0)
		if used := d.w.used(t, "", k.UserID); used != 3 {
			t.Errorf("the user has counted %d, want the 3 that its key has used", used)
		}
		if err := d.send(t, ""); !errors.Is(err, core.ErrKeyNotFound) {
			t.Errorf("Consume with a deleted key: %v, want ErrKeyNotFound", err)
		}
		d.wantDeleted(t, k.ID, 0)
	})
	t.Run("user", func(t *testing.T) {
		d := newCrashTest(t, c)
		k := d.w.keys[d.first]
		allowed := d.w.onDays(t, core.DaysFilter{Account: d.w.account})
		d.crashAfter(t, k.UserID, func(tx core.Tx) error { return tx.DeleteUser(k.UserID) })
		d.wantDeleted(t, "", k.UserID)
		d.wantDeleted(t, k.ID, 0)
		if err := d.send(t, ""); !errors.Is(err, core.ErrKeyNotFound) && !errors.Is(err, core.ErrUserNotFound) {
			t.Errorf("Consume with the key of a deleted user: %v, want ErrKeyNotFound or ErrUserNotFound", err)
		}
		d.wantDeleted(t, "", k.UserID)
		for range 2 { // the days of the user are in the sum of the account once, also after another transaction
			if n := d.w.onDays(t, core.DaysFilter{Account: d.w.account}); n != allowed {
				t.Errorf("the account was allowed %d on its days, want %d", n, allowed)
			}
			if err := d.w.s.Update(t.Context(), d.w.account, func(tx core.Tx) error {
				return tx.PutPlan(&core.Plan{AccountID: d.w.account, ID: "plan_1"})
			}); err != nil {
				t.Error(err)
			}
		}
	})
}

// wantDeleted fails the test if data of a key or user is left.
func (d *crashTest) wantDeleted(t testing.TB, key string, user int64) {
	t.Helper()
	used, entries := d.w.used(t, key, user), d.w.entries(t, key, user)
	if n := d.w.onDays(t, core.DaysFilter{Account: d.w.account, KeyID: key, UserID: user}); used != 0 || entries != 0 || n != 0 {
		t.Errorf("deleted %s%d: counted %d, %d in the history, %d on its days; want nothing", key, user, used, entries, n)
	}
}

// When a process dies after it has deleted the last users of an account, and before their days are in the account, the days of the account have them all the
// same.
func TestDiesWhileDeletingLastUsers(t *testing.T) {
	t.Parallel()
	d := newCrashTest(t, redistest.StartCluster(t, slowFailover...))
	today := core.DateOf(time.Now())
	days := func() (int64, error) {
		list, err := d.w.s.Days(t.Context(), core.DaysFilter{Account: d.w.account}, today-1, today) // a day may begin during the test
		if err != nil {
			return 0, err
		}
		return list[0].Allowed + list[1].Allowed, nil
	}
	want, err := days()
	if err != nil || want == 0 {
		t.Fatalf("before the deletion: got %d and %v, want the requests", want, err)
	}
	d.crashAfter(t, d.w.keys[d.first].UserID, func(tx core.Tx) error {
		for _, k := range d.w.keys {
			if err := tx.DeleteUser(k.UserID); err != nil && !errors.Is(err, core.ErrUserNotFound) {
				return err
			}
		}
		return nil
	})
	until(t, "a process that can read the days", func() bool {
		got, err := days()
		if err == nil && got != want {
			t.Errorf("after the deletion: got %d, want %d", got, want)
		}
		return err == nil
	})
}
