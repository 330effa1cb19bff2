package badgerstore

import (
	"errors"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// The first answer to a request id is in the event of the request. The position of that event is in memory until the
// next checkpoint, and then in a record of Badger for 48 hours.

// repeats has the positions of the requests with an id since the last checkpoint, for the keys of a shard.
type repeats struct {
	positions map[repeat]int64
	removals  uint64 // how often checkpoints have removed positions
}

// repeat is a key and a request id.
type repeat struct {
	key ref
	id  string
}

// addLocked adds the position of the event of a request id.
func (r *repeats) addLocked(of repeat, position int64) {
	if r.positions == nil {
		r.positions = map[repeat]int64{}
	}
	r.positions[of] = position
}

// repeatPath returns the path of the record with the position of the event of a request id.
func repeatPath(of repeat) path {
	return at(kindRepeat).number(int64(of.key.account)).number(of.key.number).text(of.id)
}

// lookedUp is the result of a look-up of a request id that has no first answer. currentLocked compares it.
type lookedUp struct {
	removals uint64 // of repeats at the look-up
	position int64  // of an event that is no answer, because it is too old; 0 for none
}

// firstAnswer returns the answer to the first request with the same id within the last 24 hours.
func (s *Store) firstAnswer(c *core.Consumption, key ref) (v core.ConsumeResult, found bool, known lookedUp, err error) {
	of := repeat{key, c.RequestID}
	sh := s.counters.shard(key)
	sh.mu.Lock()
	position := sh.repeats.positions[of]
	known.removals = sh.repeats.removals
	sh.mu.Unlock()
	if position == 0 {
		err = s.db.View(func(txn *badger.Txn) error {
			position, err = snapshot{txn}.number(repeatPath(of))
			return err
		})
	}
	if err != nil || position == 0 {
		return core.ConsumeResult{}, false, known, err
	}
	known.position = position
	e, err := s.event(position)
	switch {
	case errors.Is(err, eventlog.ErrGone):
		return core.ConsumeResult{}, false, known, nil
	case err != nil:
		return core.ConsumeResult{}, false, known, err
	case e.KeyID != c.KeyID || e.requestID != c.RequestID || !c.Repeats(e.At):
		return core.ConsumeResult{}, false, known, nil
	}
	return e.first.answer(), true, known, nil
}

// currentLocked reports whether the result of a look-up is still right.
func (r *repeats) currentLocked(of repeat, known lookedUp) bool {
	position := r.positions[of]
	return known.removals == r.removals && (position == 0 || position == known.position)
}

// event reads the event at a position. It is as durable as an answered request.
func (s *Store) event(position int64) (event, error) {
	if !s.events.Safe(position) {
		if err := s.events.Flush(); err != nil {
			return event{}, err
		}
	}
	payload, err := s.events.Read(position, nil)
	if err != nil {
		return event{}, err
	}
	return decodeEvent(payload, position)
}

// newAnswer returns the part of an answer that its event keeps.
func newAnswer(u core.Usage, t core.Terms) answer {
	return answer{used: u.Used, start: u.Window.Start.Unix(), terms: t}
}

// answer returns the whole answer.
func (v *answer) answer() core.ConsumeResult {
	terms := v.terms
	return core.ConsumeResult{
		Usage:   core.Usage{Window: terms.Period.Window(time.Unix(v.start, 0)), Used: v.used},
		Allowed: true, FirstTerms: &terms,
	}
}

// lookUp returns the first answer to the request id of a request. Without a request id, or without a first answer, found is
// false. It is an error when the key or the user does not exist.
func (s *Store) lookUp(c *core.Consumption, key, user ref) (v core.ConsumeResult, found bool, known lookedUp, err error) {
	if c.RequestID == "" {
		return core.ConsumeResult{}, false, lookedUp{}, nil
	}
	if err := s.loadBoth(c, key, user); err != nil {
		return core.ConsumeResult{}, false, lookedUp{}, err
	}
	return s.firstAnswer(c, key)
}
