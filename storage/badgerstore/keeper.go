package badgerstore

import (
	"errors"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// The intervals of what is done in the background.
const (
	syncEvery   = time.Second
	expireEvery = time.Minute
	watchEvery  = time.Second
	foldAgain   = time.Second // at least, after folding has failed
)

// keeper does what has to be done from time to time.
type keeper struct {
	done  chan struct{}
	group sync.WaitGroup
}

// start starts the goroutines.
func (k *keeper) start(s *Store) {
	k.done = make(chan struct{})
	k.group.Go(func() {
		k.every(syncEvery, func() {
			now := s.now()
			s.clock.Store(now.Unix())
			if s.checkDir(); s.failure() != nil {
				return
			}
			_, _ = s.makeSpace(now, s.freeSpace)
			s.reserve.watch()
			_ = s.syncAll() // the store has failed then, and says so
		})
	})
	k.group.Go(func() { k.fold(s) })
	k.group.Go(func() { k.every(watchEvery, s.watch) })
	k.group.Go(func() { k.scrub(s) })
	k.group.Go(func() {
		k.every(expireEvery, func() {
			if err := s.expire(s.now()); err != nil {
				s.log.Warn("expired history was not removed", "dir", s.dir, "error", err)
			}
		})
	})
}

// fold folds the event log from time to time, and when it is woken, until the keeper is
// stopped.
func (k *keeper) fold(s *Store) {
	failed := false
	for wait := foldEvery; ; {
		timer := time.NewTimer(wait)
		select {
		case <-k.done:
			timer.Stop()
			return
		case <-timer.C:
		case <-s.folder.wake:
			timer.Stop()
		}
		began := time.Now()
		err := s.fold()
		if err != nil {
			if !failed && !s.saidOf(err) {
				s.log.Error("no checkpoint was written; it is tried again", "dir", s.dir, "error", err)
			}
			k.pause(foldAgain)
		}
		failed = err != nil
		if err := s.trim(s.now()); err != nil {
			s.log.Warn("history beyond max_history was not removed", "dir", s.dir, "error", err)
		}
		wait = max(foldEvery, min(9*time.Since(began), maxFoldPause))
	}
}

// saidOf reports whether the log has a line about the state that an error comes from.
func (s *Store) saidOf(err error) bool {
	return errors.Is(err, eventlog.ErrTemporary) || errors.Is(err, errFull) || s.failure() != nil
}

// pause waits, unless the keeper is stopped: then it returns false.
func (k *keeper) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-k.done:
		return false
	case <-timer.C:
		return true
	}
}

// every calls fn at once and then after every interval, until the keeper is stopped.
func (k *keeper) every(interval time.Duration, fn func()) {
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
func (k *keeper) stop() {
	if k.done != nil {
		close(k.done)
	}
	k.group.Wait()
}

// freeSpace returns how many bytes are free on the disk, the reserve included.
func (s *Store) freeSpace() (uint64, error) {
	free, _, err := s.reserve.space(s.dir)
	return free + uint64(s.reserve.heldBytes()), err
}

// roomy returns errFull when the store takes no counts and no new resources.
func (s *Store) roomy() error {
	if s.reserve.full.Load() {
		return fault(errFull)
	}
	return nil
}
