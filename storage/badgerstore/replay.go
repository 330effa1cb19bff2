package badgerstore

import (
	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// oftenUnfolded is how many events of a counter are read while the store is opened
// before the counter is taken into memory: finding them one by one, later, costs more.
const oftenUnfolded = 64

// replay reads the events behind the checkpoint, and notes which counters have events there.
type replay struct {
	s     *Store
	known map[uint32]*given // by the number of the account

	left int // how many events have a key or user that is not there

	old     []eventlog.Segment      // of format 1, from that of the current event on
	format1 map[int64]eventlog.Keep // until when these must be kept, by their bases
}

// given are the largest numbers that an account has given to its keys and users. After
// a power cut the event log may be ahead of the database: it has events of keys and users that
// are missing there, and whose numbers may be given again.
type given struct{ key, user int64 }

// replayFrom replays the event log from the mark of the checkpoint on. kept says of segments of
// format 1 until when they must be kept.
func (s *Store) replayFrom(mark int64, kept map[int64]eventlog.Keep) error {
	s.folder.mark.Store(mark)
	r := replay{s: s, known: map[uint32]*given{}, format1: map[int64]eventlog.Keep{}}
	for _, g := range s.events.Segments() {
		if g.Version == 1 {
			r.old = append(r.old, g)
		}
	}
	err := s.events.Replay(mark, func(position int64, payload []byte) error {
		e, err := decodeEvent(payload, position)
		if err == nil {
			r.keep(&e, position)
			err = r.event(&e, position)
		}
		s.step(stepReplay)
		return err
	})
	if err := firstOf(err, s.keepFormat1(kept, r.format1)); err != nil {
		return err
	}
	if r.left > 0 {
		s.log.Warn("the event log has requests of keys or users that were not yet on the disk when the power failed", "dir", s.dir, "requests", r.left)
		return s.fold() // so that they are never read again
	}
	return nil
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

// event notes an event. One of a key or user that is not there any more still counts
// for the other: the events of that one have consecutive numbers.
func (r *replay) event(e *event, position int64) error {
	known, err := r.of(e.account)
	if err != nil {
		return err
	}
	key, user := e.refs()
	keyThere, userThere := key.number <= known.key, user.number <= known.user
	if !keyThere || !userThere {
		r.left++
	}
	if keyThere {
		if e.requestID != "" {
			r.s.counters.shard(key).repeats.addLocked(repeat{key, e.requestID}, position)
		}
		err = r.counter(key, e, position)
	}
	if userThere && err == nil {
		err = r.counter(user, e, position)
	}
	return err
}

// of returns what an account has given.
func (r *replay) of(account uint32) (*given, error) {
	if g := r.known[account]; g != nil {
		return g, nil
	}
	g := new(given)
	err := r.s.db.View(func(txn *badger.Txn) error {
		sn := snapshot{txn}
		a, err := found[core.Account](sn, accountPath(int64(account)), core.ErrAccountNotFound)
		if err == core.ErrAccountNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		g.key, err = sn.number(lastPath(a.ID, kindKey))
		if err != nil {
			return err
		}
		g.user, err = sn.number(lastPath(a.ID, kindUser))
		return err
	})
	r.known[account] = g
	return g, err
}

// counter notes an event of a counter.
func (r *replay) counter(of ref, e *event, position int64) error {
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
	var t tally
	var base int64
	err := r.s.db.View(func(txn *badger.Txn) (err error) {
		t, base, err = r.s.readTally(snapshot{txn}, of, h)
		return err
	})
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
