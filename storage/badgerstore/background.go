package badgerstore

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/rankset"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// The intervals of the background work.
const (
	syncEvery       = time.Second
	expireEvery     = time.Minute
	watchEvery      = time.Second
	checkpointRetry = time.Second // the shortest pause after a failed checkpoint
)

// background runs the periodic work of a store in goroutines.
type background struct {
	done  chan struct{}
	group sync.WaitGroup
}

// start starts the goroutines.
func (k *background) start(s *Store) {
	k.done = make(chan struct{})
	k.group.Go(func() {
		k.every(syncEvery, func() {
			now := s.now()
			s.clock.Store(now.Unix())
			if s.checkDir(); s.failure() != nil {
				return
			}
			_, _ = s.makeSpace(now, s.freeSpace)
			s.reserve.Watch()
			_ = s.syncAll() // a final error has failed the store, and is logged
		})
	})
	k.group.Go(func() { k.checkpoint(s) })
	k.group.Go(func() { k.every(watchEvery, s.watch) })
	k.group.Go(func() { k.scrub(s) })
	k.group.Go(func() {
		k.every(expireEvery, func() {
			if err := s.expire(s.now()); err != nil {
				s.log.Warn("expired history was not removed: the store tries again in a minute", "dir", s.dir, "error", err)
			}
		})
	})
}

// checkpoint writes a checkpoint every checkpointEvery and on request, until the background is stopped.
func (k *background) checkpoint(s *Store) {
	failed := false
	for wait := checkpointEvery; ; {
		timer := time.NewTimer(wait)
		select {
		case <-k.done:
			timer.Stop()
			return
		case <-timer.C:
		case <-s.checkpointer.wake:
			timer.Stop()
		}
		began := time.Now()
		err := s.checkpoint()
		if err != nil {
			if !failed && !s.alreadyLogged(err) {
				s.log.Error("no checkpoint was written: the store tries again", "dir", s.dir, "error", err)
			}
			k.pause(checkpointRetry)
		}
		failed = err != nil
		if err := s.trim(s.now()); err != nil {
			s.log.Warn("history beyond max_history was not removed: the store tries again after the next checkpoint", "dir", s.dir, "error", err)
		}
		wait = max(checkpointEvery, min(pauseFactor*time.Since(began), maxCheckpointPause))
	}
}

// alreadyLogged reports whether the cause of an error has its own log line: the event log refuses events, the disk
// is full, or the store has failed.
func (s *Store) alreadyLogged(err error) bool {
	return errors.Is(err, eventlog.ErrTemporary) || errors.Is(err, reserve.ErrFull) || s.failure() != nil
}

// pause waits for d. It returns false at once when the background is stopped.
func (k *background) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-k.done:
		return false
	case <-timer.C:
		return true
	}
}

// every calls fn at once, and then once per interval until the background is stopped.
func (k *background) every(interval time.Duration, fn func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		fn()
		select {
		case <-k.done:
			return
		case <-tick.C:
		}
	}
}

// stop stops the goroutines, if they were started, and waits for them.
func (k *background) stop() {
	if k.done != nil {
		close(k.done)
	}
	k.group.Wait()
}

// freeSpace returns how many bytes are free on the disk, the reserve included.
func (s *Store) freeSpace() (uint64, error) {
	free, _, err := s.reserve.Space(s.dir)
	return free + uint64(s.reserve.Held()), err
}

// requireSpace returns reserve.ErrFull when the disk is too full for counts and new resources.
func (s *Store) requireSpace() error {
	if s.reserve.Full() {
		return fault(reserve.ErrFull)
	}
	return nil
}

// A scrub reads all tables and all segments of the event log and verifies their checksums, so that the store finds
// damage before it needs the data. A scrub begins a day after the previous scrub ended, even if the store was closed
// in between, but not within 5 minutes of opening. At 16 MiB/s a scrub reads 1.4 TB a day.
const (
	firstScrub      = 5 * time.Minute
	scrubEvery      = 24 * time.Hour
	scrubRate       = 16 << 20  // bytes a second
	scrubPauseBytes = 1 << 20   // bytes between two pauses
	scrubLogEvery   = time.Hour // between two log lines of one scrub
)

// isDamage reports whether an error means that a file or an index is damaged.
func isDamage(err error) bool {
	return errors.Is(err, table.ErrDamaged) || errors.Is(err, eventlog.ErrDamaged) || errors.Is(err, rankset.ErrDamaged)
}

// failOnDamage fails the store when an error means damage: then the store refuses every call.
func (s *Store) failOnDamage(err error) error {
	if isDamage(err) {
		return s.fail(withAdvice(s.dir, err))
	}
	return err
}

// watch verifies the tables that were compacted since the last call, one second ago, and deletes the compacted
// tables. When a read has met an unreadable block, watch verifies all tables.
func (s *Store) watch() {
	err := s.db.Watch()
	if n := table.Unreadable(); (err == nil || isDamage(err)) && s.unreadable.Load() != n {
		found := s.db.Verify(func(int) bool { return true }) // names the file
		if err = firstOf(found, err); err == nil {
			s.unreadable.Store(n)
		}
	}
	if err := s.failOnDamage(err); err != nil && s.failure() == nil && !reserve.NoRoom(err) && !s.alreadyLogged(err) {
		s.log.Warn("the compacted tables were not verified: the store tries again in a second", "dir", s.dir, "error", err)
	}
}

// scrub runs a scrub and then a sweep every day, until the background is stopped.
func (k *background) scrub(s *Store) {
	for wait := s.untilScrub(time.Now()); k.pause(wait); wait = scrubEvery {
		c := scrubbing{s: s, sleep: k.pause, began: time.Now(), logged: time.Now()}
		if err := s.failOnDamage(c.run()); err != nil && s.failure() == nil {
			s.log.Warn("the store was not verified: the store tries again in a day, limitkeeper check verifies a stopped store", "dir", s.dir, "error", err)
		}
		if err := s.failOnDamage(s.sweep(s.now(), k.pause)); err != nil && s.failure() == nil && !s.alreadyLogged(err) {
			s.log.Warn("old request ids and days were not removed: the store tries again in a day", "dir", s.dir, "error", err)
		}
	}
}

// untilScrub returns the time from opening the store to its first scrub. A store without a checkpoint copy does not
// wait until a day after the last scrub.
func (s *Store) untilScrub(now time.Time) time.Duration {
	since := now.Sub(time.Unix(s.verified.Load(), 0))
	if since < 0 || s.retention.copied.Load() == noCopy {
		return firstScrub
	}
	return max(firstScrub, scrubEvery-since)
}

// scrubbing is one scrub.
type scrubbing struct {
	s          *Store
	sleep      func(time.Duration) bool // returns false when the scrub has to stop
	began      time.Time
	logged     time.Time
	bytes      int64 // read so far
	sincePause int   // bytes read since the last pause
}

var errStopped = errors.New("the scrub was stopped")

// run reads all tables and segments. It returns the first damage.
func (c *scrubbing) run() error {
	stopped := false
	verified, err := c.copyTables()
	if err != nil && !isDamage(err) {
		c.s.log.Warn("no checkpoint copy was written for limitkeeper rebuild: the store tries again in a day", "dir", c.s.dir, "error", err)
		err = nil
	}
	if err == nil && !verified {
		err = c.s.db.Verify(func(n int) bool {
			stopped = !c.pause(n)
			return !stopped
		})
	}
	if err == nil && !stopped {
		err = c.segments()
	}
	if stopped || errors.Is(err, errStopped) {
		return nil
	}
	if err == nil {
		now := time.Now().Unix()
		c.s.verified.Store(now)
		_ = c.s.db.SetVerified(now) // on an error, such as a full disk, the next inventory stores the time
		c.s.log.Info("the store was verified", "dir", c.s.dir, "bytes", c.bytes, "duration", time.Since(c.began).Round(time.Second))
	}
	return err
}

// segments reads the segments of the event log.
func (c *scrubbing) segments() error {
	for _, g := range c.s.events.Segments() {
		err := c.s.events.Replay(g.Base, func(position int64, payload []byte) error {
			if position >= g.End {
				return errEndOfSegment
			}
			if !c.pause(len(payload)) {
				return errStopped
			}
			return nil
		})
		isSame := func(o eventlog.Segment) bool { return o.Base == g.Base }
		if err != nil && err != errEndOfSegment && slices.ContainsFunc(c.s.events.Segments(), isSame) { // otherwise retention removed the segment
			return err
		}
	}
	return nil
}

var errEndOfSegment = errors.New("end of segment")

// pause counts n bytes, and sleeps after each scrubPauseBytes to keep scrubRate. It returns false when the scrub has
// to stop.
func (c *scrubbing) pause(n int) bool {
	c.bytes, c.sincePause = c.bytes+int64(n), c.sincePause+n
	if c.sincePause < scrubPauseBytes {
		return true
	}
	d := time.Duration(c.sincePause) * time.Second / scrubRate
	c.sincePause = 0
	if time.Since(c.logged) > scrubLogEvery {
		c.logged = time.Now()
		c.s.log.Info("verifying the store", "dir", c.s.dir, "bytes", c.bytes)
	}
	return c.sleep(d)
}

// failpoint is a moment at which a test can end the process or look at the store. Rebuild counts replayed records by failReplay.
type failpoint uint8

const (
	failCheckpoint   failpoint = iota // a checkpoint is about to begin
	failPages                         // pages are about to be committed
	failPagesWritten                  // all pages are committed, but not the mark of the checkpoint
	failMarked                        // the mark is committed
	failExpire                        // a segment is about to be removed
	failReplay                        // a record was replayed while the store is being opened
	failCommit                        // a transaction of Badger is about to be committed
	failCommitted                     // the transaction is committed
	failSnapshot                      // a snapshot is being made
	failpoints
)

// noFailpoint is Options.failpoint of all stores that neither a test nor Rebuild opens.
func noFailpoint(failpoint) {}
