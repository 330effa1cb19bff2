package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// Stats are the metrics of a store.
type Stats struct {
	EventLogBytes int64  // the size of the event log, which is the history
	MaxHistory    int64  // the largest size of the event log, see [Options.MaxHistory]
	PendingBytes  int64  // bytes of the event log after the last checkpoint; after a crash the next start replays them
	Checkpoints   uint64 // checkpoints written since the store was opened
	Waits         uint64 // requests that waited for a checkpoint
	VerifiedAt    int64  // when the last scrub ended without damage, Unix seconds; 0 before the first scrub

	Segments       int       // files of the event log
	CheckpointedAt time.Time // when the last checkpoint ended without an error; at first when the store was opened
	MinFree        int64     // see [Options.MinFree], in bytes

	Counters         int    // counters in memory
	CounterHits      uint64 // look-ups of counters for decisions that found the counter in memory
	CounterMisses    uint64 // counters that were read from the database
	CounterEvictions uint64 // counters that were removed from memory to make room
}

// Stats returns the metrics of the store. It reads no file.
func (s *Store) Stats() Stats {
	if !s.life.TryRLock() { // the store is being closed, or rebuilds its database
		return Stats{MinFree: s.space.MinFree(), MaxHistory: s.retention.maxBytes.Load()}
	}
	defer s.life.RUnlock()
	return Stats{
		EventLogBytes:    s.historyBytes(),
		MaxHistory:       s.retention.maxBytes.Load(),
		PendingBytes:     s.events.Written() - s.checkpointer.mark.Load(),
		Checkpoints:      s.checkpointer.checkpoints.Load(),
		Waits:            s.checkpointer.waits.Load(),
		VerifiedAt:       s.verified.Load(),
		Segments:         len(s.events.Segments()),
		CheckpointedAt:   time.Unix(0, s.checkpointer.at.Load()),
		MinFree:          s.space.MinFree(),
		Counters:         int(s.counters.count.Load()),
		CounterHits:      s.counters.hits(),
		CounterMisses:    s.counters.misses.Load(),
		CounterEvictions: s.counters.evictions.Load(),
	}
}

// DiskSpace returns the free bytes and the size of the file system of the store. ok is false on systems that do not report them.
func (s *Store) DiskSpace() (free, size uint64, ok bool) {
	free, size, err := s.space.Space(s.dir)
	return free, size, err == nil && size != math.MaxUint64
}

// IsDamage reports whether an error of a store means that its files are damaged, or that its directory was deleted or
// replaced.
func IsDamage(err error) bool { return isDamage(err) || errors.Is(err, errLost) }

// IsFull reports whether an error of a store means that its disk is full.
func IsFull(err error) bool { return diskspace.NoRoom(err) }

// Health implements [core.HealthStore].
func (s *Store) Health(context.Context) error {
	if s.healing.runs.Load() {
		return unavailable(fmt.Sprintf("The store is rebuilding its database: %d %%", s.healing.done.Load()), errHealing)
	}
	if err := s.enterToChange(); errors.Is(err, eventlog.ErrTemporary) {
		return unavailable("The store cannot write at the moment", err)
	} else if err != nil {
		return unavailable("The store has failed, and the log says why", err)
	}
	defer s.leave()
	if err := s.requireSpace(); err != nil {
		return unavailable("The disk of the store is full", err)
	}
	return nil
}

// unavailable returns an error with a public text and a private cause.
func unavailable(text string, cause error) error {
	return fmt.Errorf("%w: %w", &core.Error{Code: core.CodeUnavailable, Message: text}, cause)
}

var _ core.HealthStore = (*Store)(nil)
