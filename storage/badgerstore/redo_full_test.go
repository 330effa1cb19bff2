package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
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
		waitUntil(t, "the event log is written", func() bool { return s.events.Flush() == nil })
		update(t, s, func(tx core.Tx) error { return tx.PutPlan(&core.Plan{AccountID: acct, ID: fmt.Sprint(user)}) })
	}
	for range 2 {
		used := counterOf(t, s, ofKey("key")).Requests[core.Month]
		if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || n != 1+users*keys || used != users {
			t.Errorf("got %d keys, %v, and %d used, want %d and %d", n, err, used, 1+users*keys, users)
		}
		abandon(t, s)
		s = openAlone(t, dir, quiet)
	}
}

// TestNoSpaceAtRecord: a transaction whose record does not fit on the disk is refused. If the process is killed before there
// is room, the transaction is lost. If the event log can write the record later, the transaction is committed.
func TestNoSpaceAtRecord(t *testing.T) {
	for _, killed := range []bool{true, false} {
		t.Run(fmt.Sprintf("killed %v", killed), func(t *testing.T) {
			var full atomic.Bool
			dir := t.TempDir()
			s := openAlone(t, dir, fullDisk(&full))
			known(t, s, "key")
			full.Store(true)
			if err := s.Update(t.Context(), acct, withKeys(11, 10)); !isUnavailable(err) {
				t.Errorf("Update: got error %v, want %v", err, core.ErrUnavailable)
			}
			if !killed {
				full.Store(false)
				waitUntil(t, "the event log is written", func() bool { return s.events.Flush() == nil })
				if !consume(t, s, request(newKey(11, 3).ID, 11, endless, noon)) {
					t.Error("a key of the transaction: got denied")
				}
			}
			abandon(t, s)
			s = openAlone(t, dir, quiet)
			want := 1
			if !killed {
				want += 10
				wantUsed(t, s, ofKey(newKey(11, 3).ID), 1)
			}
			if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); err != nil || n != want {
				t.Errorf("got %d keys, %v, want %d", n, err, want)
			}
		})
	}
}

// TestNoSpaceAtClose: a transaction that the event log could not write before Close is in no table. Otherwise the next
// start would replace some of its records with older ones, and the next key would get a number that it has.
func TestNoSpaceAtClose(t *testing.T) {
	for name, fails := range map[string]func(fsOp) bool{
		"full":             func(fsOp) bool { return false },
		"then write fails": func(op fsOp) bool { return op.isBlock() },
		"then sync fails":  func(op fsOp) bool { return op.kind == "sync" },
	} {
		t.Run(name, func(t *testing.T) {
			var full, broken atomic.Bool
			dir, killed := t.TempDir(), t.TempDir()
			o := fullDisk(&full)
			fs := o.fs.(*hookedFS)
			refuse := fs.before
			fs.before = func(op fsOp) error {
				if broken.Load() && fails(op) {
					return syscall.EIO
				}
				return refuse(op)
			}
			s := openAlone(t, dir, o)
			known(t, s, "key")
			full.Store(true)
			if err := s.Update(t.Context(), acct, withKeys(11, 10)); !isUnavailable(err) {
				t.Errorf("Update: got error %v, want %v", err, core.ErrUnavailable)
			}
			broken.Store(true)
			if err := s.Close(); err == nil {
				t.Error("Close: got no error")
			}
			if _, err := Open(dir, quiet); !errors.Is(err, errUnclosed) {
				t.Errorf("Open in the same process: got error %v, want %v", err, errUnclosed)
			}
			copyKilled(t, killed, dir)
			closeLeft(t, dir)
			if tables, err := filepath.Glob(filepath.Join(killed, "*"+table.Suffix)); err != nil || len(tables) > 0 {
				t.Errorf("Close has written the tables %q, %v", tables, err)
			}
			s = openAlone(t, killed, quiet)
			known(t, s, "next")
			abandon(t, s)
			s = openAlone(t, killed, quiet)
			if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); err != nil || n != 2 || keyRef(t, s, "next").number != 2 {
				t.Errorf("got %d keys, %v, and number %d for the last one, want 2 and 2", n, err, keyRef(t, s, "next").number)
			}
		})
	}
}

// TestNoSpaceAtPart: a transaction is refused when one of its parts does not fit on the disk. The next transaction is
// committed when there is room.
func TestNoSpaceAtPart(t *testing.T) {
	var full atomic.Bool
	dir := t.TempDir()
	s := openAlone(t, dir, fullDisk(&full))
	known(t, s, "key")
	full.Store(true)
	if err := s.Update(t.Context(), acct, withKeys(11, many)); !isUnavailable(err) {
		t.Errorf("Update: got error %v, want %v", err, core.ErrUnavailable)
	}
	full.Store(false)
	waitUntil(t, "the event log is written", func() bool { return s.events.Flush() == nil })
	update(t, s, withKeys(12, 10))
	for range 2 {
		if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); err != nil || n != 11 {
			t.Errorf("got %d keys, %v, want 11", n, err)
		}
		abandon(t, s)
		s = openAlone(t, dir, quiet)
	}
}

// fullAtLast returns options for a store whose disk gets full when last is set and the event log writes a small block:
// the block with the redo record of a transaction of several parts.
func fullAtLast(full, last *atomic.Bool) Options {
	o := fullDisk(full)
	fs := o.fs.(*hookedFS)
	refuse := fs.before
	fs.before = func(op fsOp) error {
		if op.isBlock() && last.Load() && len(op.data) < 1000 {
			full.Store(true)
		}
		return refuse(op)
	}
	return o
}

// TestNoSpaceAtLastRecord: a transaction of several parts whose redo record does not fit on the disk is committed whole or
// not at all, and the store takes writes again when there is room.
func TestNoSpaceAtLastRecord(t *testing.T) {
	for _, killed := range []bool{true, false} {
		t.Run(fmt.Sprintf("killed %v", killed), func(t *testing.T) {
			var full, last atomic.Bool
			dir := t.TempDir()
			s := openAlone(t, dir, fullAtLast(&full, &last))
			known(t, s, "key")
			last.Store(true)
			updated := make(chan error, 1)
			go func() { updated <- s.Update(context.Background(), acct, withKeys(11, many)) }()
			waitUntil(t, "the disk is full", full.Load)
			want := 1
			if !killed {
				last.Store(false)
				full.Store(false)
				if err := <-updated; !isUnavailable(err) {
					t.Errorf("Update: got error %v, want %v", err, core.ErrUnavailable)
				}
				waitUntil(t, "the event log is written", func() bool { return s.events.Flush() == nil })
				want += many
				for range 3 {
					if _, err := s.Consume(t.Context(), request("key", 1, endless, noon)); err != nil {
						t.Errorf("Consume: %v", err)
					}
				}
				if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); err != nil || n != want {
					t.Errorf("got %d keys, %v, want %d", n, err, want)
				}
			}
			if killed {
				after := t.TempDir()
				copyDatabase(t, after, dir)
				copyEventLog(t, after, dir)
				last.Store(false)
				full.Store(false)
				<-updated
				dir = after
			}
			abandon(t, s)
			s = openAlone(t, dir, quiet)
			if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); err != nil || n != want {
				t.Errorf("opened again: got %d keys, %v, want %d", n, err, want)
			}
		})
	}
}

// TestIndexedStays: a transaction is in the database, and not in the event log, which cannot be written. Another commit follows, and
// the process is killed. The next start notices that the database is ahead. A failure means that it keeps a transaction that a
// rebuild would lose.
func TestIndexedStays(t *testing.T) {
	var full atomic.Bool
	killed := t.TempDir()
	s := openAlone(t, t.TempDir(), fullDisk(&full))
	known(t, s, "key")
	writeCheckpoint(t, s)
	full.Store(true)
	if err := s.Update(t.Context(), acct, withKeys(11, 10)); !isUnavailable(err) {
		t.Errorf("Update: got error %v, want %v", err, core.ErrUnavailable)
	}
	expired := func(path, []byte) (bool, error) { return true, nil }
	if err := s.removeAll([]path{requestIDPath(requestKey{keyRef(t, s, "key"), "old"})}, expired); err != nil { // as a sweep does
		t.Fatal(err)
	}
	copyKilled(t, killed, s.dir)
	full.Store(false)
	s = openAlone(t, killed, quiet)
	if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); err != nil || n != 1 {
		t.Errorf("after the kill: got %d keys, %v, want 1", n, err)
	}
}
