package badgerstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// TestHealWithoutDescriptors: no file descriptor is free when Badger begins its next memtable, and for a while after that. The
// store refuses requests, and rebuilds its database when descriptors are free. It has every transaction that is in the event log.
// A failure means that the process ends, or needs a restart.
func TestHealWithoutDescriptors(t *testing.T) {
	take, give := descriptors(t)
	var taken bool
	s := mustOpen(t, t.TempDir(), Options{Logger: quiet.Logger, memtable: smallMemtable, failpoint: func(at failpoint) {
		switch {
		case !taken:
		case at == failCommit:
			take()
		case at == failCommitted:
			give()
		}
	}})
	known(t, s, "key")
	consume(t, s, request("key", 1, endless, noon))
	taken = true
	users := int64(1)
	for err := error(nil); err == nil; users++ {
		err = s.Update(t.Context(), acct, withKeys(1+users, 600))
	}
	taken = false
	if _, err := s.Consume(t.Context(), request("key", 1, endless, noon)); !isUnavailable(err) {
		t.Errorf("Consume without descriptors: got error %v, want %v", err, core.ErrUnavailable)
	}
	give()
	waitUntil(t, "the store is healed", func() bool { return s.Health(t.Context()) == nil })
	if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || n != 1+600*int(users-1) {
		t.Errorf("Keys: got %d, %v, want %d", n, err, 1+600*(users-1))
	}
	wantUsed(t, s, ofKey("key"), 1)
	consume(t, s, request("key", 1, endless, noon))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestHealWithWaitingTransactions: other transactions wait when Badger cannot begin its next memtable. A failure means that one of them
// commits without a memtable, which ends the process.
func TestHealWithWaitingTransactions(t *testing.T) {
	take, give := descriptors(t)
	var taken atomic.Bool
	var logged logLines
	s := mustOpen(t, t.TempDir(), Options{Logger: logged.logger(), memtable: smallMemtable, failpoint: func(at failpoint) {
		switch {
		case !taken.Load():
		case at == failCommit:
			take()
		case at == failCommitted:
			give()
		}
	}})
	const accounts = 16
	for i := range accounts {
		id := fmt.Sprint("acct", i)
		if err := s.CreateAccount(t.Context(), &core.Account{ID: id, Name: id}, &core.OwnerKey{ID: id, AccountID: id, Digest: secrets.DigestOf(id)}); err != nil {
			t.Fatal(err)
		}
	}
	taken.Store(true)
	var group sync.WaitGroup
	for i := range accounts {
		group.Go(func() {
			id := fmt.Sprint("acct", i)
			for user := int64(1); ; user++ {
				err := s.Update(t.Context(), id, func(tx core.Tx) error {
					err := tx.PutUser(&core.User{AccountID: id, ID: user, Name: "user"})
					for k := range 40 {
						key := fmt.Sprintf("%s_%d_%d", id, user, k)
						err = firstOf(err, tx.PutKey(&core.Key{AccountID: id, ID: key, UserID: user, Status: core.KeyActive, Digest: secrets.DigestOf(key)}))
					}
					return err
				})
				if err != nil && logged.lines("it is rebuilt") > 0 {
					return
				}
			}
		})
	}
	group.Wait()
	taken.Store(false)
	give()
	waitUntil(t, "the store is healed", func() bool { return s.Health(t.Context()) == nil })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
