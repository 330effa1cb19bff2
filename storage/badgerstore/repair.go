package badgerstore

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Repair sets the damaged part of the event log of a store aside, so that the store can be opened. It keeps the
// last unbroken part of the log that begins before the mark of the last checkpoint. It moves all other parts to files
// whose names end in .damaged or, after an earlier repair, in .damaged-2 and so on. It returns these names. History before
// the kept part is lost. Counts and changes after the kept part and the mark are lost,
// unless the tables of the database have them. New records get positions after all positions used before. Repair
// calls confirm first, with one line for each damage and each part, and changes nothing when confirm returns false.
// Without damage Repair does not call confirm. Repair refuses a damaged database: [Rebuild] mends that, and the event log
// with it.
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
	files, err := table.Inspect(claimedOptions(dir))
	if isDamage(err) {
		return nil, fmt.Errorf("repair mends the event log only, and the database is damaged: run limitkeeper rebuild: %w", err)
	}
	if err != nil {
		return nil, err
	}
	p, err := planRepair(dir, files, files.State().Log)
	if p != nil && confirm(p.lines()) {
		names, err = p.apply()
		return names, withAdvice(dir, err)
	}
	p.close()
	return nil, err
}

// repairPlan is a plan to repair the event log of a store.
type repairPlan struct {
	dir    string
	damage []*eventlog.DamageError
	mark   int64 // of the database: its pages include all events before this position
	known  int64 // the position up to which the event log is known to have been on disk
	log    *eventlog.RepairPlan
}

// planRepair plans the repair of the event log of a store for a database that is replayed from that log. The plan is nil
// without damage. planRepair changes nothing. It returns an error when the tables are empty and the first
// record cannot be kept.
func planRepair(dir string, database *table.Files, known int64) (*repairPlan, error) {
	p := &repairPlan{dir: dir}
	values, err := database.Get(at(kindCheckpoint), at(kindInTables), at(kindSchema))
	if err != nil {
		return nil, err
	}
	mark, err := decodeNumber(values[0])
	if err != nil {
		return nil, err
	}
	had, err := decodeInTables(values[1])
	if err != nil {
		return nil, err
	}
	p.mark, p.known = mark, max(mark, had.end, known)
	o := eventLogOptions(dir, p.known, Options{})
	verified, err := eventlog.Verify(o)
	if err != nil || len(verified.Damage) == 0 {
		return nil, err
	}
	p.damage = verified.Damage
	if p.log, err = eventlog.PlanRepair(o, p.mark, isEvent); err != nil {
		return nil, err
	}
	for _, t := range had.missing {
		if t.parts && (t.position < p.log.Kept.From || t.position >= p.log.End()) {
			p.close()
			return nil, errHalfApplied
		}
	}
	if version, err := decodeNumber(values[2]); err != nil || version == 0 && p.log.Kept.Records == 0 {
		p.close()
		return nil, firstOf(err, fmt.Errorf("the tables are empty, and the first record of the event log cannot be read: restore a backup: %w", p.damage[0]))
	}
	return p, nil
}

// errHalfApplied means that the kept part of the event log lacks the end of a large transaction, and that the tables may
// have some of its parts.
var errHalfApplied = errors.New("the database may have a part of a large change, and the rest of the change is in the damaged part " +
	"of the event log: run limitkeeper rebuild, or restore a backup")

// close closes the files of a plan that is not applied, nil for no plan.
func (p *repairPlan) close() {
	if p != nil {
		p.log.Close()
	}
}

// apply repairs the event log, and returns the names of the files that it has set aside. The caller has claimed the
// directory since planRepair.
func (p *repairPlan) apply() (names []string, err error) {
	short, err := reserve.RoomFor(p.dir, 0)
	if err == nil && short {
		err = os.Remove(filepath.Join(p.dir, reserve.Name)) // the next start creates the reserve again
	}
	next := int64(0)
	if err = firstOf(err, os.MkdirAll(filepath.Join(p.dir, eventLogDir), 0o700)); err == nil {
		next, err = p.prepareDatabase()
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p.log.Apply(next)
}

// prepareDatabase prepares the database for the repair: see cutHistories. It returns the first position of new records.
func (p *repairPlan) prepareDatabase() (next int64, err error) {
	if err := removeEmptyClaimed(p.dir); err != nil {
		return 0, err
	}
	db, err := table.Open(claimedOptions(p.dir))
	if err != nil {
		return 0, err
	}
	defer func() { err = firstOf(err, db.Close()) }()
	found := db.Found()
	if next, err = cutHistories(db, p.log, max(found.Log, p.known)); err != nil {
		return 0, err
	}
	return next, db.StoreState(table.State{Position: found.Position, Log: next, Time: found.Time})
}

// lines describes each damage, and each part of the event log with the loss, oldest first.
func (p *repairPlan) lines() (lines []string) {
	for _, d := range p.damage {
		lines = append(lines, d.Error())
	}
	end, last := p.mark, ""
	for i, part := range p.log.Parts {
		if i == 0 {
			end = min(end, part.From)
		}
		if part.From > end {
			lines = append(lines, p.unreadable(part.From, last, timeOf(part.First)))
		}
		if !p.log.Empty && part.From == p.log.Kept.From {
			lines = append(lines, fmt.Sprintf("Kept: %s.", recordsOf(&part)))
		} else if part.Records > 0 {
			lines = append(lines, fmt.Sprintf("Set aside: %s. %s", recordsOf(&part), p.lost(part.To)))
		}
		if end = part.To; part.Events > 0 {
			last = timeOf(part.Last)
		}
	}
	if written := max(p.known, p.log.WrittenEnd); written > end {
		lines = append(lines, p.unreadable(written, last, ""))
	}
	if p.log.Empty {
		lines = append(lines, "Kept: no event. A new event log begins at the last checkpoint.")
	}
	return append(lines, "If you have a backup that is newer than the end of the kept part, restore the backup instead.")
}

// unreadable describes records before a position that cannot be read. They were written between two times; "" when a
// time is not known.
func (p *repairPlan) unreadable(to int64, from, until string) string {
	between := "."
	switch {
	case from != "" && until != "":
		between = fmt.Sprintf(", written from %s to %s.", from, until)
	case from != "":
		between = fmt.Sprintf(", written after %s.", from)
	case until != "":
		between = fmt.Sprintf(", written before %s.", until)
	}
	return "Unreadable: an unknown number of records" + between + " " + p.lost(to)
}

// lost describes the loss when records before a position are not kept.
func (p *repairPlan) lost(to int64) string {
	if to <= p.mark {
		return "Their counts stay: they are in the checkpoint. Their history is lost, and repeated requests with their request ids count again."
	}
	return "Their counts, their history, and their changes of users, keys and plans are LOST, unless the tables of the database already have them."
}

// recordsOf describes the records of a part of the event log: how many, and the time of the first and the last event.
func recordsOf(p *eventlog.Part) string {
	text := plural(p.Events, "event")
	if p.Events > 0 {
		text = fmt.Sprintf("%s from %s to %s", text, timeOf(p.First), timeOf(p.Last))
	}
	if others := p.Records - p.Events; others > 0 {
		text += ", and " + plural(others, "other record")
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
	return e.At.UTC().Format(time.RFC3339)
}

// plural returns a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// A checkpoint writes pages first and its mark last. So pages can include events that a repair cuts off. The counts
// on these pages stay. cutHistories ends the history of such a counter with its last kept event. It also finds a
// position after all positions in the database. New records begin there, because replay skips an event whose
// position the page already includes.

// historyCutter is the state of one call of cutHistories.
type historyCutter struct {
	log  *eventlog.RepairPlan
	used int64              // a position after all positions in the database
	last map[ref]lastOfKept // of each counter whose last events are cut off
}

// lastOfKept is the number and the position of the last kept event of a counter. The number is 0 without such an event.
type lastOfKept struct{ number, position int64 }

// cutHistories prepares the database for a repair that may cut off the end of the event log. It returns the first position
// of new records, at least used.
func cutHistories(db *table.DB, log *eventlog.RepairPlan, used int64) (next int64, err error) {
	h := historyCutter{log, used, map[ref]lastOfKept{}}
	if err := db.View(func(txn *badger.Txn) error { return h.findCut(snapshot{txn}) }); err != nil {
		return 0, err
	}
	if len(h.last) > 0 {
		err = log.Records(h.addKept)
	}
	for rest := slices.SortedFunc(maps.Keys(h.last), ref.compare); len(rest) > 0 && err == nil; {
		n := countOnSamePage(rest)
		err = h.cutOnPage(db, rest[:n])
		rest = rest[n:]
	}
	return log.Next(h.used), err
}

// findCut finds the counters whose last events are cut off, and the highest position in the database.
func (h *historyCutter) findCut(all snapshot) error {
	err := all.each(at(kindCounter), func(p path, value []byte) (bool, error) {
		page, ok := pageOf(p)
		pg, err := decodePage(value)
		if !ok || err != nil {
			return false, errRecord
		}
		for slot, record := range pg {
			if h.used = max(h.used, appliedOf(record)+1); appliedOf(record) < h.log.End() {
				continue
			}
			t, err := decodeState(record)
			if err != nil {
				return false, err
			}
			if t.lastPosition() >= h.log.End() {
				h.last[page.counter(byte(slot))] = lastOfKept{}
			}
		}
		return true, nil
	})
	use := func(_ path, value []byte) (bool, error) {
		position, err := decodeNumber(value)
		h.used = max(h.used, position+1)
		return true, err
	}
	return firstOf(err, all.each(at(kindRequestID), use))
}

// addKept reads a kept record. It stores the last kept event of each counter in last.
func (h *historyCutter) addKept(position int64, payload []byte) error {
	if payload[0] == recordCounter {
		of, t, err := decodeSet(payload)
		if _, lost := h.last[of]; lost {
			h.last[of] = lastOfKept{t.entries, t.lastPosition()}
		}
		return err
	}
	if !isEvent(payload) {
		return nil
	}
	e, err := decodeEvent(payload, position)
	key, user := e.refs()
	for _, of := range []ref{key, user} {
		if _, lost := h.last[of]; lost && e.linkOf(of.kind).number > 0 {
			h.last[of] = lastOfKept{e.linkOf(of.kind).number, position}
		}
	}
	return err
}

// cutOnPage ends the histories of counters that are on one page.
func (h *historyCutter) cutOnPage(db *table.DB, counters []ref) error {
	txn := db.NewTxn()
	defer txn.Discard()
	p := pagePath(counters[0].page())
	value, err := snapshot{txn.Txn}.get(p)
	if err != nil {
		return err
	}
	pg, err := decodePage(value)
	if err != nil {
		return err
	}
	for _, of := range counters {
		t, err := decodeState(pg[of.slot()])
		if err == nil {
			err = h.cutHistory(&t, of)
		}
		if err != nil {
			return err
		}
		pg[of.slot()] = t.encode(nil)
	}
	return firstOf(txn.Set(p, pg.encode()), db.Commit(txn, func(*table.Txn) error { return nil }))
}

// cutHistory makes a history end with its last kept event. The new chain has only events that are kept.
func (h *historyCutter) cutHistory(t *counterState, of ref) error {
	last := h.last[of]
	t.entries, t.chain = last.number, make([]int64, terms(last.number))
	for i := len(t.chain) - 1; i >= 0; i-- {
		t.chain[i] = last.position
		payload, err := h.log.Read(last.position)
		if errors.Is(err, eventlog.ErrGone) {
			return nil
		}
		if err != nil {
			return err
		}
		e, err := decodeEvent(payload, last.position)
		if err != nil {
			return err
		}
		last.position = e.linkOf(of.kind).jump
	}
	return nil
}
