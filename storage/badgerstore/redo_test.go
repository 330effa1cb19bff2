package badgerstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// many is a number of keys whose records do not fit into one transaction of Badger.
const many = 2200

// TestLargeTransaction: a transaction with more records than Badger takes at once is committed.
func TestLargeTransaction(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{})
	withAccount(t, s)
	update(t, s, withKeys(1, many))
	wantKeys(t, s, many)
	for _, i := range []int{0, many / 2, many - 1} {
		if k, err := s.KeyByDigest(t.Context(), newKey(1, i).Digest); err != nil || k.ID != newKey(1, i).ID {
			t.Errorf("KeyByDigest of key %d: got %v, %v", i, k, err)
		}
	}
}

// TestFailedTransaction: a large transaction whose function returns an error is not committed, and leaves no record.
func TestFailedTransaction(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{})
	withAccount(t, s)
	before := stored(t, s, everyKind)
	refused := errors.New("no")
	err := s.Update(t.Context(), acct, func(tx core.Tx) error { return errors.Join(withKeys(1, many)(tx), refused) })
	if !errors.Is(err, refused) {
		t.Errorf("Update: got error %v, want %v", err, refused)
	}
	if after := stored(t, s, everyKind); len(after) != len(before) {
		t.Errorf("records: got %d, want the %d from before", len(after), len(before))
	}
}

const everyKind = "VAaOoIUuPpKkdlSCcDR"

// TestDeleteUserInterrupted: a user with many keys is deleted whole or not at all, no matter which write to the event
// log or which commit fails. This holds in the same process, and after the store is opened again.
func TestDeleteUserInterrupted(t *testing.T) {
	for _, operation := range []string{"write", "commit"} {
		var outcomes [2]int
		for nth, done := 1, false; !done; nth++ {
			var gone bool
			done, gone = deleteUserInterrupted(t, operation, nth)
			if gone {
				outcomes[1]++
			} else {
				outcomes[0]++
			}
		}
		least := map[string][2]int{"write": {1, 1}, "commit": {0, 4}}[operation]
		if outcomes[0] < least[0] || outcomes[1] < least[1] {
			t.Errorf("a %s fails: the user was kept %d times and deleted %d times, want at least %v", operation, outcomes[0], outcomes[1], least)
		}
	}
}

// deleteUserInterrupted deletes a user, and makes the nth write or commit fail. done reports that the deletion needed
// fewer operations, gone that the user is deleted afterwards.
func deleteUserInterrupted(t *testing.T, operation string, nth int) (done, gone bool) {
	t.Helper()
	var left atomic.Int64
	left.Store(math.MaxInt64)
	fails := func(at string) error {
		if at == operation && left.Add(-1) == 0 {
			return errMedium
		}
		return nil
	}
	dir, options := t.TempDir(), quiet
	options.fs = &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
		if op.isBlock() {
			return fails("write")
		}
		return nil
	}}
	s := openAlone(t, dir, options)
	withAccount(t, s)
	update(t, s, withKeys(1, many))
	shared := request(newKey(1, 7).ID, 1, 10, noon)
	shared.Shared = true
	consume(t, s, shared)

	s.commits(func() error { return fails("commit") })
	left.Store(int64(nth))
	err := s.Update(t.Context(), acct, func(tx core.Tx) error { return tx.DeleteUser(1) })
	left.Store(math.MaxInt64)
	if done = err == nil; !done && !isUnavailable(err) {
		t.Fatalf("%s %d fails: got error %v, want %v", operation, nth, err, core.ErrUnavailable)
	}
	wantUserWhole(t, s, nth)
	_ = s.Close()
	closeLeft(t, dir)

	s = mustOpen(t, dir, quiet)
	gone = wantUserWhole(t, s, nth)
	if done && !gone {
		t.Error("a deleted user exists again")
	}
	if gone {
		wantNothingLeft(t, s)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	return done, gone
}

// wantUserWhole fails unless a user and all its keys exist, or none of them. It reports whether the user is gone. The
// store may refuse to answer.
func wantUserWhole(t *testing.T, s *Store, commit int) (gone bool) {
	t.Helper()
	_, userErr := s.User(t.Context(), acct, 1)
	if isUnavailable(userErr) {
		return false
	}
	gone = errors.Is(userErr, core.ErrUserNotFound)
	want := many
	if gone {
		want = 0
	}
	wantKeys(t, s, want)
	for i := 0; i < many; i += 7 {
		k := newKey(1, i)
		_, byID := s.Key(t.Context(), acct, k.ID)
		_, byDigest := s.KeyByDigest(t.Context(), k.Digest)
		if errors.Is(byID, core.ErrKeyNotFound) != gone || errors.Is(byDigest, core.ErrKeyNotFound) != gone {
			t.Fatalf("commit %d fails: key %d: got errors %v and %v, but the user is gone: %v", commit, i, byID, byDigest, gone)
		}
	}
	used := int64(1)
	if gone {
		used = 0
	}
	wantUsed(t, s, ofKey(newKey(1, 7).ID), used)
	wantUsed(t, s, ofUser(1), used)
	return gone
}

// wantKeys fails unless every list of the keys of user 1 has want keys.
func wantKeys(t *testing.T, s *Store, want int) {
	t.Helper()
	for _, f := range []core.KeyFilter{{}, {UserID: 1}, {Status: core.KeyActive}, {UserID: 1, Status: core.KeyActive}} {
		sum := 0
		for i := range 3 {
			of := f
			if of.UserID == 0 { // only with a user, a filter has both PlanID and Status
				of.UnderPlan = newKey(1, i).PlanID
			} else {
				of.PlanID = new(newKey(1, i).PlanID)
			}
			_, n, err := s.Keys(t.Context(), acct, of, core.Page{Number: 1, Size: 1})
			if err != nil {
				t.Fatalf("Keys: %v", err)
			}
			sum += n
		}
		keys, total, err := s.Keys(t.Context(), acct, f, core.Page{Number: 1, Size: many})
		if err != nil || len(keys) != want || total != want || sum != want {
			t.Errorf("keys that match %+v: got %d of %d, by plan %d, %v, want %d", f, len(keys), total, sum, err, want)
		}
	}
}

// wantNothingLeft fails if a record of users, keys or plans exists, except the last numbers.
func wantNothingLeft(t *testing.T, s *Store) {
	t.Helper()
	left := slices.DeleteFunc(stored(t, s, "UuPpKkdSR"), func(p string) bool { // the records of the registry stay
		return len(p) > 1 && p[1] == 0 && (p[0] == kindSet || p[0] == kindUnique)
	})
	if len(left) > 0 {
		t.Errorf("records of deleted resources: got %q, want none", left)
	}
}

// TestReadersDuringUserDeletion: while a user with many keys is deleted, each reader sees all keys or none.
func TestReadersDuringUserDeletion(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{})
	withAccount(t, s)
	update(t, s, withKeys(1, many))
	deleted := make(chan struct{})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() { readUntilGone(t, s, i, deleted) })
	}
	update(t, s, func(tx core.Tx) error { return tx.DeleteUser(1) })
	close(deleted)
	group.Wait()
}

// readUntilGone reads keys by digest, and the list of keys, until a key is gone. From then on, all keys must be gone.
func readUntilGone(t *testing.T, s *Store, i int, deleted <-chan struct{}) {
	for n, gone := 0, false; !gone; n++ {
		wasDeleted := isClosed(deleted)
		_, err := s.KeyByDigest(context.Background(), newKey(1, (n*7+i)%many).Digest)
		gone = errors.Is(err, core.ErrKeyNotFound)
		if wasDeleted && !gone {
			t.Errorf("after the answer: KeyByDigest: got error %v, want %v", err, core.ErrKeyNotFound)
			return
		}
		_, total, err := s.Keys(context.Background(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1})
		if err != nil || total != 0 && (total != many || gone) {
			t.Errorf("keys: got %d, %v, want %d, or 0 once a key is gone: %v", total, err, many, gone)
			return
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestReadsDuringFailedTransaction: a reader waits while a transaction of several commits is applied, and a later commit fails.
// The reader gets an error. A failure means that it sees half of the transaction.
func TestReadsDuringFailedTransaction(t *testing.T) {
	dir := t.TempDir()
	s := openAlone(t, dir, quiet)
	known(t, s, "key")
	read := make(chan error, 1)
	var commits atomic.Int64
	s.commits(func() error {
		if commits.Add(1) != 2 {
			return nil
		}
		go func() { read <- s.read(func(view) error { return nil }) }()
		time.Sleep(100 * time.Millisecond) // usually enough for the reader to wait
		return errMedium
	})
	if err := s.Update(t.Context(), acct, withKeys(11, many)); !isUnavailable(err) {
		t.Errorf("Update: got error %v, want %v", err, core.ErrUnavailable)
	}
	if err := <-read; !isUnavailable(err) {
		t.Errorf("read: got error %v, want %v", err, core.ErrUnavailable)
	}
	_ = s.Close()
	closeLeft(t, dir)
}
