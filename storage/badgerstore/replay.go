package badgerstore

import (
	"cmp"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/record"
)

// maxPendingEvents is the number of events of one counter after which replay loads the counter into memory.
// Below it, the counter is read on first use, and its events are then found one by one.
const maxPendingEvents = 64

// replay reads the event log from the last mark in the database. It applies redo records to the database, and
// notes in memory which counters have events after the mark.
type replay struct {
	s          *Store
	proceed    func() error // returns an error when the replay has to end
	ofSnapshot bool         // the database has all transactions already
	dropped    map[ref]bool // deleted counters: replay ignores events that were counted during the deletion

	pagesUpTo  int64 // the position up to which pages are written
	remembered int   // request ids since the last write of pages
}

// pagesEvery is how many bytes of the event log a replay reads between two writes of pages. Without these writes, the memory
// of a replay would grow with the event log.
const pagesEvery = 1 << 30

// run replays the records from the mark up to a position.
func (r *replay) run(mark, end int64) error {
	s, logged := r.s, time.Now()
	err := s.events.Replay(mark, func(position int64, payload []byte) error {
		if position >= end {
			return errEndOfSegment
		}
		if err := r.proceed(); err != nil {
			return err
		}
		done := 100 * (position - mark) / (end - mark)
		if s.healing.done.Swap(done) != done && time.Since(logged) > 10*time.Second {
			logged = time.Now()
			s.log.Info("replaying the event log", "dir", s.dir, "percent", done)
		}
		err := firstOf(r.writePages(position), r.record(payload, position))
		s.failpoint(failReplay)
		return err
	})
	if err == errEndOfSegment {
		err = nil
	}
	return err
}

// writePages writes pages with all events before a position, after every pagesEvery bytes of the event log and every
// checkpointRequestIDs request ids. The mark does not move: the next replay after a crash must start at the same position
// to see the deletions of counters again.
func (r *replay) writePages(position int64) error {
	s := r.s
	if r.ofSnapshot || position-r.pagesUpTo < cmp.Or(s.options.pagesEvery, pagesEvery) && r.remembered < checkpointRequestIDs {
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
	case recordNothing:
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

// redo applies the transaction of a redo record. The database may have the writes of this transaction already, and the writes of
// later ones, which the replay applies again after it.
func (r *replay) redo(payload []byte, position int64) error {
	w, err := decodeWrites(payload[1:])
	if err != nil {
		return err
	}
	w.position = position
	for _, of := range w.dropped {
		r.dropped[of] = true
		sh := r.s.counters.shard(of)
		delete(sh.pending, of)
		if c := sh.peekLocked(of); c != nil {
			sh.removeLocked(c)
		}
	}
	r.s.endHolds(w)
	r.s.forgetPurged(w.purged)
	created, err := r.s.createdCounters(w) // an import can reuse the number of a deleted key or user
	for _, of := range created {
		delete(r.dropped, of)
	}
	if err != nil || r.ofSnapshot {
		return err
	}
	if value, first := w.value(at(kindSchema)); first { // the database is replayed from the first record of the store on
		version, err := decodeNumber(value)
		if err = firstOf(err, refuseSchema(version)); err != nil {
			return err
		}
	}
	if err := r.s.space.Ready(); err != nil {
		return err
	}
	r.s.committing.Lock()
	defer r.s.committing.Unlock()
	return r.s.write(w, position)
}

// createdCounters returns the counters of the keys and users that w writes.
func (s *Store) createdCounters(w *writes) (list []ref, err error) {
	for p, value := range w.byPath {
		if value == nil || p[0] != kindKey && p[0] != kindUser {
			continue
		}
		fields := record.NewReader([]byte(p[1:]))
		account, number := fields.Text(), int64(fields.Uint(8))
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
	c, err := r.load(of, position)
	if err != nil || c.applied >= position { // the page is newer, or the counter was deleted
		return err
	}
	t.keepDays(&c.counterState)
	r.s.counters.shard(of).setStateLocked(c, t, c.onPage)
	c.savedBy = byRecord
	c.changedLocked()
	return nil
}

// load returns a counter in memory. It adds a missing one with its pending events. position is that of the current record.
func (r *replay) load(of ref, position int64) (*counter, error) {
	sh := r.s.counters.shard(of)
	if c := sh.peekLocked(of); c != nil {
		return c, nil
	}
	var t counterState
	var onPage int64
	err := r.s.viewCounters(func(v view) (err error) {
		t, onPage, err = r.s.readState(v, of, sh.pending[of].position)
		return err
	})
	if err != nil {
		return nil, err
	}
	c := sh.addLocked(of, position)
	sh.setStateLocked(c, t, onPage)
	return c, nil
}

// event replays an event for the counters of its key and of its user. Either may be deleted.
func (r *replay) event(e *event, position int64) error {
	key, user := e.refs()
	if e.idToFind != "" {
		r.remembered++
		r.s.counters.shard(key).requestIDs.positions[requestKey{key, e.idToFind}] = position
	}
	r.hold(e, position)
	err := r.counter(user, e, position)
	if key != user {
		err = firstOf(r.counter(key, e, position), err)
	}
	return err
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
		return c.replay(e, of.kind, position)
	}
	h := sh.pending[of]
	h.position, h.events = position, h.events+1
	sh.pending[of] = h
	if h.events < maxPendingEvents {
		return nil
	}
	_, err := r.load(of, position)
	return err
}

// hold replays an event that opens or ends a hold.
func (r *replay) hold(e *event, position int64) {
	s, id := r.s, e.holdID()
	if e.uncounted || id == "" {
		return
	}
	key, user := e.refs()
	r.remembered++
	s.counters.shard(user).requestIDs.positions[holdKey(user, id)] = position
	open := s.counters.shard(key).openLocked(key, id)
	switch {
	case e.Settlement != nil && open != nil:
		s.closeHoldLocked(open)
	case e.Settlement == nil && open == nil && !r.dropped[key] && !r.dropped[user]:
		s.openHoldLocked(openHoldOf(e, position))
	}
}
