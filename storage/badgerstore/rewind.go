package badgerstore

import (
	"errors"
	"maps"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// A checkpoint writes pages first and its mark last. So pages can include events that a repair cuts off. The counts
// on these pages stay. Rewinding ends the history of such a counter with its last kept event. It also finds a
// position behind all positions in the database. New records begin there, because replay skips an event whose
// position the page already includes.

// rewinding is the state of one rewind.
type rewinding struct {
	plan *eventlog.Repair
	used int64              // a position behind all positions in the database
	last map[ref]lastOfKept // of each counter whose last events are cut off
}

// lastOfKept is the last kept event of a counter: its number, 0 when there is none, and its position.
type lastOfKept struct{ number, position int64 }

// rewind prepares the database for a repair that may cut off the end of the event log. It returns the first position
// of new records, at least used.
func rewind(db *table.DB, plan *eventlog.Repair, used int64) (next int64, err error) {
	r := rewinding{plan, used, map[ref]lastOfKept{}}
	if err := db.View(func(txn *badger.Txn) error { return r.read(snapshot{txn}) }); err != nil {
		return 0, err
	}
	if len(r.last) > 0 {
		err = plan.Records(r.record)
	}
	for rest := slices.SortedFunc(maps.Keys(r.last), ref.compare); len(rest) > 0 && err == nil; {
		n := onOnePage(rest)
		err = r.write(db, rest[:n])
		rest = rest[n:]
	}
	return plan.Next(r.used), err
}

// read finds the counters whose last events are cut off, and the highest position in the database.
func (r *rewinding) read(all snapshot) error {
	err := all.each(at(kindCounter), true, func(p path, value []byte) (bool, error) {
		page, ok := pageOf(p)
		pg, err := decodePage(value)
		if !ok || err != nil {
			return false, errRecord
		}
		for slot, record := range pg {
			if r.used = max(r.used, appliedOf(record)+1); appliedOf(record) < r.plan.End() {
				continue
			}
			t, err := decodeTally(record)
			if err != nil {
				return false, err
			}
			if t.head() >= r.plan.End() {
				r.last[page.counter(byte(slot))] = lastOfKept{}
			}
		}
		return true, nil
	})
	use := func(_ path, value []byte) (bool, error) {
		position, err := decodeNumber(value)
		r.used = max(r.used, position+1)
		return true, err
	}
	return firstOf(err, all.each(at(kindRepeat), true, use), all.each(at(kindApplied), true, use))
}

// record notes the last kept event of the counters in last.
func (r *rewinding) record(position int64, payload []byte) error {
	if payload[0] == recordCounter {
		of, t, err := decodeSet(payload)
		if _, lost := r.last[of]; lost {
			r.last[of] = lastOfKept{t.entries, t.head()}
		}
		return err
	}
	if payload[0] >= recordRedo {
		return nil
	}
	e, err := decodeEvent(payload, position)
	key, user := e.refs()
	for _, of := range []ref{key, user} {
		if _, lost := r.last[of]; lost && e.linkOf(of.kind).number > 0 {
			r.last[of] = lastOfKept{e.linkOf(of.kind).number, position}
		}
	}
	return err
}

// write ends the histories of counters that are on one page.
func (r *rewinding) write(db *table.DB, counters []ref) error {
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
		t, err := decodeTally(pg[of.slot()])
		if err == nil {
			err = r.end(&t, of)
		}
		if err != nil {
			return err
		}
		pg[of.slot()] = t.encode(nil)
	}
	return firstOf(txn.Set(p, pg.encode()), db.Commit(txn, func() error { return nil }))
}

// end makes a history end with its last kept event. The new chain has only events that are kept.
func (r *rewinding) end(t *tally, of ref) error {
	last := r.last[of]
	t.entries, t.chain = last.number, make([]int64, terms(last.number))
	for i := len(t.chain) - 1; i >= 0; i-- {
		t.chain[i] = last.position
		payload, err := r.plan.Read(last.position)
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
