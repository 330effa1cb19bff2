package badgerstore

import (
	"maps"
	"slices"
	"sync"

	"github.com/dgraph-io/badger/v4"

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

	pagesUpTo  int64 // the position up to which pages are written
	remembered int   // request ids since the last write of pages
}

// flushesReplayed times flushBytes, 1 GiB by default, is how much of the event log a replay reads between two
// writes of pages. Without these writes, the memory of a replay would grow with the event log.
const flushesReplayed = 16

// replayFrom replays the event log from the mark of the last checkpoint on.
func (s *Store) replayFrom(mark int64) error {
	s.checkpointer.mark.Store(mark)
	s.flushed.Store(mark)
	if err := s.resumeCopy(); err != nil {
		return err
	}
	r := &replay{s: s, pagesUpTo: mark, dropped: map[ref]bool{}}
	err := s.events.Replay(mark, func(position int64, payload []byte) error {
		if err := s.failure(); err != nil { // Open has given up
			return err
		}
		err := firstOf(r.writePages(position), r.record(payload, position))
		s.failpoint(failReplay)
		return err
	})
	if err != nil {
		return err
	}
	s.committing.Lock()
	s.replayed = true
	s.committing.Unlock()
	return nil
}

// writePages writes pages with all events before a position, after every checkpointBytes of the event log and every
// checkpointRequestIDs request ids. The mark does not move: the next replay after a crash must start at the same position
// to see the deletions of counters again.
func (r *replay) writePages(position int64) error {
	s := r.s
	if position-r.pagesUpTo < flushesReplayed*s.flushBytes && r.remembered < checkpointRequestIDs {
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
	case recordCounter:
		return r.set(payload, position)
	}
	e, err := decodeEvent(payload, position)
	if err == nil {
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
	if value, first := w.value(at(kindSchema)); first { // the database is replayed from the first record of the store on
		version, err := decodeNumber(value)
		if err = firstOf(err, refuseSchema(version)); err != nil {
			return err
		}
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
	if err != nil {
		return inTables{}, err
	}
	return decodeInTables(record)
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
