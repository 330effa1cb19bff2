package badgerstore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// TestAbsentRecord: a missing record to which another record refers is damage. A failure means that the store reads it as
// zero, as "not found" or as a shorter list.
func TestAbsentRecord(t *testing.T) {
	ctx := t.Context()
	for name, test := range map[string]struct {
		path path
		read func(*Store) error
	}{
		"page of counters": {pagePath(ref{0, 1, kindKey}), func(s *Store) error {
			_, err := s.Counters(ctx, []core.CounterID{ofKey("key")})
			return err
		}},
		"page of counters, counting": {pagePath(ref{0, 1, kindKey}), func(s *Store) error {
			_, err := s.Consume(ctx, request("key", 1, endless, noon))
			return err
		}},
		"key, by its id":     {keyPath(acct, 1), func(s *Store) error { _, err := s.Key(ctx, acct, "key"); return err }},
		"key, by its secret": {keyPath(acct, 1), func(s *Store) error { _, err := s.KeyByDigest(ctx, secrets.DigestOf("key")); return err }},
		"key, in a list": {keyPath(acct, 1), func(s *Store) error {
			_, _, err := s.Keys(ctx, acct, core.KeyFilter{}, everything)
			return err
		}},
		"user": {userPath(acct, 2), func(s *Store) error { _, err := s.User(ctx, acct, 2); return err }},
		"user, in a list": {userPath(acct, 2), func(s *Store) error {
			_, _, err := s.Users(ctx, acct, core.UserFilter{}, everything)
			return err
		}},
		"account":              {recordPath(resource.Account, "", 1), func(s *Store) error { _, err := s.AccountByName(ctx, acct); return err }},
		"number of an account": {accountIDPath(acct), func(s *Store) error { _, err := s.AccountByName(ctx, acct); return err }},
		"number of an owner's key": {idPath(resource.OwnerKey, "", fmt.Sprintf("%d:%s/okey", len(acct), acct)), func(s *Store) error {
			_, err := s.OwnerKeyByDigest(ctx, secrets.DigestOf(acct))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openAlone(t, dir, quiet)
			known(t, s, "key", "other")
			consume(t, s, request("key", 1, endless, noon))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openAlone(t, dir, quiet)
			if err := s.db.Update(func(txn *badger.Txn) error { return txn.Delete(test.path) }); err != nil {
				t.Fatal(err)
			}
			if err := test.read(s); !isDamage(err) || !isUnavailable(err) {
				t.Errorf("got error %v, want damage", err)
			}
		})
	}
}

// TestAbsentRecordOfMany: a missing record in the middle or at the end of a long page is damage. A failure means that the page is shorter, or has another
// key in its place.
func TestAbsentRecordOfMany(t *testing.T) {
	for _, absent := range []int64{1, 7, 20} {
		s := openAlone(t, t.TempDir(), quiet)
		known(t, s, numbered("key", 20)...)
		if list, _, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); err != nil || len(list) != 20 {
			t.Fatalf("got %d keys, %v, want 20", len(list), err)
		}
		if err := s.db.Update(func(txn *badger.Txn) error { return txn.Delete(keyPath(acct, absent)) }); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); !isDamage(err) || !isUnavailable(err) {
			t.Errorf("without the record %d: got %v, want damage", absent, err)
		}
	}
}

// TestNeverUsed: a key without requests has no page, and a usage of 0.
func TestNeverUsed(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	known(t, s, numbered("key", 200)...)
	consume(t, s, request("key0", 1, endless, noon))
	writeCheckpoint(t, s)
	wantUsed(t, s, ofKey("key0"), 1)
	wantUsed(t, s, ofKey("key199"), 0)
}

// TestAccountWithoutID: the registry is no account.
func TestAccountWithoutID(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	err := s.Update(t.Context(), "", func(tx core.Tx) error { return tx.PutUser(&core.User{}) })
	if !errors.Is(err, core.ErrAccountNotFound) {
		t.Errorf("a user of the account without an id: got error %v, want %v", err, core.ErrAccountNotFound)
	}
}
