// Package table is the only package that opens Badger. It verifies the files that Badger reads, because Badger hides
// damage: it takes a block with a wrong checksum for the end of the table, deletes a table that the manifest does not
// name, and cuts a manifest off at the first incomplete entry.
//
//   - Open verifies every byte of every table, and compares the manifest with the inventory, a file of this
//     package: inventory.go.
//   - A block that cannot be read, in a read or in a compaction, is noticed: alarm.go. So is a table that a compaction
//     has lost: compaction.go.
//   - [DB.Verify] reads all tables again.
//
// Damage is a [DamageError], which names the file. The owner then deletes the database, and rebuilds it: image.go. Files are
// read through the page cache of the operating system: damage on the disk shows when the page is read from the disk again.
package table

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// Options are the settings of [Open].
type Options struct {
	Dir    string
	Logger *slog.Logger

	Memtable int64 // the size of a memtable in bytes, DefaultMemtable by default; its file has twice that size

	// Boot identifies the boot of the machine; 0 when it is unknown. A database that another boot has opened and not finished
	// is damaged.
	Boot uint64
}

// DB is an open database.
type DB struct {
	*badger.DB
	o badger.Options

	mu       sync.Mutex // guards the fields below
	kept     inventory  // the inventory on disk
	finished bool       // Finish was called
	doubted  bool       // Doubt was called
	created  int        // tables that compactions have created, see lost
	read     int        // bytes of the manifest whose tables are counted
}

// Open verifies the files of a database, and then opens it. The caller has claimed the directory. An error is a [DamageError]
// or an error of the file system. Its text is one line.
func Open(o Options) (*DB, error) {
	inv, err := o.inspect(o.logProgress())
	if err == nil {
		err = o.pruneLogs(&inv)
	}
	if err != nil {
		return nil, err
	}
	return o.open(inv, nil)
}

// Create creates a database with a state and records in an empty directory. After a kill during Create, the database is damaged.
func Create(o Options, state State, records Records) (*DB, error) {
	return o.open(inventory{State: state}, records)
}

// open opens Badger, fills it with records unless they are nil, and writes the inventory.
func (o *Options) open(inv inventory, records Records) (*DB, error) {
	db := &DB{o: o.badger(), kept: inv, read: manifestMagic}
	db.kept.Boot, db.kept.Memtable, db.kept.Closed = o.Boot, db.o.MemTableSize, false
	if manifest, err := readManifest(o.Dir); err == nil {
		db.read = len(manifest)
	}
	var err error
	if db.DB, err = openBadger(db.o); err != nil {
		return nil, err
	}
	if records != nil {
		err = db.fill(records)
	}
	if err == nil {
		err = db.update()
	}
	if err != nil {
		return nil, errors.Join(err, db.DB.Close())
	}
	return db, nil
}

// DefaultMemtable is the default size of a memtable in bytes.
const DefaultMemtable = 8 << 20

// badger returns the options of Badger for a service that shares a small machine.
//
// The memory of Badger is bounded for a store of any size: up to three memtables of 10 MiB, and 16 MiB of cached
// blocks. Indexes and filters of tables are read from the mapped files. Compactions take the most memory: up to a
// dozen tables at once, each with a builder of 12 MiB. So tables are small, 2 MiB.
//
// The first level under level 0 has 128 MiB, room for all pages of a checkpoint of a million counters (65 MiB). So the next
// checkpoint replaces them there.
func (o *Options) badger() badger.Options {
	b := badger.DefaultOptions(o.Dir).
		WithLogger(newLog(o.Logger)).
		WithMetricsEnabled(false).
		WithMemTableSize(DefaultMemtable).
		WithNumMemtables(2).
		WithBaseTableSize(2 << 20).
		WithBaseLevelSize(128 << 20).
		WithBlockCacheSize(16 << 20).
		WithNumCompactors(2).
		WithChecksumVerificationMode(options.OnBlockRead).
		WithBypassLockGuard(true). // the owner has called Claim
		// The owner serializes transactions with the locks of accounts and of commits.
		WithDetectConflicts(false).
		// Values are smaller than the threshold, 1 MiB. So the value log stays empty and needs no garbage
		// collection. Badger maps its file at twice this size.
		WithValueLogFileSize(1 << 20)
	b.TableSizeMultiplier = 1
	if o.Memtable > 0 && o.Memtable < DefaultMemtable {
		b = b.WithMemTableSize(o.Memtable).WithValueThreshold(o.Memtable / 7) // Badger bounds it, and transactions, to 15 %
	}
	return b
}

// openBadger calls badger.Open. It shortens errors, which have many lines. An error, or a panic, that is not about the system
// is damage: Badger cannot read its files.
func openBadger(o badger.Options) (db *badger.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, damage("*"+Suffix, "%v", p)
		}
	}()
	db, err = badger.Open(o)
	var errno syscall.Errno
	switch {
	case err == nil:
		return db, nil
	case strings.Contains(err.Error(), syscall.EACCES.Error()): // a file of another user, for example from a start by root
		return nil, &fs.PathError{Op: "open", Path: o.Dir, Err: fs.ErrPermission}
	case errors.As(err, &errno) && errno != syscall.EIO && errno != syscall.ENOENT:
		return nil, fmt.Errorf("badger: %s: %w", firstLine(err.Error()), errno)
	}
	return nil, damage("*"+Suffix, "badger: %v", err)
}

// State returns the state of the last [DB.StoreState], also before the database was opened.
func (db *DB) State() State {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.kept.State
}

// StoreState stores a state in the inventory.
func (db *DB) StoreState(state State) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.kept.State = state
	return db.update()
}

// Finish stores the state of a database that is about to be closed: it has all records of the event log before state.Log, and
// no other ones. Without Finish, a closed database is like one whose process was killed.
func (db *DB) Finish(state State) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.kept.State, db.finished = state, true
}

// log returns the logger that Badger was given.
func (db *DB) log() *badgerLog { return db.o.Logger.(*badgerLog) }

// Watch updates INVENTORY after a change of the manifest, and returns damage when a compaction has lost a table. The owner calls
// Watch every second.
func (db *DB) Watch() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.lost()
}

// Doubt deletes the inventory, and writes no other one: the next [Open] takes the database for damaged.
func (db *DB) Doubt() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.doubted = true
	_ = os.Remove(filepath.Join(db.o.Dir, InventoryName))
}

// Close closes the database and writes the inventory: see [DB.Finish].
func (db *DB) Close() error {
	err := db.DB.Close()
	db.mu.Lock()
	defer db.mu.Unlock()
	if err != nil || db.doubted || db.kept.Closed {
		return err
	}
	if err := db.lost(); err != nil {
		return err
	}
	db.kept.Closed = db.finished
	return db.update()
}

// ErrDamaged matches every [DamageError].
var ErrDamaged = errors.New("the database is damaged")

// ErrInUse means that another process, or another database of this process, has the directory open.
var ErrInUse = errors.New("another process is using it: stop that process, or name another directory")

// DamageError names a damaged file and the fault.
type DamageError struct {
	File string // its name in the directory of the database
	What string
}

// Error returns one line that names the file.
func (e *DamageError) Error() string { return fmt.Sprintf("%v: %s: %s", ErrDamaged, e.File, e.What) }

// Is reports whether target is [ErrDamaged].
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

func damage(file, format string, args ...any) error {
	return &DamageError{file, firstLine(fmt.Sprintf(format, args...))}
}

// firstLine returns a text up to its first line break: errors and panics of Badger have many lines.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
