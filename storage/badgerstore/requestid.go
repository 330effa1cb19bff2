package badgerstore

import (
	"errors"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// A request with an id that was counted is found again by key and id: in memory as
// long as its event is not folded, then in a record that leads to the event and that
// badger drops when its time is over.

// repeats are the requests with an id that are not folded yet, of the keys of a shard.
type repeats struct {
	positions map[repeat]int64
	removals  uint64 // how often checkpoints have removed positions
}

// repeat names a request with an id.
type repeat struct {
	key ref
	id  string
}

// addLocked remembers the event of a request with an id.
func (r *repeats) addLocked(of repeat, position int64) {
	if r.positions == nil {
		r.positions = map[repeat]int64{}
	}
	r.positions[of] = position
}

// repeatPath returns the path of what leads to the event of a request with an id.
func repeatPath(of repeat) path {
	return at(kindRepeat).number(int64(of.key.account)).number(of.key.number).text(of.id)
}

// lookedUp is what is known of a request with an id before it is decided.
type lookedUp struct {
	removals uint64 // of repeats at the look-up
	position int64  // of an event that is no answer to it, 0 for none
}

// firstAnswer returns what a request with the same id was answered, if one was in
// the time for which that is remembered.
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

// currentLocked reports whether what was looked up is still so.
func (r *repeats) currentLocked(of repeat, known lookedUp) bool {
	position := r.positions[of]
	return known.removals == r.removals && (position == 0 || position == known.position)
}

// event reads an event of the event log, when it is where an answered one has to be.
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

// newAnswer returns what is kept of an answer.
func newAnswer(u core.Usage, t core.Terms) answer {
	return answer{used: u.Used, start: u.Window.Start.Unix(), terms: t}
}

// verdict returns the answer again.
func (v *answer) answer() core.ConsumeResult {
	terms := v.terms
	return core.ConsumeResult{
		Usage:   core.Usage{Window: terms.Period.Window(time.Unix(v.start, 0)), Used: v.used},
		Allowed: true, FirstTerms: &terms,
	}
}

// lookUp returns the first answer of a request, if it has an id that has one and its
// key and user exist.
func (s *Store) lookUp(c *core.Consumption, key, user ref) (v core.ConsumeResult, found bool, known lookedUp, err error) {
	if c.RequestID == "" {
		return core.ConsumeResult{}, false, lookedUp{}, nil
	}
	if err := s.loadBoth(c, key, user); err != nil {
		return core.ConsumeResult{}, false, lookedUp{}, err
	}
	return s.firstAnswer(c, key)
}
