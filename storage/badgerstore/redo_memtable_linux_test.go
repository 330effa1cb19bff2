package badgerstore

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
)

// resourceHook has a failpoint function that takes a resource from the store before each commit, and gives it back after
// the commit. The store retries a commit that needs the resource until the test calls give.
type resourceHook struct {
	on         atomic.Bool
	tries      atomic.Int64 // attempts of the current commit
	take, give func()
}

func (h *resourceHook) step(at failpoint) {
	switch {
	case !h.on.Load():
	case at == failCommit:
		if h.tries.Add(1) == 1 {
			h.take()
		}
	case at == failCommitted:
		h.tries.Store(0)
		h.give()
	}
}

// fillUntilWaits creates keys until a commit waits. The channel gets the result of that commit when it ends.
func (h *resourceHook) fillUntilWaits(t *testing.T, s *Store) (last chan error) {
	t.Helper()
	last = make(chan error, 1)
	var waits atomic.Bool
	h.on.Store(true)
	go func() {
		for user := int64(11); ; user++ {
			if err := s.Update(t.Context(), acct, withKeys(user, 600)); err != nil || waits.Load() {
				last <- err
				return
			}
		}
	}()
	waitUntil(t, "a commit is tried again", func() bool { return h.tries.Load() > 2 || len(last) > 0 })
	waits.Store(true)
	return last
}

// TestMemtableOnFullDisk: neither the disk nor the reserve has room for the next memtable. The store answers reads and
// refuses requests. It commits a transaction whose record is in the event log when there is room. A failure means that
// Badger waits for room with its lock held, and that every read waits, too.
func TestMemtableOnFullDisk(t *testing.T) {
	if !mayMount(t) {
		return
	}
	dir := onTmpfs(t, 128)
	var s *Store
	var empty func()
	h := &resourceHook{take: func() {
		s.reserve.Give(s.reserve.Held())
		empty = fillDisk(t, dir)
	}, give: func() {
		empty()
		s.reserve.Watch()
	}}
	s = openAlone(t, dir, Options{Logger: quiet.Logger, failpoint: h.step})
	known(t, s, "key")
	last := h.fillUntilWaits(t, s)
	if _, err := s.AccountByName(t.Context(), acct); err != nil {
		t.Errorf("AccountByName on a full disk: %v", err)
	}
	wantUsed(t, s, ofKey("key"), 0)
	if _, err := s.Consume(t.Context(), request("key", 1, endless, noon)); !errors.Is(err, reserve.ErrFull) {
		t.Errorf("Consume on a full disk: got error %v, want %v", err, reserve.ErrFull)
	}
	h.on.Store(false)
	h.give()
	if err := <-last; err != nil {
		t.Errorf("Update: %v", err)
	}
	consume(t, s, request("key", 1, endless, noon))
}

// TestNoDescriptorForMemtable: no file descriptor is free for the next memtable. A transaction whose record is in the
// event log waits, and is committed when descriptors are free. A failure means that Badger has no memtable, and that the
// store needs a restart.
func TestNoDescriptorForMemtable(t *testing.T) {
	h := &resourceHook{}
	s := openAlone(t, t.TempDir(), Options{Logger: quiet.Logger, failpoint: h.step})
	h.take, h.give = descriptors(t)
	known(t, s, "key")
	last := h.fillUntilWaits(t, s)
	if _, err := s.AccountByName(t.Context(), acct); err != nil {
		t.Errorf("AccountByName without descriptors: %v", err)
	}
	h.on.Store(false)
	h.give()
	if err := <-last; err != nil {
		t.Errorf("Update: %v", err)
	}
	if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || n < 1000 {
		t.Errorf("Keys: got %d, %v", n, err)
	}
	consume(t, s, request("key", 1, endless, noon))
}

// TestPreparedFile: Badger gets the blocks that were prepared for a memtable, also if the disk is full by then. A
// failure means that Badger waits for room with its lock held.
func TestPreparedFile(t *testing.T) {
	if !mayMount(t) {
		return
	}
	dir := onTmpfs(t, 64)
	s := openAlone(t, dir, quiet)
	const size = 8 << 20
	file, err := os.Create(filepath.Join(dir, "prepared"))
	if err := firstOf(err, s.reserve.PrepareMemtable(file, size)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	empty := fillDisk(t, dir)
	defer empty()
	if err := firstOf(file.Truncate(size), allocate(int(file.Fd()), size)); err != nil || allocated(file) != size {
		t.Errorf("got %d bytes allocated, %v, want %d", allocated(file), err, size)
	}
}
