package badgerstore

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/rankset"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// The intervals of the background work.
const (
	syncEvery       = time.Second
	spaceEvery      = 100 * time.Millisecond // a program that writes 1 GB/s takes half of the default min_free meanwhile
	expireEvery     = time.Minute
	watchEvery      = time.Second
	checkpointRetry = time.Second // the shortest pause after a failed checkpoint
)

// background runs the periodic work of a store in goroutines.
type background struct {
	done    chan struct{}
	started atomic.Bool
	group   sync.WaitGroup
}

// runs reports whether the goroutines were started, and not stopped.
func (k *background) runs() bool { return k.started.Load() }

// start starts the goroutines.
func (k *background) start(s *Store) {
	k.done = make(chan struct{})
	k.started.Store(true)
	k.group.Go(func() {
		k.every(syncEvery, func() {
			now := s.now()
			s.clock.Store(now.Unix())
			if s.checkDir(); s.failure() != nil {
				return
			}
			_, _ = s.makeSpace(now, s.freeSpace)
			_ = s.syncAll() // a final error has failed the store, and is logged
		})
	})
	k.group.Go(func() { k.every(spaceEvery, s.space.Check) })
	k.group.Go(func() { k.checkpoint(s) })
	k.group.Go(func() { k.every(watchEvery, s.watch) })
	k.group.Go(func() { k.scrub(s) })
	k.group.Go(func() {
		for k.pause(imageCheck) {
			if s.imageDue() {
				_ = s.imageInBackground(k.pause) // damage has failed the store
			}
		}
	})
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
		select {
		case <-k.done:
			return
		case <-time.After(wait):
		case <-s.checkpointer.wake:
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
	return errors.Is(err, eventlog.ErrTemporary) || diskspace.NoRoom(err) || s.failure() != nil
}

// pause waits for d. It returns false at once when the background is stopped.
func (k *background) pause(d time.Duration) bool { return wait(k.done, d) }

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
	if k.started.Swap(false) {
		close(k.done)
	}
	k.group.Wait()
}

// freeSpace returns how many bytes are free on the disk.
func (s *Store) freeSpace() (uint64, error) {
	free, _, err := s.space.Space(s.dir)
	return free, err
}

// requireSpace returns diskspace.ErrFull when the disk is too full for counts and new resources.
func (s *Store) requireSpace() error {
	if s.space.Full() {
		return fault(diskspace.ErrFull)
	}
	return nil
}

// A scrub reads all tables and all segments of the event log and verifies their checksums, so that the store finds
// damage before it needs the data. A scrub begins a day after the previous scrub ended, even if the store was closed
// in between, but not within 5 minutes of opening. At 16 MiB/s a scrub reads 1.4 TB a day.
const (
	firstScrub    = 5 * time.Minute
	scrubEvery    = 24 * time.Hour
	scrubRate     = 16 << 20  // bytes a second
	scrubLogEvery = time.Hour // between two log lines of one scrub
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

// watch looks for tables that a compaction has lost. When a read or a compaction has met an unreadable block, watch verifies
// all tables, to name the file.
func (s *Store) watch() {
	err := s.db.Watch()
	if n := table.Unreadable(); s.unreadable.Swap(n) != n {
		found := s.db.Verify(func(int) bool { return true })
		err = firstOf(found, table.ErrUnreadable(n-1))
	}
	if err := s.failOnDamage(err); err != nil && s.failure() == nil && !diskspace.NoRoom(err) && !s.alreadyLogged(err) {
		s.log.Warn("the tables were not watched: the store tries again in a second", "dir", s.dir, "error", err)
	}
}

// scrub runs a scrub and then a sweep every day, until the background is stopped.
func (k *background) scrub(s *Store) {
	for wait := s.untilScrub(time.Now()); k.pause(wait); wait = scrubEvery {
		c := newScrubbing(s, k.pause)
		if err := s.failOnDamage(c.run()); err != nil && s.failure() == nil {
			s.log.Warn("the store was not verified: the store tries again in a day, limitkeeper check verifies a stopped store", "dir", s.dir, "error", err)
		}
		if err := s.failOnDamage(s.sweep(s.now(), k.pause)); err != nil && s.failure() == nil && !s.alreadyLogged(err) {
			s.log.Warn("old request ids and days were not removed: the store tries again in a day", "dir", s.dir, "error", err)
		}
	}
}

// untilScrub returns the time from opening the store to its first scrub.
func (s *Store) untilScrub(now time.Time) time.Duration {
	since := now.Sub(time.Unix(s.verified.Load(), 0))
	if since < 0 {
		return firstScrub
	}
	return max(firstScrub, scrubEvery-since)
}

// scrubbing is one scrub.
type scrubbing struct {
	throttle
	s      *Store
	began  time.Time
	logged time.Time
	bytes  int64 // read so far
}

func newScrubbing(s *Store, wait func(time.Duration) bool) *scrubbing {
	now := time.Now()
	return &scrubbing{throttle: throttle{rate: scrubRate, wait: wait}, s: s, began: now, logged: now}
}

var errStopped = errors.New("the scrub was stopped")

// run reads all tables, segments and images, and writes an image. It returns the first damage.
func (c *scrubbing) run() error {
	stopped := false
	err := c.s.db.Verify(func(n int) bool {
		stopped = !c.pause(n)
		return !stopped
	})
	if err == nil && !stopped {
		err = c.segments()
	}
	if err == nil && !stopped {
		err = c.images()
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

// images removes images that are damaged, and writes a new one.
func (c *scrubbing) images() error {
	s := c.s
	positions, err := table.Images(s.dir)
	for _, position := range positions {
		if _, _, damaged := table.ReadImage(s.dir, position); isDamage(damaged) {
			s.log.Warn("an image of the database is damaged: it is removed", "dir", s.dir, "error", damaged)
			err = firstOf(err, os.Remove(table.ImagePath(s.dir, position)))
		}
	}
	return firstOf(err, s.findImages(), s.imageInBackground(c.wait))
}

// imageInBackground writes an image. It returns damage only, and logs other errors.
func (s *Store) imageInBackground(wait func(time.Duration) bool) error {
	t := throttle{rate: scrubRate, wait: wait}
	err := s.writeImage(t.pause)
	if err == nil || isDamage(err) || errors.Is(err, errStopped) {
		s.retention.imageFailed.Store(false)
		return s.failOnDamage(err)
	}
	if !s.retention.imageFailed.Swap(true) {
		s.log.Warn("no image of the database was written: the store tries again every second", "dir", s.dir, "error", err)
	}
	return nil
}

var errEndOfSegment = errors.New("end of segment")

// pause counts n bytes, and keeps scrubRate. It returns false when the scrub has to stop.
func (c *scrubbing) pause(n int) bool {
	c.bytes += int64(n)
	if time.Since(c.logged) > scrubLogEvery {
		c.logged = time.Now()
		c.s.log.Info("verifying the store", "dir", c.s.dir, "bytes", c.bytes)
	}
	return c.throttle.pause(n)
}

// throttle bounds the bytes that work in the background reads in a second, so that requests come first.
type throttle struct {
	rate  int                      // bytes a second
	wait  func(time.Duration) bool // returns false when the work has to stop
	bytes int                      // since the last pause
}

// throttleBytes is the number of bytes between two pauses.
const throttleBytes = 1 << 20

// pause counts n bytes, and waits after each throttleBytes. It returns false when the work has to stop.
func (t *throttle) pause(n int) bool {
	if t.bytes += n; t.bytes < throttleBytes {
		return true
	}
	d := time.Duration(t.bytes) * time.Second / time.Duration(t.rate)
	t.bytes = 0
	return t.wait(d)
}

// wait waits for d. It returns false at once when stop is closed.
func wait(stop <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-stop:
		return false
	case <-timer.C:
		return true
	}
}

// failpoint is a moment at which a test can end the process or look at the store.
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
	failSnapshot                      // a snapshot or an image is being made
	failpoints
)
