package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Stats is the state of a store.
type Stats struct {
	Masters  int  // known masters
	Away     int  // masters that do not answer
	Warnings int  // settings of masters that risk the loss of counts; the log names them
	Lost     bool // Redis has lost data, so every call is refused

	Losses    uint64 // data losses since the store was opened
	Failovers uint64 // failovers and restarts of Redis since then

	Watching bool // all masters report changes, so cached resources are valid
}

// Stats returns the state of the store. It sends nothing to Redis.
func (s *Store) Stats() (st Stats) {
	w := s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Since(w.begun)
	st.Masters, st.Watching = len(w.masters), len(w.masters) > 0
	st.Lost, st.Losses, st.Failovers = s.refused.Load() != nil, s.losses.Load(), s.failovers.Load()
	for _, m := range w.masters {
		st.Warnings += m.warnings
		if m.away.Load() != nil {
			st.Away++
		}
		st.Watching = st.Watching && time.Duration(m.trustedUntil.Load()) > now
	}
	return st
}

// healthFor is how long the answer of Redis to [Store.Health] is used: anyone can request the health without limit. So a node
// sends at most 4 probes a second to each master.
const healthFor = 250 * time.Millisecond

// healthCache is the last answer to [Store.Health].
type healthCache struct {
	mu  sync.Mutex // held while Redis is asked, so that concurrent callers share the answer
	at  time.Time  // of the answer
	err error
}

// Health implements [core.HealthStore]. It sends each master at most one write in healthFor.
func (s *Store) Health(ctx context.Context) error {
	refuse := func(text string, why error) error {
		return fmt.Errorf("%w: %w", &core.Error{Code: core.CodeUnavailable, Message: text}, why)
	}
	if lost := s.refused.Load(); lost != nil {
		return refuse("Redis has lost data, and the log says what", *lost)
	}
	if other := s.otherFormat.Load(); other != nil {
		return refuse("Another version of Limitkeeper has upgraded the data", *other)
	}
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) < healthFor {
		return h.err
	}
	h.err = s.probe(ctx)
	h.at = time.Now()
	return h.err
}

// probe writes to each master in parallel, and waits for replicas like a decision. It fails when a master only answers
// reads: its memory is full, its replicas are missing, its disk is full, or it is a replica. The error and the log name the master.
func (s *Store) probe(ctx context.Context) error {
	masters, _ := s.watch.list()
	if len(masters) == 0 {
		return unavailable(errors.New("no master is known"))
	}
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	return parallel(len(masters), func(i int) error {
		m := masters[i]
		set := s.client.B().Set().Key(s.o.markName(m.markNumber.Load()) + ":probe").Value(now).Build()
		err := s.writes.Do(ctx, set).Error()
		s.warnings.logWhile(err != nil && m.away.Load() == nil && !s.closing.Load(), // the watch logs that a master is away
			s.o.Logger, m.address, time.Now(), "redis takes no writes", "error", err)
		if err != nil {
			return unavailable(fmt.Errorf("test write to %s: %w", m.address, err))
		}
		return nil
	})
}

var _ core.HealthStore = (*Store)(nil)
