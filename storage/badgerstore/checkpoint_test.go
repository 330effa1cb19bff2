package badgerstore

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// TestEvictionDuringCheckpoint: a counter is evicted and loaded again while a checkpoint writes its page, and then has
// as many changes as before. The checkpoint must not mark the new object as written. A failure means that its counts are
// lost at the next eviction.
func TestEvictionDuringCheckpoint(t *testing.T) {
	var h hook
	s := openAlone(t, t.TempDir(), Options{failpoint: h.step})
	known(t, s, "key")
	of := keyRef(t, s, "key")
	consume(t, s, request("key", 1, 10, noon))
	h.once(failPages, func() {
		evict(t, s, of)
		consume(t, s, request("key", 1, 10, noon))
	})
	writeCheckpoint(t, s)
	evict(t, s, of)
	wantUsed(t, s, ofKey("key"), 2)
	consume(t, s, request("key", 1, 10, noon))
	wantUsed(t, s, ofKey("key"), 3)
}

// writeCheckpoint writes a checkpoint.
func writeCheckpoint(t testing.TB, s *Store) {
	t.Helper()
	if err := s.checkpoint(); err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
}

// endMemtable makes Badger write its memtable to a table.
func endMemtable(t *testing.T, s *Store) {
	t.Helper()
	prefix := []byte{0xff} // of no record of the store
	err := s.db.Update(func(txn *badger.Txn) error { return txn.Set(prefix, nil) })
	if err = firstOf(err, s.db.DropPrefix(prefix)); err != nil {
		t.Fatalf("DropPrefix: %v", err)
	}
}

// flushTables writes a checkpoint, and waits until all events are in tables of the database.
func flushTables(t *testing.T, s *Store) {
	t.Helper()
	writeCheckpoint(t, s)
	endMemtable(t, s)
	waitUntil(t, "everything is in tables", func() bool {
		s.watch()
		logs, err := filepath.Glob(filepath.Join(databaseIn(s.dir), "*"+table.LogSuffix))
		return err == nil && len(logs) == 1
	})
}

// flushCheckpoint is flushTables, and writes an image. It removes all other images, so that retention may remove all segments
// before the checkpoint.
func flushCheckpoint(t *testing.T, s *Store) {
	t.Helper()
	flushTables(t, s)
	mustImage(t, s)
	if err := s.keepImages(1); err != nil {
		t.Fatal(err)
	}
}

// TestMarkIsDurable: the event log is synced up to the mark of a checkpoint, also when the checkpoint has no changed
// counter because keys and users were deleted. A failure means that the store does not open after a power cut.
func TestMarkIsDurable(t *testing.T) {
	for seed := range uint64(8) {
		dir, after := t.TempDir(), t.TempDir()
		d := newLossyDisk()
		s := openAlone(t, dir, d.options(Options{}))
		known(t, s, "key")
		consume(t, s, request("key", 1, endless, noon))
		writeCheckpoint(t, s)
		addUserAndKey(t, s, 9, "gone")
		for range 100 {
			consume(t, s, request("gone", 9, endless, noon))
		}
		update(t, s, func(tx core.Tx) error { return tx.DeleteUser(9) })
		writeCheckpoint(t, s)
		d.mu.Lock()
		left := d.cut(rand.New(rand.NewPCG(seed, 0)))
		d.mu.Unlock()
		copyDatabase(t, after, dir)
		s = openAlone(t, after, left.at(dir, after).options(Options{}))
		wantUsed(t, s, ofKey("key"), 1)
		consume(t, s, request("key", 1, endless, noon))
	}
}
