package badgerstore

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// Open opens the store in a directory, which is made if it does not exist. A
// directory that another process has open is [ErrInUse]. The text of an error is one
// line that names the directory.
func Open(dir string, o Options) (*Store, error) {
	s, err := open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", dir, advised(dir, err))
	}
	s.keeper.start(s)
	return s, nil
}

// open does so without what runs in the background.
func open(dir string, o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if _, ok := unclosed.Load(dir); ok {
		return nil, errUnclosed
	}
	if err := prepareDir(dir, o.Logger); err != nil {
		return nil, err
	}
	r, err := openReserve(dir, o.MinFree, o.Logger)
	if err != nil {
		return nil, err
	}
	s, err := openOn(r, dir, o)
	if err != nil {
		r.close()
	}
	return s, err
}

// errUnclosed means that a store could not be closed, and its Badger goes on in this process.
var errUnclosed = errors.New("an earlier store of this process could not be closed: start the process again")

// openOn opens the store in a directory that has a reserve.
func openOn(r *reserve, dir string, o Options) (_ *Store, err error) {
	opts := badgerOptions(dir, o.Logger)
	if err := checkTables(opts); err != nil {
		return nil, err
	}
	endMappings, err := r.serveMappings()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			endMappings()
		}
	}()
	r.opening.Store(true)
	r.makeRoom()
	db, err := openBadger(opts)
	r.opening.Store(false)
	if err != nil {
		return nil, err
	}
	r.extendManifest()
	if o.syncLog == nil {
		o.syncLog = (*os.File).Sync
	}
	logs, err := openLogs(db, dir, o.syncLog)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	s := &Store{
		db: db, dir: dir, reserve: r, endMappings: endMappings, log: o.Logger, logs: logs, durability: o.Durability,
		onCommit: func() error { return nil }, spread: map[string]chan struct{}{},
		accounts: accountNumbers{byID: map[string]uint32{}}, folder: newFolder(), step: o.step,
	}
	if s.step == nil {
		s.step = never
	}
	s.counters = newCounters(cmp.Or(o.CounterCache, DefaultCounterCache), func() int64 { return s.events.Written() })
	s.clock.Store(time.Now().Unix())
	s.SetMaxHistory(o.MaxHistory)
	s.writers.seed = maphash.MakeSeed()
	if err := s.recover(o); err != nil {
		s.logs.close()
		if s.events != nil {
			s.events.Abandon()
		}
		_ = db.Close()
		return nil, err
	}
	return s, nil
}

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
		WithLogger(badgerLog{log}).
		WithMetricsEnabled(false).
		WithMemTableSize(8 << 20).
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

// firstLine returns a text up to its first line break.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// recover makes the store whole after the last process that had it open.
func (s *Store) recover(o Options) error {
	if err := firstOf(os.MkdirAll(filepath.Join(s.dir, eventLogDir), 0o700), s.identify(), s.checkSchema()); err != nil {
		return err
	}
	if err := s.openEvents(o); err != nil {
		return err
	}
	return s.recoverJournals()
}

// checkSchema makes sure that the store has the layout that this version knows.
func (s *Store) checkSchema() error {
	var version int64
	empty := true
	err := s.db.View(func(txn *badger.Txn) (err error) {
		r := snapshot{txn}
		if version, err = r.number(at(kindSchema)); err != nil {
			return err
		}
		return r.each(nil, false, func(path, []byte) (bool, error) {
			empty = false
			return false, nil
		})
	})
	switch {
	case err != nil:
		return err
	case version == schema:
		return nil
	case version >= withoutDays && version < schema: // their records say so themselves
		return s.writeSchema()
	case version > 0 && version < schema:
		return fmt.Errorf("it was written before the first release: it has schema %d, this version knows %d", version, schema)
	case version > schema:
		return fmt.Errorf("it was written by a later version of Limitkeeper: it has schema %d, this version knows %d", version, schema)
	case !empty:
		return errors.New("it is a database of something else")
	}
	return s.writeSchema()
}

// The schemas before that of this version which it reads.
const (
	withoutDays = 2
	withoutKept = 3 // counters without denials of a day, segments without the end of their request ids
	withFormat1 = 4 // an event log of format 1
)

func (s *Store) writeSchema() error {
	s.committing.Lock()
	defer s.committing.Unlock()
	return s.commitLocked(func(txn *badger.Txn) error { return txn.Set(at(kindSchema), encodeNumber(schema)) })
}
