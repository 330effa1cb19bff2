package badgerstore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// fullDisk returns options for a store whose event log cannot write blocks while full is set.
func fullDisk(full *atomic.Bool) Options {
	return Options{Logger: quiet.Logger, fs: &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
		if op.isBlock() && full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}}}
}

// TestNoSpaceAfterRecord: the disk gets full when the record of a transaction is in the event log, and before its commit
// needs a new memtable. The transaction is committed. When there is room, the store takes writes again.
func TestNoSpaceAfterRecord(t *testing.T) {
	var full atomic.Bool
	var h hook
	dir, o := t.TempDir(), fullDisk(&full)
	o.failpoint = h.step
	s := openAlone(t, dir, o)
	known(t, s, "key")
	const users, keys = 12, 600 // more than a memtable
	for user := int64(11); user < 11+users; user++ {
		h.once(failCommit, func() {
			full.Store(true)
			if _, err := s.Consume(t.Context(), request("key", 1, endless, noon)); !isUnavailable(err) {
				t.Errorf("Consume on a full disk: got error %v, want %v", err, core.ErrUnavailable)
			}
		})
		if err := s.Update(t.Context(), acct, withKeys(user, keys)); err != nil {
			t.Fatalf("user %d: Update: %v", user, err)
		}
		full.Store(false)
		heal(t, s)
		update(t, s, func(tx core.Tx) error { return tx.PutPlan(&core.Plan{AccountID: acct, ID: fmt.Sprint(user)}) })
	}
	for range 2 {
		used := counterOf(t, s, ofKey("key")).Requests[core.Month]
		if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || n != 1+users*keys || used != 0 {
			t.Errorf("got %d keys, %v, and %d used, want %d and %d", n, err, used, 1+users*keys, 0)
		}
		abandon(t, s)
		s = openAlone(t, dir, quiet)
	}
}

// TestNoSpaceAtRecord: a transaction whose record does not fit on the disk is refused, and is neither in the database nor in the event
// log, also after the store was closed. Otherwise the next key would get a number that it has.
func TestNoSpaceAtRecord(t *testing.T) {
	for _, closed := range []bool{true, false} {
		t.Run(fmt.Sprintf("closed %v", closed), func(t *testing.T) {
			var full atomic.Bool
			dir := t.TempDir()
			s := openAlone(t, dir, fullDisk(&full))
			known(t, s, "key")
			full.Store(true)
			for _, keys := range []int{10, many} {
				if err := s.Update(t.Context(), acct, withKeys(11, keys)); !isUnavailable(err) {
					t.Errorf("Update: got error %v, want %v", err, core.ErrUnavailable)
				}
			}
			full.Store(false)
			if closed {
				if err := s.Close(); !errors.Is(err, eventlog.ErrTemporary) {
					t.Errorf("Close: got error %v, want %v", err, eventlog.ErrTemporary)
				}
				s = openAlone(t, dir, quiet)
			} else {
				heal(t, s)
			}
			known(t, s, "next")
			for range 2 {
				if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); err != nil || n != 2 || keyRef(t, s, "next").number != 2 {
					t.Errorf("got %d keys, %v, and number %d for the last one, want 2 and 2", n, err, keyRef(t, s, "next").number)
				}
				abandon(t, s)
				s = openAlone(t, dir, quiet)
			}
		})
	}
}
