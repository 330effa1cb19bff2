package redisstore

import (
	"context"
	"errors"
	"fmt"
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
	st.Lost, st.Losses, st.Failovers = s.refusal() != nil, s.losses.Load(), s.failovers.Load()
	for _, m := range w.masters {
		st.Warnings += m.warnings
		if m.node.away.Load() != nil {
			st.Away++
		}
		st.Watching = st.Watching && time.Duration(m.trustedUntil.Load()) > now
	}
	return st
}

// Health implements [core.HealthStore].
func (s *Store) Health(ctx context.Context) error {
	if err := s.refusal(); err != nil {
		return fmt.Errorf("%w: %w", &core.Error{Code: core.CodeUnavailable, Message: "Redis has lost data, and the log says what"}, err)
	}
	_, err := s.AccountByName(ctx, "health")
	if errors.Is(err, core.ErrAccountNotFound) {
		return nil
	}
	return err
}

var _ core.HealthStore = (*Store)(nil)
