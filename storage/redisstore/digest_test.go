package redisstore_test

import (
	"errors"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// A transaction that moves a secret to another key and is not committed leaves the first key alive. The other process
// changes the account in between, so the transaction runs again, and fails then. A transaction that is committed moves the secret.
func TestAbortedMoveOfDigest(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := redisstore.Options{Addresses: []string{server.Addr()}}
	s, other := openFaulty(t, o), openFaulty(t, o)
	w := newWorld(t, s, 1)
	k, err := s.Key(t.Context(), w.account, w.keys[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	digest := k.Digest
	move := func(tx core.Tx) error {
		renamed := *k
		renamed.ID, renamed.Seq = k.ID+"_renamed", 0
		return errors.Join(tx.DeleteKey(k.ID), tx.PutKey(&renamed))
	}
	aborted := errors.New("aborted")
	runs := 0
	err = s.Update(t.Context(), w.account, func(tx core.Tx) error {
		if runs++; runs > 1 {
			return aborted
		}
		return errors.Join(move(tx), other.Update(t.Context(), w.account, func(tx core.Tx) error {
			return tx.PutUser(&core.User{AccountID: w.account})
		}))
	})
	if !errors.Is(err, aborted) {
		t.Fatalf("Update: %v, want %v", err, aborted)
	}
	for _, want := range []string{k.ID, k.ID + "_renamed"} {
		for _, store := range []core.Store{s, other} {
			if got, err := store.KeyByDigest(t.Context(), digest); err != nil || got.ID != want {
				t.Errorf("KeyByDigest: %+v, %v, want %s", got, err, want)
			}
		}
		if want == k.ID {
			if err := s.Update(t.Context(), w.account, move); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = s.Update(t.Context(), w.account, func(tx core.Tx) error { return tx.DeleteKey(k.ID + "_renamed") })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.KeyByDigest(t.Context(), digest); !errors.Is(err, core.ErrKeyNotFound) {
		t.Errorf("KeyByDigest of a deleted key: %v", err)
	}
}
