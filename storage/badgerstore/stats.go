package badgerstore

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// Stats says how a store is doing.
type Stats struct {
	LedgerBytes   int64  // the size of the event log, which is the history
	MaxHistory    int64  // the size that it may have, see [Options.MaxHistory]
	UnfoldedBytes int64  // how much of it is not folded yet: it is read when the store is opened
	Folds         uint64 // how often it was folded
	Waits         uint64 // how often a request had to wait until it was
	VerifiedAt    int64  // when the last scrub of all files ended without damage, Unix seconds; 0 before the first one
}

// Stats returns how the store is doing. It is cheap.
func (s *Store) Stats() Stats {
	return Stats{
		LedgerBytes:   s.historyBytes(),
		MaxHistory:    s.retention.most.Load(),
		UnfoldedBytes: s.events.Written() - s.folder.mark.Load(),
		Folds:         s.folder.folds.Load(),
		Waits:         s.folder.waits.Load(),
		VerifiedAt:    s.verified.Load(),
	}
}

// Health implements [core.HealthStore].
func (s *Store) Health(context.Context) error {
	failed := s.enter()
	if failed == nil {
		defer s.leave()
		failed = s.failure()
	}
	if failed != nil {
		return unwell("The store has failed, and the log says why", failed)
	}
	if err := s.roomy(); err != nil {
		return unwell("The disk of the store is full", err)
	}
	if err := s.events.Ready(); err != nil {
		return unwell("The store cannot write at the moment", fault(err))
	}
	return nil
}

// unwell returns an error with a text for anybody, and its cause.
func unwell(text string, cause error) error {
	return fmt.Errorf("%w: %w", &core.Error{Code: core.CodeUnavailable, Message: text}, cause)
}

var _ core.HealthStore = (*Store)(nil)
