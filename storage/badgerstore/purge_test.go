package badgerstore

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// leftOf returns the records of the database that name an account by its id or its number, or whose value has its id.
func leftOf(t *testing.T, s *Store, id string, number uint32) (left []string) {
	t.Helper()
	err := s.db.View(func(txn *badger.Txn) error {
		return view{txn}.eachFrom(nil, nil, func(p path, value []byte) (bool, error) {
			byNumber := strings.IndexByte("CcDRH", p[0]) >= 0 && uint32(binary.BigEndian.Uint64(p[1:9])) == number
			if byNumber || strings.Contains(string(p), id) || strings.Contains(string(value), id) {
				left = append(left, fmt.Sprintf("%q", p))
			}
			return true, nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return left[:min(len(left), 20)]
}

// wantPurged fails if the database has something of the account acct, also after a checkpoint.
func wantPurged(t *testing.T, when string, s *Store, number uint32) {
	t.Helper()
	for _, moment := range []string{"", ", after a checkpoint"} {
		if left := leftOf(t, s, acct, number); len(left) > 0 {
			t.Errorf("%s%s: got the records %q, want none of the account", when, moment, left)
		}
		writeCheckpoint(t, s)
	}
	if a, err := s.Account(t.Context(), acct); err == nil {
		t.Errorf("%s: got the account %+v", when, a)
	}
}

// fillForPurge fills the account acct with keys, usage of several days, request ids, open holds, days of a deleted user, prices, access and a
// ranking.
func fillForPurge(t *testing.T, s *Store, users, keysOfUser int) {
	t.Helper()
	known(t, s)
	for first := 1; first <= users; first += 100 {
		update(t, s, func(tx core.Tx) (err error) {
			for user := first; user < first+100 && err == nil; user++ {
				err = withKeys(int64(user), keysOfUser)(tx)
			}
			return err
		})
	}
	for day := range 3 {
		for user := 1; user <= users; user += 20 {
			c := request(newKey(int64(user), 0).ID, int64(user), endless, noon.AddDate(0, 0, day))
			c.Shared, c.RequestID = user%40 == 1, "id"
			consume(t, s, c)
			c = request(newKey(int64(user), 1).ID, int64(user), endless, noon.AddDate(0, 0, day))
			c.Hold = &core.NewHold{ID: core.NewHoldID(int64(user)), ExpiresAt: noon.AddDate(1, 0, 0)}
			consume(t, s, c)
		}
		if day < 2 {
			writeCheckpoint(t, s)
		}
	}
	update(t, s, func(tx core.Tx) error { return tx.DeleteUser(21) })
	update(t, s, func(tx core.Tx) error { return tx.PutPrices(&core.Prices{UpdatedAt: noon}) })
	update(t, s, func(tx core.Tx) error { return tx.PutPlan(&core.Plan{AccountID: acct, ID: "plan_1", Name: "p"}) })
	if _, err := s.UpdateAccess(t.Context(), acct, func(ac *core.Access) error { ac.Password = acct; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Rank(t.Context(), acct, []core.Ranked{{CounterID: ofUser(1), Fills: []core.Fill{{Meter: "requests", Percent: 9, End: core.NoEnd}}}}, false); err != nil {
		t.Fatal(err)
	}
}

// otherAccount fills another account whose id begins with that of acct, and returns a dump of it.
func otherAccount(t *testing.T, s *Store) (dump func(*Store) string) {
	t.Helper()
	const id = "ACCT_OTHER"
	a := &core.Account{ID: id, Name: id, CreatedAt: noon}
	if err := s.CreateAccount(t.Context(), a, &core.OwnerKey{ID: "okey_other", AccountID: id, Digest: secrets.DigestOf(id), CreatedAt: noon}); err != nil {
		t.Fatal(err)
	}
	k := &core.Key{AccountID: id, ID: "key_other", UserID: 1, Status: core.KeyActive, Digest: secrets.DigestOf("key_other")}
	err := s.Update(t.Context(), id, func(tx core.Tx) error {
		return firstOf(tx.PutUser(&core.User{AccountID: id, ID: 1, Name: "u"}), tx.PutKey(k))
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		c := request(k.ID, 1, endless, noon)
		c.Account = id
		consume(t, s, c)
	}
	return func(s *Store) string {
		counters, err := s.Counters(t.Context(), []core.CounterID{{Account: id, KeyID: k.ID}})
		entries, n, err2 := s.History(t.Context(), core.CounterID{Account: id, UserID: 1}, time.Time{}, core.Page{Number: 1, Size: 10})
		found, err3 := s.KeyByDigest(t.Context(), k.Digest)
		owner, err4 := s.OwnerKeyByDigest(t.Context(), secrets.DigestOf(id))
		return fmt.Sprint(counters[0].Requests, entries, n, found, owner, err, err2, err3, err4)
	}
}

// deleteAcct sets Deleting of the account acct.
func deleteAcct(t *testing.T, s *Store) {
	t.Helper()
	if _, err := s.UpdateAccount(t.Context(), acct, func(a *core.Account) error { a.Deleting = true; return nil }); err != nil {
		t.Fatal(err)
	}
}

// purgeSome calls PurgeAccount at most n times, and returns whether more is left.
func purgeSome(t *testing.T, s *Store, n int) (more bool) {
	t.Helper()
	for range n {
		var err error
		if more, err = s.PurgeAccount(t.Context(), acct); err != nil {
			t.Fatal(err)
		}
		if !more {
			return false
		}
	}
	return more
}

// TestPurgeKilled: the removal of an account with 20,000 keys goes on after kills at any step, and leaves nothing of the account in the database: also
// after the next start replays the event log, and after the database is rebuilt from the event log, or from an image that is older than the
// removal. The other account is as it was.
func TestPurgeKilled(t *testing.T) {
	dir := t.TempDir()
	s := openAlone(t, dir, quiet)
	fillForPurge(t, s, 4000, 5)
	dump := otherAccount(t, s)
	want := dump(s)
	number := refOf(t, s, ofUser(1)).account
	mustImage(t, s)
	deleteAcct(t, s)
	kills := 0
	for more := true; more; kills++ {
		more = purgeSome(t, s, []int{1, 7, 40, 3, 30}[kills%5])
		if kills%2 == 1 {
			writeCheckpoint(t, s)
		}
		if err := s.syncEvents(); err != nil {
			t.Fatal(err)
		}
		abandon(t, s)
		s = openAlone(t, dir, quiet)
		if a, err := s.Account(t.Context(), acct); more && (err != nil || !a.Deleting) {
			t.Fatalf("after kill %d: got %+v, %v, want an account that is being removed", kills, a, err)
		}
	}
	t.Logf("%d kills", kills)
	wantPurged(t, "after the last kill", s, number)
	if got := dump(s); got != want {
		t.Errorf("the other account: got %s, want %s", got, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for from, images := range map[string]bool{"the event log": false, "an older image": true} {
		again := copyOf(t, dir)
		remove(t, glob(t, again, "MANIFEST"))
		if list := glob(t, again, table.ImagePrefix+"*"); !images {
			remove(t, list)
		} else if len(list) == 0 {
			t.Fatal("there is no image")
		}
		s := openAlone(t, again, quiet)
		wantPurged(t, "made anew from "+from, s, number)
		if got := dump(s); got != want {
			t.Errorf("made anew from %s: the other account: got %s, want %s", from, got, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if damages := checkDamages(t, again); len(damages) > 0 {
			t.Errorf("made anew from %s: check: got %q", from, damages)
		}
	}
}

// TestPurgeBesideCheckpoints: a checkpoint that runs during the removal writes nothing of the account afterwards.
func TestPurgeBesideCheckpoints(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	fillForPurge(t, s, 400, 2)
	number := refOf(t, s, ofUser(1)).account
	deleteAcct(t, s)
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-end:
				ended <- nil
				return
			default:
				if err := s.checkpoint(); err != nil {
					ended <- err
					return
				}
			}
		}
	}()
	purgeSome(t, s, 1000)
	close(end)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	wantPurged(t, "beside checkpoints", s, number)
	if s.holds.add(number, 0) != 0 {
		t.Error("open holds of the account are left")
	}
}
