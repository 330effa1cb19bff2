package badgerstore

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// Open opens the store in a directory, and creates the directory if it does not exist. It returns
// [ErrInUse] when another process has the store open. Each error is one line that names the directory.
func Open(dir string, o Options) (*Store, error) {
	s, err := open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", dir, withAdvice(dir, err))
	}
	s.background.start(s)
	return s, nil
}

// open is Open without background goroutines.
func open(dir string, o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Clock == nil {
		o.Clock = core.NewClock(nil, nil)
	}
	if _, ok := unclosed.Load(dir); ok {
		return nil, errUnclosed
	}
	if err := prepareDir(dir, o.Logger); err != nil {
		return nil, err
	}
	s, err := openFound(dir, o)
	if !doubtful(err) || witness(dir, o.fs) == "" { // without an event log, the database may be of another program
		return s, err
	}
	o.Logger.Warn("the files of the database are in doubt: the database is rebuilt from the event log", "dir", dir, "reason", err)
	began := time.Now()
	from, err := eventlog.Inspect(eventLogOptions(dir, logOnDisk(dir), o))
	if err == nil {
		err = rebuild(dir, from, o.Logger)
	}
	if err != nil {
		return nil, err
	}
	if s, err = openFound(dir, o); err == nil {
		o.Logger.Warn("the database is rebuilt", "dir", dir, "duration", time.Since(began).Round(time.Millisecond))
	}
	return s, err
}

// openFound opens a store whose directory is prepared. It verifies the event log and the tables before it changes a file. The
// replay verifies the rest of the event log.
func openFound(dir string, o Options) (*Store, error) {
	if _, err := os.Stat(filepath.Join(dir, eventLogDir)); err == nil { // no new store
		if _, err := eventlog.Inspect(eventLogOptions(dir, logOnDisk(dir), o)); err != nil {
			return nil, err
		}
	}
	space, err := diskspace.Open(dir, o.MinFree, o.Logger)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, options: o, space: space, log: o.Logger,
		beforeCommit: func() error { return nil }, failpoint: o.failpoint, now: o.Clock.Now,
	}
	s.Resources = resource.New(database{s})
	if s.failpoint == nil {
		s.failpoint = func(failpoint) {}
	}
	if err := s.openDatabase(); err != nil {
		return nil, err
	}
	s.clock.Store(s.now().Unix())
	s.SetMaxHistory(o.MaxHistory)
	if err := s.openAndReplay(o); err != nil {
		s.abort(err)
		return nil, err
	}
	return s, nil
}

// logOnDisk returns the position up to which the event log of a store that is not open was on disk, as far as the database
// and its images know.
func logOnDisk(dir string) (position int64) {
	state, _, err := table.ReadState(dir)
	if err == nil {
		position = state.Log
	}
	images, _ := table.Images(dir)
	for _, image := range images { // the log was synced before an image got its name
		position = max(position, image)
	}
	return position
}

// errUnclosed means that the Badger of an earlier store of this directory still runs in this process: see closeBadger.
var errUnclosed = errors.New("an earlier store of this process is not closed yet: wait, or restart this process")

// openDatabase opens Badger.
func (s *Store) openDatabase() error {
	s.unreadable.Store(table.Unreadable())
	o := tableOptions(s.dir, s.log)
	o.Witness = witness(s.dir, s.options.fs)
	o.Memtable, o.Boot = cmp.Or(s.options.memtable, o.Memtable), cmp.Or(s.options.boot, o.Boot)
	db, err := table.Open(o)
	if err != nil {
		return err
	}
	s.db, s.identity = db, nil
	s.forget(cmp.Or(int(s.cacheSize.Load()), s.options.CounterCache, DefaultCounterCache))
	s.verified.Store(s.db.Verified())
	return nil
}

// forget forgets all that was read from an earlier database. limit is the number of counters in memory.
func (s *Store) forget(limit int) {
	s.accounts, s.checkpointer = accountNumbers{seed: maphash.MakeSeed()}, newCheckpointer()
	s.counters = newCounterCache(limit, func() int64 { return s.events.Written() })
}

// abort closes a store that could not be opened, without a checkpoint.
func (s *Store) abort(err error) {
	s.failed.CompareAndSwap(nil, &err)
	_ = s.closeInTime(func() error {
		var unwritten error
		if s.events != nil {
			unwritten = s.events.Flush() // writes no status: a refused start changes no segment
			s.events.Abandon()
		}
		return s.closeBadger(unwritten)
	})
}

// On a disk of less than smallDisk bytes, memtables have smallMemtable bytes.
const (
	smallDisk     = 1 << 30
	smallMemtable = table.DefaultMemtable / 2
)

func tableOptions(dir string, log *slog.Logger) table.Options {
	_, size, err := diskspace.Space(dir)
	o := table.Options{Dir: dir, Logger: log, Witness: witness(dir, nil), Boot: table.Boot()}
	if err == nil && size < smallDisk {
		o.Memtable = smallMemtable
	}
	return o
}

// openAndReplay opens the event log and replays it. It writes the schema of a new store.
func (s *Store) openAndReplay(o Options) error {
	err := s.checkSchema()
	if err == nil {
		err = firstOf(os.MkdirAll(filepath.Join(s.dir, eventLogDir), 0o700), s.recordIdentity())
	}
	if err != nil {
		return err
	}
	if last := s.db.Found().Time; last > 0 {
		o.Clock.Resume(time.Unix(last, 0)) // the time of the last checkpoint
		s.clock.Store(s.now().Unix())
	}
	if err := s.openEvents(o); err != nil {
		return err
	}
	if s.events.Written() > firstPosition { // otherwise the first start begins, or was interrupted
		if version, err := s.version(); err != nil || version > 0 { // of the database, or from the event log
			return err
		}
		return &table.DamageError{File: "*" + table.Suffix, What: "the database is empty, and the event log does not begin with the first record of the store"}
	}
	w := newWrites()
	w.put(at(kindSchema), encodeNumber(schema))
	if err := s.commit(w); err != nil {
		return err
	}
	if err := s.syncEvents(); err != nil {
		return err
	}
	return s.db.StoreState(table.State{Log: s.events.Durable(), Time: s.clock.Load()})
}

// version returns the schema of the database, 0 when the database has none.
func (s *Store) version() (version int64, err error) {
	err = s.inView(func(r view) error {
		version, err = r.number(at(kindSchema))
		return err
	})
	return version, err
}

// refuseSchema returns an error for a later schema.
func refuseSchema(version int64) error {
	if version > schema {
		return fmt.Errorf("a later version of Limitkeeper wrote it, with schema %d; this version reads schema %d: run the later version", version, schema)
	}
	return nil
}

// checkSchema returns an error when this version cannot read the schema of the database. An empty database has none: the store is
// new, or its tables were never written.
func (s *Store) checkSchema() error {
	isForeign := false
	err := s.inView(func(r view) error {
		version, err := r.number(at(kindSchema))
		if err != nil || version > 0 {
			return firstOf(err, refuseSchema(version))
		}
		return r.eachFrom(nil, nil, func(path, []byte) (bool, error) {
			isForeign = true
			return false, nil
		})
	})
	if err != nil || !isForeign {
		return err
	}
	if name := witness(s.dir, s.options.fs); name != "" {
		return &table.DamageError{File: badger.ManifestFilename, What: "the tables lack the schema of the store, but " + name + " exists"}
	}
	return errors.New("it is the database of another program: name another directory")
}

// Exists reports whether a directory has a store, also a store that has lost files, or another database of Badger. It
// creates nothing, unlike [Open].
func Exists(dir string) (bool, error) {
	for _, name := range []string{badger.ManifestFilename, table.InventoryName} {
		_, err := os.Stat(filepath.Join(dir, name))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("look for a store in %s: %w", dir, withAdvice(dir, err))
		}
	}
	return witness(dir, nil) != "", nil
}
