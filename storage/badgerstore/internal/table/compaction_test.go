package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	btable "github.com/dgraph-io/badger/v4/table"
	"google.golang.org/protobuf/proto"
)

// TestCompactionWithoutTable: a compaction that cannot create all of its tables deletes the merged ones. That is damage. A
// failure means that the entries of a table are lost, and that nobody notices.
func TestCompactionWithoutTable(t *testing.T) {
	for name, blocked := range map[string]func(n int) bool{
		"none created":  func(int) bool { return true },
		"first missing": func(n int) bool { return n == 0 },
		"last missing":  func(n int) bool { return n == 2 },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			large(t, dir)
			db := mustOpen(t, dir)
			if err := db.Watch(); err != nil {
				t.Fatal(err)
			}
			block(t, db, blocked)
			if err := compact(db); err != nil {
				t.Fatal(err)
			}
			wantDamage(t, "Watch", db.Watch(), "compactions have built")
			wantDamage(t, "Close", db.Close(), "compactions have built")
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
func block(t *testing.T, db *DB, which func(n int) bool) {
	t.Helper()
	last := uint64(0)
	for _, table := range db.Tables() {
		last = max(last, table.ID)
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
}

// TestCompactionAfterRewrite: Badger rewrites the manifest while a compaction has built tables and not listed them yet. A table that a later
// compaction loses is still noticed.
func TestCompactionAfterRewrite(t *testing.T) {
	dir := t.TempDir()
	db := mustOpen(t, dir)
	defer func() { _ = db.DB.Close() }()
	watch := func() {
		t.Helper()
		if err := db.Watch(); err != nil {
			t.Fatal(err)
		}
	}
	compaction := func(built int, listed func()) {
		for range built {
			db.log().Debugf("[%d] LOG Compact. Added %d keys. Skipped %d keys.", 0, uint64(100), uint64(0))
		}
		listed()
		db.log().Debugf("[Compactor: %d] Compaction for level: %d DONE", 0, 1)
	}
	compaction(3, func() {
		db.kept.Length += 1000 // as after a rewrite, which makes the manifest shorter
		watch()
		appendChanges(t, dir, 3)
	})
	watch()
	compaction(2, func() { appendChanges(t, dir, 0) })
	wantDamage(t, "Watch", db.Watch(), "compactions have built")
}

// appendChanges appends to the manifest that a compaction has replaced a table by new ones.
func appendChanges(t *testing.T, dir string, created int) {
	t.Helper()
	set := &pb.ManifestChangeSet{Changes: []*pb.ManifestChange{{Id: 1 << 20, Op: pb.ManifestChange_DELETE}}}
	for i := range created {
		set.Changes = append(set.Changes, &pb.ManifestChange{Id: uint64(1<<21 + i), Op: pb.ManifestChange_CREATE, Level: 1})
	}
	b, err := proto.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(len(b))), crc32.Checksum(b, castagnoli))
	f, err := os.OpenFile(filepath.Join(dir, badger.ManifestFilename), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(append(head, b...))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
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
