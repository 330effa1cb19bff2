package badgerstore

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
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
	if !o.snapshot {
		if err := prepareDir(dir, o.Logger); err != nil {
			return nil, err
		}
	}
	files, err := inspect(dir, o)
	if err != nil {
		return nil, err
	}
	if o.snapshot {
		return openWithReserve(reserve.None(dir, o.Logger), files, dir, o)
	}
	if err := removeEmpty(dir); err != nil {
		return nil, err
	}
	r, err := reserve.Open(dir, o.MinFree, o.Logger)
	if err != nil {
		return nil, err
	}
	return openWithReserve(r, files, dir, o)
}

// inspect verifies the tables and the event log before the start changes a file. The replay verifies the rest of the
// event log.
func inspect(dir string, o Options) (*table.Files, error) {
	tables := tableOptions(dir, o.Logger)
	tables.Memtable, tables.Temporary = cmp.Or(o.memtable, tables.Memtable), o.snapshot
	files, err := table.Inspect(tables)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, eventLogDir)); os.IsNotExist(err) { // a new store
		return files, nil
	}
	return files, eventlog.Inspect(eventLogOptions(dir, files.State().Log, o))
}

// errUnclosed means that the Badger of an earlier store of this directory still runs in this process: see closeBadger.
var errUnclosed = errors.New("an earlier store of this process is not closed yet: wait, or restart this process")

// openWithReserve opens the store in a directory whose reserve is open.
func openWithReserve(r *reserve.Reserve, files *table.Files, dir string, o Options) (*Store, error) {
	endMappings, err := r.ServeMappings()
	if err != nil {
		r.Close()
		return nil, err
	}
	r.Opening.Store(true)
	r.MakeRoom()
	if table.Claims {
		files.Prepare = r.PrepareMemtable
	}
	db, err := files.Open()
	r.Opening.Store(false)
	if err != nil {
		endMappings()
		r.Close()
		return nil, err
	}
	r.ExtendManifest()
	s := &Store{
		db: db, dir: dir, options: o, reserve: r, endMappings: endMappings, log: o.Logger,
		flushBytes:   cmp.Or(o.flushBytes, flushBytes),
		beforeCommit: func() error { return nil }, applying: map[string]chan struct{}{},
		accounts: accountNumbers{seed: maphash.MakeSeed()}, checkpointer: newCheckpointer(), failpoint: o.failpoint, now: o.Clock.Now,
	}
	s.Resources = resource.New(database{s})
	if s.failpoint == nil {
		s.failpoint = noFailpoint
	}
	s.counters = newCounterCache(cmp.Or(o.CounterCache, DefaultCounterCache), func() int64 { return s.events.Written() })
	s.clock.Store(s.now().Unix())
	s.verified.Store(db.Verified())
	s.SetMaxHistory(o.MaxHistory)
	if err := s.recoverWithRoom(o); err != nil {
		s.abort(err, func() {})
		return nil, err
	}
	return s, nil
}

// recoverWithRoom calls openAndReplay. After reserve.MaxWaits waits for room on the disk it returns reserve.ErrFull, because no
// history is removed before the store is open. openAndReplay may still run then.
func (s *Store) recoverWithRoom(o Options) error {
	s.life.RLock()
	done := make(chan error, 1)
	go func() {
		defer s.life.RUnlock()
		done <- s.openAndReplay(o)
	}()
	tick := time.NewTicker(reserve.WaitForRoom)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			if s.reserve.Waits.Load() >= reserve.MaxWaits {
				free, _ := s.freeSpace()
				return &reserve.FullError{Free: free, Why: "too little to replay the event log"}
			}
		}
	}
}

// abort closes a store that could not be opened, or a snapshot, without a checkpoint, and then calls closed. On a full
// disk even closing Badger waits for room, so abort then waits 1 s at most.
func (s *Store) abort(err error, closed func()) {
	s.failed.CompareAndSwap(nil, &err) // ends openAndReplay
	wait := maxClose
	if errors.Is(err, reserve.ErrFull) {
		wait = time.Second
	}
	_ = s.closeWithin(wait, func() error {
		s.life.Lock()
		defer s.life.Unlock()
		defer closed()
		s.closed = true
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
	_, size, err := reserve.Space(dir)
	o := table.Options{Dir: dir, Logger: log, Witness: witness(dir), Filler: at(kindFiller)}
	if err == nil && size < smallDisk {
		o.Memtable = smallMemtable
	}
	if table.Claims {
		o.Claim = func() (func(), error) { return table.Claim(dir) }
	}
	return o
}

// claimedOptions returns the options of the database in a directory that the caller has claimed.
func claimedOptions(dir string) table.Options {
	o := tableOptions(dir, slog.New(slog.DiscardHandler))
	if o.Claimed = table.Claims; o.Claimed {
		o.Claim = func() (func(), error) { return func() {}, nil }
	}
	return o
}

// openAndReplay opens the event log and replays it. It writes the schema of a new store.
func (s *Store) openAndReplay(o Options) error {
	version, err := s.checkSchema()
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
	if err := s.openEvents(o); err != nil || version > 0 {
		return err
	}
	if version, err = s.version(); err != nil || version > 0 { // from the event log
		return err
	}
	if s.events.Written() > firstPosition {
		return &table.DamageError{File: "*" + table.Suffix, What: "the database is empty, and the event log does not begin with the first record of the store"}
	}
	w := newWrites()
	w.put(at(kindSchema), encodeNumber(schema))
	return firstOf(s.store(w), s.syncEvents(), s.db.StoreState(table.State{Log: s.events.Durable(), Time: s.clock.Load()}))
}

// version returns the schema of the database, 0 when the database has none.
func (s *Store) version() (version int64, err error) {
	err = s.db.View(func(txn *badger.Txn) error {
		version, err = snapshot{txn}.number(at(kindSchema))
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

// checkSchema returns the schema of the database, and an error when this version cannot read that schema. The schema
// is 0 when the database is empty: the store is new, or its tables were never written.
func (s *Store) checkSchema() (version int64, err error) {
	version, err = s.version()
	if err = firstOf(err, refuseSchema(version)); err != nil || version > 0 {
		return version, err
	}
	empty := true
	err = s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(nil, func(path, []byte) (bool, error) {
			empty = false
			return false, nil
		})
	})
	switch name := witness(s.dir); {
	case err != nil:
	case !empty && name == "":
		err = errors.New("it is the database of another program: name another directory")
	case !empty:
		err = fmt.Errorf("%s is damaged: the tables lack the schema of the store, but %s exists: run limitkeeper rebuild, or restore a backup", badger.ManifestFilename, name)
	}
	return 0, err
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
	return witness(dir) != "", nil
}

// eventLogDir is the directory of the event log, within the directory of the store.
const eventLogDir = "eventlog"

// segmentSuffix ends the names of the segments of the event log.
const segmentSuffix = ".seg"

// statusEvery bounds how often the event log stores its end: at most 200 writes of about 1 KiB a second, each at most 10 ms
// after the write that it tells of.
const statusEvery = 5 * time.Millisecond

// firstPosition is the first position in the event log.
const firstPosition = 1

// openEvents opens the event log of a store, and replays the log from the last checkpoint on: see replayFrom.
func (s *Store) openEvents(o Options) error {
	help := s.reserve.Give
	if o.fs == nil {
		o.fs = eventlog.OS
	} else {
		help = nil // the reserve cannot help against the faults that a test injects
	}
	dir := filepath.Join(s.dir, eventLogDir)
	if err := firstOf(os.MkdirAll(dir, 0o700), o.fs.SyncDir(s.dir)); err != nil {
		return err
	}
	mark, err := s.readMark()
	if err != nil {
		return err
	}
	found := s.db.Found()
	if mark < found.Position {
		return &table.DamageError{File: "*" + table.Suffix, What: fmt.Sprintf("the database reaches position %d of the event log, and had reached %d", mark, found.Position)}
	}
	eo := eventLogOptions(s.dir, max(mark, s.inTables.end, found.Log), o)
	eo.OnTorn, eo.OnState, eo.Help = s.logTorn, s.logState, help
	eo.OnWrite, eo.OnSync = o.OnWrite, o.OnSync
	if s.events, err = eventlog.Open(eo); err != nil {
		return err
	}
	return s.replayFrom(mark)
}

// eventLogOptions returns the options of the event log in the directory of a store. known is a position up to which the
// event log was on disk.
func eventLogOptions(dir string, known int64, o Options) eventlog.Options {
	return eventlog.Options{FS: o.fs, Dir: filepath.Join(dir, eventLogDir), SegmentSize: o.segmentSize, Ahead: o.ahead,
		Power: o.Durability == Power, Known: known, Boot: cmp.Or(o.boot, eventlog.Boot()), StatusEvery: statusEvery}
}

// witness returns the name of a segment of the event log in the directory of a store, "" without any. A segment proves
// that the directory had a database: a store creates its first segment after its database.
func witness(dir string) string {
	entries, _ := os.ReadDir(filepath.Join(dir, eventLogDir)) // empty when the directory does not exist
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), segmentSuffix) {
			return filepath.Join(eventLogDir, entry.Name())
		}
	}
	return ""
}

// readMark sets inTables, and returns the mark of the last checkpoint.
func (s *Store) readMark() (mark int64, err error) {
	err = s.db.View(func(txn *badger.Txn) error {
		r := snapshot{txn}
		if mark, err = r.number(at(kindCheckpoint)); err == nil {
			s.inTables, err = r.inTables()
		}
		return err
	})
	return max(mark, firstPosition), err
}

// logTorn logs that the event log has cut off a torn write.
func (s *Store) logTorn(t eventlog.Torn) {
	s.log.Warn("the event log ends with a torn write, as after a power cut: the unfinished bytes are cut off", "dir", s.dir, "file", t.File, "offset", t.Offset, "bytes", t.Bytes)
}

// logState logs when the event log begins to refuse events, and when it takes events again. A final error of the event
// log fails the store.
func (s *Store) logState(err error) {
	switch {
	case err == nil:
		s.log.Warn("the event log can be written again: requests are counted", "dir", s.dir)
	case errors.Is(err, eventlog.ErrTemporary):
		s.log.Error("requests are refused until the event log can be written again", "dir", s.dir, "error", err)
	default:
		_ = s.fail(err)
	}
}

// historySize returns the size of all segments, and their number.
func (s *Store) historySize() (bytes int64, segments int) {
	all := s.events.Segments()
	for _, g := range all {
		bytes += g.End - g.Base
	}
	return bytes, len(all)
}

// historyBytes returns the size of all segments.
func (s *Store) historyBytes() int64 {
	bytes, _ := s.historySize()
	return bytes
}
