package badgerstore

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Checking says what [Check] does beside its result.
type Checking struct {
	Progress func(line string)  // how far it is, from time to time
	Damage   func(damage error) // is called with each damage, one line
}

// Checked is what [Check] has read.
type Checked struct {
	Tables, Segments, Events, Records int
	Bytes                             int64 // of tables and segments
	Damaged                           int   // how many damages were reported
	Database                          int   // how many of them [Rebuild] mends; [Repair] mends the others
}

// String counts what Check has read.
func (c Checked) String() string {
	return fmt.Sprintf("%s, %s with %s, %s, %s", plural(c.Tables, "table"), plural(c.Segments, "segment"), plural(c.Events, "event"),
		plural(c.Records, "record"), plural(int(c.Bytes), "byte"))
}

// Err returns an error that names the command which mends the damage of the store in dir, nil without damage.
func (c Checked) Err(dir string) error {
	command := "repair"
	switch {
	case c.Damaged == 0:
		return nil
	case c.Database > 0:
		command = "rebuild"
	}
	return fmt.Errorf("the store in %s is damaged in %s: run limitkeeper %s --store badger:%[1]s, or restore a backup", dir, plural(c.Damaged, "place"), command)
}

// Check verifies everything in a store that is not open: the files of the database, the event log,
// and then whether records, indexes and counters agree. For that it opens the store as a start
// does, and only when all files are whole. A store that is open is [ErrInUse].
func Check(dir string, o Checking) (c Checked, err error) {
	damage := o.Damage
	o.Damage = func(err error) {
		c.Damaged++
		if !errors.Is(err, eventlog.ErrDamaged) {
			c.Database++
		}
		damage(err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("check the store in %s: %w", dir, err)
		}
	}()
	release, err := claim(dir)
	if err != nil {
		return c, err
	}
	err = c.files(dir, o)
	release()
	if err != nil || c.Damaged > 0 {
		return c, err
	}
	s, err := open(dir, Options{Logger: slog.New(slog.DiscardHandler)})
	if isDamage(err) {
		o.Damage(err)
		return c, nil
	}
	if err != nil {
		return c, err
	}
	err = s.checkRecords(&c, o)
	return c, errors.Join(err, s.Close())
}

// files verifies all files, without a change.
func (c *Checked) files(dir string, o Checking) error {
	position, err := table.Check(dir, witness(dir), func(p table.Progress) {
		c.Tables = p.Tables
		if p.Tables%100 == 0 || p.Tables == p.Of {
			o.Progress(fmt.Sprintf("tables %d/%d", p.Tables, p.Of))
		}
		c.Bytes = p.Bytes
	}, o.Damage)
	if err != nil {
		return err
	}
	o.Progress("event log")
	r, err := eventlog.Verify(eventlog.Options{Dir: filepath.Join(dir, eventLogDir), Known: position, Boot: eventlog.Boot()})
	if err != nil {
		return err
	}
	for _, d := range r.Damage {
		o.Damage(d)
	}
	if r.Torn.Bytes > 0 {
		o.Progress(fmt.Sprintf("event log: the last %d bytes of %s are a torn write: a crash interrupted the write, and the next start cuts them off", r.Torn.Bytes, r.Torn.File))
	}
	c.Segments, c.Events, c.Bytes = r.Segments, r.Records, c.Bytes+r.Bytes
	o.Progress(fmt.Sprintf("event log: %s, %s", plural(r.Segments, "segment"), plural(r.Records, "event")))
	return nil
}
