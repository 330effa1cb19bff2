// Package table is the only package that opens Badger. It verifies the files that Badger reads, because Badger hides
// damage: it takes a block with a wrong checksum for the end of the table, deletes a table that the manifest does not
// name, and cuts a manifest off at the first incomplete entry.
//
//   - Open verifies every byte of every table, and compares the manifest with the inventory, a file of this
//     package: inventory.go.
//   - A table that a compaction has merged is verified before it is deleted: pin.go.
//   - [DB.Verify] reads all tables again.
//
// Damage is a [DamageError], which names the file. No file is changed or deleted then. Files are read through the page
// cache of the operating system: damage on the disk shows when the page is read from the disk again.
package table

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// Options are the settings of [Open].
type Options struct {
	Dir    string
	Logger *slog.Logger

	// Witness is the name of a file that exists only beside a used database, "" if there is no such file. With a
	// witness, a missing database is damage. Without a witness, Open creates a new database.
	Witness string

	Filler   []byte // the key with which [DB.Flush] fills a memtable
	Memtable int64  // the size of a memtable in bytes, DefaultMemtable by default; its file has twice that size

	// Prepare allocates blocks for a file, which stays empty. While Prepare fails, no new memtable begins. Prepare is
	// nil when Open does not remove memtables: a crash could leave an empty file, which Badger refuses.
	Prepare func(file *os.File, bytes int64) error

	// Claim locks the directory with the lock of Badger, until release is called. When Claim is nil, Open never
	// removes memtables.
	Claim func() (release func(), err error)

	Claimed bool // the caller has locked the directory with [Claim]: Badger does not lock it

	// Temporary is for a database that [Copy.Write] has written, and that is removed after use. Open does not verify the
	// tables again. Badger takes less memory, and never compacts.
	Temporary bool
}

// DB is an open database.
type DB struct {
	*badger.DB
	o badger.Options

	found   State                                  // the state in the inventory when the database was opened
	prepare func(file *os.File, bytes int64) error // see [Options]
	filler  []byte
	tails   *tails

	filled     int64     // upper bound of the bytes in the memtable; for the caller of [DB.Commit] only
	unprepared time.Time // when Commit could not create the file of the next memtable; for the caller of [DB.Commit] only

	mu           sync.Mutex // guards the fields below
	pin          *pin
	kept         inventory     // the inventory on disk
	damaged      error         // the damage of a table that a compaction has merged
	memtableEnds []memtableEnd // sorted by position
	flushed      int64         // the position that [DB.Flushed] has returned last
}

// Open verifies the files of a database and opens it. In an empty directory it creates a new database. An error
// is [ErrInUse], a [DamageError] or an error of the file system. Its text is one line.
func Open(o Options) (*DB, error) {
	f, err := Inspect(o)
	if err != nil {
		return nil, err
	}
	return f.Open()
}

// Open opens the database. From here on files change.
func (f *Files) Open() (_ *DB, err error) {
	o := f.Options
	f.badger.BypassLockGuard = o.Claimed
	db := &DB{o: f.badger, prepare: o.Prepare, filler: o.Filler, found: f.State(), tails: newTails(f.found.inventory)}
	if f.found.inventory != nil {
		db.kept.Verified = f.found.inventory.Verified
	}
	if f.found.ours && o.Claim != nil {
		if err := discardMemtables(o); err != nil {
			return nil, err
		}
	}
	if db.DB, err = openBadger(db.o); err != nil {
		return nil, err
	}
	db.log().db.Store(db.DB)
	db.pin = db.newPin()
	if err := db.takeInventory(db.pin, db.found); err != nil {
		return nil, errors.Join(err, db.DB.Close())
	}
	return db, nil
}

// discardMemtables removes the memtables that a crash has left.
func discardMemtables(o Options) error {
	release, err := o.Claim()
	if err != nil {
		return err
	}
	defer release()
	return removeMemtables(o.Dir)
}

// logProgress returns a function that logs the progress of a verification every 10 s.
func logProgress(log *slog.Logger) func(Progress) {
	last := time.Now()
	return func(p Progress) {
		if time.Since(last) > 10*time.Second {
			last = time.Now()
			log.Info("verifying the tables of the database", "verified", p.Tables, "of", p.Of, "bytes", p.Bytes)
		}
	}
}

// DefaultMemtable is the default size of a memtable in bytes.
const DefaultMemtable = 8 << 20

// badgerOptions are the options for a service that shares a small machine.
//
// The memory of Badger is bounded for a store of any size: up to three memtables of 10 MiB, and 16 MiB of cached
// blocks. Indexes and filters of tables are read from the mapped files. Compactions take the most memory: up to a
// dozen tables at once, each with a builder of 12 MiB. So tables are small, 2 MiB. See allocators.go.
//
// The first level under level 0 has 128 MiB, room for all pages of a checkpoint of a million counters (65 MiB). So the next
// checkpoint replaces them there.
func badgerOptions(dir string, log *slog.Logger) badger.Options {
	o := badger.DefaultOptions(dir).
		WithLogger(&badgerLog{to: log}).
		WithMetricsEnabled(false).
		WithMemTableSize(DefaultMemtable).
		WithNumMemtables(2).
		WithBaseTableSize(2 << 20).
		WithBaseLevelSize(128 << 20).
		WithBlockCacheSize(16 << 20).
		WithNumCompactors(2).
		WithChecksumVerificationMode(options.OnBlockRead).
		// The owner serializes transactions with the locks of accounts and of commits.
		WithDetectConflicts(false).
		// Values are smaller than the threshold, 1 MiB. So the value log stays empty and needs no garbage
		// collection. Badger maps its file at twice this size.
		WithValueLogFileSize(1 << 20)
	o.TableSizeMultiplier = 1
	return o
}

// temporary changes the options for a temporary database.
func temporary(o badger.Options) badger.Options {
	return o.WithNumCompactors(0).WithNumLevelZeroTablesStall(math.MaxInt32).WithBlockCacheSize(4 << 20)
}

// openBadger calls badger.Open. It shortens errors, which have many lines, and turns panics about damaged files into
// errors.
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
	case strings.Contains(err.Error(), syscall.EACCES.Error()): // a file of another user, for example from a start by root
		return nil, &fs.PathError{Op: "open", Path: o.Dir, Err: fs.ErrPermission}
	}
	return nil, fmt.Errorf("badger: %s", firstLine(err.Error()))
}

// Found returns the state of the last [DB.StoreState] before the database was opened.
func (db *DB) Found() State { return db.found }

// StoreState stores a state in the inventory. First it verifies the tables that were compacted since the last call, and
// then lets Badger delete them: see [DB.Watch]. After a [DamageError] no more tables are deleted, and each call
// returns the error.
func (db *DB) StoreState(state State) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	return Guard(func() error { return db.storeStateLocked(state) })
}

func (db *DB) storeStateLocked(state State) error {
	if db.damaged != nil {
		return db.damaged
	}
	p := db.newPin()
	if state == db.kept.State && maps.Equal(p.tables, db.pin.tables) {
		db.replacePin(p)
		return nil
	}
	err := db.verifyCompacted(p.tables)
	if err == nil {
		err = db.takeInventory(p, state)
	}
	if err != nil {
		p.release()
		return err
	}
	db.replacePin(p)
	return nil
}

// log returns the logger that Badger was given.
func (db *DB) log() *badgerLog { return db.o.Logger.(*badgerLog) }

// Watch does the same as [DB.StoreState] with the last state, and logs the end of a failed flush. Call it every second: compacted
// tables stay on disk until then.
func (db *DB) Watch() error {
	db.log().checkFlush()
	db.mu.Lock()
	defer db.mu.Unlock()
	return Guard(func() error { return db.storeStateLocked(db.kept.State) })
}

// replacePin takes the next pin and releases the last one.
func (db *DB) replacePin(p *pin) {
	db.pin.release()
	db.pin = p
}

// verifyCompacted verifies the pinned tables that are not in tables: a compaction has merged them.
func (db *DB) verifyCompacted(tables map[uint64]bool) error {
	var gone []entry
	for id := range db.pin.tables {
		if !tables[id] {
			gone = append(gone, db.entry(id))
		}
	}
	err := verifyAll(db.o, gone, func(Progress) {}, func(err error) error { return err })
	if errors.As(err, &db.kept.Damaged) {
		db.damaged = err
		_ = db.kept.write(db.o.Dir) // the next Open refuses the database, also if the table can be read again
	}
	return err
}

// entry returns the inventory entry of a table. All tables have the same compression.
func (db *DB) entry(id uint64) entry {
	return entry{ID: id, Compression: db.o.Compression, Tail: db.tails.get(id)}
}

// takeInventory writes an inventory with the tables of a pin and the current manifest.
func (db *DB) takeInventory(p *pin, state State) error {
	m, err := readManifest(db.o)
	if err != nil {
		return err
	}
	if m == nil {
		return damage(badger.ManifestFilename, "the file is missing")
	}
	return db.writeInventory(m, p.tables, state)
}

func (db *DB) newInventory(m *manifest, tables map[uint64]bool, state State) inventory {
	inv := inventory{State: state, Verified: db.kept.Verified, Head: []byte(m.head()),
		Length: int64(len(m.bytes)), Checksum: m.checksum(int64(len(m.bytes)))}
	for _, id := range slices.Sorted(maps.Keys(tables)) {
		db.tails.add(db.o.Dir, id)
		inv.Tables = append(inv.Tables, db.entry(id))
	}
	return inv
}

func (db *DB) writeInventory(m *manifest, tables map[uint64]bool, state State) error {
	inv := db.newInventory(m, tables, state)
	err := inv.write(db.o.Dir)
	if err == nil {
		db.kept = inv
		db.tails.keep(tables)
	}
	return err
}

// Close closes the database, verifies the tables that were compacted last and writes the inventory.
func (db *DB) Close() error {
	err := db.DB.Close()
	db.mu.Lock()
	defer db.mu.Unlock()
	if err != nil || db.damaged != nil || db.pin == nil {
		return errors.Join(err, db.damaged) // the pinned files stay: the next Open verifies them
	}
	m, err := readManifest(db.o)
	if err != nil || m == nil {
		return err
	}
	tables := map[uint64]bool{}
	for id := range m.tables {
		tables[id] = true
	}
	if err := db.verifyCompacted(tables); err != nil {
		return err
	}
	if err := db.writeInventory(m, tables, db.kept.State); err != nil {
		return err
	}
	db.pin.iterator.Close()
	db.pin = nil
	return nil
}

// SetVerified stores in the inventory when the owner verified all files last, in Unix seconds.
func (db *DB) SetVerified(at int64) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.kept.Verified = at // also after an error: the next inventory has the time
	return db.kept.write(db.o.Dir)
}

// Verified returns the time of [DB.SetVerified], 0 without one.
func (db *DB) Verified() int64 {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.kept.Verified
}

// Verify reads the tables again, one by one. After each table it calls pause with the size of the table in bytes, and
// ends when pause returns false.
func (db *DB) Verify(pause func(bytes int) bool) error {
	var b []byte
	tables, damaged := db.knownIDs()
	for _, id := range slices.Sorted(maps.Keys(tables)) {
		var err error
		if b, err = read(db.o, db.entry(id), b); err != nil {
			if now, _ := db.knownIDs(); now[id] { // otherwise it was compacted and deleted since
				return err
			}
		}
		if !pause(len(b)) {
			return nil
		}
	}
	return damaged
}

// knownIDs returns the IDs of the tables. Badger reads the index of each table to list them: if that fails, knownIDs returns the IDs of the
// last pin, and the damage.
func (db *DB) knownIDs() (ids map[uint64]bool, err error) {
	err = Guard(func() error { ids = db.ids(); return nil })
	if err != nil {
		db.mu.Lock()
		defer db.mu.Unlock()
		ids = db.pin.tables
	}
	return ids, err
}
