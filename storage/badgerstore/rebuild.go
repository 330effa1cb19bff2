package badgerstore

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Rebuilding has the callbacks of [Rebuild].
type Rebuilding struct {
	Confirm  func(lines []string) bool // is called with the plan, one line for each step; false changes nothing
	Progress func(line string)         // is called with the progress from time to time
}

// asidePrefix begins the name of the directory that Rebuild moves a database to.
const asidePrefix = "damaged-"

// progressEvery is the number of replayed records between two lines of progress.
const progressEvery = 1_000_000

// Rebuild writes a new database for a store that is not open. It begins with the checkpoint copy, or with an empty
// database, and replays the event log. It moves the files of the old database to a directory within dir, and returns
// the name of that directory. It deletes nothing. The name is "" when Confirm has returned false. Rebuild changes
// nothing, and returns an error, when the event log is damaged or has lost records that the new database needs.
// If the process is killed during Rebuild, Open refuses the store until Rebuild is called again, or replays the rest.
func Rebuild(dir string, o Rebuilding) (aside string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("rebuild the store in %s: %w", dir, err)
		}
	}()
	r := rebuild{dir: dir, progress: o.Progress}
	release, err := claim(dir)
	if err != nil {
		return "", err
	}
	yes := false
	if err = r.plan(); err == nil {
		if yes = o.Confirm(r.lines()); yes {
			aside, err = r.setAside(time.Now())
		}
	}
	release() // Badger takes the lock itself
	if err != nil || !yes {
		return aside, err
	}
	return aside, r.run()
}

// rebuild is the plan of a rebuild.
type rebuild struct {
	dir      string
	progress func(string)
	files    []string // of the database, to be moved
	bytes    int64    // of these files
	known    bool     // the old database knew where the event log ends on disk
	log      eventlog.Report
	copied   time.Time // when the copy was made; zero to begin with an empty database
}

// plan finds the source of the new database: the copy and the event log, or the event log alone. It changes nothing.
func (r *rebuild) plan() error {
	if err := r.list(); err != nil {
		return err
	}
	mark, err := table.ReadMark(r.dir)
	if err != nil && !isDamage(err) {
		return err
	}
	known := mark.Log
	r.known = err == nil && known > 0
	if mark, err = table.ReadMark(r.copy()); err == nil {
		known = max(known, mark.Log)
	}
	r.progress("event log")
	r.log, err = eventlog.Verify(eventlog.Options{Dir: filepath.Join(r.dir, eventLogDir), Known: known, Boot: eventlog.Boot()})
	switch {
	case err != nil:
		return err
	case len(r.log.Damage) > 0:
		return fmt.Errorf("run limitkeeper repair, or restore a backup if the database is damaged too: %w", r.log.Damage[0])
	}
	if err = r.findCopy(); err == nil || beginsStore(r.log) {
		return nil
	}
	return fmt.Errorf("the event log does not begin with the first record of the store, and %w: restore a backup", err)
}

func (r *rebuild) copy() string { return copyOrDraft(r.dir) }

// findCopy finds the checkpoint copy and verifies it. The error says why the copy cannot be used.
func (r *rebuild) findCopy() error {
	position := positionOf(r.copy())
	info, err := os.Stat(filepath.Join(r.copy(), table.InventoryName))
	switch {
	case position == noCopy || err != nil:
		return errors.New("there is no whole copy of the database")
	case position < r.log.From:
		return errors.New("the part behind the copy of the database was removed or repaired")
	}
	var damaged error
	_, err = table.Check(r.copy(), "", func(p table.Progress) {
		if p.Tables%100 == 0 || p.Tables == p.Of {
			r.progress(fmt.Sprintf("copy: tables %d/%d", p.Tables, p.Of))
		}
	}, func(err error) { damaged = firstOf(damaged, err) })
	if err = firstOf(err, damaged); err != nil {
		return fmt.Errorf("the copy of the database is damaged: %w", err)
	}
	r.copied = info.ModTime()
	return nil
}

// databasePatterns are patterns for the names of the files of a database.
var databasePatterns = []string{"MANIFEST*", "KEYREGISTRY*", "REWRITE-KEYREGISTRY", "DISCARD", table.InventoryName + "*",
	"*" + table.Suffix, "*" + logSuffix, "*" + valueLogSuffix}

// list lists the files of the database.
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

// beginsStore reports whether an event log begins with the first record of a new store. The event log of a store that
// an earlier version has created does not: that version wrote keys and users only to the database.
func beginsStore(r eventlog.Report) bool {
	if r.From != firstPosition || len(r.First) == 0 || r.First[0] != recordRedo {
		return false
	}
	_, w, err := decodeRedo(r.First, firstPosition)
	if err != nil {
		return false
	}
	_, is := w.of(at(kindSchema))
	return is
}

// lines describes the plan.
func (r *rebuild) lines() []string {
	from := fmt.Sprintf("all %d records of the event log", r.log.Records)
	if !r.copied.IsZero() {
		from = fmt.Sprintf("the copy of %s and the event log from then on", r.copied.UTC().Format(time.RFC3339))
	}
	lines := []string{
		fmt.Sprintf("A new database will be made from %s.", from),
		fmt.Sprintf("The old database (%d files, %d bytes) will be moved to a directory %s<time> in %s. Nothing is deleted.", len(r.files), r.bytes, asidePrefix, r.dir),
	}
	if !r.known {
		return append(lines, "It is not known where the event log ended: records that it has lost at its end stay lost.")
	}
	return append(lines, "The event log is whole: no count, key, user or plan is lost.")
}

// setAside moves the files of the database to a new directory and returns its name. It moves MANIFEST first: without
// MANIFEST, Open refuses the store until Rebuild is called again.
func (r *rebuild) setAside(now time.Time) (string, error) {
	name := asidePrefix + now.UTC().Format("20060102T150405.000Z")
	to := filepath.Join(r.dir, name)
	if err := os.Mkdir(to, 0o700); err != nil {
		return "", err
	}
	for _, file := range r.files {
		if err := os.Rename(filepath.Join(r.dir, file), filepath.Join(to, file)); err != nil {
			return "", err
		}
	}
	return name, firstOf(eventlog.OS.SyncDir(to), eventlog.OS.SyncDir(r.dir))
}

// create writes the database into which the event log is replayed: the copy, or an empty one.
func (r *rebuild) create() error {
	if !r.copied.IsZero() {
		return table.Restore(r.dir, r.copy())
	}
	db, err := table.Open(table.Options{Dir: r.dir, Logger: slog.New(slog.DiscardHandler), Filler: at(kindFiller)})
	if err != nil {
		return err
	}
	return db.Close()
}

// run writes the new database and replays the event log into it.
func (r *rebuild) run() error {
	if err := r.create(); err != nil {
		return err
	}
	replayed := 0
	s, err := open(r.dir, Options{Logger: slog.New(slog.DiscardHandler), failpoint: func(at failpoint) {
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
	r.progress(fmt.Sprintf("replayed %d records", replayed))
	return s.Close()
}
