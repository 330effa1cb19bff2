package badgerstore

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// maxClose is the longest time that Close takes. After it, records that are not in a table of Badger are in the event
// log.
const maxClose = 20 * time.Second

// unclosed has the directories of stores that Close could not close in time. Their Badger still runs.
var unclosed sync.Map

// Close waits for running methods, writes a checkpoint and closes the store. Methods that wait for room end with an
// error, and new calls are refused. If the store has failed, Close returns why. Close may be called again. It returns
// within 20 s, also when the file system does not let Badger write. Nothing is lost then, but this process cannot
// open the store again.
func (s *Store) Close() error {
	err := s.closeInTime(s.close)
	if err != nil {
		err = firstOf(s.failure(), err)
	}
	return err
}

// closeInTime runs a function that closes the store, and waits for it at most for maxClose. After that the function
// runs on in the background, and this process cannot open the directory before the function ends.
func (s *Store) closeInTime(fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-time.After(maxClose):
		unclosed.Store(s.dir, s)
		go func() {
			<-done
			unclosed.CompareAndDelete(s.dir, s)
		}()
		return fmt.Errorf("the store in %s was not closed in time: no data is lost, the next start replays the event log", s.dir)
	}
}

func (s *Store) close() error {
	s.closing.Store(true)
	if s.life.TryRLock() { // otherwise no request waits: another Close, or heal, holds the lock or waits for it
		s.checkpointer.wakeWaiting()
		s.life.RUnlock()
	}
	s.endSnapshot(errClosed)
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.endSnapshot(errClosed) // made since the first call
	s.background.stop()
	err := s.failure()
	if err == nil {
		if err = s.checkpoint(); diskspace.NoRoom(err) {
			err = nil // the events are in the log
		}
	}
	unlogged, unwritable := s.events.Close(), s.touch()
	if err = firstOf(err, unlogged, unwritable); errors.Is(err, errLost) {
		unwritable = err
	}
	if err == nil || errors.Is(err, eventlog.ErrDamaged) && firstOf(unlogged, unwritable) == nil { // the database is behind the damage, and a repair begins with it
		s.db.Finish(s.state())
	}
	return firstOf(err, s.closeBadger(unwritable))
}

// closeBadger closes Badger, which writes a table. Badger stays open on a full disk, because the write of the table would end the
// process, and when the file system cannot be written, because Badger would try again endlessly. Then this process cannot open
// the store again.
func (s *Store) closeBadger(unwritable error) error {
	if s.db == nil {
		s.release()
		return nil
	}
	if unwritable != nil || s.space.Ready() != nil {
		unclosed.Store(s.dir, s)
		return nil
	}
	defer s.release()
	return s.db.Close()
}
