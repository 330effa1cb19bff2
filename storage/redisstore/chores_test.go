package redisstore_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// patient keeps a Cluster from replacing a master that stands still for a moment.
var patient = []string{"--cluster-node-timeout", "15000"}

// dying is a process that dies between a transaction and what follows from it: the master
// that has the counters of a key stands still, that of the account does not.
type dying struct {
	c     *redistest.Cluster
	o     redisstore.Options
	w     *world
	first int   // the first of two keys of a user whose slot is not with the account's master
	other int64 // another user, with a third master
}

func newDying(t *testing.T, c *redistest.Cluster) *dying {
	t.Helper()
	d := &dying{c: c, o: faulty(c.Addrs()...)}
	d.w = newWorld(t, opened(t, d.o), 1)
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
		if err := d.ask(t, id); err != nil {
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

func (d *dying) masterOf(t testing.TB, user int64) *redistest.Server {
	t.Helper()
	return d.w.masterOf(t, d.c, fmt.Sprintf("{%s/%d}", d.w.account, user))
}

// ask asks a request with the key as it is known.
func (d *dying) ask(t testing.TB, id string) error {
	v, err := d.w.s.Consume(t.Context(), consumption(&d.w.keys[d.first], id, true))
	if err == nil && !v.Allowed {
		t.Error("Consume: denied")
	}
	return err
}

// dies makes a transaction while the master of a user stands still, and goes on as another
// process, that knows nothing of it.
func (d *dying) dies(t testing.TB, user int64, fn func(core.Tx) error) {
	t.Helper()
	master := d.masterOf(t, user)
	master.Pause()
	if err := d.w.s.Update(t.Context(), d.w.account, fn); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("Update: %v, want ErrUnavailable while a master stands still", err)
	}
	_ = d.w.s.Close()
	master.Resume()
	d.w.s = opened(t, d.o)
	until(t, "the server to go on", func() bool {
		_, err := d.w.s.Counters(t.Context(), []core.CounterID{{Account: "none", UserID: user}})
		return err == nil
	})
}

// A process that dies after it has moved a key, and before its counter has followed, leaves
// that to whoever comes next: nothing is lost, and nothing counts twice or in two places.
func TestDiesWhileMoving(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, patient...)
	next := map[string]func(t *testing.T, d *dying) error{
		"request": func(t *testing.T, d *dying) error { return d.ask(t, "a") },
		"reader": func(t *testing.T, d *dying) error {
			_, err := d.w.s.Counters(t.Context(), []core.CounterID{{Account: d.w.account, KeyID: d.w.keys[d.first].ID}})
			return err
		},
		"writer": func(t *testing.T, d *dying) error {
			return d.w.s.Update(t.Context(), d.w.account, func(tx core.Tx) error {
				return tx.PutPlan(&core.Plan{AccountID: d.w.account, ID: "plan_1"})
			})
		},
	}
	for name, away := range map[string]string{"request": "to", "reader": "from", "writer": "from"} {
		t.Run(name, func(t *testing.T) {
			d := newDying(t, c)
			was := d.w.keys[d.first]
			d.diesMoving(t, away)
			until(t, "somebody who can go on", func() bool {
				err := next[name](t, d)
				if err != nil {
					t.Log(err)
				}
				return err == nil
			})
			if _, err := d.w.s.Consume(t.Context(), consumption(&was, "", true)); !errors.Is(err, core.ErrKeyNotFound) {
				t.Errorf("Consume with the key as one of the user that it was of: %v, want ErrKeyNotFound", err)
			}
			for _, id := range []string{"a", "b", "c", "d", "d"} {
				if err := d.ask(t, id); err != nil {
					t.Errorf("Consume: %v", err)
				}
			}
			if used, entries := d.w.used(t, was.ID, 0), d.w.entries(t, was.ID, 0); used != 4 || entries != 4 {
				t.Errorf("the key has counted %d, its history has %d; want the 4 requests, each once", used, entries)
			}
			if used := d.w.used(t, "", was.UserID); used != 3 {
				t.Errorf("the user whose it was has counted %d, want 3", used)
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

// diesMoving moves the key while the master stands still that it moves from, or to.
func (d *dying) diesMoving(t testing.TB, away string) {
	t.Helper()
	k := &d.w.keys[d.first]
	user := k.UserID
	if away == "to" {
		user = d.other
	}
	d.dies(t, user, func(tx core.Tx) error {
		k, err := tx.Key(k.ID)
		if err != nil {
			return err
		}
		k.UserID = d.other
		return tx.PutKey(k)
	})
	k.UserID = d.other
}

// What was deleted by a process that died before the counters were is deleted for whoever
// reads; once somebody has, nothing counts there.
func TestDiesWhileDeleting(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, patient...)
	t.Run("key", func(t *testing.T) {
		d := newDying(t, c)
		k := d.w.keys[d.first]
		d.dies(t, k.UserID, func(tx core.Tx) error { return tx.DeleteKey(k.ID) })
		d.deleted(t, k.ID, 0)
		if used := d.w.used(t, "", k.UserID); used != 3 {
			t.Errorf("the user has counted %d, want the 3 that its key has used", used)
		}
		if err := d.ask(t, ""); !errors.Is(err, core.ErrKeyNotFound) {
			t.Errorf("Consume with a deleted key: %v, want ErrKeyNotFound", err)
		}
		d.deleted(t, k.ID, 0)
	})
	t.Run("user", func(t *testing.T) {
		d := newDying(t, c)
		k := d.w.keys[d.first]
		d.dies(t, k.UserID, func(tx core.Tx) error { return tx.DeleteUser(k.UserID) })
		d.deleted(t, "", k.UserID)
		d.deleted(t, k.ID, 0)
		if err := d.ask(t, ""); !errors.Is(err, core.ErrKeyNotFound) && !errors.Is(err, core.ErrUserNotFound) {
			t.Errorf("Consume with the key of a deleted user: %v, want ErrKeyNotFound or ErrUserNotFound", err)
		}
		d.deleted(t, "", k.UserID)
	})
}

// deleted fails the test unless nothing is left of a key, or of a user.
func (d *dying) deleted(t testing.TB, key string, user int64) {
	t.Helper()
	used, entries := d.w.used(t, key, user), d.w.entries(t, key, user)
	if n := d.w.onDays(t, core.DaysFilter{Account: d.w.account, KeyID: key, UserID: user}); used != 0 || entries != 0 || n != 0 {
		t.Errorf("%s%d was deleted: counted %d, %d in the history, %d on its days; want nothing", key, user, used, entries, n)
	}
}
