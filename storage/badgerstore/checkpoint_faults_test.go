package badgerstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// TestDeleteManyCheckpointedKeys: a user with many used keys can be deleted after a checkpoint. The pages of the keys are
// more than a transaction of Badger takes.
func TestDeleteManyCheckpointedKeys(t *testing.T) {
	const keys = 1200
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	withAccount(t, s)
	update(t, s, withKeys(1, keys))
	for i := range 5 * keys {
		consume(t, s, request(newKey(1, i%keys).ID, 1, 1<<20, noon.Add(time.Duration(i)*time.Millisecond)))
	}
	writeCheckpoint(t, s)
	update(t, s, func(tx core.Tx) error { return tx.DeleteUser(1) })
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	s = openIn(t, dir, Options{})
	if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || n != 0 {
		t.Errorf("Keys: got %d, %v, want 0", n, err)
	}
}

// TestDeleteKeysOnLargePages: a user is deleted whose keys are on many pages with counters of other keys, each with as many
// meters as possible. The pages do not fit into one transaction of Badger.
func TestDeleteKeysOnLargePages(t *testing.T) {
	const keys = 64 * 32 // every 64th key is of user 1, the others of user 2
	s := mustOpen(t, t.TempDir(), Options{})
	withAccount(t, s)
	update(t, s, withKeys(1, 0))
	update(t, s, withKeys(2, 0))
	owner := func(i int) int64 {
		if i%64 == 0 {
			return 1
		}
		return 2
	}
	update(t, s, func(tx core.Tx) (err error) {
		for i := 0; i < keys && err == nil; i++ {
			err = tx.PutKey(newKey(owner(i), i))
		}
		return err
	})
	var costs []core.MeterCost
	for i := range core.MaxMetersEver {
		costs = append(costs, core.MeterCost{Meter: fmt.Sprintf("meter_%026d", i), Cost: 1 << 40})
	}
	for i := range keys * core.MaxMetersEver / core.MaxMeters {
		user := owner(i % keys)
		c := request(newKey(user, i%keys).ID, user, 1<<20, noon)
		c.Costs = costs[i/keys*core.MaxMeters:][:core.MaxMeters]
		c.Entry.Costs = c.Costs
		consume(t, s, c)
	}
	writeCheckpoint(t, s)
	update(t, s, func(tx core.Tx) error { return tx.DeleteUser(1) })
	if got := counterOf(t, s, ofKey(newKey(2, 1).ID)); got.Usage("requests", core.Month, nil, noon).Used != 4 {
		t.Errorf("a key on the same page: got %+v, want 4 requests", got)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestCheckpointManySmallPages: a checkpoint writes more small pages than a transaction of Badger takes records. The
// memtables are as small as on a small disk.
func TestCheckpointManySmallPages(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	defer abandon(t, s)
	const pages = 15_000
	var b batch
	var young counterState
	young.append(young.next(noon), noon, firstPosition)
	record := young.encode(nil)
	for n := range int64(pages) {
		b.counters = append(b.counters, batched{ref: ref{n << pageBits, 1, kindKey}, position: firstPosition, record: record})
	}
	if err := s.writePages(&b); err != nil {
		t.Fatalf("writePages: %v", err)
	}
	if got := len(stored(t, s, string(kindCounter))); got != pages {
		t.Errorf("got %d pages, want %d", got, pages)
	}
}

// TestSyncFailsForAnotherRequest: a request is refused when the sync of its bytes has failed, also when another goroutine
// called that sync, and a later sync succeeds.
func TestSyncFailsForAnotherRequest(t *testing.T) {
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
		t.Error("nothing was preallocated: the test proves nothing")
	}
	if err := s.Close(); err == nil {
		t.Error("Close: got no error, want the error of the disk")
	}
}

// TestCheckpointFails: a request that waits for a checkpoint ends with an error when the checkpoint fails. After the next
// successful checkpoint, requests are counted again. A failure means that requests wait endlessly.
func TestCheckpointFails(t *testing.T) {
	s := openIn(t, t.TempDir(), quiet)
	known(t, s, "key")
	consume(t, s, request("key", 1, 1<<20, noon))
	s.commits(func() error { return errMedium })
	most := s.checkpointer.maxPending.Swap(0)
	s.checkpointer.request()
	if _, err := s.Consume(t.Context(), request("key", 1, 10, noon)); !isUnavailable(err) {
		t.Errorf("Consume: got error %v, want unavailable", err)
	}
	s.commits(func() error { return nil })
	s.checkpointer.maxPending.Store(most)
	if err := s.checkpoint(); err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
	consume(t, s, request("key", 1, 1<<20, noon))
	wantUsed(t, s, ofKey("key"), 2)
}

// TestMixedRetention: an entry with a long retention stays, also when later entries have a short retention.
func TestMixedRetention(t *testing.T) {
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
	writeCheckpoint(t, s)
	if err := s.removeHistory(time.Now().Add(48 * time.Hour)); err != nil {
		t.Fatalf("expire: %v", err)
	}
	list, _, err := s.History(context.Background(), ofKey("key"), time.Time{}, core.Page{Number: 1, Size: 100})
	if err != nil || len(list) < 15 || !list[len(list)-1].At.Equal(noon) {
		t.Errorf("History: got %d entries, %v, want the 15 that are kept for 90 days", len(list), err)
	}
}

// TestSmallerCounterCache: SetCounterCache with a smaller limit evicts counters, also counters in constant use.
func TestSmallerCounterCache(t *testing.T) {
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
