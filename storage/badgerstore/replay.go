package badgerstore

import (
	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// oftenUnfolded is how many events of a counter are read while the store is opened
// before the counter is taken into memory: finding them one by one, later, costs more.
const oftenUnfolded = 64

// replay reads the event log from the checkpoint on. It applies redo records to the database, and
// records in memory which counters have events there.
type replay struct {
	s       *Store
	dropped map[ref]bool // deleted counters: requests that were counted during the deletion do not count

	old     []eventlog.Segment      // of format 1, from that of the current event on
	format1 map[int64]eventlog.Keep // until when these must be kept, by their bases
	highest map[ref]int64           // see raiseNumbers; by account and kind

	foldBytes  int64 // pages are written after so many bytes; 0 to write none
	folded     int64 // the position up to which they are written
	remembered int   // request ids since then
}

// flushesReplayed is after how many flushBytes, 1 GiB by default, a replay writes the pages of counters. Else
// the memory that it needs would grow with the event log.
const flushesReplayed = 16

// replayFrom replays the event log from the mark of the checkpoint on. kept says of segments of
// format 1 until when they must be kept.
func (s *Store) replayFrom(mark int64, kept map[int64]eventlog.Keep) (*replay, error) {
	s.folder.mark.Store(mark)
	s.flushed.Store(mark)
	if err := s.resumeCopy(); err != nil {
		return nil, err
	}
	r := &replay{s: s, folded: mark, dropped: map[ref]bool{}, format1: map[int64]eventlog.Keep{}, highest: map[ref]int64{}}
	if s.db.WasReplayable() { // else the database is of an earlier version: see upgrade.go
		r.foldBytes = flushesReplayed * s.flushBytes
	}
	for _, g := range s.events.Segments() {
		if g.Version == 1 {
			r.old = append(r.old, g)
		}
	}
	err := s.events.Replay(mark, func(position int64, payload []byte) error {
		if err := s.failure(); err != nil { // Open has ended
			return err
		}
		err := firstOf(r.fold(position), r.record(payload, position))
		s.step(stepReplay)
		return err
	})
	return r, firstOf(err, s.keepFormat1(kept, r.format1))
}

// fold writes the pages with everything before a position, when much was replayed since the last time. The
// mark stays: after a crash the next replay begins there too, because it must see again which counters
// were deleted.
func (r *replay) fold(position int64) error {
	s := r.s
	if r.foldBytes == 0 || position-r.folded < r.foldBytes && r.remembered < foldRepeats {
		return nil
	}
	r.folded, r.remembered = position, 0
	replaying := s.underway.begin(s.folder.mark.Load)
	defer s.underway.end(replaying)
	return s.fold()
}

// record replays a record.
func (r *replay) record(payload []byte, position int64) error {
	switch payload[0] {
	case recordPart: // read when its transaction happens
		return nil
	case recordRedo:
		return r.redo(payload, position)
	case recordCounter:
		return r.set(payload, position)
	}
	e, err := decodeEvent(payload, position)
	if err == nil {
		r.keep(&e, position)
		err = r.event(&e, position)
	}
	return err
}

// redo applies a transaction. Applying it again changes nothing.
func (r *replay) redo(payload []byte, position int64) error {
	parts, w, err := decodeRedo(payload, position)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if w, err = r.s.readPart(part); err != nil {
			return err
		}
		if err := r.write(w, position); err != nil {
			return err
		}
	}
	if len(parts) > 0 {
		return nil
	}
	return r.write(w, position)
}

func (r *replay) write(w *writes, position int64) error {
	dropped, err := w.dropped()
	if err != nil {
		return err
	}
	for _, of := range dropped {
		r.dropped[of] = true
		sh := r.s.counters.shard(of)
		delete(sh.unfolded, of)
		if c := sh.byRef[of]; c != nil {
			sh.removeLocked(c)
		}
	}
	if err := r.made(w); err != nil {
		return err
	}
	r.s.committing.Lock()
	defer r.s.committing.Unlock()
	for err = r.s.write(w, dropped, position); noRoom(err) && r.s.stopped() == nil; {
		r.s.reserve.wait() // a table that Badger is writing may make room
		err = r.s.write(w, dropped, position)
	}
	if err == nil {
		r.s.reserve.waits.Store(0)
	}
	return err
}

// made takes the keys and users that are written out of dropped: an import can give the number of a
// deleted one again.
func (r *replay) made(w *writes) error {
	if len(r.dropped) == 0 {
		return nil
	}
	list, err := r.s.made(w)
	for _, of := range list {
		delete(r.dropped, of)
	}
	return err
}

// made returns the counters of the keys and users that are written.
func (s *Store) made(w *writes) (list []ref, err error) {
	for p, one := range w.byPath {
		if one.value == nil || p[0] != kindKey && p[0] != kindUser {
			continue
		}
		fields := reading{[]byte(p[1:])}
		account, number := fields.text(), int64(fields.uint64())
		of, err := s.accounts.number(s, account)
		if err != nil {
			return nil, err
		}
		list = append(list, ref{number, of, uint32(p[0])})
	}
	return list, nil
}

// set sets a counter to the state in a record. The database may have lost archived days of it: they are
// archived again.
func (r *replay) set(payload []byte, position int64) error {
	of, t, err := decodeSet(payload)
	if err != nil || r.dropped[of] {
		return err
	}
	sh := r.s.counters.shard(of)
	c := sh.byRef[of]
	var before tally
	if c != nil {
		before = c.tally
	} else if before, _, err = r.read(of, sh.unfolded[of]); err != nil {
		return err
	}
	if before.applied >= position { // the page is ahead, or the counter was deleted
		return nil
	}
	t.keepDays(before.days.unarchived())
	if c == nil {
		c = sh.addLocked(of, position)
	}
	c.readLocked(t, 0)
	c.unsaved = true
	c.changedLocked()
	return nil
}

// read reads a counter from its page and its events.
func (r *replay) read(of ref, unfolded head) (t tally, base int64, err error) {
	err = r.s.db.View(func(txn *badger.Txn) (err error) {
		t, base, err = r.s.readTally(snapshot{txn}, of, unfolded)
		return err
	})
	return t, base, err
}

// keep notes until when an event must be kept, if it is in a segment of format 1.
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

// event notes an event, for its key and for its user. One of both may be deleted.
func (r *replay) event(e *event, position int64) error {
	key, user := e.refs()
	if e.requestID != "" {
		r.remembered++
		r.s.counters.shard(key).repeats.addLocked(repeat{key, e.requestID}, position)
	}
	return firstOf(r.counter(key, e, position), r.counter(user, e, position))
}

// counter notes an event of a counter.
func (r *replay) counter(of ref, e *event, position int64) error {
	if r.dropped[of] {
		return nil
	}
	all := ref{account: of.account, kind: of.kind}
	r.highest[all] = max(r.highest[all], of.number)
	sh := r.s.counters.shard(of)
	if c := sh.byRef[of]; c != nil {
		if position <= c.applied {
			return nil
		}
		c.changedLocked()
		return c.apply(e, of.kind, position)
	}
	h := sh.unfolded[of]
	h.position, h.events = position, h.events+1
	sh.unfolded[of] = h
	if h.events < oftenUnfolded {
		return nil
	}
	t, base, err := r.read(of, h)
	if err != nil {
		return err
	}
	if t.applied > position { // the page is ahead, or the counter was deleted
		sh.unfolded[of] = head{position: position}
		return nil
	}
	c := sh.addLocked(of, position)
	c.readLocked(t, base)
	return nil
}
