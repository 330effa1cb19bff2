package badgerstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestEventLogAheadOfDatabase: after a power cut that took the last keys and users, and
// not the requests with them, everything else is counted: what the others had in common
// with them stays whole. Their numbers are given again, and begin at nothing.
func TestEventLogAheadOfDatabase(t *testing.T) {
	for _, events := range []int{3, 5 * oftenUnfolded} {
		t.Run(fmt.Sprint(events), func(t *testing.T) {
			dir, after := t.TempDir(), t.TempDir()
			s := openAlone(t, dir, quiet)
			known(t, s, "key")
			consume(t, s, request("key", 1, 1<<20, noon))
			copyDatabase(t, after, dir) // the power fails after this
			addUserAndKey(t, s, 9, "late")
			for range events {
				consume(t, s, shared(request("late", 1, 1<<20, noon)))
				consume(t, s, shared(request("key", 1, 1<<20, noon)))
				consume(t, s, shared(request("key", 9, 1<<20, noon)))
			}
			copyEventLog(t, after, dir)

			s = openAlone(t, after, quiet)
			wantUsed(t, s, ofKey("key"), int64(2*events+1))
			if used := counterOf(t, s, ofUser(1)).Tallies[core.Month].Used; used != int64(2*events) {
				t.Errorf("user: got %d used, want %d", used, 2*events)
			}
			if got := allowedIn(t, s, ofUser(1)); got != int64(2*events+1) {
				t.Errorf("history of the user: got %d entries, want %d", got, 2*events+1)
			}
			if _, err := s.Consume(t.Context(), request("late", 1, 1, noon)); !errors.Is(err, core.ErrKeyNotFound) {
				t.Errorf("Consume with a key that is lost: got error %v, want %v", err, core.ErrKeyNotFound)
			}
			addUserAndKey(t, s, 9, "later")
			if got, want := keyRef(t, s, "later").number, int64(2); got != want {
				t.Errorf("number of the next key: got %d, want %d again", got, want)
			}
			consume(t, s, request("later", 9, 1<<20, noon))
			abandon(t, s)
			s = openAlone(t, after, Options{})
			wantUsed(t, s, ofKey("later"), 1)
			wantUsed(t, s, ofKey("key"), int64(2*events+1))
			if got := allowedIn(t, s, ofUser(9)); got != 1 {
				t.Errorf("history of the new user: got %d entries, want 1", got)
			}
		})
	}
}

// shared lets the user's counter decide.
func shared(c *core.Consumption) *core.Consumption {
	c.Shared = true
	return c
}

// addUserAndKey makes a user with an ID, and a key of it.
func addUserAndKey(t *testing.T, s *Store, user int64, key string) {
	t.Helper()
	update(t, s, func(tx core.Tx) error {
		return firstOf(
			tx.PutUser(&core.User{AccountID: acct, ID: user, Name: "user"}),
			tx.PutKey(&core.Key{AccountID: acct, ID: key, UserID: user, Status: core.KeyActive, Digest: core.DigestOf(key)}))
	})
}

// TestReplayOfDeleted: what was deleted stays so when its requests are read again:
// nothing is counted for it, whoever still knows its number.
func TestReplayOfDeleted(t *testing.T) {
	for _, events := range []int{3, 3 * oftenUnfolded} {
		dir := t.TempDir()
		s := openAlone(t, dir, Options{})
		known(t, s, "key")
		addUserAndKey(t, s, 9, "gone")
		gone := keyRef(t, s, "gone")
		for range events {
			consume(t, s, shared(request("gone", 9, endless, noon)))
		}
		update(t, s, func(tx core.Tx) error { return tx.DeleteUser(9) })
		abandon(t, s)
		for range 2 {
			s = openAlone(t, dir, Options{})
			c := request("gone", 9, endless, noon)
			c.KeySeq = gone.number
			if _, err := s.Consume(t.Context(), c); !errors.Is(err, core.ErrKeyNotFound) {
				t.Errorf("Consume after %d requests: got error %v, want %v", events, err, core.ErrKeyNotFound)
			}
			c = request("key", 9, endless, noon)
			if _, err := s.Consume(t.Context(), c); !errors.Is(err, core.ErrUserNotFound) {
				t.Errorf("Consume after %d requests, for the user: got error %v, want %v", events, err, core.ErrUserNotFound)
			}
			fold(t, s)
			abandon(t, s)
		}
	}
}

// TestFoundIsOnTheDisk: with Power a request that is asked again is answered when its
// count is on the disk, also when that was left by a process that was killed before.
func TestFoundIsOnTheDisk(t *testing.T) {
	for seed := range uint64(8) {
		dir := t.TempDir()
		d := newLossyDisk()
		s := openAlone(t, dir, d.options(Options{}))
		known(t, s, "key")
		c := request("key", 1, endless, noon)
		c.RequestID = "id"
		consume(t, s, c)
		abandon(t, s)
		s = openAlone(t, dir, d.options(Options{Durability: Power}))
		if v, err := s.Consume(t.Context(), c); err != nil || v.First == nil {
			t.Fatalf("Consume with the same id: got %+v, %v, want the first answer", v, err)
		}
		d.mu.Lock()
		left := d.cut(rand.New(rand.NewPCG(seed, 0)))
		d.mu.Unlock()
		abandon(t, s)
		s = openAlone(t, dir, left.options(Options{}))
		if v, err := s.Consume(t.Context(), c); err != nil || v.First == nil || v.Usage.Used != 1 {
			t.Fatalf("Consume after a power cut: got %+v, %v, want the first answer", v, err)
		}
	}
}
