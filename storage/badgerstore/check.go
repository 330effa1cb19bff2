package badgerstore

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/dustin/go-humanize/english"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// CheckOptions has the callbacks of [Check].
type CheckOptions struct {
	Progress func(line string)  // is called with the progress from time to time
	Damage   func(damage error) // is called with each damage; the error has one line
}

// CheckReport is the result of [Check].
type CheckReport struct {
	Tables, Segments, Events int
	Bytes                    int64 // size of the tables and segments
	Damaged                  int   // number of reported damages
	Database                 int   // damages of the database: the next start rebuilds it; [Repair] mends the others
}

// String returns the numbers of tables, segments, events and bytes read.
func (c CheckReport) String() string {
	return fmt.Sprintf("%s, %s with %s of the event log, %s", english.Plural(c.Tables, "table", ""),
		english.Plural(c.Segments, "segment", ""), english.Plural(c.Events, "record", ""), english.Plural(int(c.Bytes), "byte", ""))
}

// Err returns an error that says how the damage of the store in dir is mended, nil without damage.
func (c CheckReport) Err(dir string) error {
	places := english.Plural(c.Damaged, "place", "")
	switch c.Damaged {
	case 0:
		return nil
	case c.Database:
		return fmt.Errorf("the database of the store in %s is damaged in %s: the next start rebuilds it, and nothing is lost", dir, places)
	}
	return fmt.Errorf("the store in %s is damaged in %s: run limitkeeper repair --store badger:%[1]s, or restore a backup", dir, places)
}

// Check verifies every file of a store that is not open: the database, its images and the event log. It changes no file.
// Check returns [ErrInUse] for an open store.
func Check(dir string, o CheckOptions) (c CheckReport, err error) {
	release, err := table.Claim(dir)
	if err == nil {
		defer release()
		err = c.files(dir, o)
	}
	if err != nil {
		err = fmt.Errorf("check the store in %s: %w", dir, err)
	}
	return c, err
}

// files verifies all files.
func (c *CheckReport) files(dir string, o CheckOptions) error {
	report := func(err error) error {
		if !isDamage(err) {
			return err
		}
		if c.Damaged++; !errors.Is(err, eventlog.ErrDamaged) {
			c.Database++
		}
		o.Damage(err)
		return nil
	}
	var err error
	if hasSegment(dir) { // otherwise the store is new, and has no database
		err = table.Verify(tableOptions(dir, slog.New(slog.DiscardHandler)), func(p table.Progress, err error) error {
			if p.Tables > 0 {
				c.Tables, c.Bytes = p.Tables, p.Bytes
				if p.Tables%100 == 0 || p.Tables == p.Of {
					o.Progress(fmt.Sprintf("tables %d/%d", p.Tables, p.Of))
				}
			}
			return report(err)
		})
	}
	if err != nil {
		return err
	}
	images, err := table.Images(imagesIn(dir))
	for _, image := range images {
		_, _, damaged := table.ReadImage(imagesIn(dir), image)
		err = firstOf(err, report(damaged))
	}
	if err != nil {
		return err
	}
	o.Progress("event log")
	r, err := eventlog.Verify(eventlog.Options{Dir: eventsIn(dir), Known: logOnDisk(dir)}, nil)
	if err != nil {
		return err
	}
	for _, d := range r.Damage {
		_ = report(d)
	}
	if r.Torn.Bytes > 0 {
		o.Progress(fmt.Sprintf("event log: the last %d bytes of %s are a torn write: a crash interrupted the write, and the next start cuts them off", r.Torn.Bytes, r.Torn.File))
	}
	c.Segments, c.Events, c.Bytes = r.Segments, r.Records, c.Bytes+r.Bytes
	o.Progress(fmt.Sprintf("event log: %s, %s",
		english.Plural(r.Segments, "segment", ""), english.Plural(r.Records, "record", "")))
	return nil
}
