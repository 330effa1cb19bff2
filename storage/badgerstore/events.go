package badgerstore

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// eventLogDir is the directory of the event log within that of the store.
const eventLogDir = "ledger"

// segmentSuffix ends the names of the segments of the event log.
const segmentSuffix = ".seg"

// noteEvery is how soon after a write the event log notes how far it is written: 100 writes of 40 bytes a second at most.
const noteEvery = 10 * time.Millisecond

// firstPosition is the first position in the event log.
const firstPosition = 1

// openEvents opens the event log and replays it from the checkpoint on: see replayFrom.
func (s *Store) openEvents(o Options) (*replay, error) {
	help := s.reserve.give
	if o.fs == nil {
		o.fs = eventlog.OS
	} else {
		help = nil // a test injects faults, which the reserve cannot mend
	}
	dir := filepath.Join(s.dir, eventLogDir)
	if err := firstOf(os.MkdirAll(dir, 0o700), o.fs.SyncDir(s.dir)); err != nil {
		return nil, err
	}
	mark, kept, err := s.readMark()
	if err != nil {
		return nil, err
	}
	found := s.db.Found()
	if mark < found.Position {
		return nil, &table.DamageError{File: "*" + table.Suffix, What: fmt.Sprintf("the database reaches position %d of the event log, and had reached %d", mark, found.Position)}
	}
	eo := eventLogOptions(s.dir, max(mark, found.Log), o)
	eo.OnTorn, eo.OnState, eo.Help = s.logTorn, s.logState, help
	if s.events, err = eventlog.Open(eo); err != nil {
		return nil, err
	}
	return s.replayFrom(mark, kept)
}

// eventLogOptions returns the options of the event log in the directory of a store. The log is known to be on disk up to
// the position known.
func eventLogOptions(dir string, known int64, o Options) eventlog.Options {
	return eventlog.Options{FS: o.fs, Dir: filepath.Join(dir, eventLogDir), SegmentSize: o.segmentSize, Ahead: o.ahead,
		Power: o.Durability == Power, Known: known, Boot: cmp.Or(o.boot, eventlog.Boot()), NoteEvery: noteEvery}
}

// witness returns the name of a segment of the event log in the directory of a store, "" when
// there is none: a store makes the first one after its database.
func witness(dir string) string {
	entries, _ := os.ReadDir(filepath.Join(dir, eventLogDir)) // without the directory there are none
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), segmentSuffix) {
			return filepath.Join(eventLogDir, entry.Name())
		}
	}
	return ""
}

// readMark returns the position up to which the checkpoint has all events, and until when
// the segments of format 1 must be kept, by their bases.
func (s *Store) readMark() (mark int64, kept map[int64]eventlog.Keep, err error) {
	kept = map[int64]eventlog.Keep{}
	err = s.db.View(func(txn *badger.Txn) error {
		r := snapshot{txn}
		if mark, err = r.number(at(kindCheckpoint)); err != nil {
			return err
		}
		return r.each(at(kindSegment), true, func(p path, record []byte) (bool, error) {
			base := (&reading{p[1:]}).uint64()
			k, err := decodeKeep(record, s.clock.Load())
			if err != nil {
				return false, fmt.Errorf("the record of the segment %016x: %w", base, err)
			}
			kept[int64(base)] = k
			return true, nil
		})
	})
	return max(mark, firstPosition), kept, err
}

// keepFormat1 tells the event log until when its segments of format 1 must be kept, and stores
// these times: the next replay may begin behind the segments, and a record of before schema 4
// would be read as later with each opening. kept has the stored times. replayed has the times of
// the events behind the checkpoint.
func (s *Store) keepFormat1(kept, replayed map[int64]eventlog.Keep) error {
	w := newWrites()
	for _, g := range s.events.Segments() {
		if g.Version != 1 {
			break
		}
		k, r := kept[g.Base], replayed[g.Base]
		k = eventlog.Keep{Until: max(k.Until, r.Until), Hard: max(k.Hard, r.Hard)}
		w.put(segmentKey(g.Base), encodeKeep(k))
		s.events.SetKeep(g.Base, k)
	}
	for _, part := range w.split() {
		if err := s.store(part, nil); err != nil {
			return err
		}
	}
	return nil
}

// logTorn logs that a torn write was cut off.
func (s *Store) logTorn(t eventlog.Torn) {
	s.log.Warn("the event log ends with a torn write, which is cut off", "dir", s.dir, "file", t.File, "offset", t.Offset, "bytes", t.Bytes)
}

// logState logs once when the event log begins to refuse events, and once when it takes them
// again. After a final error the store takes no more writes.
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

// historyBytes returns the size of all segments.
func (s *Store) historyBytes() (sum int64) {
	for _, g := range s.events.Segments() {
		sum += g.End - g.Base
	}
	return sum
}
