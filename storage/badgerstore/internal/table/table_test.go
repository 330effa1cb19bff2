package table

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

func mustOpen(t testing.TB, dir string) *DB {
	t.Helper()
	db, err := Open(Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return db
}

// keys is the number of keys of a test. Each table has a newer value of each key.
const keys = 400

// layered makes a database with some tables of one level, each with all keys.
func layered(t testing.TB, dir string, tables int) {
	t.Helper()
	for n := range tables {
		db := mustOpen(t, dir)
		err := db.Update(func(txn *badger.Txn) (err error) {
			err = txn.Set([]byte("other"), nil)
			for i := range keys {
				err = errors.Join(err, txn.Set(fmt.Appendf(nil, "key %d", i), fmt.Appendf(nil, "value %d of key %d", n, i)))
			}
			return err
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// compact compacts all tables into new ones: dropping a key does so.
func compact(db *DB) error { return db.DropPrefix([]byte("other")) }

func tableFiles(t testing.TB, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"+Suffix))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// flip changes a byte of a file in place, like a page that is read from a damaged disk.
func flip(t testing.TB, path string, at int64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, err = file.ReadAt(b, at)
	b[0] ^= 0x10
	_, err2 := file.WriteAt(b, at)
	if err := errors.Join(err, err2, file.Close()); err != nil {
		t.Fatal(err)
	}
}

func wantDamage(t testing.TB, call string, err error, name string) {
	t.Helper()
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: got error %v, want one line that names %s", call, err, name)
	}
}

// TestCompactionOfDamagedTable: Badger takes a damaged block for the end of its table, and would delete the table after
// the compaction. This package keeps all tables, and Open refuses the database from then on without a change, also when
// the table can be read again.
func TestCompactionOfDamagedTable(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 3)
	before := tableFiles(t, dir)
	db := mustOpen(t, dir)
	flip(t, before[0], 700)
	if err := compact(db); err != nil {
		t.Fatal(err)
	}
	wantDamage(t, "Watch", db.Watch(), filepath.Base(before[0]))
	wantDamage(t, "Checkpoint", db.StoreState(State{Position: 7, Log: 7}), filepath.Base(before[0]))
	wantDamage(t, "Close", db.Close(), filepath.Base(before[0]))
	flip(t, before[0], 700)
	_, err := Open(Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	wantDamage(t, "Open", err, filepath.Base(before[0]))
	for _, path := range before {
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			t.Errorf("the table %s is gone: %v", filepath.Base(path), err)
		}
	}
}

// TestCompactionBeforeKill: the process is killed before it has verified the compacted tables. Open finds the damage.
func TestCompactionBeforeKill(t *testing.T) {
	dir, killed := t.TempDir(), t.TempDir()
	layered(t, dir, 3)
	before := tableFiles(t, dir)
	db := mustOpen(t, dir)
	flip(t, before[1], 700)
	if err := errors.Join(compact(db), os.CopyFS(killed, os.DirFS(dir))); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{Dir: killed, Logger: slog.New(slog.DiscardHandler)})
	wantDamage(t, "Open", err, filepath.Base(before[1]))
	if after := tableFiles(t, killed); len(after) <= len(before) {
		t.Errorf("tables: got %v, want %v and one more", after, before)
	}
	_ = db.Close()
}

// TestCompaction: undamaged compacted tables are deleted with the next call, or when the database is closed. The database
// has every key.
func TestCompaction(t *testing.T) {
	for _, watch := range []bool{true, false} {
		dir := t.TempDir()
		layered(t, dir, 3)
		before := tableFiles(t, dir)
		db := mustOpen(t, dir)
		err := compact(db)
		if watch {
			err = errors.Join(err, db.Watch())
		} else {
			err = errors.Join(err, db.Close())
			db = mustOpen(t, dir)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range before {
			if _, err := os.Stat(path); err == nil {
				t.Errorf("the table %s exists after the compaction", filepath.Base(path))
			}
		}
		err = db.View(func(txn *badger.Txn) (err error) {
			for i := range keys {
				_, e := txn.Get(fmt.Appendf(nil, "key %d", i))
				err = errors.Join(err, e)
			}
			return err
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestVerify: Verify finds a table that was damaged while the database was open, and names the file.
func TestVerify(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 2)
	db := mustOpen(t, dir)
	defer func() { _ = db.Close() }()
	n := 0
	count := func(bytes int) bool { n += bytes; return true }
	if err := db.Verify(count); err != nil || n == 0 {
		t.Fatalf("Verify: got %d bytes, %v", n, err)
	}
	path := tableFiles(t, dir)[1]
	for at := int64(0); at < 2000; at += 397 {
		flip(t, path, at)
		wantDamage(t, fmt.Sprintf("Verify, byte %d flipped", at), db.Verify(count), filepath.Base(path))
		flip(t, path, at)
	}
	if err := db.Verify(count); err != nil {
		t.Errorf("Verify: %v", err)
	}
}

// TestRewrittenManifest: Badger rewrites a manifest with many deletions. The database still opens, also after a kill
// before the next inventory.
func TestRewrittenManifest(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 2)
	m, err := readManifest(badgerOptions(dir, slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	inv, err := readInventory(dir)
	if err != nil {
		t.Fatal(err)
	}
	inv.Head[8], inv.Length = 99, 1<<20 // the values of a longer manifest
	if err := inv.write(dir); err != nil {
		t.Fatal(err)
	}
	if len(m.tables) != 2 {
		t.Fatalf("tables: got %v, want 2", m.tables)
	}
	if m.bytes[11] == 0 { // the first change set is empty: it is not a rewritten one
		_, err := Open(Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		wantDamage(t, "Open", err, badger.ManifestFilename)
	}
	rewriteManifest(t, dir)
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Error(err)
	}
}

// rewriteManifest writes the manifest as one change set, as Badger does: all changes but the first,
// empty one are of the same form, so they are joined.
func rewriteManifest(t *testing.T, dir string) {
	t.Helper()
	m, err := readManifest(badgerOptions(dir, slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	b := append([]byte{}, m.bytes[:8]...)
	if err := os.WriteFile(filepath.Join(dir, badger.ManifestFilename), append(b, m.bytes[manifestHead:]...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkVerify reads a database as it is verified at opening.
func BenchmarkVerify(b *testing.B) {
	dir := b.TempDir()
	layered(b, dir, 4)
	db := mustOpen(b, dir)
	defer func() { _ = db.Close() }()
	n := 0
	for b.Loop() {
		n = 0
		if err := db.Verify(func(bytes int) bool { n += bytes; return true }); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(n))
}
