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

// reserve is how many bytes are left free on the disk: badger writes through mapped
// memory, and when there is no room for that the process dies.
const reserve = 256 << 20

// errFull means that the disk is full, but for the reserve.
var errFull = errors.New("the disk is full")

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
			s.noteRoom(s.makeSpace(now, s.freeSpace))
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
		if err := s.fold(); err != nil {
			if !errors.Is(err, eventlog.ErrTemporary) { // that is logged when it begins
				s.log.Error("the event log was not folded", "dir", s.dir, "error", err)
			}
			k.pause(foldAgain)
		}
		if err := s.trim(s.now()); err != nil {
			s.log.Warn("history beyond max_history was not removed", "dir", s.dir, "error", err)
		}
		wait = max(foldEvery, min(9*time.Since(began), longPause))
	}
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

// freeSpace returns how many bytes are free on the disk.
func (s *Store) freeSpace() (uint64, error) {
	free, _, err := diskSpace(s.dir)
	return free, err
}

// noteRoom notes whether there is room on the disk, of which so many bytes are free.
func (s *Store) noteRoom(free uint64, err error) {
	full := err == nil && free < reserve
	if s.full.Swap(full) != full && full {
		s.log.Error("the disk is full: the store takes no writes until there is room", "dir", s.dir, "free", free, "needed", reserve)
	}
}

// roomy returns errFull when there is no room on the disk.
func (s *Store) roomy() error {
	if s.full.Load() {
		return fault(errFull)
	}
	return nil
}
