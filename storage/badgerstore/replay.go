package badgerstore

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// maxPendingEvents is the number of events of one counter after which replay loads the counter into memory.
// Below it, the counter is read on first use, and its events are then found one by one.
const maxPendingEvents = 64

// replay reads the event log from the last mark that is in a table. It applies redo records to the database, and
// notes in memory which counters have events after the mark.
type replay struct {
	s       *Store
	dropped map[ref]bool // deleted counters: replay ignores events that were counted during the deletion

	hadInTables bool // the tables had the record inTables

	old     []eventlog.Segment      // segments of format 1 that end after the current event
	format1 map[int64]eventlog.Keep // how long segments of format 1 are kept, by base
	highest map[ref]int64           // the highest number of each account and kind, see raiseNumbers

	writePagesEvery int64 // bytes of the event log between two writes of pages; 0 to write no pages
	pagesUpTo       int64 // the position up to which pages are written
	remembered      int   // request ids since the last write of pages
}

// flushesReplayed times flushBytes, 1 GiB by default, is how much of the event log a replay reads between two
// writes of pages. Without these writes, the memory of a replay would grow with the event log.
const flushesReplayed = 16

// replayFrom replays the event log from the mark of the last checkpoint on. kept has the retention of each
// segment of format 1, by its base.
func (s *Store) replayFrom(mark int64, kept map[int64]eventlog.Keep) (*replay, error) {
	s.checkpointer.mark.Store(mark)
	s.flushed.Store(mark)
	if err := s.resumeCopy(); err != nil {
		return nil, err
	}
	r := &replay{s: s, hadInTables: s.inTables.end > 0, pagesUpTo: mark, dropped: map[ref]bool{}, format1: map[int64]eventlog.Keep{}, highest: map[ref]int64{}}
	if s.db.WasReplayable() { // otherwise an earlier version wrote the database: see upgrade
		r.writePagesEvery = flushesReplayed * s.flushBytes
	}
	for _, g := range s.events.Segments() {
		if g.Version == 1 {
			r.old = append(r.old, g)
		}
	}
	err := s.events.Replay(mark, func(position int64, payload []byte) error {
		if err := s.failure(); err != nil { // Open has given up
			return err
		}
		err := firstOf(r.writePages(position), r.record(payload, position))
		s.failpoint(failReplay)
		return err
	})
	if err != nil {
		return r, err
	}
	s.committing.Lock()
	s.replayed = true
	s.committing.Unlock()
	return r, s.keepFormat1(kept, r.format1)
}

// writePages writes pages with all events before a position, after every checkpointBytes of the event log and every
// checkpointRequestIDs request ids. The mark does not move: the next replay after a crash must start at the same position
// to see the deletions of counters again.
func (r *replay) writePages(position int64) error {
	s := r.s
	if r.writePagesEvery == 0 || position-r.pagesUpTo < r.writePagesEvery && r.remembered < checkpointRequestIDs {
		return nil
	}
	r.pagesUpTo, r.remembered = position, 0
	replaying := s.inFlight.begin(s.checkpointer.mark.Load)
	defer s.inFlight.end(replaying)
	return s.checkpoint()
}

// record replays a record.
func (r *replay) record(payload []byte, position int64) error {
	switch payload[0] {
	case recordPart: // read together with its redo record
		return nil
	case recordRedo:
		return r.redo(payload, position)
	case recordWindows, recordCounter:
		return r.set(payload, position)
	}
	e, err := decodeEvent(payload, position)
	if err == nil {
		r.keep(&e, position)
		err = r.event(&e, position)
	}
	return err
}

// redo applies the transaction of a redo record. Replaying the record again changes nothing.
func (r *replay) redo(payload []byte, position int64) error {
	parts, w, err := decodeRedo(payload, position)
	if err != nil {
		return err
	}
	r.s.committing.Lock()
	had := r.s.inTables.beginReplay(position, len(parts) > 0)
	r.s.committing.Unlock()
	for _, part := range parts {
		some, err := r.s.readPart(part)
		if err != nil {
			return err
		}
		if err := r.write(some, position, had); err != nil {
			return err
		}
	}
	return r.write(w, position, had)
}

// write replays writes of the transaction at a position. had means that the tables have the transaction.
func (r *replay) write(w *writes, position int64, had bool) error {
	dropped, err := w.dropped()
	if err != nil {
		return err
	}
	for _, of := range dropped {
		r.dropped[of] = true
		sh := r.s.counters.shard(of)
		delete(sh.pending, of)
		if c := sh.peekLocked(of); c != nil {
			sh.removeLocked(c)
		}
	}
	if err := r.undrop(w); err != nil || had {
		return err
	}
	if _, first := w.value(at(kindSchema)); first { // the database is replayed from the first record of the store on
		w.put(at(kindSchema), encodeNumber(schema))
	}
	r.s.committing.Lock()
	defer r.s.committing.Unlock()
	for err = r.s.write(w, dropped, position); reserve.NoRoom(err) && r.s.stopped() == nil; {
		r.s.reserve.Wait() // Badger may make room by writing a table
		err = r.s.write(w, dropped, position)
	}
	if err == nil {
		r.s.reserve.Waits.Store(0)
	}
	return err
}

// undrop removes the keys and users that w creates from dropped: an import can reuse the number of a deleted
// key or user.
func (r *replay) undrop(w *writes) error {
	if len(r.dropped) == 0 {
		return nil
	}
	list, err := r.s.createdCounters(w)
	for _, of := range list {
		delete(r.dropped, of)
	}
	return err
}

// createdCounters returns the counters of the keys and users that w writes.
func (s *Store) createdCounters(w *writes) (list []ref, err error) {
	for p, one := range w.byPath {
		if one.value == nil || p[0] != kindKey && p[0] != kindUser {
			continue
		}
		fields := decoder{[]byte(p[1:])}
		account, number := fields.text(), int64(fields.uint64())
		accountNumber, err := s.accounts.number(s, account)
		if err != nil {
			return nil, err
		}
		list = append(list, ref{number, accountNumber, uint32(p[0])})
	}
	return list, nil
}

// set sets a counter to the state in a record. The counter keeps the days that replay still has to archive, because the
// crash may have lost the checkpoint that archived them.
func (r *replay) set(payload []byte, position int64) error {
	of, t, err := decodeSet(payload)
	if err != nil || r.dropped[of] {
		return err
	}
	sh := r.s.counters.shard(of)
	c := sh.peekLocked(of)
	var before counterState
	if c != nil {
		before = c.counterState
	} else if before, _, err = r.read(of, sh.pending[of]); err != nil {
		return err
	}
	if before.applied >= position { // the page is newer, or the counter was deleted
		return nil
	}
	t.keepEnded(before.days.cloneEnded())
	if c == nil {
		c = sh.addLocked(of, position)
	}
	c.setStateLocked(t, 0)
	c.unsaved = true
	c.changedLocked()
	return nil
}

// read reads a counter from its page and its pending events.
func (r *replay) read(of ref, pending pendingEvents) (t counterState, base int64, err error) {
	err = r.s.db.View(func(txn *badger.Txn) (err error) {
		t, base, err = r.s.readState(snapshot{txn}, of, pending)
		return err
	})
	return t, base, err
}

// keep adds the retention of an event to that of its segment, if the segment has format 1.
func (r *replay) keep(e *event, position int64) {
	for len(r.old) > 0 && r.old[0].End <= position {
		r.old = r.old[1:]
	}
	if len(r.old) == 0 {
		return
	}
	base, k := r.old[0].Base, e.keep(r.s.clock.Load())
	k.Until, k.Hard = max(k.Until, r.format1[base].Until), max(k.Hard, r.format1[base].Hard)
	r.format1[base] = k
}

// event replays an event for the counters of its key and of its user. Either may be deleted.
func (r *replay) event(e *event, position int64) error {
	key, user := e.refs()
	if e.requestID != "" {
		r.remembered++
		of := e.requestIDOwner()
		r.s.counters.shard(of).requestIDs.addLocked(requestKey{of, e.requestID}, position)
	}
	return firstOf(r.counter(key, e, position), r.counter(user, e, position))
}

// counter replays an event for one counter, if the event is in its history. A counter that is not in memory only notes
// the position, until it has maxPendingEvents events.
func (r *replay) counter(of ref, e *event, position int64) error {
	if r.dropped[of] || e.linkOf(of.kind).number == 0 {
		return nil
	}
	all := ref{account: of.account, kind: of.kind}
	r.highest[all] = max(r.highest[all], of.number)
	sh := r.s.counters.shard(of)
	if c := sh.peekLocked(of); c != nil {
		if position <= c.applied {
			return nil
		}
		c.changedLocked()
		return c.apply(e, of.kind, position)
	}
	h := sh.pending[of]
	h.position, h.events = position, h.events+1
	sh.pending[of] = h
	if h.events < maxPendingEvents {
		return nil
	}
	t, base, err := r.read(of, h)
	if err != nil {
		return err
	}
	if t.applied > position { // the page is newer, or the counter was deleted
		sh.pending[of] = pendingEvents{position: position}
		return nil
	}
	c := sh.addLocked(of, position)
	c.setStateLocked(t, base)
	return nil
}

// Before schema 6, transactions were only in the database, and the newest ones only in the write-ahead logs of
// memtables. Open opens such a store with these logs, upgrades it and closes it. Then all data is in tables, and Open
// opens the store like any other one. An interrupted upgrade starts again.

// The earlier schemas after which an upgrade takes another path. See schema for all differences.
const (
	withoutDays    = 2 // the earliest schema that this version reads
	withoutPages   = 5
	withoutPeriods = 6
)

// upgrade upgrades the store of an earlier version. highest has the largest numbers in its events. The caller closes
// the store.
func (s *Store) upgrade(highest map[ref]int64) error {
	raiseNumbers := func() error { return s.raiseNumbers(highest) }
	for _, step := range []func() error{s.applyJournals, raiseNumbers, s.listOldPages, s.keepDays, s.checkpoint, s.storeSchema} {
		if err := step(); err != nil {
			return err // the schema stays the earlier one, and the next start upgrades again
		}
	}
	return nil
}

// storeSchema stores the schema in the database, without a redo record.
func (s *Store) storeSchema() error {
	s.committing.Lock()
	defer s.committing.Unlock()
	return s.commitLocked(func(txn *table.Txn) error { return txn.Set(at(kindSchema), encodeNumber(schema)) })
}

// raiseNumbers raises the last numbers of keys and users to the numbers in events, so new resources get unused numbers.
// After a power cut, the event log of an earlier version may have events of keys that the database has lost.
func (s *Store) raiseNumbers(highest map[ref]int64) error {
	w := newWrites()
	err := s.db.View(func(txn *badger.Txn) error {
		for of, number := range highest {
			a, err := found[core.Account](snapshot{txn}, accountPath(int64(of.account)), nil)
			if err != nil {
				return err
			}
			if a == nil {
				continue
			}
			p := lastPath(a.ID, byte(of.kind))
			last, err := snapshot{txn}.number(p)
			if err != nil {
				return err
			}
			if number > last {
				w.put(p, encodeNumber(number))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.apply(w, 0)
}

// keepDays rewrites the records of the archive without a TTL. Before schema 6, Badger expired these records by the clock
// of the machine: a clock that is wrong by a year would expire all of them. Now the daily sweep removes them.
func (s *Store) keepDays() error {
	w := newWrites()
	err := s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(at(kindDay), func(p path, value []byte) (bool, error) {
			w.put(p, slices.Clone(value))
			if w.fit() {
				return true, nil
			}
			full := w
			w = newWrites()
			return true, s.apply(full, 0)
		})
	})
	if err != nil {
		return err
	}
	return s.apply(w, 0)
}

// Before schema 6, a transaction that was too large for one transaction of Badger was first written to a journal: its
// chunks, and then a record that ends the journal. A journal without that record was not committed.
//
//	path                value
//	stripe, chunk       writes
//	stripe, journalEnd  account, number of chunks
const journalEnd = -1

func journalPath(stripe, chunk int64) path { return at(kindJournal).number(stripe).number(chunk) }

// applyJournals applies the remaining chunks of each committed journal, and removes the other journals.
func (s *Store) applyJournals() error {
	chunks := map[int64][]int64{}
	err := s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(at(kindJournal), func(p path, _ []byte) (bool, error) {
			r := decoder{p[1:]}
			stripe, chunk := int64(r.uint64()), int64(r.uint64())
			chunks[stripe] = append(chunks[stripe], chunk)
			return true, nil
		})
	})
	if err != nil {
		return err
	}
	for stripe, list := range chunks {
		committed := slices.Contains(list, journalEnd) // journalEnd sorts last, so it is removed last
		for _, chunk := range list {
			if err := s.applyChunk(journalPath(stripe, chunk), committed && chunk != journalEnd); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyChunk removes a record of a journal. With apply, it also applies the writes in the record.
func (s *Store) applyChunk(p path, apply bool) error {
	w := newWrites()
	if apply {
		var record []byte
		err := s.db.View(func(txn *badger.Txn) (err error) {
			record, err = snapshot{txn}.get(p)
			return err
		})
		if err != nil {
			return err
		}
		if w, err = decodeWrites(record); err != nil {
			return fmt.Errorf("a journal: %w", err)
		}
	}
	w.put(p, nil)
	return s.apply(w, 0)
}

// inTables says which transactions the tables have: all before end, except the missing ones. Each memtable stores it in
// its last transaction, see endMemtable. Replay does not apply a transaction that the tables have. Otherwise, after a
// repair has cut off later transactions that the tables have, replay would replace their records with older ones.
type inTables struct {
	end     int64
	missing []missing // in ascending order
}

// missing is a transaction of which no part, or not every part, is in tables.
type missing struct {
	position int64
	parts    bool // it has parts
}

// has reports whether the tables have the transaction at a position.
func (t *inTables) has(position int64) bool {
	return position < t.end && !slices.ContainsFunc(t.missing, func(m missing) bool { return m.position == position })
}

// beginReplay reports whether the tables have the transaction at a position. It records that beginReplay has applied all earlier
// transactions, and begins with this one.
func (t *inTables) beginReplay(position int64, parts bool) (had bool) {
	had = t.has(position)
	t.missing = slices.DeleteFunc(t.missing, func(m missing) bool { return m.position <= position })
	if !had {
		t.missing = slices.Insert(t.missing, 0, missing{position, parts})
	}
	t.end = max(t.end, position+1)
	return had
}

func (r snapshot) inTables() (inTables, error) {
	record, err := r.get(at(kindInTables))
	earlier, err2 := r.get(at(kindInTables9))
	if err = firstOf(err, err2); err != nil {
		return inTables{}, err
	}
	return laterInTables(record, earlier)
}

// laterInTables decodes the records of kindInTables and of kindInTables9, and returns the later one.
func laterInTables(record, earlier []byte) (inTables, error) {
	t, err := decodeInTables(record)
	t9, err2 := decodeInTables(earlier)
	if t9.end > t.end {
		t = t9
	}
	return t, firstOf(err, err2)
}

// unapplied is the set of transactions that are in the event log, and not yet applied to the database.
type unapplied struct {
	mu         sync.Mutex
	byPosition map[int64]bool // whether the transaction has parts
}

func (u *unapplied) add(position int64, parts bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byPosition == nil {
		u.byPosition = map[int64]bool{}
	}
	u.byPosition[position] = parts
}

// remove removes a transaction. After a commit the caller still holds committing, so that endMemtable sees a transaction
// either in the memtable or in this set.
func (u *unapplied) remove(position int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.byPosition, position)
}

// before returns the transactions before a position, in ascending order.
func (u *unapplied) before(end int64) (list []missing) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, position := range slices.Sorted(maps.Keys(u.byPosition)) {
		if position < end {
			list = append(list, missing{position, u.byPosition[position]})
		}
	}
	return list
}

// endMemtable syncs the event log before a memtable ends, and adds the record inTables to the memtable. The caller holds
// committing.
func (s *Store) endMemtable(last *table.Txn) error {
	if err := s.syncEvents(); err != nil {
		return err
	}
	if err := s.failure(); err != nil { // a transaction may be half applied
		return err
	}
	if s.replayed {
		end := s.events.Durable()
		s.inTables = inTables{end, s.unapplied.before(end)}
	}
	return last.Set(at(kindInTables), s.inTables.encode())
}
