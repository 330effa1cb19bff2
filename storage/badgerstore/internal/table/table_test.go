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
	o := Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), Boot: boot}
	db, err := Open(o)
	if errors.Is(err, ErrDamaged) && len(tableFiles(t, dir)) == 0 {
		db, err = Create(o, State{}, nil)
	}
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return db
}

// boot is the boot of the machine in tests.
const boot = 1

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

// TestCompactionOfDamagedTable: Badger takes a damaged block for the end of its table, and deletes the table after the
// compaction. The alarm tells.
func TestCompactionOfDamagedTable(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 3)
	db := mustOpen(t, dir)
	before := Unreadable()
	flip(t, tableFiles(t, dir)[0], 700)
	if err := compact(db); err != nil {
		t.Fatal(err)
	}
	if err := ErrUnreadable(before); !errors.Is(err, ErrDamaged) {
		t.Errorf("got error %v, want damage", err)
	}
	_ = db.Close()
}

// TestCompaction: the database has every key after a compaction, which is not taken for damage.
func TestCompaction(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 3)
	db := mustOpen(t, dir)
	err := errors.Join(compact(db), db.Watch(), db.Close())
	db = mustOpen(t, dir)
	err = errors.Join(err, db.View(func(txn *badger.Txn) (err error) {
		for i := range keys {
			_, e := txn.Get(fmt.Appendf(nil, "key %d", i))
			err = errors.Join(err, e)
		}
		return err
	}))
	if err := errors.Join(err, db.Close()); err != nil {
		t.Error(err)
	}
}

// TestDoubt: a database is damaged after a doubt, and after a kill and another boot of the machine. After a kill alone it opens.
func TestDoubt(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 2)
	killed, doubted := t.TempDir(), t.TempDir()
	db := mustOpen(t, dir)
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	db.Doubt()
	if err := errors.Join(db.StoreState(State{}), os.CopyFS(doubted, os.DirFS(dir)), db.Close()); err != nil {
		t.Fatal(err)
	}
	open := func(dir string, boot uint64) error {
		db, err := Open(Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), Boot: boot})
		if err == nil {
			db.Finish(State{})
			err = db.Close()
		}
		return err
	}
	wantDamage(t, "Open of a doubted database", open(doubted, boot), InventoryName)
	wantDamage(t, "Open of a closed one", open(dir, boot), InventoryName)
	wantDamage(t, "Open after another boot", open(killed, boot+1), InventoryName)
	if err := open(killed, boot); err != nil {
		t.Fatal(err)
	}
}

// TestVerify: Verify finds a table that was damaged while the database was open, and names the file. It does not count the block as
// unreadable: other databases of this process would be rebuilt.
func TestVerify(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 2)
	db := mustOpen(t, dir)
	defer func() { _ = db.Close() }()
	n := 0
	count := func(bytes int) error { n += bytes; return nil }
	if err := db.Verify(count); err != nil || n == 0 {
		t.Fatalf("Verify: got %d bytes, %v", n, err)
	}
	path := tableFiles(t, dir)[1]
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	before := Unreadable()
	for at := int64(0); at < info.Size(); at += 61 {
		flip(t, path, at)
		wantDamage(t, fmt.Sprintf("Verify, byte %d flipped", at), db.Verify(count), filepath.Base(path))
		flip(t, path, at)
	}
	if err := errors.Join(db.Verify(count), ErrUnreadable(before)); err != nil {
		t.Errorf("Verify: %v", err)
	}
}

// TestRewrittenManifest: Badger rewrites a manifest with many deletions. The database still opens, and compactions lose no table
// by it. After a kill before the next inventory, the rewritten manifest is damage. A failure means that a start takes a manifest
// that lists other tables.
func TestRewrittenManifest(t *testing.T) {
	dir := t.TempDir()
	layered(t, dir, 2)
	tables, err := tablesIn(dir)
	if err != nil || len(tables) != 2 {
		t.Fatalf("tables: got %v, %v, want 2", tables, err)
	}
	old, err := readManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	const emptySet = 8 // bytes of the first change set, which is empty. All others are of the same form, so they are joined.
	rewritten := append(append([]byte{}, old[:manifestMagic]...), old[manifestMagic+emptySet:]...)
	path := filepath.Join(dir, badger.ManifestFilename)
	if err := os.WriteFile(path, rewritten, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), Boot: boot})
	wantDamage(t, "Open", err, badger.ManifestFilename)
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	db := mustOpen(t, dir)
	if err := errors.Join(db.Watch(), os.WriteFile(path+"-REWRITE", rewritten, 0o600), os.Rename(path+"-REWRITE", path), db.Watch(), db.Close()); err != nil {
		t.Error(err)
	}
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Error(err)
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
		if err := db.Verify(func(bytes int) error { n += bytes; return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(n))
}
