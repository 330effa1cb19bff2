package badgerstore

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// TestFailedCloseThenPowerCut: closing a failed store leaves no table that is ahead of the event log. Otherwise a power
// cut would leave counts without their events, and the next requests would not be counted.
func TestFailedCloseThenPowerCut(t *testing.T) {
	for seed := range uint64(8) {
		dir, after := t.TempDir(), t.TempDir()
		d, h := newLossyDisk(), hook{}
		o := d.options(Options{Logger: quiet.Logger})
		o.failpoint = h.step
		s, err := open(dir, o)
		if err != nil {
			t.Fatal(err)
		}
		known(t, s, "key")
		if err := s.syncEvents(); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			c := request("key", 1, endless, noon)
			c.RequestID = fmt.Sprint(i)
			consume(t, s, c)
		}
		h.once(failCommitted, func() { _ = s.fail(errMedium) }) // the pages are committed, and nothing after them
		if err := s.checkpoint(); err == nil {
			t.Fatal("checkpoint: got no error")
		}
		if err := s.Close(); err == nil {
			t.Fatal("Close: got no error")
		}
		d.mu.Lock()
		left := d.cut(rand.New(rand.NewPCG(seed, 0)))
		d.mu.Unlock()
		copyDatabase(t, after, dir)
		o = left.at(dir, after).options(Options{Logger: quiet.Logger})
		s = openAlone(t, after, o)
		before := allowedIn(t, s, ofKey("key"))
		wantUsed(t, s, ofKey("key"), before)
		for range 5 {
			consume(t, s, request("key", 1, endless, noon))
		}
		writeCheckpoint(t, s)
		abandon(t, s)
		s = openAlone(t, after, o)
		wantUsed(t, s, ofKey("key"), before+5)
	}
}

// TestCreatedOnFullDisk: a store whose first record did not fit on the disk has no database yet. Otherwise the database
// would have a record that the event log lacks, and the database could never be rebuilt.
func TestCreatedOnFullDisk(t *testing.T) {
	var full atomic.Bool
	full.Store(true)
	dir := t.TempDir()
	if _, err := Open(dir, fullDisk(&full)); err == nil {
		t.Fatal("Open: got no error")
	}
	killed := t.TempDir()
	copyKilled(t, killed, dir)
	closeLeft(t, dir)
	s := openAlone(t, killed, quiet)
	known(t, s, "key")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	remove(t, glob(t, killed, "*"+table.Suffix))
	known(t, openAlone(t, killed, quiet), "other")
}
