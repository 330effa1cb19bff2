package badgerstore

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// RebuildOptions has the callbacks of [Rebuild].
type RebuildOptions struct {
	Confirm  func(lines []string) bool // is called with the plan, one line for each step; false changes nothing
	Progress func(line string)         // is called with the progress from time to time
}

// asidePrefix begins the name of the directory that Rebuild moves a database to.
const asidePrefix = "damaged-"

// rebuildDir is where Rebuild writes the new database.
const rebuildDir = "rebuild-draft"

// progressEvery is the number of replayed records between two lines of progress.
const progressEvery = 1_000_000

// Rebuild writes a new database for a store that is not open. It begins with the checkpoint copy, or with an empty
// database, and replays the event log. It moves the files of the old database to a directory within dir, and returns
// the name of that directory. The name is "" when nothing was changed: Confirm has returned false, or the database is
// whole. When the event log is damaged too, Rebuild also repairs it, as [Repair] does: for that it needs the copy.
// Rebuild changes nothing, and returns an error, when the event log alone is damaged, when it lacks records that the
// new database needs, and when the disk has no room. When Rebuild is killed, Open refuses the store until Rebuild is
// called again, or replays the rest.
func Rebuild(dir string, o RebuildOptions) (aside string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("rebuild the store in %s: %w", dir, err)
		}
	}()
	r := rebuild{dir: dir, progress: o.Progress, release: func() {}}
	defer func() { r.release(); r.repair.close() }()
	if err := r.claim(); err != nil {
		return "", err
	}
	if err := r.plan(); err != nil || !o.Confirm(r.lines()) {
		return "", err
	}
	if r.whole {
		r.release() // Check locks the store itself
		c, err := Check(dir, CheckOptions{Progress: o.Progress, Damage: func(err error) { o.Progress(err.Error()) }})
		if err != nil || c.Damaged == 0 {
			return "", err
		}
		if err := r.claim(); err != nil {
			return "", err
		}
	}
	if err = r.create(); err == nil {
		aside, err = r.replace(time.Now())
	}
	err = firstOf(err, os.RemoveAll(filepath.Join(dir, rebuildDir)))
	if p := r.repair; p != nil && err == nil {
		r.repair = nil // apply closes it
		_, err = p.apply()
	}
	r.release() // open locks the store itself
	if err == nil {
		err = r.replay()
	}
	if err = withAdvice(dir, err); err != nil && aside != "" {
		err = fmt.Errorf("%w; the old database is in %s: run limitkeeper rebuild again", err, aside)
	}
	return aside, err
}

// claim locks the store until release is called.
func (r *rebuild) claim() error {
	release, err := claim(r.dir)
	if err == nil {
		r.release = release
	}
	return err
}

// rebuild is the plan of a rebuild.
type rebuild struct {
	dir          string
	progress     func(string)
	release      func()   // unlocks the store; a second call does nothing
	files        []string // of the database, to be moved
	bytes        int64    // of these files
	whole        bool     // true if no file of the database is damaged
	known        int64    // the position up to which the event log is known to have been on disk
	endKnown     bool     // the old database has stored the position known
	log          eventlog.Report
	repair       *repairPlan // of the event log, nil without damage
	copied       time.Time   // when the copy was made; zero to begin with an empty database
	needsReserve bool        // the disk has room only if Rebuild deletes the reserve
	minFree      int64       // keeps the size of the reserve
}

// plan finds the source of the new database: the copy and the event log, or the event log alone. It changes nothing.
func (r *rebuild) plan() error {
	if err := r.list(); err != nil {
		return err
	}
	if err := r.checkDatabase(); err != nil {
		return err
	}
	r.progress("event log")
	var err error
	r.log, err = eventlog.Verify(eventLogOptions(r.dir, r.known, Options{}))
	switch {
	case err != nil:
		return err
	case len(r.log.Damage) > 0 && r.whole:
		return fmt.Errorf("the database is whole: run limitkeeper repair: %w", r.log.Damage[0])
	}
	files, err := r.findCopy()
	switch {
	case err == nil:
		if r.repair, err = planRepair(r.dir, files, r.known); err != nil {
			return err
		}
	case len(r.log.Damage) > 0:
		return fmt.Errorf("the database and the event log are damaged, and %w: restore a backup: %w", err, r.log.Damage[0])
	case !hasFirstRecord(r.log):
		advice := "restore a backup"
		if r.whole {
			advice = "the files of the database are whole: run limitkeeper check, and restore a backup if it reports damage"
		}
		return fmt.Errorf("the event log does not begin with the first record of the store, and %w: %s", err, advice)
	}
	return r.checkRoom()
}

// checkDatabase verifies the files of the old database.
func (r *rebuild) checkDatabase() error {
	state, err := table.ReadState(r.dir)
	if err != nil && !isDamage(err) {
		return err
	}
	r.known, r.endKnown, r.whole = state.Log, err == nil && state.Log > 0, true
	if state, err := table.ReadState(r.copy()); err == nil {
		r.known = max(r.known, state.Log)
	}
	_, err = table.Check(tableOptions(r.dir, slog.New(slog.DiscardHandler)), func(p table.Progress) {
		if p.Tables%100 == 0 || p.Tables == p.Of {
			r.progress(fmt.Sprintf("tables %d/%d", p.Tables, p.Of))
		}
	}, func(error) { r.whole = false })
	return err
}

func (r *rebuild) copy() string { return copyOrDraft(r.dir) }

// findCopy finds the checkpoint copy and verifies it. The error says why the copy cannot be used.
func (r *rebuild) findCopy() (*table.Files, error) {
	position := positionOf(r.copy())
	info, err := os.Stat(filepath.Join(r.copy(), table.InventoryName))
	switch {
	case position == noCopy || err != nil:
		return nil, errors.New("there is no whole copy of the database")
	case position < r.log.From:
		return nil, errors.New("the part after the copy of the database was removed or repaired")
	}
	r.progress("copy of the database")
	files, err := table.Inspect(table.Options{Dir: r.copy(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, fmt.Errorf("the copy of the database is damaged: %w", err)
	}
	r.copied = info.ModTime()
	return files, nil
}

// checkRoom returns an error unless the disk has room for the new database, with or without the reserve.
func (r *rebuild) checkRoom() error {
	from := r.dir
	if !r.copied.IsZero() {
		from = r.copy()
	}
	size, err := tableBytes(from)
	if err != nil {
		return err
	}
	r.minFree = minFreeOf(r.dir)
	r.needsReserve, err = reserve.RoomFor(r.dir, size)
	return err
}

// databasePatterns are patterns for the names of the files of a database.
var databasePatterns = []string{"MANIFEST*", "KEYREGISTRY*", "REWRITE-KEYREGISTRY", "DISCARD", table.InventoryName + "-*",
	"*" + table.Suffix, "*" + logSuffix, "*" + valueLogSuffix}

// list lists the files of the database except INVENTORY.
func (r *rebuild) list() error {
	for _, pattern := range databasePatterns {
		names, err := filepath.Glob(filepath.Join(r.dir, pattern))
		if err != nil {
			return err
		}
		for _, name := range names {
			info, err := os.Stat(name)
			if err != nil {
				return err
			}
			r.files, r.bytes = append(r.files, filepath.Base(name)), r.bytes+info.Size()
		}
	}
	return nil
}

// hasFirstRecord reports whether an event log begins with the first record of a store, which has the schema. The event log
// does not after retention has removed its first segment, or after a repair.
func hasFirstRecord(r eventlog.Report) bool {
	if r.From != firstPosition || len(r.First) == 0 || r.First[0] != recordRedo {
		return false
	}
	_, w, err := decodeRedo(r.First, firstPosition)
	if err != nil {
		return false
	}
	_, ok := w.value(at(kindSchema))
	return ok
}

// lines describes the plan.
func (r *rebuild) lines() (lines []string) {
	if r.whole {
		lines = append(lines, "The files of the database are whole. Its records are checked first: when they are whole too, nothing is replaced.")
	}
	if r.repair != nil {
		lines = append(lines, r.repair.lines()...)
	}
	from := fmt.Sprintf("all %d records of the event log", r.log.Records)
	if !r.copied.IsZero() {
		from = fmt.Sprintf("the copy of %s and the event log from then on", r.copied.UTC().Format(time.RFC3339))
	}
	lines = append(lines,
		fmt.Sprintf("A new database will be made from %s.", from),
		fmt.Sprintf("The old database (%s, %d bytes) will be moved to a directory %s<time> in %s. Nothing is deleted.", plural(len(r.files), "file"), r.bytes, asidePrefix, r.dir))
	switch {
	case r.repair != nil:
		return append(lines, "The damaged part of the event log will be moved to files that end in "+eventlog.AsideSuffix+".")
	case !r.endKnown:
		return append(lines, "The end of the event log is not known: records that were lost at its end stay lost.")
	}
	return append(lines, "The event log is whole: no count, key, user or plan is lost.")
}

// create writes the database into which the event log is replayed, to its own directory: the copy, or an empty one.
func (r *rebuild) create() error {
	if r.needsReserve {
		if err := os.Remove(filepath.Join(r.dir, reserve.Name)); err != nil { // the replay creates the reserve again
			return err
		}
	}
	draft := filepath.Join(r.dir, rebuildDir)
	if err := firstOf(os.RemoveAll(draft), os.Mkdir(draft, 0o700)); err != nil {
		return err
	}
	if !r.copied.IsZero() {
		return table.Restore(draft, r.copy(), r.known)
	}
	db, err := table.Open(table.Options{Dir: draft, Logger: slog.New(slog.DiscardHandler), Filler: at(kindFiller)})
	if err != nil {
		return err
	}
	return firstOf(db.StoreState(table.State{Log: r.known}), db.Close())
}

// replace moves the files of the database to a new directory, whose name it returns, and the new database to their
// place. The name is "" when replace has moved no file. INVENTORY, which says where the event log ends, is always there.
// MANIFEST goes first and comes last: without MANIFEST, Open refuses the store until Rebuild is called again.
func (r *rebuild) replace(now time.Time) (name string, err error) {
	name = asidePrefix + now.UTC().Format("20060102T150405.000Z")
	to, draft := filepath.Join(r.dir, name), filepath.Join(r.dir, rebuildDir)
	old, fresh := rebuild{dir: r.dir}, rebuild{dir: draft} // Check has changed the files since plan
	if err := firstOf(old.list(), fresh.list()); err != nil {
		return "", err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return "", err
	}
	inventory, err := os.ReadFile(filepath.Join(r.dir, table.InventoryName))
	if err == nil {
		err = os.WriteFile(filepath.Join(to, table.InventoryName), inventory, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", firstOf(err, os.RemoveAll(to))
	}
	if err := firstOf(rename(r.dir, to, old.files), eventlog.OS.SyncDir(to), eventlog.OS.SyncDir(r.dir)); err != nil {
		return name, err
	}
	slices.Reverse(fresh.files)
	return name, firstOf(rename(draft, r.dir, append([]string{table.InventoryName}, fresh.files...)), eventlog.OS.SyncDir(r.dir))
}

// rename moves files from one directory to another one.
func rename(from, to string, names []string) error {
	for _, name := range names {
		if err := os.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// replay replays the event log into the new database.
func (r *rebuild) replay() error {
	replayed := 0
	s, err := open(r.dir, Options{Logger: slog.New(slog.DiscardHandler), MinFree: r.minFree, failpoint: func(at failpoint) {
		if at != failReplay {
			return
		}
		if replayed++; replayed%progressEvery == 0 {
			r.progress(fmt.Sprintf("replayed %d of %d records", replayed, r.log.Records))
		}
	}})
	if err != nil {
		return err
	}
	r.progress(fmt.Sprintf("replayed %s", plural(replayed, "record")))
	return s.Close()
}

// The checkpoint copy is a copy of all tables. Each scrub writes the bytes that it has verified to a draft. A whole
// draft replaces the copy of the previous scrub. [Rebuild] restores the copy, and replays the event log from the
// position of the copy on, so the store keeps the segments after that position. When these segments or the copy take
// room that requests need, the store removes the copy.
const (
	copyDir  = "copy"
	draftDir = "copy-draft" // a copy that is being written

	noCopy = math.MaxInt64 // the position when there is no copy
)

// copyTries is the number of attempts to begin a copy while Badger changes the tables.
const copyTries = 60

// copyPosition returns the position of the event log from which on the copy in the directory of a store needs the
// log, noCopy when there is no copy.
func copyPosition(dir string) int64 { return positionOf(filepath.Join(dir, copyDir)) }

// positionOf is copyPosition for the directory of a copy or of a draft.
func positionOf(path string) int64 {
	state, err := table.ReadState(path)
	if err != nil || state.Position == 0 {
		return noCopy
	}
	return state.Position
}

// copyOrDraft returns the path of the copy in the directory of a store. It returns the path of the draft when only
// the draft is whole: the process was killed before it renamed the draft.
func copyOrDraft(dir string) string {
	if draft := filepath.Join(dir, draftDir); copyPosition(dir) == noCopy && positionOf(draft) != noCopy {
		return draft
	}
	return filepath.Join(dir, copyDir)
}

// resumeCopy finds the copy of an earlier process. A whole draft becomes the copy if there is none and if the event
// log still has all segments from the position of the draft on. Any other draft is removed.
func (s *Store) resumeCopy() error {
	all, path := s.events.Segments(), copyOrDraft(s.dir)
	if path != filepath.Join(s.dir, copyDir) && len(all) > 0 && all[0].Base <= positionOf(path) {
		if err := renameDraft(s.dir); err != nil {
			return err
		}
	}
	s.retention.copied.Store(copyPosition(s.dir))
	return os.RemoveAll(filepath.Join(s.dir, draftDir))
}

// renameDraft puts the draft in the place of the copy.
func renameDraft(dir string) error {
	return firstOf(removeCopy(dir), os.Rename(filepath.Join(dir, draftDir), filepath.Join(dir, copyDir)), eventlog.OS.SyncDir(dir))
}

// copyTables verifies the tables and writes a new copy. It returns false when no copy was written: then the caller
// verifies the tables.
func (c *scrubbing) copyTables() (verified bool, err error) {
	s := c.s
	if !s.roomForCopy() {
		return false, nil
	}
	defer func() {
		if !verified {
			err = firstOf(err, s.cancelCopy())
		}
	}()
	draft, err := c.newCopy()
	if draft == nil || err != nil {
		return false, err
	}
	defer draft.Close()
	dir := filepath.Join(s.dir, draftDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return false, err
	}
	whole, err := draft.Write(dir, func(n int) bool {
		return c.pause(n) && s.retention.copied.Load() != noCopy
	})
	if err != nil || !whole {
		return false, err
	}
	return true, s.replaceCopy()
}

// newCopy begins a copy, and tries again every second while Badger changes the tables. It returns nil after copyTries
// attempts, and when the scrub has to stop.
func (c *scrubbing) newCopy() (*table.Copy, error) {
	return tryCopy(c.s.beginCopy, func() bool { return c.sleep(time.Second) })
}

// tryCopy calls begin, at most copyTries times, while Badger changes the tables. It returns nil when begin did not
// succeed, and when wait returns false.
func tryCopy(begin func() (*table.Copy, error), wait func() bool) (*table.Copy, error) {
	for range copyTries {
		draft, err := begin()
		if !errors.Is(err, table.ErrChanging) {
			return draft, err
		}
		if !wait() {
			break
		}
	}
	return nil, nil
}

// beginCopy begins a copy. From then on the event log keeps the segments that the copy needs. The caller
// calls replaceCopy or cancelCopy, also after an error.
func (s *Store) beginCopy() (*table.Copy, error) {
	s.retention.running.Lock()
	position := s.flushed.Load()
	s.retention.copied.CompareAndSwap(noCopy, position)
	s.retention.running.Unlock()
	return s.db.NewCopy(position) // waits for Badger
}

// replaceCopy puts the draft in the place of the copy. If dropCopy was called since beginCopy, it removes the draft.
func (s *Store) replaceCopy() error {
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	if s.retention.copied.Load() == noCopy {
		return os.RemoveAll(filepath.Join(s.dir, draftDir))
	}
	err := renameDraft(s.dir)
	s.retention.copied.Store(copyPosition(s.dir))
	return err
}

// cancelCopy removes the draft, and keeps the copy of the previous scrub.
func (s *Store) cancelCopy() error {
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	if s.retention.copied.Load() != noCopy {
		s.retention.copied.Store(copyPosition(s.dir))
	}
	return os.RemoveAll(filepath.Join(s.dir, draftDir))
}

// roomForCopy reports whether the disk has room for another copy of the tables. Without room it removes the copy of
// the previous scrub, and checks again.
func (s *Store) roomForCopy() bool {
	size, err := tableBytes(s.dir)
	if err != nil {
		return false
	}
	enough := func() bool {
		free, err := s.freeSpace()
		return err == nil && free >= 2*uint64(s.reserve.MinFree())+size
	}
	if enough() {
		return true
	}
	s.retention.running.Lock()
	defer s.retention.running.Unlock()
	s.dropCopy("the disk has no room for two copies of the database")
	return enough()
}

// tableBytes returns the size of all tables in a directory.
func tableBytes(dir string) (sum uint64, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+table.Suffix))
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil { // otherwise the table was compacted and deleted
			sum += uint64(info.Size())
		}
	}
	return sum, err
}

// dropCopy removes the copy, and ends the writing of a draft. It returns false when there was neither. The caller
// holds retention.running.
func (s *Store) dropCopy(reason string) bool {
	if s.retention.copied.Swap(noCopy) == noCopy {
		return false
	}
	err := removeCopy(s.dir)
	s.log.Warn("the checkpoint copy is removed: limitkeeper rebuild has no copy until the next scrub", "dir", s.dir, "reason", reason, "error", err)
	return true
}

// removeCopy removes the copy of a store, and INVENTORY first: without INVENTORY, the rest that a killed process
// leaves is not a copy.
func removeCopy(dir string) error {
	dir = filepath.Join(dir, copyDir)
	if err := os.Remove(filepath.Join(dir, table.InventoryName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}
