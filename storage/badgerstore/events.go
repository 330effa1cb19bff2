package badgerstore

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// segmentSuffix ends the names of the segments of the event log.
const segmentSuffix = ".seg"

// firstPosition is the first position in the event log.
const firstPosition = 1

// openLog opens the event log of a store, or creates it.
func (s *Store) openLog() error {
	o := eventLogOptions(s.dir, logOnDisk(s.dir), s.options)
	o.OnTorn, o.OnFailure = s.logTorn, func(err error) { _ = s.fail(err) }
	o.OnWrite, o.OnSync = s.options.OnWrite, s.options.OnSync
	if err := firstOf(o.FS.SyncDir(s.dir), s.sameDirs()); err != nil {
		return err
	}
	if s.events != nil {
		o.Power = s.events.Power()
	}
	l, err := eventlog.Open(o)
	if err == nil {
		s.events = l
	}
	return err
}

// logOnDisk returns the position up to which the event log of a store that is not open was on disk, as far as the database
// and its images know. Without an event log, an inventory that cannot be read is no first start.
func logOnDisk(dir string) (position int64) {
	state, _, err := table.ReadState(databaseIn(dir))
	if position = state.Log; err != nil && exists(filepath.Join(databaseIn(dir), table.InventoryName)) {
		position = firstPosition + 1
	}
	images, _ := table.Images(imagesIn(dir))
	for _, image := range images { // the log was synced before an image got its name
		position = max(position, image)
	}
	return position
}

// exists reports whether there is a file or directory at a path.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// replayEvents replays the event log from the mark of the database on. A database that may be ahead of the event log, or behind it, is
// damaged.
func (s *Store) replayEvents() error {
	var mark, indexed, version int64
	err := s.inView(func(r view) (err error) {
		if mark, indexed, err = r.readMark(); err == nil {
			version, err = r.number(at(kindSchema))
		}
		return firstOf(err, refuseSchema(version))
	})
	if err != nil {
		return err
	}
	switch from, end := s.events.From(), s.events.Written(); {
	case indexed > end:
		return &table.DamageError{File: "*" + table.Suffix, What: fmt.Sprintf("the database has changes up to position %d, and the event log ends at %d", indexed, end)}
	case mark < from:
		return &table.DamageError{File: "*" + table.Suffix, What: fmt.Sprintf("the database needs the event log from position %d on, and the log begins at %d", mark, from)}
	}
	if err := firstOf(table.RemoveDraft(imagesIn(s.dir)), s.findImages()); err != nil {
		return err
	}
	if image := s.retention.newestImage.Load(); mark < image { // the events before the images may be removed at any time
		return &table.DamageError{File: "*" + table.LogSuffix, What: fmt.Sprintf("the database has lost what an image has: its mark is %d, and that of the image %d", mark, image)}
	}
	s.checkpointer.mark.Store(mark)
	if err := s.loadHolds(); err != nil {
		return err
	}
	r := &replay{s: s, proceed: s.stopped, pagesUpTo: mark, dropped: map[ref]bool{}}
	return r.run(mark, s.events.Written())
}

// eventLogOptions returns the options of the event log in the directory of a store. known is a position up to which the
// event log was on disk.
func eventLogOptions(dir string, known int64, o Options) eventlog.Options {
	return eventlog.Options{FS: o.fs, Dir: eventsIn(dir), SegmentSize: o.segmentSize, Ahead: o.ahead,
		Power: o.Durability == Power, Known: known}
}

// hasSegment reports whether the directory of a store has a segment of the event log.
func hasSegment(dir string) bool {
	names, _ := eventlog.OS.List(eventsIn(dir)) // none when the directory does not exist
	return slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, segmentSuffix) })
}

// readMark returns the mark of the last checkpoint, and the position of the event log up to which the database may have changes.
func (r view) readMark() (mark, indexed int64, err error) {
	mark, err = r.number(at(kindCheckpoint))
	if err == nil {
		indexed, err = r.number(at(kindIndexed))
	}
	return max(mark, firstPosition), indexed, err
}

// logTorn logs that the event log has cut off a torn write.
func (s *Store) logTorn(t eventlog.Torn) {
	s.log.Warn("the event log ends with a torn write, as after a power cut: the unfinished bytes are cut off", "dir", s.dir, "file", t.File, "offset", t.Offset, "bytes", t.Bytes)
}

// historyBytes returns the size of all segments.
func (s *Store) historyBytes() (bytes int64) {
	for _, g := range s.events.Segments() {
		bytes += g.End - g.Base
	}
	return bytes
}
