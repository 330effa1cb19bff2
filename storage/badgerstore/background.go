package badgerstore

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/rankset"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// The intervals of the background work.
const (
	syncEvery       = time.Second
	spaceEvery      = 100 * time.Millisecond // a program that writes 1 GB/s takes half of the default min_free meanwhile
	historyEvery    = time.Second
	historyRetry    = time.Minute
	watchEvery      = time.Second
	checkpointRetry = time.Second // the shortest pause after a failed checkpoint
)

// background runs the periodic work of a store in goroutines.
type background struct {
	ctx     context.Context // ends when the goroutines are stopped
	end     context.CancelFunc
	started atomic.Bool
	group   sync.WaitGroup
}

// runs reports whether the goroutines were started, and not stopped.
func (k *background) runs() bool { return k.started.Load() }

// start starts the goroutines.
func (k *background) start(s *Store) {
	k.ctx, k.end = context.WithCancel(context.Background())
	k.started.Store(true)
	k.every(syncEvery, func() {
		now := s.now()
		s.clock.Store(now.Unix())
		if s.checkDir(); s.failure() != nil {
			return
		}
		_ = s.syncEvents() // an error has failed the store, and is logged
	})
	k.every(spaceEvery, s.space.Check)
	k.every(watchEvery, s.watch)
	k.every(imageCheck, func() {
		if s.imageDue() {
			_ = s.imageInBackground(k.pace()) // damage has failed the store
		}
	})
	k.every(historyEvery, func() {
		if err := s.failure(); err != nil && !passes(err) {
			return
		}
		if err := s.removeHistory(s.now()); err != nil {
			s.warn("old history was not removed: the store tries again in a minute", err)
			k.pause(historyRetry)
		}
	})
	k.group.Go(func() { k.checkpoint(s) })
	k.group.Go(func() { k.scrub(s) })
}

// checkpoint writes a checkpoint every checkpointEvery and on request, until the background is stopped.
func (k *background) checkpoint(s *Store) {
	failed := false
	for wait := checkpointEvery; ; {
		select {
		case <-k.ctx.Done():
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
		wait = max(checkpointEvery, min(pauseFactor*time.Since(began), maxCheckpointPause))
	}
}

// alreadyLogged reports whether the cause of an error has its own log line: the disk is full, or the store has failed.
func (s *Store) alreadyLogged(err error) bool { return diskspace.NoRoom(err) || s.failure() != nil }

// warn fails the store when an error means damage. It logs another error with a message, unless the error has its own log line.
func (s *Store) warn(message string, err error) {
	if err = s.failOnDamage(err); err != nil && !errors.Is(err, errStopped) && !s.alreadyLogged(err) {
		s.log.Warn(message, "dir", s.dir, "error", err)
	}
}

// pause waits for d. It returns false at once when the background is stopped.
func (k *background) pause(d time.Duration) bool {
	select {
	case <-k.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// every starts a goroutine that calls fn at once, and then after each pause until the background is stopped.
func (k *background) every(pause time.Duration, fn func()) {
	k.group.Go(func() {
		for ok := true; ok; ok = k.pause(pause) {
			fn()
		}
	})
}

// stop stops the goroutines, if they were started, and waits for them.
func (k *background) stop() {
	if k.started.Swap(false) {
		k.end()
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
		return fault(core.Logged(diskspace.ErrFull))
	}
	return nil
}

// A scrub reads all tables and all segments of the event log and verifies their checksums, so that the store finds
// damage before it needs the data. A scrub begins a day after the previous scrub ended, even if the store was closed
// in between, but not within 5 minutes of opening. At 16 MiB/s a scrub reads 1.4 TB a day.
const (
	firstScrub = 5 * time.Minute
	scrubEvery = 24 * time.Hour
	scrubRate  = 16 << 20 // bytes a second
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
		found := s.db.Verify(func(int) error { return nil })
		err = firstOf(found, table.ErrUnreadable(n-1))
	}
	s.warn("the tables were not watched: the store tries again in a second", err)
}

// scrub runs a scrub and then a sweep every day, until the background is stopped.
func (k *background) scrub(s *Store) {
	for wait := s.untilScrub(time.Now()); k.pause(wait); wait = scrubEvery {
		pause := k.pace()
		_, err := s.scrub(pause)
		s.warn("the store was not verified: the store tries again in a day, limitkeeper check verifies a stopped store", err)
		s.warn("old request ids, days and hours were not removed: the store tries again in a day", s.sweep(s.now(), pause))
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

// errStopped means that the background was stopped during a scrub, a sweep or the writing of an image.
var errStopped = errors.New("the scrub was stopped")

// scrub reads all tables, segments and images, and writes an image. After each part it calls pause with the
// size of the part. It returns the number of bytes and the first damage.
func (s *Store) scrub(pause func(bytes int) error) (bytes int64, err error) {
	began := time.Now()
	counting := func(n int) error {
		bytes += int64(n)
		return pause(n)
	}
	for _, read := range []func(func(int) error) error{s.db.Verify, s.scrubSegments, s.scrubImages} {
		if err := read(counting); err != nil {
			return bytes, err
		}
	}
	s.verified.Store(time.Now().Unix())
	_ = s.db.StoreState(s.state()) // on an error, such as a full disk, the next checkpoint stores the time
	s.log.Info("the store was verified", "dir", s.dir, "bytes", bytes, "duration", time.Since(began).Round(time.Second))
	return bytes, nil
}

// scrubSegments reads the segments of the event log.
func (s *Store) scrubSegments(pause func(bytes int) error) error {
	for _, g := range s.events.Segments() {
		err := s.events.Replay(g.Base, func(position int64, payload []byte) error {
			if position >= g.End {
				return errEndOfSegment
			}
			return pause(len(payload))
		})
		isSame := func(o eventlog.Segment) bool { return o.Base == g.Base }
		if err != nil && err != errEndOfSegment && slices.ContainsFunc(s.events.Segments(), isSame) { // otherwise retention removed the segment
			return err
		}
	}
	return nil
}

var errEndOfSegment = errors.New("end of segment")

// scrubImages removes images that are damaged, and writes a new one.
func (s *Store) scrubImages(pause func(bytes int) error) error {
	positions, err := table.Images(imagesIn(s.dir))
	for _, position := range positions {
		if _, _, damaged := table.ReadImage(imagesIn(s.dir), position); isDamage(damaged) {
			s.log.Warn("an image of the database is damaged: it is removed", "dir", s.dir, "error", damaged)
			err = firstOf(err, os.Remove(table.ImagePath(imagesIn(s.dir), position)))
		}
	}
	return firstOf(err, s.findImages(), s.imageInBackground(pause))
}

// imageInBackground writes an image. It returns damage and errStopped, and logs other errors.
func (s *Store) imageInBackground(pause func(bytes int) error) error {
	err := s.writeImage(pause)
	if err == nil || isDamage(err) || errors.Is(err, errStopped) {
		s.retention.imageFailed.Store(false)
		return s.failOnDamage(err)
	}
	if !s.retention.imageFailed.Swap(true) {
		s.log.Warn("no image of the database was written: the store tries again every second", "dir", s.dir, "error", err)
	}
	return nil
}

// paceBytes is how many bytes work in the background may read without a pause.
const paceBytes = 1 << 20

// pace returns a function that waits until the background may read more bytes, at most scrubRate in a second, so that requests come
// first. The function returns errStopped when the background is stopped. It asks the limiter once for paceBytes: to ask it for each record
// takes twenty times the CPU time.
func (k *background) pace() func(bytes int) error {
	limiter, unpaid := rate.NewLimiter(scrubRate, paceBytes), 0
	return func(bytes int) error {
		for unpaid += bytes; unpaid >= paceBytes; unpaid -= paceBytes {
			if limiter.WaitN(k.ctx, paceBytes) != nil {
				return errStopped
			}
		}
		if k.ctx.Err() != nil {
			return errStopped
		}
		return nil
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
