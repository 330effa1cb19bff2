package table

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// openFilled opens a database with a record that fills memtables.
func openFilled(t *testing.T) *DB {
	t.Helper()
	db, err := Open(Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Filler: []byte("Z")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return db
}

// newest returns the number of the newest memtable.
func newest(t *testing.T, db *DB) int {
	t.Helper()
	numbers, err := memtables(db.o.Dir)
	if err != nil || len(numbers) == 0 {
		t.Fatalf("memtables: got %v, %v", numbers, err)
	}
	return slices.Max(numbers)
}

// entries returns a transaction with n records of some bytes each.
func entries(t *testing.T, db *DB, first, n, bytes int) *Txn {
	t.Helper()
	txn := db.NewTxn()
	for i := range n {
		if err := txn.Set(fmt.Appendf(nil, "key %08d", first+i), make([]byte, bytes)); err != nil {
			t.Fatal(err)
		}
	}
	return txn
}

// TestSyncBeforeTable: Badger begins a memtable, and flushes the last one, only within a Commit that has called sync, for
// any size of records. A failure means that a table is ahead of the event log: a power cut would leave counts of requests
// that the event log lacks.
func TestSyncBeforeTable(t *testing.T) {
	for _, size := range []struct{ records, bytes int }{{1000, 1}, {1, 16 << 10}, {25, 16 << 10}, {1, 500 << 10}, {2, 500 << 10}} {
		t.Run(fmt.Sprintf("%d of %d bytes", size.records, size.bytes), func(t *testing.T) {
			db := openFilled(t)
			memtable, tables := newest(t, db), 0
			bytes := int64(0)
			for i := 0; bytes < 30<<20 && tables < 4; i++ {
				synced := false
				txn := entries(t, db, i*size.records, size.records, size.bytes)
				err := db.Commit(txn, func(*Txn) error {
					synced = true
					return nil
				})
				if txn.Discard(); err != nil {
					t.Fatal(err)
				}
				bytes += int64(size.records * size.bytes)
				if now := newest(t, db); now != memtable {
					if tables++; !synced {
						t.Fatalf("commit %d: memtable %d began without a sync", i, now)
					}
					memtable = now
				}
			}
			if tables == 0 {
				t.Error("no table was made: the test shows nothing")
			}
		})
	}
}

// TestFillerEnds: Flush begins a memtable, and few of its zeros are in the new memtable. A failure means that the zeros
// and a transaction fill the new memtable, and that Badger flushes it without a sync.
func TestFillerEnds(t *testing.T) {
	db := openFilled(t)
	for i := range 4 {
		memtable := newest(t, db)
		if err := db.Flush(func(*Txn) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if got := newest(t, db); got != memtable+1 || db.filled == 0 || db.filled > db.o.MemTableSize/8 {
			t.Errorf("flush %d: got memtable %d after %d, with %d bytes expected in it", i, got, memtable, db.filled)
		}
	}
}

// TestSyncRefused: while sync fails, as on a full disk, Commit accepts transactions that fit into the memtable, and Badger
// writes no table, for any size of records. A failure means that transactions in the event log cannot be applied on a full
// disk, or that entrySize is too small.
func TestSyncRefused(t *testing.T) {
	for _, size := range []struct{ records, bytes int }{{1, 100 << 10}, {1, 0}, {5000, 0}, {1000, 30}} {
		t.Run(fmt.Sprintf("%d of %d bytes", size.records, size.bytes), func(t *testing.T) {
			db, refused := openFilled(t), errors.New("no space left on device")
			memtable := newest(t, db)
			for i := 0; ; i++ {
				txn := entries(t, db, i*size.records, size.records, size.bytes)
				err := db.Commit(txn, func(*Txn) error { return refused })
				txn.Discard()
				if errors.Is(err, refused) {
					break
				}
				if err != nil || i > 1_000_000 {
					t.Fatalf("Commit: got %v, want %v in the end", err, refused)
				}
			}
			if newest(t, db) != memtable {
				t.Error("a memtable began without a sync")
			}
			if db.filled < db.softLimit() {
				t.Errorf("committed %d bytes while sync failed, want at least %d", db.filled, db.softLimit())
			}
		})
	}
}

// TestSyncSeldom: while the file of the next memtable cannot be created, as on a full disk, small transactions in the
// last eighth of the memtable try again every 100 ms only. Otherwise each change of a key costs an fsync and a file.
func TestSyncSeldom(t *testing.T) {
	db := openFilled(t)
	db.prepare = func(*os.File, int64) error { return syscall.ENOSPC }
	began, synced, commits := time.Now(), 0, 0
	for err := error(nil); err == nil; commits++ {
		txn := entries(t, db, commits, 1, 4<<10)
		err = db.Commit(txn, func(*Txn) error {
			synced++
			return nil
		})
		if txn.Discard(); err != nil && !errors.Is(err, ErrUnprepared) {
			t.Fatal(err)
		}
	}
	most := 2 + int(time.Since(began)/prepareEvery) // two more: for the first attempt and the refused transaction
	t.Logf("%d calls of sync, %d transactions", synced, commits)
	if synced > most {
		t.Errorf("got %d calls of sync in %d transactions, want at most %d", synced, commits, most)
	}
}
