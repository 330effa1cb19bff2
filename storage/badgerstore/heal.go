package badgerstore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// A store that serves opens its files again, as a start does, after a failure that passes: the event log cannot be written, on a full
// disk or without a file descriptor. So it does when the database is in doubt, and then rebuilds the database: a block that cannot be
// read, a table that a compaction has lost, a file that a scrub finds changed, a record that is missing though another one
// refers to it, a commit that Badger has refused. Meanwhile it answers 503. The event log has everything that was answered.

// passes reports whether the cause of an error can end without a restart: a full disk, or a lack of file descriptors.
func passes(err error) bool {
	return (diskspace.NoRoom(err) || noDescriptors(err) || errors.Is(err, eventlog.ErrTemporary)) && !errors.Is(err, eventlog.ErrSync)
}

// healAgain is the least time between two healings for records that contradict each other. A second one would not help.
const healAgain = time.Hour

// healRetry is the pause between two attempts to open the files again.
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

// heal opens the files of the store again. Until they can be written, reads are answered. Without success the store keeps refusing.
func (s *Store) heal() {
	for err := s.failure(); passes(err) && !doubtful(err) && !s.closing.Load(); err = s.failure() {
		if firstOf(s.space.Need(diskspace.OpeningNeeds, "the event log"), probe(s.dir)) == nil {
			break
		}
		time.Sleep(healRetry)
	}
	s.healing.runs.Store(true)
	defer s.healing.runs.Store(false)
	s.endSnapshot(errHealing)
	s.life.Lock() // waits until all methods have ended
	defer s.life.Unlock()
	failed := s.failed.Load()
	if s.closed || failed == nil { // another heal was first
		return
	}
	cause := *failed
	s.healing.at.Store(time.Now().Unix())
	s.healing.done.Store(0)
	s.background.stop()
	err := s.reopen(cause)
	for waits := 0; passes(err) && !s.closing.Load(); waits++ {
		if waits == 0 {
			s.log.Error("the files cannot be opened again yet: the store tries again every second", "dir", s.dir, "error", err)
		}
		time.Sleep(healRetry)
		err = s.reopen(cause)
	}
	if err != nil {
		err = core.Logged(fmt.Errorf("%w: %w", errBadger, withAdvice(s.dir, err))) // no read is answered, either
		s.failed.Store(&err)
		s.log.Error("the files were not opened again, and the store refuses everything", "dir", s.dir, "error", err)
		return
	}
	s.background.start(s)
	if !doubtful(cause) {
		s.log.Warn("the event log can be written again: requests are counted", "dir", s.dir)
	}
}

// reopen opens the event log again, and then the database. The caller holds life. It first writes all events, and the counters that nothing saves, to the
// files of the event log, because the replay reads only these files.
func (s *Store) reopen(cause error) error {
	s.counters.each(s.appendUnlogged)
	if err := s.events.Close(); err != nil && !passes(err) && !errors.Is(err, eventlog.ErrClosed) {
		return err
	}
	if err := s.openLog(); err != nil {
		return err
	}
	if passes(cause) {
		if _, err := s.appendAndWait(func(b []byte, _ int64) []byte { return append(b, recordNothing) }); err != nil {
			return err
		}
	}
	return s.openDatabase(cause)
}
