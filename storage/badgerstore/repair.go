package badgerstore

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Repair accepts what the damage of the event log has cost, so that the store can be opened. It goes back to the moment up to
// which most is known: of the closed database, of an image, or of the end of the readable event log after one of them.
// Damage before that moment becomes a hole in the event log, which costs the history in it. Everything behind is lost. Repair
// keeps the bytes of each changed segment in a file whose name ends in .damaged, or .damaged-2 and so on, and returns these
// names. It calls confirm first, with one line for each damage and each loss, and changes nothing when confirm returns
// false. Without damage Repair does not call confirm.
func Repair(dir string, confirm func(lines []string) bool) (names []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("repair the store in %s: %w", dir, err)
		}
	}()
	release, err := claim(dir)
	if err != nil {
		return nil, err
	}
	defer release()
	p, err := planRepair(dir)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, os.RemoveAll(repairPath(dir)) // an earlier repair was interrupted at its end
	}
	defer p.log.Close()
	lines, err := p.lines()
	if err != nil || !confirm(lines) {
		return nil, err
	}
	names, err = p.apply()
	return names, withAdvice(dir, err)
}

// repairPlan is a plan to repair the event log of a store.
type repairPlan struct {
	dir    string
	damage []*eventlog.DamageError
	log    *eventlog.RepairPlan
	from   repairSource
	until  int64 // the repaired store has everything before this position
	keep   int64 // the event log is kept up to this position
	end    int64 // then the event log has a hole up to this position
}

// repairSource is a database from which a store can go on.
type repairSource struct {
	source
	closed bool // it is the database that was closed; otherwise an image, or an empty database
}

// planRepair plans the repair of the event log of a store. The plan is nil without damage. planRepair changes nothing. It
// returns an error when nothing is left.
func planRepair(dir string) (*repairPlan, error) {
	o := eventLogOptions(dir, logOnDisk(dir), Options{})
	verified, err := eventlog.Verify(o)
	if err != nil || len(verified.Damage) == 0 {
		return nil, err
	}
	sources, err := repairSources(dir)
	if err != nil {
		return nil, err
	}
	p := &repairPlan{dir: dir, damage: verified.Damage}
	if p.log, err = eventlog.PlanRepair(o, isEvent); err != nil {
		return nil, err
	}
	for _, from := range sources {
		p.consider(from)
	}
	if p.until <= firstPosition {
		p.log.Close()
		return nil, fmt.Errorf("the store has no whole database, and the first record of the event log cannot be read: restore a backup: %w", verified.Damage[0])
	}
	return p, nil
}

// repairSources returns the closed database, the whole images, newest first, and the empty database.
func repairSources(dir string) (sources []repairSource, err error) {
	if state, closed, err := table.ReadState(dir); err == nil && closed && repairing(dir) == nil {
		if _, err = table.Inspect(tableOptions(dir, slog.New(slog.DiscardHandler))); err == nil {
			sources = append(sources, repairSource{source{state: state}, true})
		} else if !doubtful(err) {
			return nil, err
		}
	}
	positions, err := table.Images(dir)
	for _, position := range slices.Backward(positions) {
		state, records, err := table.ReadImage(dir, position)
		if err == nil {
			sources = append(sources, repairSource{source{state, records}, false})
		} else if !isDamage(err) {
			return nil, err
		}
	}
	return append(sources, repairSource{noSource, false}), err
}

// consider makes a source that of the plan if more is known with it than with the earlier ones.
func (p *repairPlan) consider(from repairSource) {
	position, log := max(from.state.Position, firstPosition), max(from.state.Log, firstPosition)
	if position < p.log.Whole {
		return // the source lacks what an earlier repair has accepted as lost
	}
	until, keep, end := p.log.End, p.log.End, p.log.End
	for _, l := range p.log.Losses {
		if l.To <= position {
			continue
		}
		if until, keep, end = l.From, l.From, l.From; l.From < log { // the database may have records of the loss
			until, end = position, log
		}
		break
	}
	if until > p.until && !(from.closed && keep < end) { // the mark of the closed database cannot be moved
		p.from, p.until, p.keep, p.end = from, until, keep, end
	}
}

// apply repairs the event log, and returns the names of the files that it has set aside. The caller has claimed the
// directory since planRepair. The database is prepared first: until the event log is repaired, the store stays damaged.
func (p *repairPlan) apply() (names []string, err error) {
	err = firstOf(diskspace.None(p.dir).Need(diskspace.OpeningNeeds, "a repair"), os.MkdirAll(filepath.Join(p.dir, eventLogDir), 0o700))
	if err == nil && !p.from.closed {
		if err = firstOf(os.WriteFile(repairPath(p.dir), nil, 0o600), eventlog.OS.SyncDir(p.dir)); err == nil {
			err = p.renewDatabase()
		}
	}
	if err != nil {
		return nil, err
	}
	if names, err = p.log.Apply(p.keep, p.end); err == nil {
		err = os.RemoveAll(repairPath(p.dir))
	}
	return names, err
}

// repairName is the name of a file that exists while the database is ahead of the event log, which a repair changes last.
const repairName = "REPAIR"

func repairPath(dir string) string { return filepath.Join(dir, repairName) }

// repairing returns an error if a repair was interrupted. The database then promises more than it has.
func repairing(dir string) error {
	if _, err := os.Stat(repairPath(dir)); err == nil {
		return &eventlog.DamageError{File: repairName, What: "a repair was interrupted: repair the store again"}
	}
	return nil
}

// renewDatabase makes the database from the source of the plan. When the event log gets a hole at its end, the mark is behind
// the hole.
func (p *repairPlan) renewDatabase() error {
	src := p.from.source
	src.state.Log = p.end
	if p.keep < p.end {
		src.state.Position = p.end
		src.records = func(fn func(key, value []byte) error) error {
			return p.from.records(func(key, value []byte) error {
				if bytes.Equal(key, at(kindCheckpoint)) {
					value = encodeNumber(p.end)
				}
				return fn(key, value)
			})
		}
	}
	if err := src.renewClaimed(p.dir); err != nil {
		return err
	}
	return table.RemoveImages(p.dir, func(position int64) bool { return position > p.from.state.Position }) // they have records that the event log is losing
}

// lines describes each damage, each loss, oldest first, and the records that are kept and set aside.
func (p *repairPlan) lines() (lines []string, err error) {
	for _, d := range p.damage {
		lines = append(lines, d.Error())
	}
	for _, l := range p.log.Losses {
		lines = append(lines, p.unreadable(l))
	}
	before, behind := eventCount{}, eventCount{accounts: map[uint32]bool{}}
	if err := p.log.Records(func(position int64, payload []byte) error {
		if position < p.keep {
			return before.add(payload)
		}
		return behind.add(payload)
	}); err != nil {
		return nil, err
	}
	lines = append(lines, fmt.Sprintf("Kept: %v.", before))
	if behind.events+behind.others > 0 {
		names, err := p.accountNames(behind.accounts)
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("Set aside: %v%s. %s", behind, names, allLost))
	}
	return append(lines, "If you have a backup that is newer than what is kept, restore the backup instead."), nil
}

const (
	countsStay = "Their counts stay: they are in the database. Their history is lost, and repeated requests with their request ids count again."
	allLost    = "Their counts, their history, and their changes of users, keys and plans are LOST."
)

// unreadable describes a loss.
func (p *repairPlan) unreadable(l eventlog.Loss) string {
	text := fmt.Sprintf("Unreadable: records in %s", plural(int(l.To-l.From), "byte"))
	switch from, until := timeOf(l.Before), timeOf(l.After); {
	case from != "" && until != "":
		text += fmt.Sprintf(", written from %s to %s. ", from, until)
	case from != "":
		text += fmt.Sprintf(", written after %s. ", from)
	case until != "":
		text += fmt.Sprintf(", written before %s. ", until)
	default:
		text += ". "
	}
	if l.To <= p.until {
		return text + countsStay
	}
	return text + allLost
}

// accountNames returns the names of accounts, as the end of a sentence.
func (p *repairPlan) accountNames(numbers map[uint32]bool) (string, error) {
	if p.from.closed || len(numbers) == 0 {
		return "", nil
	}
	var names []string
	err := p.from.records(func(key, value []byte) error {
		if key[0] != kindAccount {
			return nil
		}
		r := newDecoder(key[1:])
		_ = r.Text()
		a, err := record.Decode[core.Account](value)
		if err == nil && numbers[uint32(r.Uint(8))] {
			names = append(names, a.Name)
		}
		return err
	})
	if len(names) == 0 {
		return "", err
	}
	return " of " + strings.Join(names, ", "), err
}

// eventCount counts records of the event log.
type eventCount struct {
	events, others int
	first, last    string          // times of events
	accounts       map[uint32]bool // the numbers of their accounts; may be nil
}

// add counts a record.
func (c *eventCount) add(payload []byte) error {
	if !isEvent(payload) {
		c.others++
		return nil
	}
	c.events++
	e, err := decodeEvent(payload, 0) // neither time nor account needs the position
	if err != nil {
		c.last = ""
	} else {
		c.last = formatTime(&e)
		c.first = cmp.Or(c.first, c.last)
	}
	if c.accounts == nil {
		return nil
	}
	c.accounts[e.account] = true
	return err
}

func (c eventCount) String() string {
	text := plural(c.events, "event")
	if c.events > 0 {
		text += fmt.Sprintf(" from %s to %s", c.first, c.last)
	}
	if c.others > 0 {
		text += ", and " + plural(c.others, "other record")
	}
	return text
}

// timeOf returns the time of an event, "" when the time is not known.
func timeOf(payload []byte) string {
	if len(payload) == 0 {
		return ""
	}
	e, err := decodeEvent(payload, 0) // the position is not needed for the time
	if err != nil {
		return ""
	}
	return formatTime(&e)
}

func formatTime(e *event) string { return e.At.UTC().Format(time.RFC3339) }

// plural returns a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
