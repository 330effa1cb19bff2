package badgerstore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
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
	s, err := newStore(dir, o)
	if err != nil {
		return nil, err
	}
	if err = s.openLog(); err == nil {
		err = s.openDatabase(nil)
	}
	if err != nil {
		s.abort(err)
		return nil, err
	}
	return s, nil
}

// newStore returns a store that has claimed its directory, without an open file.
func newStore(dir string, o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Clock == nil {
		o.Clock = core.NewClock(nil, nil)
	}
	o.fs = cmp.Or(o.fs, eventlog.OS)
	if _, ok := unclosed.Load(dir); ok {
		return nil, errUnclosed
	}
	release, err := prepareDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, release: release, options: o, log: o.Logger,
		beforeCommit: func() error { return nil }, failpoint: o.failpoint, now: o.Clock.Now,
	}
	if s.space, err = diskspace.Open(dir, o.MinFree, o.Logger); err != nil {
		release()
		return nil, err
	}
	s.Resources = resource.New(database{s})
	if s.failpoint == nil {
		s.failpoint = func(failpoint) {}
	}
	s.SetMaxHistory(o.MaxHistory)
	return s, nil
}

// errUnclosed means that Badger still runs in this process, for an earlier store of this directory: see closeBadger.
var errUnclosed = errors.New("an earlier store of this process is not closed yet: wait, or restart this process")

// openDatabase opens the database of a store with an open event log, unless it is open, and replays the event log. When the database
// is in doubt, openDatabase makes a new one: the database follows from the event log and the images. A new store has no database yet.
func (s *Store) openDatabase(doubt error) error {
	isNew := s.events.Written() == firstPosition
	if !doubtful(doubt) && !isNew {
		open := table.Open
		if s.db != nil {
			open = func(table.Options) (*table.DB, error) { return s.db, nil }
		}
		if doubt = s.index(open); !doubtful(doubt) {
			return doubt
		}
		s.log.Warn("the files of the database are in doubt: the database is rebuilt from the event log", "dir", s.dir, "reason", doubt)
	}
	began := time.Now()
	if s.db != nil {
		_ = table.Guard(s.db.Close) // the files are deleted
		s.db = nil
	}
	src, err := newestSource(s.dir, s.events.From(), s.log)
	if err == nil {
		src.state.Log = s.events.Durable()
		err = s.index(src.create)
	}
	if err == nil && !isNew {
		s.log.Warn("the database is rebuilt", "dir", s.dir, "duration", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// index opens a database by a function, and replays the event log. It writes the schema of a new store.
func (s *Store) index(open func(table.Options) (*table.DB, error)) (err error) {
	s.unreadable.Store(table.Unreadable())
	o := tableOptions(s.dir, s.log)
	o.Memtable, o.Boot = cmp.Or(s.options.memtable, o.Memtable), cmp.Or(s.options.boot, o.Boot)
	if s.db, err = open(o); err != nil {
		return err
	}
	s.failed.Store(nil)
	s.forget(cmp.Or(int(s.cacheSize.Load()), s.options.CounterCache, DefaultCounterCache))
	last := s.db.State()
	s.verified.Store(last.Verified)
	if last.Time > 0 {
		s.options.Clock.Resume(time.Unix(last.Time, 0)) // the time of the last checkpoint
	}
	s.clock.Store(s.now().Unix())
	if err := s.replayEvents(); err != nil {
		return err
	}
	var version int64
	err = s.inView(func(r view) (err error) {
		version, err = r.number(at(kindSchema))
		return err
	})
	if err != nil || version > 0 {
		return err
	}
	if s.events.Written() > firstPosition {
		return &table.DamageError{File: "*" + table.Suffix, What: "the database has no schema, and the event log does not begin with the first record of the store"}
	}
	w := newWrites()
	w.put(at(kindSchema), encodeNumber(schema))
	if err := firstOf(s.commit(w), s.syncEvents()); err != nil {
		return err
	}
	return s.db.StoreState(s.state())
}

// forget forgets all that was read from an earlier database. limit is the number of counters in memory.
func (s *Store) forget(limit int) {
	s.accounts.byID.Clear()
	s.checkpointer = newCheckpointer()
	s.counters, s.holds = newCounterCache(limit, func() int64 { return s.events.Written() }), &openHoldCounts{open: map[uint32]int{}}
}

// abort closes a store that could not be opened, without a checkpoint.
func (s *Store) abort(err error) {
	s.failed.CompareAndSwap(nil, &err)
	_ = s.closeInTime(func() error {
		if s.events != nil {
			s.events.Abandon() // writes no status: a refused start changes no segment
		}
		return s.closeBadger(nil)
	})
}

// On a disk of less than smallDisk bytes, memtables have smallMemtable bytes.
const (
	smallDisk     = 1 << 30
	smallMemtable = table.DefaultMemtable / 2
)

func tableOptions(dir string, log *slog.Logger) table.Options {
	_, size, err := diskspace.Space(dir)
	o := table.Options{Dir: databaseIn(dir), Logger: log, Boot: table.Boot()}
	if err == nil && size < smallDisk {
		o.Memtable = smallMemtable
	}
	return o
}

// refuseSchema returns an error for another schema. A new store has none, 0.
func refuseSchema(version int64) error {
	switch {
	case version > schema:
		return fmt.Errorf("a later version of Limitkeeper wrote it, with schema %d; this version reads schema %d: run the later version", version, schema)
	case version > 0 && version < schema:
		return fmt.Errorf("a build before the first release wrote it, with schema %d; this version reads schema %d: begin with an empty directory", version, schema)
	}
	return nil
}

// Exists reports whether a directory has a store, also a store that has lost files. It creates nothing, unlike [Open].
func Exists(dir string) (bool, error) {
	for _, path := range []string{eventsIn(dir), databaseIn(dir), imagesIn(dir)} {
		if names, err := os.ReadDir(path); len(names) > 0 {
			return true, nil
		} else if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("look for a store in %s: %w", dir, withAdvice(dir, err))
		}
	}
	return false, nil
}
