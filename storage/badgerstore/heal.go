package badgerstore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// A store that serves rebuilds its database as a start does, when it finds damage of the database: a block that cannot be
// read, a table that a compaction has lost, a file that a scrub finds changed, a record that is missing though another one
// refers to it, a commit that Badger has refused. Meanwhile it answers 503. The event log stays open: it has everything that was answered.

// healAgain is the least time between two healings for records that contradict each other. A second one would not help.
const healAgain = time.Hour

// healRetry is the pause between two attempts to rebuild the database without room or descriptors, or with an event log that
// cannot be written at the moment.
const healRetry = time.Second

// healing is the state of rebuilding the database.
type healing struct {
	runs atomic.Bool
	at   atomic.Int64 // when the last one began, Unix seconds; 0 for none
	done atomic.Int64 // of the replay, in per cent
}

// errHealing means that the store rebuilds its database.
var errHealing = core.Unavailable(errors.New("the store rebuilds its database"))

// suspect fails the store when a read has found records that contradict each other, so that the database is rebuilt.
func (s *Store) suspect(err error) error {
	if doubtful(err) && s.background.runs() && time.Since(time.Unix(s.healing.at.Load(), 0)) > healAgain {
		_ = s.fail(err)
	}
	return err
}

// heal rebuilds the database. Without success the store keeps refusing.
func (s *Store) heal(cause error) {
	s.healing.runs.Store(true)
	defer s.healing.runs.Store(false)
	s.endSnapshot(cause)
	s.life.Lock() // waits until all methods have ended
	defer s.life.Unlock()
	if s.closed {
		return
	}
	s.healing.at.Store(time.Now().Unix())
	s.healing.done.Store(0)
	s.background.stop()
	err := s.renewOpen(cause)
	for waits := 0; (diskspace.NoRoom(err) || noDescriptors(err) || errors.Is(err, eventlog.ErrTemporary)) && !s.closing.Load(); waits++ {
		if waits == 0 {
			s.log.Error("the database cannot be rebuilt yet: the store tries again every second", "dir", s.dir, "error", err)
		}
		time.Sleep(healRetry)
		err = s.renewOpen(cause)
	}
	if err != nil {
		err = core.Logged(fmt.Errorf("%w: %w", errBadger, withAdvice(s.dir, err))) // no read is answered, either
		s.failed.Store(&err)
		s.log.Error("the database was not rebuilt, and the store refuses everything", "dir", s.dir, "error", err)
		return
	}
	s.background.start(s)
}

// renewOpen rebuilds the database of an open store. The caller holds life. It first writes all events and unlogged counters to the
// files of the event log, because the replay reads only these files.
func (s *Store) renewOpen(cause error) error {
	for i := range s.counters.shards {
		sh := &s.counters.shards[i]
		sh.mu.Lock()
		s.appendUnlogged(sh)
		sh.mu.Unlock()
	}
	if err := s.events.Flush(); err != nil {
		return err
	}
	return s.openDatabase(cause)
}
