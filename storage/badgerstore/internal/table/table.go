// Package table is the one place that opens Badger, and makes sure that what Badger reads is what
// was written. Badger hides damage: a block with a wrong checksum reads as the end of its table, a
// table that the manifest does not name is deleted, and a manifest is cut off at its first
// incomplete entry.
//
//   - Before Badger is opened every byte of every table is verified, and the manifest is compared
//     with the inventory, a file of our own: inventory.go.
//   - While it is open no table that a compaction has read is deleted before it was verified: pin.go.
//   - [DB.Verify] reads all tables again.
//
// What is damaged is a [DamageError], which names the file. Nothing is changed or deleted then.
// A file is verified as the operating system reads it: damage on the medium is seen when the page
// is not in memory any more.
package table

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// Options say how a database is opened.
type Options struct {
	Dir    string
	Logger *slog.Logger

	// Witness is the name of a file beside the database that only a used one has, "" when
	// there is none: then a database that is missing is damage and not a new one.
	Witness string

	Filler   []byte // the key of a record that fills memtables
	Memtable int64  // the size of memtables in bytes, UsualMemtable by default; each has a file of twice that

	// Prepare allocates so many bytes of a file, which stays empty. While it fails no memtable begins. Nil
	// when a crash may leave an empty file, which Badger refuses.
	Prepare func(file *os.File, bytes int64) error

	// Claim takes the lock that Badger takes on the directory, until release is called. When it is
	// nil, memtables are never removed.
	Claim func() (release func(), err error)
}

// DB is an open database.
type DB struct {
	*badger.DB
	o badger.Options

	mu      sync.Mutex // guards the fields below
	pin     *pin
	kept    inventory // as it is on disk
	damaged error     // a table that a compaction has read
	found   Mark      // by the inventory, when the database was opened

	prepare func(file *os.File, bytes int64) error // see [Options]
	filler  []byte
	filled  int64 // bytes of the memtable, at most; of the caller of [DB.Commit]

	notes      []noted // by position
	flushed    int64
	replayable bool // see [DB.Replayable]
}

// Open verifies the files of a database and opens it. It makes a new one in an empty directory.
// Errors are one line: [ErrInUse], a [DamageError] or one of the file system.
func Open(o Options) (*DB, error) {
	db := &DB{o: badgerOptions(o.Dir, o.Logger), prepare: o.Prepare, filler: o.Filler}
	if o.Memtable > 0 && o.Memtable < UsualMemtable {
		db.o = db.o.WithMemTableSize(o.Memtable).WithValueThreshold(o.Memtable / 7) // Badger bounds it, and transactions, to 15 %
	}
	f, err := look(db.o, o.Witness)
	if err != nil {
		return nil, err
	}
	if err := verifyAll(db.o, f.tables, logProgress(o.Logger), func(err error) error { return err }); err != nil {
		return nil, err
	}
	db.replayable = f.manifest == nil // a new database
	if f.inventory != nil {
		db.found, db.replayable = f.inventory.Mark, f.inventory.Replayable
	}
	if db.replayable && o.Claim != nil {
		if err := discard(o); err != nil {
			return nil, err
		}
	}
	if db.DB, err = openBadger(db.o); err != nil {
		return nil, err
	}
	db.pin = db.newPin()
	if err := db.takeInventory(db.pin, db.found); err != nil {
		return nil, errors.Join(err, db.DB.Close())
	}
	return db, nil
}

// discard removes the memtables that a crash has left.
func discard(o Options) error {
	release, err := o.Claim()
	if err != nil {
		return err
	}
	defer release()
	return removeMemtables(o.Dir)
}

// logProgress returns a function that logs every 10 s how far a verification is.
func logProgress(log *slog.Logger) func(Progress) {
	last := time.Now()
	return func(p Progress) {
		if time.Since(last) > 10*time.Second {
			last = time.Now()
			log.Info("verifying the tables of the database", "verified", p.Tables, "of", p.Of, "bytes", p.Bytes)
		}
	}
}

// UsualMemtable is the size of memtables in bytes.
const UsualMemtable = 8 << 20

// badgerOptions are chosen for a service that shares a small machine. What badger
// keeps in memory is bounded however large the store is: up to three memtables of 10
// MiB and 16 MiB of blocks; indexes and filters of tables are read where the files are
// mapped. Most it takes to compact: up to a dozen tables at once, each of which takes
// twice its size and 3 MiB. So all are small, but not much smaller than that. The pages of
// counters that are folded at once have room in the first level, so that the next time
// replaces them there. A store that was filled with a smaller one keeps its levels: badger
// sees to that since its issue 2278 was fixed.
func badgerOptions(dir string, log *slog.Logger) badger.Options {
	o := badger.DefaultOptions(dir).
		WithLogger(&badgerLog{to: log}).
		WithMetricsEnabled(false).
		WithMemTableSize(UsualMemtable).
		WithNumMemtables(2).
		WithBaseTableSize(2 << 20).
		WithBaseLevelSize(64 << 20).
		WithBlockCacheSize(16 << 20).
		WithNumCompactors(2).
		WithChecksumVerificationMode(options.OnBlockRead).
		// Transactions are serialized here: by the locks of accounts and of commits.
		WithDetectConflicts(false).
		// No value is as large as the threshold, 1 MiB: nothing goes to the value log, and
		// there is nothing in it to collect. Its file is mapped at twice its size.
		WithValueLogFileSize(1 << 20)
	o.TableSizeMultiplier = 1
	return o
}

// openBadger opens the database. Its errors are many lines of text, and it panics over
// some damaged files.
func openBadger(o badger.Options) (db *badger.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, fmt.Errorf("the files are damaged: %s", firstLine(fmt.Sprint(p)))
		}
	}()
	db, err = badger.Open(o)
	switch {
	case err == nil:
		return db, nil
	case strings.Contains(err.Error(), "directory lock"):
		return nil, ErrInUse
	case strings.Contains(err.Error(), syscall.EACCES.Error()): // a file of another user, as one start by root leaves it
		return nil, &fs.PathError{Op: "open", Path: o.Dir, Err: fs.ErrPermission}
	}
	return nil, fmt.Errorf("badger: %s", firstLine(err.Error()))
}

// WasReplayable reports whether [DB.Replayable] was called before the last inventory.
func (db *DB) WasReplayable() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.kept.Replayable
}

// Found returns the mark of the last [DB.Checkpoint] before the database was opened.
func (db *DB) Found() Mark { return db.found }

// Checkpoint notes how far the store has got. It verifies the tables that were compacted since the last call, before they are
// deleted: call it every second too, with the position of before. After a [DamageError] they are
// never deleted, and each further call returns the error.
func (db *DB) Checkpoint(mark Mark) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.damaged != nil {
		return db.damaged
	}
	p := db.newPin()
	if mark == db.kept.Mark && maps.Equal(p.tables, db.pin.tables) {
		db.replacePin(p)
		return nil
	}
	err := db.verifyGone(p.tables)
	if err == nil {
		err = db.takeInventory(p, mark)
	}
	if err != nil {
		p.release()
		return err
	}
	db.replacePin(p)
	return nil
}

// Watch is [DB.Checkpoint] with the position of before.
func (db *DB) Watch() error {
	db.mu.Lock()
	mark := db.kept.Mark
	db.mu.Unlock()
	return db.Checkpoint(mark)
}

func (db *DB) replacePin(p *pin) {
	db.pin.release()
	db.pin = p
}

// verifyGone verifies the pinned tables that are not among tables.
func (db *DB) verifyGone(tables map[uint64]bool) error {
	var gone []entry
	for id := range db.pin.tables {
		if !tables[id] {
			gone = append(gone, db.entry(id))
		}
	}
	err := verifyAll(db.o, gone, func(Progress) {}, func(err error) error { return err })
	if errors.As(err, &db.kept.Damaged) {
		db.damaged = err
		_ = db.kept.write(db.o.Dir) // for the next opening, which otherwise verifies the table again
	}
	return err
}

// entry returns the entry of a table in the inventory. All tables are compressed alike.
func (db *DB) entry(id uint64) entry { return entry{id, db.o.Compression} }

// takeInventory writes the inventory of pinned tables.
func (db *DB) takeInventory(p *pin, mark Mark) error {
	m, err := readManifest(db.o)
	if err != nil {
		return err
	}
	if m == nil {
		return damage(badger.ManifestFilename, "the file is missing")
	}
	return db.writeInventory(m, p.tables, mark)
}

func (db *DB) newInventory(m *manifest, tables map[uint64]bool, mark Mark) inventory {
	inv := inventory{Mark: mark, Replayable: db.replayable, Head: []byte(m.head()), Length: int64(len(m.bytes)), Checksum: m.checksum(int64(len(m.bytes)))}
	for _, id := range slices.Sorted(maps.Keys(tables)) {
		inv.Tables = append(inv.Tables, db.entry(id))
	}
	return inv
}

func (db *DB) writeInventory(m *manifest, tables map[uint64]bool, mark Mark) error {
	inv := db.newInventory(m, tables, mark)
	err := inv.write(db.o.Dir)
	if err == nil {
		db.kept = inv
	}
	return err
}

// Close closes the database, verifies the tables that were compacted last and writes the inventory.
func (db *DB) Close() error {
	err := db.DB.Close()
	db.mu.Lock()
	defer db.mu.Unlock()
	if err != nil || db.damaged != nil || db.pin == nil {
		return errors.Join(err, db.damaged) // the pinned files stay: the next opening verifies them
	}
	m, err := readManifest(db.o)
	if err != nil || m == nil {
		return err
	}
	tables := map[uint64]bool{}
	for id := range m.tables {
		tables[id] = true
	}
	if err := db.verifyGone(tables); err != nil {
		return err
	}
	if err := db.writeInventory(m, tables, db.kept.Mark); err != nil {
		return err
	}
	db.pin.iterator.Close()
	db.pin = nil
	return nil
}

// Verify reads the tables again, one by one, and calls pause after each with the number of its
// bytes. It ends early when pause returns false.
func (db *DB) Verify(pause func(bytes int) bool) error {
	for _, id := range slices.Sorted(maps.Keys(db.ids())) {
		n, err := verify(db.o, db.entry(id))
		if err != nil && db.ids()[id] { // else it was compacted and deleted meanwhile
			return err
		}
		if !pause(n) {
			return nil
		}
	}
	return nil
}
