package table

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"
	btable "github.com/dgraph-io/badger/v4/table"
)

// TestCompactionWithoutTable: a compaction that cannot create all of its tables changes nothing and logs one line. The
// next compaction succeeds. A failure means that Badger deletes the merged tables, and that their entries are lost.
func TestCompactionWithoutTable(t *testing.T) {
	for name, blocked := range map[string]func(n int) bool{
		"none created":  func(int) bool { return true },
		"first missing": func(n int) bool { return n == 0 },
		"last missing":  func(n int) bool { return n == 2 },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			large(t, dir)
			before := tableFiles(t, dir)
			var logged strings.Builder
			db, err := Open(Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
			if err != nil {
				t.Fatal(err)
			}
			unblock := block(t, db, blocked)
			if err := errors.Join(compact(db), db.Watch()); err != nil {
				t.Fatal(err)
			}
			wantKeys(t, db)
			for _, path := range before {
				if info, err := os.Stat(path); err != nil || info.Size() == 0 {
					t.Errorf("the table %s is gone: %v", filepath.Base(path), err)
				}
			}
			unblock()
			if err := errors.Join(compact(db), db.Watch()); err != nil {
				t.Fatal(err)
			}
			wantKeys(t, db)
			if after := tableFiles(t, dir); slices.Contains(after, before[0]) || len(after) < 3 {
				t.Errorf("got the tables %v, want new ones: the compaction was not tried again", after)
			}
			said := logged.String()
			if strings.Count(said, "level=ERROR") != 1 || strings.Count(said, "tables are written again") != 1 || !strings.Contains(said, "a compaction created") {
				t.Errorf("logged:\n%s\nwant a line with the number of created tables, and a line that tables are written again", said)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = mustOpen(t, dir)
			wantKeys(t, db)
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// large creates a database whose tables a compaction merges into three tables.
func large(t *testing.T, dir string) {
	t.Helper()
	db := mustOpen(t, dir)
	random := rand.NewChaCha8([32]byte{})
	value := make([]byte, 12<<10)
	for i := range keys {
		_, _ = random.Read(value)
		err := db.Update(func(txn *badger.Txn) error {
			return errors.Join(txn.Set([]byte("other"), nil), txn.Set(fmt.Appendf(nil, "key %d", i), value))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// block creates files with the names of some of the next 20 tables, so that Badger cannot create these tables.
func block(t *testing.T, db *DB, which func(n int) bool) (undo func()) {
	t.Helper()
	last := uint64(0)
	for id := range db.ids() {
		last = max(last, id)
	}
	var names []string
	for n := range 20 {
		if which(n) {
			names = append(names, btable.NewFilename(last+1+uint64(n), db.o.Dir))
		}
	}
	for _, name := range names {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// wantKeys fails unless the database has every key.
func wantKeys(t *testing.T, db *DB) {
	t.Helper()
	found := 0
	err := db.View(func(txn *badger.Txn) error {
		for i := range keys {
			if _, err := txn.Get(fmt.Appendf(nil, "key %d", i)); err == nil {
				found++
			}
		}
		return nil
	})
	if err != nil || found != keys {
		t.Errorf("got %d of %d keys, %v", found, keys, err)
	}
}

// TestOtherDatabase: the tables of another Badger in the process are compacted. A failure means that its writes
// hang as soon as it has too many tables.
func TestOtherDatabase(t *testing.T) {
	db, err := badger.Open(badger.DefaultOptions(t.TempDir()).WithMemTableSize(1 << 20).WithNumLevelZeroTables(2).WithValueThreshold(100 << 10).WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	random, value := rand.NewChaCha8([32]byte{}), make([]byte, 12<<10)
	for i := range 2 * keys {
		_, _ = random.Read(value)
		if err := db.Update(func(txn *badger.Txn) error { return txn.Set(fmt.Appendf(nil, "key %d", i), value) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(db.Flatten(1), db.Close()); err != nil {
		t.Error(err)
	}
}
