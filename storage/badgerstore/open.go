package badgerstore

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
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
	if err := prepareDir(dir, o.Logger); err != nil {
		return nil, err
	}
	db, err := table.Open(table.Options{Dir: dir, Logger: o.Logger, Witness: witness(dir)})
	if err != nil {
		return nil, err
	}
	if o.syncLog == nil {
		o.syncLog = (*os.File).Sync
	}
	logs, err := openLogs(db.DB, dir, o.syncLog)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	s := &Store{
		db: db, dir: dir, log: o.Logger, logs: logs, durability: o.Durability,
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

// recover makes the store whole after the last process that had it open.
func (s *Store) recover(o Options) error {
	old, err := s.checkSchema()
	if err != nil {
		return err
	}
	if err := s.openEvents(o); err != nil {
		return err
	}
	if old {
		if err := firstOf(s.listOldPages(), s.writeSchema()); err != nil {
			return err
		}
	}
	return s.recoverJournals()
}

// checkSchema makes sure that the store has a layout that this version knows, and reports whether
// it is an older one.
func (s *Store) checkSchema() (old bool, err error) {
	var version int64
	empty := true
	err = s.db.View(func(txn *badger.Txn) (err error) {
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
		return false, err
	case version == schema:
		return false, nil
	case version >= withoutDays && version < schema: // their records say so themselves
		return true, nil
	case version > 0 && version < schema:
		return false, fmt.Errorf("it was written before the first release: it has schema %d, this version knows %d", version, schema)
	case version > schema:
		return false, fmt.Errorf("it was written by a later version of Limitkeeper: it has schema %d, this version knows %d", version, schema)
	case !empty:
		return false, errors.New("it is a database of something else")
	}
	if name := witness(s.dir); name != "" { // this is made after the schema is on disk
		return false, &table.DamageError{File: "*" + table.LogSuffix, What: "the database is empty, and " + name + " is there"}
	}
	return false, s.writeSchema()
}

// The schemas before that of this version which it reads.
const (
	withoutDays  = 2
	withoutKept  = 3 // counters without denials of a day, segments without the end of their request ids
	withFormat1  = 4 // an event log of format 1
	withoutPages = 5 // no families of pages
)

// writeSchema writes the version to the disk: a store with an event log and without a version
// is damaged.
func (s *Store) writeSchema() error {
	s.committing.Lock()
	err := s.commitLocked(func(txn *badger.Txn) error { return txn.Set(at(kindSchema), encodeNumber(schema)) })
	s.committing.Unlock()
	if err != nil {
		return err
	}
	return s.sync()
}
