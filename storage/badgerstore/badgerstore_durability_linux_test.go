package badgerstore

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// unsynced returns the number of bytes of the event log that are not synced.
func unsynced(s *Store) int64 { return s.events.End() - s.events.Durable() }

// openBlock is the result of unsynced when all events are synced: the size of the header of the open block.
const openBlock = 20

// TestPower: with Power, every transaction and every count is synced before its answer.
func TestPower(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{Durability: Power})
	withAccount(t, s)
	known(t, s, "key")
	for i := range 20 {
		update(t, s, withKeys(int64(i+1), 1+i*100))
		if left := unsynced(s); left > openBlock {
			t.Fatalf("after update %d: got %d bytes that are not on the disk, want 0", i, left)
		}
		consume(t, s, request("key", 1, 1<<20, noon))
		if left := unsynced(s); left > openBlock {
			t.Fatalf("after request %d: got %d bytes that are not on the disk, want 0", i, left)
		}
	}
}

// TestProcess: with Process, an answered request is synced soon after its answer.
func TestProcess(t *testing.T) {
	s := openAlone(t, t.TempDir(), Options{})
	known(t, s, "key")
	consume(t, s, request("key", 1, 1, noon))
	if unsynced(s) <= openBlock {
		t.Error("right after a request: got no unsynced bytes: the test proves nothing")
	}
	s.background.start(s)
	waitUntil(t, "the request is on the disk", func() bool { return unsynced(s) <= openBlock })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestSetDurability: SetDurability(Power) syncs earlier answers, and all later writes before their answers.
// SetDurability(Process) ends that.
func TestSetDurability(t *testing.T) {
	s := openAlone(t, t.TempDir(), Options{})
	known(t, s, "key")
	for i := range 20 {
		consume(t, s, request("key", 1, 1<<20, noon))
		if unsynced(s) <= openBlock {
			t.Fatalf("request %d with Process: got no bytes that are not on the disk, want some", i)
		}
		s.SetDurability(Power)
		if left := unsynced(s); left > openBlock {
			t.Fatalf("after SetDurability(Power): got %d bytes that are not on the disk, want 0", left)
		}
		consume(t, s, request("key", 1, 1<<20, noon))
		if left := unsynced(s); left > openBlock {
			t.Fatalf("request %d with Power: got %d bytes that are not on the disk, want 0", i, left)
		}
		s.SetDurability(Process)
	}
	abandon(t, s)
}

// TestDurabilityAfterHeal: the durability that was set stays when the store opens its files again. A failure means that answers are lost
// in a power cut.
func TestDurabilityAfterHeal(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	known(t, s, "key")
	s.SetDurability(Power)
	_ = s.fail(errBadger)
	heal(t, s)
	consume(t, s, request("key", 1, endless, noon))
	if left := unsynced(s); left > openBlock {
		t.Errorf("got %d bytes that are not on the disk, want 0", left)
	}
}

// TestSyncFails: when a sync fails, its write and every later write are answered with an error. A second sync could
// succeed although the bytes of the first write are lost.
func TestSyncFails(t *testing.T) {
	dir, options := t.TempDir(), quiet
	options.Durability = Power
	var breaks atomic.Bool
	options.fs = &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
		if op.kind == "sync" && breaks.CompareAndSwap(true, false) {
			return syscall.EIO
		}
		return nil
	}}
	s := mustOpen(t, dir, options)
	withAccount(t, s)
	known(t, s, "key")
	breaks.Store(true)
	for range 2 {
		wantUnavailable(t, s)
	}
	if _, err := s.AccountByName(t.Context(), acct); err != nil {
		t.Errorf("AccountByName: %v", err)
	}
	if err := s.Close(); err == nil {
		t.Error("Close: got no error, want the error of the disk")
	}
	closeLeft(t, dir)
	s = openIn(t, dir, Options{Durability: Power})
	if !consume(t, s, request("key", 2, 2, noon)) {
		t.Error("Consume after opening the store again: got denied, want allowed")
	}
}

// wantUnavailable fails unless the store refuses writes.
func wantUnavailable(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Update(t.Context(), acct, withKeys(1, 1)); !isUnavailable(err) {
		t.Errorf("Update: got error %v, want %v", err, core.ErrUnavailable)
	}
	if _, err := s.Consume(t.Context(), request("key", 1, 1, noon)); !isUnavailable(err) {
		t.Errorf("Consume: got error %v, want %v", err, core.ErrUnavailable)
	}
}

// TestFullDisk: while the disk is full, the store refuses counts and new resources, and answers reads.
func TestFullDisk(t *testing.T) {
	s, err := open(t.TempDir(), quiet)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer func() { _ = s.Close() }()
	withAccount(t, s)
	known(t, s, "key")
	for _, isFull := range []bool{true, false} {
		setFull(s, isFull)
		_, consumeErr := s.Consume(t.Context(), request("key", 1, 10, time.Now()))
		updateErr := s.Update(t.Context(), acct, withKeys(1, 1))
		createErr := s.CreateOwnerKey(t.Context(), &core.OwnerKey{AccountID: acct, ID: "okey2"})
		for call, err := range map[string]error{"Consume": consumeErr, "Update": updateErr, "CreateOwnerKey": createErr} {
			if isUnavailable(err) != isFull {
				t.Errorf("%s when the disk is full: %v: got error %v", call, isFull, err)
			}
		}
		if _, _, err := s.Users(t.Context(), acct, core.UserFilter{}, core.Page{Number: 1, Size: 1}); err != nil {
			t.Errorf("Users when the disk is full: %v: got error %v", isFull, err)
		}
	}
}
