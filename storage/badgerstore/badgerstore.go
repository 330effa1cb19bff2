// Package badgerstore is the [core.Store] that is embedded: everything is in one
// directory, in badger. It needs nothing beside the process.
//
// # What is where
//
// layout.go has the key space, index.go how lists find a page and their total without
// a scan, redo.go how a transaction of any size happens at once.
//
// Counting does not wait for badger. usage.go decides on counters in memory (cache.go,
// tally.go), and the event log (internal/eventlog, opened by events.go) writes the requests
// of all callers together into files of its own; event.go says what an event is. The event log
// is the history as well: history.go. In the background fold.go writes the counters to badger
// by pages (page.go), so that replay.go has little to read when the store is opened, and
// the days that are over to the archive: days.go, archive.go and, to add them up, totals.go.
//
// # What is promised when
//
// See [Durability]. Whatever is lost to a power cut, the store is as it was at a
// moment before.
package badgerstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Options say how a store is opened. The zero value is good.
type Options struct {
	Durability Durability   // what an answered write survives; may be changed later
	Logger     *slog.Logger // for what goes wrong in the background; slog.Default by default

	// CounterCache is how many counters are kept in memory, those of keys and users
	// taken together; DefaultCounterCache by default. A few thousand are kept anyway.
	CounterCache int

	// MinFree is the size of the reserve in bytes, at least [MinMinFree]: room for writes that must not
	// fail on a full disk. 256 MiB by default, or an eighth of a smaller disk. It may be changed later.
	MinFree int64

	// MaxHistory is how many bytes the event log, and with it the history, may have; half of
	// the disk by default. Segments of 64 MiB are removed that are in the checkpoint and have
	// no remembered request id. It may be changed later.
	MaxHistory int64

	// Clock is the clock of the process, that of the service too; a clock of the machine by
	// default. Open tells it when the store counted last.
	Clock *core.Clock

	fs          eventlog.FS // that the event log is on; that of the system by default
	segmentSize int64       // of the event log, in bytes
	ahead       int64       // the room that it writes ahead, in bytes
	boot        uint64      // of the machine; what the system says by default
	step        func(step)  // called at each step

	flushBytes int64 // see flush; flushBytes by default
	memtable   int64 // see [table.Options]
}

// Store is a [core.Store] on disk.
type Store struct {
	db       *table.DB
	dir      string
	identity []fs.FileInfo // of the directory and that of the event log, when they were opened
	log      *slog.Logger
	reserve  *reserve

	endMappings func() // undoes reserve.serveMappings

	life    sync.RWMutex // held to read while a method runs
	closing atomic.Bool  // Close was called, so waiting methods end
	closed  bool         // guarded by life

	registering sync.Mutex // held while accounts and owner's keys are changed
	writers     writers

	committing sync.Mutex   // held while something is committed
	underway   underway     // transactions that the event log may have and the database may not
	flushed    atomic.Int64 // the position up to which everything is in tables of the database
	flushBytes int64
	failed     atomic.Pointer[error]
	stuck      atomic.Pointer[error] // why apply cannot write to the database at the moment
	onCommit   func() error          // before each commit; for tests

	spreading sync.RWMutex             // guards spread
	spread    map[string]chan struct{} // accounts that a transaction is being spread over; closed when it is done

	accounts accountNumbers
	counters *counterCache
	events   *eventlog.Log
	folder   *folder
	keeper   keeper
	step     func(step)

	noDescriptors atomic.Bool // none was left when Badger was to be written to

	retention  retention
	verified   atomic.Int64  // when the last scrub ended without damage, Unix seconds; 0 before the first one
	unreadable atomic.Uint64 // as table.Unreadable was when the tables were verified
	now        func() time.Time
	clock      atomic.Int64 // what now returned, Unix seconds, not more than a moment behind
}

var errClosed = core.Unavailable(errors.New("the store is closed"))

// enter begins a method, unless the store is closed or damaged: then it returns
// core.ErrUnavailable. Close waits until it has left.
func (s *Store) enter() error {
	if !s.life.TryRLock() { // Close holds the lock, or waits for it
		return errClosed
	}
	if s.closed {
		s.life.RUnlock()
		return errClosed
	}
	if err := s.failed.Load(); err != nil && (isDamage(*err) || errors.Is(*err, errLost) || errors.Is(*err, errBadger)) {
		s.life.RUnlock()
		return fault(*err) // reads would answer from damaged or deleted files, or panic without a memtable
	}
	return nil
}

func (s *Store) leave() { s.life.RUnlock() }

// enterToWrite begins a method that writes, unless the store takes no writes.
func (s *Store) enterToWrite() error {
	return s.enterIf(func() error { return firstOf(s.failure(), s.roomy()) })
}

// enterToChange begins a method that may write without creating anything: that is possible on a full
// disk too. What creates something asks roomy.
func (s *Store) enterToChange() error { return s.enterIf(s.failure) }

func (s *Store) enterIf(ready func() error) error {
	if err := s.enter(); err != nil {
		return err
	}
	if err := ready(); err != nil {
		s.leave()
		return err
	}
	return nil
}

// fail makes the store refuse every write from now on, and returns why.
func (s *Store) fail(err error) error {
	err = core.Logged(err)
	if s.failed.CompareAndSwap(nil, &err) {
		what := "the store takes no more writes until it is opened again"
		if isDamage(err) {
			what = "the store is damaged and refuses everything"
		}
		s.log.Error(what, "dir", s.dir, "error", err)
		s.folder.pass() // who waits for room is told
	}
	return fault(err)
}

// failure returns why the store takes no more writes, nil when it does.
func (s *Store) failure() error {
	if err := s.failed.Load(); err != nil {
		return fault(*err)
	}
	return nil
}

// stopped returns an error when waiting methods must end: the store has failed, or is being closed.
func (s *Store) stopped() error {
	if err := s.failure(); err != nil || !s.closing.Load() {
		return err
	}
	return errClosed
}

// closeMost is the longest time that Close takes. Records that are not in a table of Badger by then are in a log.
const closeMost = 20 * time.Second

// unclosed has the directories of stores that Close could not close in time. Their Badger still runs.
var unclosed sync.Map

// Close waits for running methods, writes a checkpoint and closes the store. Methods that wait for room end with an
// error, and new calls are refused. If the store has failed, Close returns why. Close may be called again. It returns
// within 20 s, also when the file system does not let Badger write. Nothing is lost then, but this process cannot
// open the store again.
func (s *Store) Close() error { return s.closeWithin(closeMost, s.close) }

// closeWithin runs a function that closes the store, and waits for it at most for d. After d the function runs on in
// the background, and this process cannot open the directory before the function ends.
func (s *Store) closeWithin(d time.Duration, fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		unclosed.Store(s.dir, s)
		go func() {
			<-done
			unclosed.CompareAndDelete(s.dir, s)
		}()
		return firstOf(s.failure(), fmt.Errorf("the store in %s was not closed in time: nothing is lost", s.dir))
	}
}

func (s *Store) close() error {
	s.closing.Store(true)
	s.folder.pass()
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.keeper.stop()
	err := s.failure()
	if err == nil {
		if err = s.fold(); errors.Is(err, errFull) {
			err = nil // the events are in the log
		}
		err = firstOf(err, s.events.Close())
	}
	// After an error too: Badger makes a table when it is closed, which must not be ahead of the log.
	_ = s.events.Sync()
	s.events.Abandon()
	if unwritable := s.touch(); errors.Is(err, errLost) || unwritable != nil { // Badger would try for ever
		unclosed.Store(s.dir, s)
		return firstOf(err, unwritable)
	}
	err = errors.Join(err, s.db.Close())
	s.endMappings()
	s.reserve.close()
	return err
}

// SetCounterCache changes how many counters are kept in memory.
func (s *Store) SetCounterCache(n int) {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	if n <= 0 {
		n = DefaultCounterCache
	}
	s.counters.resize(n)
}

var _ core.Store = (*Store)(nil)
