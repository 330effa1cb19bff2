package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// readSnapshot reads everything of a snapshot, with the counters and histories of all keys and users of w.
func readSnapshot(ctx context.Context, s core.AccountSnapshot, w *world) error {
	all := core.Page{Number: 1, Size: 100}
	for _, read := range []func() error{
		func() error { _, err := s.Account(ctx, w.account); return err },
		func() error { _, err := s.LastNumbers(ctx, w.account); return err },
		func() error { _, _, err := s.OwnerKeys(ctx, w.account, all); return err },
		func() error { _, err := s.Access(ctx, w.account); return err },
		func() error { _, _, err := s.Plans(ctx, w.account, all); return err },
		func() error { _, _, err := s.Users(ctx, w.account, core.UserFilter{}, all); return err },
		func() error { _, _, err := s.Keys(ctx, w.account, core.KeyFilter{}, all); return err },
	} {
		if err := read(); err != nil {
			return err
		}
	}
	for _, k := range w.keys {
		for _, of := range []core.CounterID{{Account: w.account, UserID: k.UserID}, {Account: w.account, KeyID: k.ID}} {
			if _, err := s.Counters(ctx, []core.CounterID{of}); err != nil {
				return err
			}
			if _, err := s.CounterDays(ctx, of); err != nil {
				return err
			}
			if _, _, err := s.History(ctx, of, time.Time{}, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// snapshotOf returns a server and an account with four users and eight keys, of which two users were used, and a snapshot of it.
func snapshotOf(t *testing.T) (*redistest.Server, *world, core.AccountSnapshot) {
	t.Helper()
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Addresses: []string{server.Addr()}, Prefix: "mine:"})
	t.Cleanup(func() { _ = s.Close() })
	w, snapshot := usedWorld(t, s, 4, 4)
	return server, w, snapshot
}

// usedWorld returns an account with a number of users, a snapshot of it until the end of the test, and one request before the
// snapshot for each of the first keys.
func usedWorld(t *testing.T, s *redisstore.Store, users, used int) (*world, core.AccountSnapshot) {
	t.Helper()
	w := newWorld(t, s, users)
	for i := range w.keys[:used] {
		w.request(t, i)
	}
	snapshot, err := s.SnapshotAccount(t.Context(), w.account)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(snapshot.Close)
	return w, snapshot
}

func (w *world) request(t *testing.T, key int) {
	t.Helper()
	if _, err := w.s.Consume(t.Context(), consumption(&w.keys[key], "", true)); err != nil {
		t.Fatal(err)
	}
}

// wantNothingLeft fails unless a server has nothing of a snapshot.
func wantNothingLeft(t *testing.T, server *redistest.Server, w *world) {
	t.Helper()
	for _, pattern := range []string{"*snapshots", "*before:*", "*z", "*zh*"} {
		if left := server.Do(t, "KEYS", pattern); left != "" {
			t.Errorf("the snapshot has left %s", left)
		}
	}
	for _, k := range w.keys {
		if z := server.Do(t, "HGET", fmt.Sprintf("mine:{%s/%d}c", w.account, k.UserID), "z"); z != "" {
			t.Errorf("the snapshot has left %q in the slot of user %d", z, k.UserID)
		}
	}
}

// An account has one snapshot. When the process of a snapshot has died, the next snapshot replaces it, and the dead one
// returns errors if it wakes up. Otherwise two exports would share before images, and one would be wrong.
func TestSecondSnapshot(t *testing.T) {
	t.Parallel()
	server, w, first := snapshotOf(t)
	if _, err := w.s.SnapshotAccount(t.Context(), w.account); err == nil || !strings.Contains(err.Error(), "another export of the account is running") {
		t.Errorf("a second snapshot: got %v, want that another export is running", err)
	}
	w.request(t, 0)
	w.request(t, 2)
	if err := readSnapshot(t.Context(), first, w); err != nil {
		t.Errorf("the first snapshot after the refusal: %v", err)
	}
	name := "mine:{" + w.account + "}snapshots"
	line := strings.Fields(server.Do(t, "GET", name))
	line[len(line)-1] = "0"
	server.Do(t, "SET", name, strings.Join(line, " ")+"\n")
	second, err := w.s.SnapshotAccount(t.Context(), w.account)
	if err != nil {
		t.Fatalf("after the end of the lease: %v", err)
	}
	w.request(t, 0)
	if err := readSnapshot(t.Context(), first, w); err == nil {
		t.Error("the replaced snapshot can be read, want an error")
	}
	for _, key := range []int{0, 2} { // key 2 has no request after the second snapshot
		of := []core.CounterID{{Account: w.account, KeyID: w.keys[key].ID}}
		if counters, err := second.Counters(t.Context(), of); err != nil || counters[0].Requests[core.Lifetime] != 2 {
			t.Errorf("key %d of the second snapshot: got %+v, %v, want the 2 requests before it", key, counters, err)
		}
	}
	first.Close()
	if err := readSnapshot(t.Context(), second, w); err != nil {
		t.Errorf("the second snapshot after the first was closed: %v", err)
	}
	second.Close()
	wantNothingLeft(t, server, w)
}

// The before images of a process that has died end: a request after the end of the snapshot removes them, and neither requests nor
// transactions save new ones. A failure means that each death of an export fills the memory of Redis.
func TestAbandonedSnapshot(t *testing.T) {
	t.Parallel()
	server, w, _ := snapshotOf(t)
	w.request(t, 0)
	hash := fmt.Sprintf("mine:{%s/%d}c", w.account, w.keys[0].UserID)
	images := strings.TrimSuffix(hash, "c") + "z"
	if ttl := server.Do(t, "PTTL", images); len(strings.TrimSpace(ttl)) < 7 {
		t.Errorf("the before images live for %s ms, want a day", ttl)
	}
	stamp := strings.Fields(server.Do(t, "HGET", hash, "z"))
	stamp[2] = stamp[1]
	server.Do(t, "HSET", hash, "z", strings.Join(stamp, " "))
	w.request(t, 0)
	if server.Do(t, "HGET", hash, "z") != "" || strings.TrimSpace(server.Do(t, "EXISTS", images)) != "0" {
		t.Error("a request after the end of the snapshot has left the snapshot or its before images")
	}
	name := "mine:{" + w.account + "}snapshots"
	line := strings.Fields(server.Do(t, "GET", name))
	line[4] = line[2]
	server.Do(t, "SET", name, strings.Join(line, " ")+"\n")
	before := server.Do(t, "HLEN", "mine:{"+w.account+"}before:"+w.account)
	w.addUser(t)
	if after := server.Do(t, "HLEN", "mine:{"+w.account+"}before:"+w.account); after != before {
		t.Errorf("a transaction after the end of the snapshot has saved before images: %s, and %s before", after, before)
	}
}

// When Redis has lost a part of a snapshot, reads of the snapshot return an error. A failure means that an archive has values
// of a later instant.
func TestLostSnapshot(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, server *redistest.Server, account, user string){
		"open snapshot of the account": func(t *testing.T, s *redistest.Server, account, _ string) { s.Do(t, "DEL", account+"snapshots") },
		"images of the account": func(t *testing.T, s *redistest.Server, account, _ string) {
			s.Do(t, "EVAL", "for _, k in ipairs(redis.call('KEYS', '*before:*')) do if not string.find(k, 'registry') then redis.call('DEL', k) end end", "0")
		},
		"removed users": func(t *testing.T, s *redistest.Server, account, _ string) {
			s.Do(t, "EVAL", "for _, k in ipairs(redis.call('KEYS', '*before:*:users')) do redis.call('DEL', k) end", "0")
		},
		"open snapshot of the registry": func(t *testing.T, s *redistest.Server, _, _ string) { s.Do(t, "DEL", "mine:{registry}snapshots") },
		"images of the registry": func(t *testing.T, s *redistest.Server, _, _ string) {
			s.Do(t, "EVAL", "for _, k in ipairs(redis.call('KEYS', '*registry}before:*')) do redis.call('DEL', k) end", "0")
		},
		"open snapshot of a user": func(t *testing.T, s *redistest.Server, _, user string) { s.Do(t, "HDEL", user+"c", "z") },
		"counters of a user":      func(t *testing.T, s *redistest.Server, _, user string) { s.Do(t, "DEL", user+"c") },
		"images of a user":        func(t *testing.T, s *redistest.Server, _, user string) { s.Do(t, "DEL", user+"z") },
		"a deleted history": func(t *testing.T, s *redistest.Server, _, user string) {
			s.Do(t, "EVAL", "for _, k in ipairs(redis.call('KEYS', '*zh*')) do redis.call('DEL', k) end", "0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, w, snapshot := snapshotOf(t)
			w.request(t, 0)
			if err := w.s.Update(t.Context(), w.account, func(tx core.Tx) error { return tx.DeleteKey(w.keys[1].ID) }); err != nil {
				t.Fatal(err)
			}
			if err := readSnapshot(t.Context(), snapshot, w); err != nil {
				t.Fatalf("before the loss: %v", err)
			}
			lose(t, server, "mine:{"+w.account+"}", fmt.Sprintf("mine:{%s/%d}", w.account, w.keys[0].UserID))
			w.request(t, 0) // saves before images again
			if err := readSnapshot(t.Context(), snapshot, w); err == nil || !strings.Contains(err.Error(), "the snapshot is lost") {
				t.Errorf("got %v, want that the snapshot is lost", err)
			}
		})
	}
}

// A snapshot that is canceled before its instant leaves nothing.
func TestSnapshotCanceled(t *testing.T) {
	t.Parallel()
	server, w, first := snapshotOf(t)
	first.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := w.s.SnapshotAccount(ctx, w.account); err == nil {
		t.Error("got a snapshot, want an error")
	}
	wantNothingLeft(t, server, w)
}

// A full Redis can be exported, and shrinks meanwhile. A failure means that an operator has to delete data before a backup.
func TestSnapshotOfFullMemory(t *testing.T) {
	t.Parallel()
	server, w, first := snapshotOf(t)
	first.Close()
	server.Do(t, "CONFIG", "SET", "maxmemory", "1")
	snapshot, err := w.s.SnapshotAccount(t.Context(), w.account)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.s.Update(t.Context(), w.account, func(tx core.Tx) error { return tx.DeleteUser(w.keys[0].UserID) }); err != nil {
		t.Errorf("DeleteUser: %v", err)
	}
	counters, err := snapshot.Counters(t.Context(), []core.CounterID{{Account: w.account, UserID: w.keys[0].UserID}})
	if err != nil || counters[0].Requests[core.Lifetime] != 2 {
		t.Errorf("the deleted user: got %+v, %v, want 2 requests", counters, err)
	}
	if err := readSnapshot(t.Context(), snapshot, w); err != nil {
		t.Error(err)
	}
	snapshot.Close()
	wantNothingLeft(t, server, w)
}

// After the death of a master, reads of a snapshot return the values of the instant or an error. A failure means that an archive
// has later values.
func TestSnapshotFailover(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	s := openFaulty(t, redisstore.Options{Addresses: c.Addrs()})
	w, snapshot := usedWorld(t, s, 12, 24) // every key
	for range 50 {
		for i := range w.keys {
			w.request(t, i)
		}
	}
	slot := w.slotOf(t, c.Nodes()[0], w.keys[0].UserID)
	master := c.MasterOf(slot)
	master.Kill()
	c.AwaitFailover(t, slot, master)
	exact, failed := 0, 0
	for _, k := range w.keys {
		of := []core.CounterID{{Account: w.account, KeyID: k.ID}}
		var counters []core.Counter
		var err error
		until(t, "an answer", func() bool {
			counters, err = snapshot.Counters(t.Context(), of)
			return err == nil || strings.Contains(err.Error(), "the snapshot is lost")
		})
		switch {
		case err != nil:
			failed++
		case counters[0].Requests[core.Lifetime] != 1:
			t.Errorf("key %s: got %d requests, want the one before the snapshot", k.ID, counters[0].Requests[core.Lifetime])
		default:
			exact++
		}
	}
	t.Logf("%d counters were exact after the failover, %d were lost", exact, failed)
}

// Slots move to other masters while an account with a snapshot counts. Reads of the snapshot return the values of the instant or an
// error, and no before image stops the move. A failure means that an archive has later values, or that a Cluster cannot be resized.
func TestSnapshotResharding(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	s := openFaulty(t, redisstore.Options{Addresses: c.Addrs()})
	w, snapshot := usedWorld(t, s, 3, 6) // every key
	w.request(t, 0)                      // user 1 has before images, and users 2 and 3 have none
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for i := range w.keys {
		load.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Consume(t.Context(), consumption(&w.keys[i], "", true)); err != nil && !errors.Is(err, core.ErrUnavailable) {
					t.Errorf("key %d: %v", i, err)
				}
			}
		})
	}
	for round := range 2 {
		for i := 0; i < len(w.keys); i += 2 {
			slot := w.slotOf(t, c.Nodes()[0], w.keys[i].UserID)
			from := c.MasterOf(slot)
			moveSlot(t, c, slot, from, c.Nodes()[(nodeOf(c, from)+1+round)%3])
		}
	}
	stop()
	load.Wait()
	for _, k := range w.keys {
		counters, err := snapshot.Counters(t.Context(), []core.CounterID{{Account: w.account, KeyID: k.ID}})
		switch {
		case err != nil && !strings.Contains(err.Error(), "the snapshot is lost"):
			t.Errorf("key %s: %v", k.ID, err)
		case err == nil && counters[0].Requests[core.Lifetime] != 1:
			t.Errorf("key %s: got %d requests, want the one before the snapshot", k.ID, counters[0].Requests[core.Lifetime])
		}
	}
	for i := range w.keys {
		w.request(t, i)
	}
}
