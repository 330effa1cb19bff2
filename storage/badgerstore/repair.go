package badgerstore

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// Repair accepts what the damage of the event log has cost, so that the store can be opened. It goes back to the moment up to
// which most is known: of the closed database, of an image, or of the end of the readable event log after one of them.
// Everything behind that moment is lost. Of the event log, Repair keeps the undamaged part that reaches to that moment. The history before
// this part is lost. Repair renames each segment outside of this part, to a name that ends in .damaged, or .damaged-2 and so on,
// and returns these names. It calls confirm first, with one line for each damage and each loss, and changes nothing when confirm
// returns false. Without damage Repair does not call confirm.
func Repair(dir string, confirm func(lines []string) bool) (names []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("repair the store in %s: %w", dir, err)
		}
	}()
	release, err := table.Claim(dir)
	if err != nil {
		return nil, err
	}
	defer release()
	p, err := planRepair(dir)
	if err != nil || p == nil {
		return nil, err
	}
	lines, err := p.lines()
	if err != nil || !confirm(lines) {
		return nil, err
	}
	names, err = p.apply()
	return names, withAdvice(dir, err)
}

// repairPlan is a plan to repair the event log of a store.
type repairPlan struct {
	dir   string
	log   eventlog.Report
	from  source
	until int64        // the repaired store has everything before this position
	keep  eventlog.Run // the part of the event log that is kept
}

// planRepair plans the repair of the event log of a store. The plan is nil without damage. planRepair changes nothing. It
// returns an error when nothing is left.
func planRepair(dir string) (p *repairPlan, err error) {
	p = &repairPlan{dir: dir}
	if p.log, err = eventlog.Verify(p.options(), nil); err != nil || len(p.log.Damage) == 0 {
		return nil, err
	}
	sources, err := repairSources(dir)
	if err != nil {
		return nil, err
	}
	for _, from := range sources {
		position := max(from.state.Position, firstPosition)
		p.consider(from, eventlog.Run{From: position, To: position})
		for _, run := range p.log.Runs {
			if run.From <= position && position <= run.To {
				p.consider(from, run)
			}
		}
	}
	if p.until <= firstPosition {
		return nil, fmt.Errorf("the store has no whole database, and the first record of the event log cannot be read: restore a backup: %w", p.log.Damage[0])
	}
	return p, nil
}

// options returns the options of the event log.
func (p *repairPlan) options() eventlog.Options {
	return eventLogOptions(p.dir, logOnDisk(p.dir), Options{})
}

// repairSources returns the closed database, the whole images, newest first, and the empty database.
func repairSources(dir string) (sources []source, err error) {
	if state, closed, err := table.ReadState(databaseIn(dir)); err == nil && closed {
		o := tableOptions(dir, slog.New(slog.DiscardHandler))
		if err = table.Verify(o, func(_ table.Progress, err error) error { return err }); err == nil {
			sources = append(sources, source{state: state, stays: true})
		} else if !doubtful(err) {
			return nil, err
		}
	}
	positions, err := table.Images(imagesIn(dir))
	for _, position := range slices.Backward(positions) {
		state, records, err := table.ReadImage(imagesIn(dir), position)
		if err == nil {
			sources = append(sources, source{state: state, records: records})
		} else if !isDamage(err) {
			return nil, err
		}
	}
	return append(sources, source{}), err
}

// consider takes a source and a run that includes its position into the plan, if the repaired store then has more of the event log than
// with an earlier choice, or as much with more history.
func (p *repairPlan) consider(from source, keep eventlog.Run) {
	until, log := keep.To, from.state.Log
	if until < log { // the database may have records behind the run
		if from.stays { // the mark of the closed database cannot be moved
			return
		}
		until, keep = from.state.Position, eventlog.Run{From: log, To: log}
	}
	if until > p.until || until == p.until && keep.To-keep.From > p.keep.To-p.keep.From {
		p.from, p.until, p.keep = from, until, keep
	}
}

// apply repairs the event log, and returns the names of the files that it has set aside. The caller has claimed the
// directory since planRepair. The database is prepared first: until the event log is repaired, the store stays damaged.
// An interrupted repair can be planned again: the plan is the same, or has the prepared database as its source.
func (p *repairPlan) apply() (names []string, err error) {
	err = firstOf(diskspace.None(p.dir).Need(diskspace.OpeningNeeds, "a repair"), makeDirs(p.dir))
	if err == nil && !p.from.stays {
		err = p.renewDatabase()
	}
	if err != nil {
		return nil, err
	}
	return eventlog.Cut(p.options(), p.keep)
}

// renewDatabase makes the database from the source of the plan. Its mark moves to the end of the event log when that is behind
// the position of the source. Its state keeps that position: a repeated plan does not take it for a database with everything before the end.
func (p *repairPlan) renewDatabase() error {
	src := p.from
	src.state.Log = p.keep.To
	if p.until < p.keep.To && p.from.records != nil {
		src.records = func(fn func(key, value []byte) error) error {
			return p.from.records(func(key, value []byte) error {
				if bytes.Equal(key, at(kindCheckpoint)) {
					value = encodeNumber(p.keep.To)
				}
				return fn(key, value)
			})
		}
	}
	// Newer images have records that the event log is losing.
	if err := table.RemoveImages(imagesIn(p.dir), func(position int64) bool { return position > p.from.state.Position }); err != nil {
		return err
	}
	db, err := src.create(tableOptions(p.dir, slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	db.Finish(src.state)
	return db.Close()
}

// lines describes each damage, the kept part of the event log, the history before this part, and everything behind it.
func (p *repairPlan) lines() (lines []string, err error) {
	for _, d := range p.log.Damage {
		lines = append(lines, d.Error())
	}
	var kept, history, lost eventCount
	if _, err := eventlog.Verify(p.options(), func(position int64, payload []byte) error {
		switch {
		case position >= p.until:
			lost.add(position, payload)
		case position < p.keep.From:
			history.add(position, payload)
		default:
			kept.add(position, payload)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	lines = append(lines, fmt.Sprintf("Kept: %s.", kept.text()))
	if size := min(p.keep.From, p.until) - p.log.From; size > 0 {
		lines = append(lines, fmt.Sprintf("Lost: %d bytes with %s", size, history.text())+countsStay)
	}
	if size := p.log.End - p.until; size > 0 {
		lines = append(lines, fmt.Sprintf("Lost: %d bytes with %s", size, lost.text())+allLost)
	}
	return append(lines, "If you have a backup that is newer than what is kept, restore the backup instead."), nil
}

const (
	countsStay = ". Their counts stay: they are in the database. Their history is lost, and repeated requests with their request ids count again."
	allLost    = ". Their counts, their history, and their changes of users, keys and plans are LOST."
)

// eventCount counts the records of a part of the event log that can be read.
type eventCount struct {
	events, others int
	first, last    string // times of events
}

// add counts a record.
func (c *eventCount) add(position int64, payload []byte) {
	if !isEvent(payload) {
		c.others++
		return
	}
	c.events++
	if e, err := decodeEvent(payload, position); err == nil {
		c.last = e.At.UTC().Format(time.RFC3339)
		c.first = cmp.Or(c.first, c.last)
	}
}

// text returns the numbers, with the times of the events.
func (c *eventCount) text() string {
	text := english.Plural(c.events, "readable event", "")
	if c.events > 0 {
		text += fmt.Sprintf(" from %s to %s", c.first, c.last)
	}
	if c.others > 0 {
		text += ", and " + english.Plural(c.others, "other record", "")
	}
	return text
}
