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
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Open opens the store in a directory, and creates the directory if it does not exist. It returns
// [ErrInUse] when another process has the store open. Each error is one line that names the directory.
func Open(dir string, o Options) (*Store, error) {
	s, err := open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", dir, advised(dir, err))
	}
	s.keeper.start(s)
	return s, nil
}

// open is Open without background goroutines. It opens a store of an earlier version twice: see openOnce.
func open(dir string, o Options) (*Store, error) {
	s, err := openOnce(dir, o)
	if err != nil || s.db.WasReplayable() {
		return s, err
	}
	s.db.Replayable() // takes effect when the store is opened again
	if err := s.Close(); err != nil {
		return nil, err
	}
	return openOnce(dir, o)
}

// openOnce opens a store. It upgrades a store of an earlier version; the caller closes that store and opens it
// again.
func openOnce(dir string, o Options) (*Store, error) {
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
	r, err := openReserve(dir, o.MinFree, o.Logger)
	if err != nil {
		return nil, err
	}
	return openWithReserve(r, dir, o)
}

// errUnclosed means that Close has timed out, and that the Badger of the store still runs in this process.
var errUnclosed = errors.New("an earlier store of this process could not be closed: start the process again")

// openWithReserve opens the store in a directory whose reserve is open.
func openWithReserve(r *reserve, dir string, o Options) (*Store, error) {
	endMappings, err := r.serveMappings()
	if err != nil {
		r.close()
		return nil, err
	}
	r.opening.Store(true)
	r.makeRoom()
	tableOpts := tableOptions(dir, o.Logger)
	if claims {
		tableOpts.Prepare = r.prepareMemtable
	}
	tableOpts.Memtable = cmp.Or(o.memtable, tableOpts.Memtable)
	db, err := table.Open(tableOpts)
	r.opening.Store(false)
	if err != nil {
		endMappings()
		r.close()
		return nil, err
	}
	r.extendManifest()
	s := &Store{
		db: db, dir: dir, reserve: r, endMappings: endMappings, log: o.Logger,
		flushBytes: cmp.Or(o.flushBytes, flushBytes),
		onCommit:   func() error { return nil }, spread: map[string]chan struct{}{},
		accounts: accountNumbers{byID: map[string]uint32{}}, folder: newFolder(), step: o.step, now: o.Clock.Now,
	}
	if s.step == nil {
		s.step = never
	}
	s.counters = newCounterCache(cmp.Or(o.CounterCache, DefaultCounterCache), func() int64 { return s.events.Written() })
	s.clock.Store(s.now().Unix())
	s.verified.Store(db.Verified())
	s.SetMaxHistory(o.MaxHistory)
	s.writers.seed = maphash.MakeSeed()
	if err := s.recoverWithRoom(o); err != nil {
		s.abort(err)
		return nil, err
	}
	return s, nil
}

// recoverWithRoom calls recover. After maxWaits waits for room on the disk it returns errFull, because no
// history is removed before the store is open. recover may still run then.
func (s *Store) recoverWithRoom(o Options) error {
	s.life.RLock()
	done := make(chan error, 1)
	go func() {
		defer s.life.RUnlock()
		done <- s.recover(o)
	}()
	tick := time.NewTicker(waitForRoom)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			if s.reserve.waits.Load() >= maxWaits {
				free, _ := s.freeSpace()
				return &fullError{free: free, why: "too little to replay the event log"}
			}
		}
	}
}

// abort closes a store that could not be opened, without a checkpoint. On a full disk even closing Badger waits for
// room, so abort then waits 1 s at most.
func (s *Store) abort(err error) {
	s.failed.CompareAndSwap(nil, &err) // ends recover
	wait := closeMost
	if errors.Is(err, errFull) {
		wait = time.Second
	}
	_ = s.closeWithin(wait, func() error {
		s.life.Lock()
		defer s.life.Unlock()
		if s.events != nil {
			s.events.Abandon()
		}
		_ = s.db.Close()
		s.endMappings()
		s.reserve.close()
		return nil
	})
}

// On a disk of less than smallDisk bytes, memtables have smallMemtable bytes.
const (
	smallDisk     = 1 << 30
	smallMemtable = table.UsualMemtable / 2
)

func tableOptions(dir string, log *slog.Logger) table.Options {
	_, size, err := diskSpace(dir)
	o := table.Options{Dir: dir, Logger: log, Witness: witness(dir), Filler: at(kindFiller)}
	if err == nil && size < smallDisk {
		o.Memtable = smallMemtable
	}
	if claims {
		o.Claim = func() (func(), error) { return claim(dir) }
	}
	return o
}

// recover opens the event log and replays it. It writes the schema of a new store, and upgrades a store of an
// earlier version.
func (s *Store) recover(o Options) error {
	version, err := s.checkSchema()
	if err == nil {
		err = firstOf(os.MkdirAll(filepath.Join(s.dir, eventLogDir), 0o700), s.identify())
	}
	if err != nil {
		return err
	}
	if last := s.db.Found().Time; last > 0 {
		o.Clock.Resume(time.Unix(last, 0)) // the time of the last checkpoint
		s.clock.Store(s.now().Unix())
	}
	r, err := s.openEvents(o)
	if err != nil {
		return err
	}
	if version > 0 && version < schema {
		return s.upgrade(r.highest)
	}
	if version > 0 {
		return nil
	}
	if version, err = s.version(); err != nil || version > 0 { // from the event log
		return err
	}
	if s.events.Written() > firstPosition {
		return &table.DamageError{File: "*" + table.Suffix, What: "the database is empty, and the event log does not begin with the first record of the store"}
	}
	w := newWrites()
	w.put(at(kindSchema), encodeNumber(schema))
	return firstOf(s.store(w, nil), s.syncEvents(), s.db.Checkpoint(table.Mark{Log: s.events.Durable(), Time: s.clock.Load()}))
}

// version returns the schema of the database, 0 when the database has none.
func (s *Store) version() (version int64, err error) {
	err = s.db.View(func(txn *badger.Txn) error {
		version, err = snapshot{txn}.number(at(kindSchema))
		return err
	})
	return version, err
}

// checkSchema returns the schema of the database, and an error when this version cannot read that schema. The schema
// is 0 when the database is empty: the store is new, or its tables were never written.
func (s *Store) checkSchema() (version int64, err error) {
	if version, err = s.version(); err != nil {
		return 0, err
	}
	switch {
	case version >= withoutDays && version <= schema: // each record tells its own layout
		return version, nil
	case version > schema:
		return 0, fmt.Errorf("it was written by a later version of Limitkeeper: it has schema %d, this version knows %d", version, schema)
	case version > 0:
		return 0, fmt.Errorf("it was written before the first release: it has schema %d, this version knows %d", version, schema)
	}
	empty := true
	err = s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(nil, false, func(path, []byte) (bool, error) {
			empty = false
			return false, nil
		})
	})
	if err == nil && !empty {
		err = errors.New("it is a database of something else")
	}
	if name := witness(s.dir); err == nil && name != "" && !s.db.WasReplayable() {
		err = &table.DamageError{File: "*" + table.LogSuffix, What: "the database is empty, and " + name + " is there"}
	}
	return 0, err
}
