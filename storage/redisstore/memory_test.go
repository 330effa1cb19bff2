package redisstore_test

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// fill sets maxmemory below the used memory.
func fill(t testing.TB, server *redistest.Server) {
	t.Helper()
	used := regexp.MustCompile(`used_memory:(\d+)`).FindStringSubmatch(server.Do(t, "INFO", "memory"))
	n, err := strconv.Atoi(used[1])
	if err != nil {
		t.Fatal(err)
	}
	server.Do(t, "CONFIG", "SET", "maxmemory", strconv.Itoa(n-200_000)) // margin for memory of closed connections
}

// While memory is full, decisions and creations fail as a whole, with an error that names the memory.
// Reads, disabling, revoking and deleting work, even for a store opened then. With more memory everything
// works again.
func TestFullMemory(t *testing.T) {
	server := redistest.Start(t)
	o := redisstore.Options{Addresses: []string{server.Addr()}}
	s := openFaulty(t, o)
	w := newWorld(t, s, 4)
	consume := func(id string) error {
		_, err := w.s.Consume(t.Context(), consumption(&w.keys[0], id, true))
		return err
	}
	if err := consume("first"); err != nil {
		t.Fatalf("Consume: %v", err)
	}
	fill(t, server)

	for i := range 100 {
		wantFull(t, "Consume", consume(""))
		wantFull(t, "Consume with an id", consume(strconv.Itoa(i)))
	}
	before, keys := w.account+w.keys[1].ID, server.Do(t, "DBSIZE")
	wantFull(t, "Update", w.s.Update(t.Context(), w.account, func(tx core.Tx) error {
		if err := tx.DeleteKey(w.keys[1].ID); err != nil {
			return err
		}
		return tx.PutUser(&core.User{AccountID: w.account, Name: "new"})
	}))
	wantFull(t, "Update", w.s.Update(t.Context(), w.account, func(tx core.Tx) error {
		k, err := tx.Key(w.keys[0].ID)
		if err != nil {
			return err
		}
		k.UserID = w.keys[2].UserID
		return tx.PutKey(k)
	}))
	wantFull(t, "CreateAccount", w.s.CreateAccount(t.Context(), &core.Account{ID: "acct_x", Name: "x"}, &core.OwnerKey{ID: "okey_x"}))
	if got := server.Do(t, "DBSIZE"); got != keys {
		t.Errorf("%s keys after failed transactions, want %s as before", got, keys)
	}

	w.disableAndDelete(t)

	again := openFaulty(t, o)
	for _, s := range []core.Store{s, again} {
		if _, err := s.KeyByDigest(t.Context(), secrets.DigestOf(before)); err != nil {
			t.Errorf("KeyByDigest while the memory is full: %v", err)
		}
		if _, n, err := s.Users(t.Context(), w.account, core.UserFilter{}, core.Page{Number: 1, Size: 10}); n != 3 || err != nil {
			t.Errorf("Users while the memory is full: %d, %v; want 3", n, err)
		}
	}
	if n := w.used(t, w.keys[0].ID, 0); n != 1 {
		t.Errorf("the key has counted %d requests, want the one that was allowed", n)
	}
	if err := consume("first"); err != nil {
		t.Errorf("Consume again with a counted request id: %v", err)
	}

	server.Do(t, "CONFIG", "SET", "maxmemory", "0")
	for _, id := range []string{"", "1", "2"} {
		if err := consume(id); err != nil {
			t.Errorf("Consume with more memory: %v", err)
		}
	}
	if used, entries := w.used(t, w.keys[0].ID, 0), w.entries(t, w.keys[0].ID, 0); used != 4 || entries != 4 {
		t.Errorf("counted %d requests, %d in the history; want 4", used, entries)
	}
	w.addUser(t)
}

// disableAndDelete signs in, then disables a key of the third user, revokes the owner's key, and deletes the fourth
// user.
func (w *world) disableAndDelete(t testing.TB) {
	t.Helper()
	_, err := w.s.UpdateAccess(t.Context(), w.account, func(ac *core.Access) error {
		ac.Sessions = append(ac.Sessions, core.Session{Digest: secrets.DigestOf("session")})
		return nil
	})
	if err != nil {
		t.Errorf("signing in while the memory is full: %v", err)
	}
	err = w.s.Update(t.Context(), w.account, func(tx core.Tx) error {
		k, err := tx.Key(w.keys[4].ID)
		if err != nil {
			return err
		}
		k.Status = core.KeyInactive
		return tx.PutKey(k)
	})
	if err != nil {
		t.Errorf("disabling a key while the memory is full: %v", err)
	}
	if k, err := w.s.Key(t.Context(), w.account, w.keys[4].ID); err != nil || k.Status != core.KeyInactive {
		t.Errorf("the disabled key: %v, %v", k, err)
	}
	if err := w.s.Update(t.Context(), w.account, func(tx core.Tx) error { return tx.DeleteUser(w.keys[6].UserID) }); err != nil {
		t.Errorf("deleting a user while the memory is full: %v", err)
	}
	if _, err := w.s.Key(t.Context(), w.account, w.keys[6].ID); !errors.Is(err, core.ErrKeyNotFound) {
		t.Errorf("a key of the deleted user: %v, want ErrKeyNotFound", err)
	}
	now := time.Now()
	if _, err := w.s.UpdateOwnerKey(t.Context(), w.account, "okey_1", func(k *core.OwnerKey) error { k.RevokedAt = &now; return nil }); err != nil {
		t.Errorf("revoking an owner's key while the memory is full: %v", err)
	}
	if k, err := w.s.OwnerKeyByDigest(t.Context(), secrets.DigestOf(w.account)); err != nil || k.RevokedAt == nil {
		t.Errorf("the revoked owner's key: %v, %v", k, err)
	}
}

// Memory that fills up under load leaves no decision half done.
func TestMemoryFillsUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 2)
	l := w.startLoad(t, 8)
	for range 10 {
		fill(t, server)
		l.await(t, time.Now(), failed)
		server.Do(t, "CONFIG", "SET", "maxmemory", "0")
		l.awaitAllowed(t, time.Now())
	}
	w.checkExact(t, l.stop())
}

// wantFull fails the test unless an error names full memory.
func wantFull(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, core.ErrUnavailable) || !regexp.MustCompile(`(?i)OOM|memory`).MatchString(fmt.Sprint(err)) {
		t.Errorf("%s while the memory is full: %v, want ErrUnavailable that names the memory", what, err)
	}
}
