package badgerstore

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// TestDeleteManyFolded: a user with many keys that were used and folded can be deleted:
// each key is on a page with others, and a transaction holds few pages.
func TestDeleteManyFolded(t *testing.T) {
	const keys = 1200
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	withAccount(t, s)
	update(t, s, withKeys(1, keys))
	for i := range 5 * keys {
		consume(t, s, request(newKey(1, i%keys).ID, 1, 1<<20, noon.Add(time.Duration(i)*time.Millisecond)))
	}
	fold(t, s)
	update(t, s, func(tx core.Tx) error { return tx.DeleteUser(1) })
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	s = openIn(t, dir, Options{})
	if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || n != 0 {
		t.Errorf("Keys: got %d, %v, want 0", n, err)
	}
}

// TestFoldManySmallPages: a fold of many small pages has more pages than a transaction of Badger takes records. The
// memtables are as small as on a small disk.
func TestFoldManySmallPages(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	defer abandon(t, s)
	const pages = 15_000
	var b folding
	var young tally
	young.append(young.next(noon), noon, firstPosition)
	record := young.encode(nil)
	for n := range int64(pages) {
		from := int32(len(b.bytes))
		b.bytes = append(b.bytes, record...)
		b.counters = append(b.counters, folded{ref: ref{n << pageBits, 1, kindKey}, position: firstPosition, from: from, upTo: int32(len(b.bytes))})
	}
	if err := s.writePages(&b); err != nil {
		t.Fatalf("writePages: %v", err)
	}
	if got := len(stored(t, s, string(kindCounter))); got != pages {
		t.Errorf("got %d pages, want %d", got, pages)
	}
}

// TestSyncFailsElsewhere: a request whose bytes could not be brought to the disk is not
// answered, also when it was another's sync that failed and the next one succeeds.
func TestSyncFailsElsewhere(t *testing.T) {
	var broken atomic.Bool
	var roomMade atomic.Pointer[func()]
	s, err := open(t.TempDir(), Options{Durability: Power, Logger: quiet.Logger, ahead: 1, fs: &hookedFS{
		FS: eventlog.OS,
		before: func(op fsOp) error {
			if op.kind == "sync" && broken.CompareAndSwap(true, false) {
				return errMedium
			}
			if op.kind == "write" && allZero(op.data) { // after the block, before its sync
				if fn := roomMade.Swap(nil); fn != nil {
					(*fn)()
				}
			}
			return nil
		},
	}})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	known(t, s, "key")
	consume(t, s, request("key", 1, 10, noon))
	roomMade.Store(new(func() {
		broken.Store(true)
		if err := s.events.Sync(); err == nil {
			t.Error("sync of a broken disk: got no error")
		}
	}))
	if v, err := s.Consume(t.Context(), request("key", 1, 10, noon)); !isUnavailable(err) {
		t.Errorf("Consume: got %+v, %v, want unavailable", v, err)
	}
	if roomMade.Load() != nil {
		t.Error("no room was made: the test shows nothing")
	}
	if err := s.Close(); err == nil {
		t.Error("Close: got no error, want what the disk said")
	}
}

// TestFoldFails: when folding fails and there is no room, whoever counts is told so
// and does not wait for ever; when it succeeds again, counting goes on.
func TestFoldFails(t *testing.T) {
	s := openIn(t, t.TempDir(), quiet)
	known(t, s, "key")
	consume(t, s, request("key", 1, 1<<20, noon))
	s.commits(func() error { return errMedium })
	most := s.folder.most.Swap(0)
	s.folder.hurry()
	if _, err := s.Consume(t.Context(), request("key", 1, 10, noon)); !isUnavailable(err) {
		t.Errorf("Consume: got error %v, want unavailable", err)
	}
	s.commits(func() error { return nil })
	s.folder.most.Store(most)
	if err := s.fold(); err != nil {
		t.Fatalf("fold: %v", err)
	}
	consume(t, s, request("key", 1, 1<<20, noon))
	wantUsed(t, s, ofKey("key"), 2)
}

// TestLongKeptBesideShort: what is to be kept long stays, also when what came after it
// is to be kept shortly.
func TestLongKeptBesideShort(t *testing.T) {
	s, err := open(t.TempDir(), Options{segmentSize: 300})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer func() { _ = s.Close() }()
	known(t, s, "key")
	count := func(n int, at time.Time, keep time.Duration) {
		c := request("key", 1, 1<<20, at)
		c.Retention = keep
		for range n {
			consume(t, s, c)
		}
	}
	count(5, noon, 90*24*time.Hour)
	count(10, noon.Add(time.Hour), time.Hour)
	count(10, noon.Add(2*time.Hour), 90*24*time.Hour)
	fold(t, s)
	if err := s.expire(time.Now().Add(48 * time.Hour)); err != nil {
		t.Fatalf("expire: %v", err)
	}
	list, _, err := s.History(context.Background(), ofKey("key"), time.Time{}, core.Page{Number: 1, Size: 100})
	if err != nil || len(list) < 15 || !list[len(list)-1].At.Equal(noon) {
		t.Errorf("History: got %d entries, %v, want the 15 that are kept for 90 days", len(list), err)
	}
}

// TestFewerCounters: when fewer counters are to be kept there are fewer, also of those
// that are in use all the time.
func TestFewerCounters(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{})
	ids := numbered("key", 12_000)
	known(t, s, ids...)
	use := func() {
		for _, id := range ids {
			c := request(id, 1, 10, noon)
			c.Cost = 0
			consume(t, s, c)
		}
	}
	use()
	const limit = shards * minPerShard
	s.SetCounterCache(limit)
	for range 3 {
		if n := s.counters.count.Load(); n > limit+shards*minPerShard {
			t.Errorf("got %d counters in memory, want %d and a few of each shard at most", n, limit)
		}
		use()
	}
}
