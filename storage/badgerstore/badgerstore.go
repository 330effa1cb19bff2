// Package badgerstore is the embedded [core.Store]: everything is in one directory, and needs no other process.
//
//	                 Consume                             Update
//	                    │                                  │
//	       counters in memory (cache.go)        transactions (tx.go, redo.go)
//	                    │ events                           │ redo records
//	                    ▼                                  ▼
//	┌───────────────────────────────────────────────────────────────────┐
//	│ event log (internal/eventlog): the truth, and the history         │
//	└───────────────────────────────────────────────────────────────────┘
//	                    │ checkpoints                      │ at once
//	                    ▼                                  ▼
//	┌───────────────────────────────────────────────────────────────────┐
//	│ Badger (internal/table): an index of the event log                │
//	│ pages of counters, days, request ids │ users, keys, plans, indexes│
//	└───────────────────────────────────────────────────────────────────┘
//
// A request is decided in memory and appended to the event log. The answer waits only for the event log, which one caller
// writes for all (group commit). A transaction is appended as a redo record, and then applied to Badger.
//
// # Positions
//
// A position is an offset in the event log. From the newest to the oldest:
//
//	End       no record has this position or a later one yet
//	Written   everything before it is in the files: eventlog.Log.Written
//	Durable   everything before it is on disk: eventlog.Log.Durable
//	mark      a checkpoint has written everything before it to Badger: checkpointer.mark
//	flushed   everything before it is in tables on disk: Store.flushed
//	copied    the copy for Rebuild has everything before it: retention.copied; older segments may be removed
//
// After a crash, replay begins at the last mark that is in a table: at most flushBytes before the last checkpoint. After
// a Close without an error there is nothing to replay.
//
// # Where to look
//
//	badgerstore.go  Store, Close, Durability; what a failed store refuses
//	consume.go      Consume, in five steps; request ids
//	counter.go      the state of a counter, and its record
//	cache.go        counters in memory, and loading a counter from its page and its events
//	history.go      events and their records; the history of a counter, which is its events
//	checkpoint.go   writing changed counters to their pages: layout.go, days.go
//	usage.go        sums over counters
//	tx.go, redo.go  transactions: account.go, user.go, plan.go, key.go
//	import.go       histories and counters of another store
//	layout.go       the keys of Badger
//	open.go         opening a store; replay.go; dir.go for its directory
//	retention.go    removing old segments and records
//	snapshot.go     a copy of a serving store, of one instant
//	background.go   the goroutines of a store, and the daily scrub
//	check.go        verifying, repairing and rebuilding a stopped store: repair.go, rebuild.go
//
// [Durability] says which answers survive which crashes. A store that lost its end has the state of an earlier moment.
package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/keyedmutex"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// MinMinFree is the smallest [Options.MinFree] in bytes.
const MinMinFree = reserve.MinSize

// Options are the settings of [Open]. The zero value has the defaults.
type Options struct {
	Durability Durability   // which crashes an answered write survives; see [Store.SetDurability]
	Logger     *slog.Logger // gets the errors of background work; slog.Default by default

	// CounterCache is the number of counters in memory, of keys and users together; DefaultCounterCache by default.
	// The smallest effective value is 4,096.
	CounterCache int

	// MinFree is the size of the reserve in bytes, at least [MinMinFree]. The reserve is disk space for writes that
	// must not fail on a full disk. Default: 256 MiB, or an eighth of a smaller disk. See [Store.SetMinFree].
	MinFree int64

	// MaxHistory is the largest size of the event log in bytes, and so of the history; half of the disk by default.
	// Beyond it, the store removes the oldest segments of 64 MiB whose events are in the checkpoint and that have no
	// remembered request id. See [Store.SetMaxHistory].
	MaxHistory int64

	// Clock is the clock that the service uses too; a clock of the machine by default. Open passes the time of the
	// last checkpoint to the clock.
	Clock *core.Clock

	// OnWrite is called after each group commit, with the number of its events and the duration of the write. OnSync is
	// called after each sync of the event log, and OnCheckpoint after each checkpoint, with its error. All may be nil,
	// must return at once and must not call the store. Requests wait for OnWrite and, with [Power], for OnSync.
	OnWrite      func(events int, took time.Duration)
	OnSync       func(took time.Duration)
	OnCheckpoint func(took time.Duration, err error)

	fs          eventlog.FS     // the file system of the event log; eventlog.OS by default
	segmentSize int64           // bytes of a segment of the event log
	ahead       int64           // bytes that the event log preallocates
	boot        uint64          // identifies the boot of the machine; eventlog.Boot() by default
	failpoint   func(failpoint) // called at each failpoint

	flushBytes int64 // see Store.flush; the constant flushBytes by default
	snapshot   bool  // the directory is that of a [Snapshot]
	memtable   int64 // see [table.Options]
}

// Store is a [core.Store] on disk.
type Store struct {
	resource.Resources

	db       *table.DB
	dir      string
	options  Options       // as Open has completed them
	identity []fs.FileInfo // of the directory of the store and of the event log, as Open found them
	log      *slog.Logger
	reserve  *reserve.Reserve

	endMappings func() // undoes reserve.ServeMappings

	life    sync.RWMutex // read-locked while a method runs
	closing atomic.Bool  // Close was called: waiting methods end
	closed  bool         // guarded by life

	registry keyedmutex.Mutex // by account: held while the account, its owner's keys or its access are changed; "" while one is created
	writers  keyedmutex.Mutex // by account: held by a transaction from its first read to its last write

	committing   sync.Mutex   // held during a commit of Badger
	inFlight     inFlight     // what running operations still need of the event log
	flushed      atomic.Int64 // the position up to which all events are in tables of the database
	flushBytes   int64
	unapplied    unapplied // transactions that the event log has and the database lacks
	inTables     inTables  // during replay: what the tables have; guarded by committing
	replayed     bool      // replay has ended; guarded by committing
	failed       atomic.Pointer[error]
	applyErr     atomic.Pointer[error] // why apply waits to write to the database; nil while it does not wait
	beforeCommit func() error          // before each commit; for tests

	applyingMu sync.RWMutex             // guards applying
	applying   map[string]chan struct{} // by account, while a transaction of several parts is applied; closed when it is applied

	accounts     accountNumbers
	counters     *counterCache
	events       *eventlog.Log
	checkpointer *checkpointer
	background   background
	failpoint    func(failpoint)

	noDescriptors atomic.Bool // a write to Badger was refused because file descriptors have run out

	retention  retention
	snapshot   atomic.Pointer[Snapshot] // the snapshot that is being made or open; nil without one
	verified   atomic.Int64             // when the last scrub ended without damage, Unix seconds; 0 before the first scrub
	unreadable atomic.Uint64            // the value of table.Unreadable at the last verification of the tables
	now        func() time.Time
	clock      atomic.Int64 // the result of now, Unix seconds, updated every syncEvery
}

var errClosed = core.Unavailable(errors.New("the store is closed"))

// enter begins a method. It returns core.ErrUnavailable when the store is closed, damaged or lost. Close waits until
// the method calls leave.
func (s *Store) enter() error {
	if !s.life.TryRLock() { // Close holds the lock or waits for the lock
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

// enterToWrite begins a method that counts or imports. It refuses on a failed store and on a full disk.
func (s *Store) enterToWrite() error {
	return s.enterIf(func() error { return firstOf(s.failure(), s.requireSpace()) })
}

// enterToChange begins a method that changes resources. It refuses on a failed store only, because updates and
// deletions work on a full disk too. Methods that create resources also call requireSpace.
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

// fail makes the store refuse all later writes, and returns err for the caller of the method.
func (s *Store) fail(err error) error {
	err = core.Logged(err)
	if s.failed.CompareAndSwap(nil, &err) {
		message := "the store refuses all writes: remove the cause and restart this process"
		if isDamage(err) {
			message = "the store is damaged and refuses everything: stop this process and run limitkeeper check"
		}
		s.log.Error(message, "dir", s.dir, "error", err)
		s.checkpointer.wakeWaiting() // waiting requests end with the error
	}
	return fault(err)
}

// failure returns the error of fail, nil when the store has not failed.
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

// maxClose is the longest time that Close takes. After it, records that are not in a table of Badger are in the event
// log.
const maxClose = 20 * time.Second

// unclosed has the directories of stores that Close could not close in time. Their Badger still runs.
var unclosed sync.Map

// Close waits for running methods, writes a checkpoint and closes the store. Methods that wait for room end with an
// error, and new calls are refused. If the store has failed, Close returns why. Close may be called again. It returns
// within 20 s, also when the file system does not let Badger write. Nothing is lost then, but this process cannot
// open the store again.
func (s *Store) Close() error { return s.closeWithin(maxClose, s.close) }

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
		return firstOf(s.failure(), fmt.Errorf("the store in %s was not closed in time: no data is lost, the next start replays the event log", s.dir))
	}
}

func (s *Store) close() error {
	s.closing.Store(true)
	s.checkpointer.wakeWaiting()
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
		if err = s.checkpoint(); errors.Is(err, reserve.ErrFull) {
			err = nil // the events are in the log
		}
	}
	unwritten := firstOf(s.events.Close(), s.touch())
	if err = firstOf(err, unwritten); errors.Is(err, errLost) {
		unwritten = err
	}
	return firstOf(err, s.closeBadger(unwritten))
}

// closeBadger closes Badger, which writes a table. Badger stays open when the event log has unwritten records, because
// the table would be ahead of the event log, and when the file system cannot be written, because Badger would try again
// endlessly. Then this process cannot open the store again.
func (s *Store) closeBadger(unwritten error) error {
	if unwritten != nil {
		unclosed.Store(s.dir, s)
		return nil
	}
	err := s.db.Close()
	s.endMappings()
	s.reserve.Close()
	return err
}

// SetCounterCache changes [Options.CounterCache] of an open store.
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

// Durability says which crashes an answered write survives. Every answered write survives a kill of the process.
type Durability uint8

const (
	// Process is the default. The store syncs once a second: a power cut, or a crash of the operating system, loses
	// at most the answers since the last sync.
	Process Durability = iota
	// Power syncs every write before it is answered. Concurrent requests share a sync.
	Power
)

// String returns "process" or "power".
func (d Durability) String() string {
	if d == Power {
		return "power"
	}
	return "process"
}

// SetMinFree changes [Options.MinFree] of an open store.
func (s *Store) SetMinFree(bytes int64) { s.reserve.SetMinFree(bytes) }

// SetDurability changes the durability of an open store. When it returns, earlier answers have the new durability,
// too.
func (s *Store) SetDurability(d Durability) {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	s.events.SetPower(d == Power)
	if d == Power {
		_ = s.syncAll() // a final error has failed the store, and is logged
	}
}

// syncEvents writes and syncs all appended events.
func (s *Store) syncEvents() error { return firstOf(s.events.Flush(), s.events.Sync()) }

// syncAll syncs all answered events. Events that the event log cannot write at the moment were not answered: it
// writes them later.
func (s *Store) syncAll() error {
	if err := s.events.Flush(); err != nil && !errors.Is(err, eventlog.ErrTemporary) {
		return fault(err)
	}
	return fault(s.events.Sync())
}

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
	MinFree        int64     // bytes of the reserve when it is whole, see [Options.MinFree]

	Counters         int    // counters in memory
	CounterHits      uint64 // look-ups of counters for decisions that found the counter in memory
	CounterMisses    uint64 // counters that were read from the database
	CounterEvictions uint64 // counters that were removed from memory to make room
}

// Stats returns the metrics of the store. It reads no file.
func (s *Store) Stats() Stats {
	bytes, segments := s.historySize()
	return Stats{
		EventLogBytes:    bytes,
		MaxHistory:       s.retention.maxBytes.Load(),
		PendingBytes:     s.events.Written() - s.checkpointer.mark.Load(),
		Checkpoints:      s.checkpointer.checkpoints.Load(),
		Waits:            s.checkpointer.waits.Load(),
		VerifiedAt:       s.verified.Load(),
		Segments:         segments,
		CheckpointedAt:   time.Unix(0, s.checkpointer.at.Load()),
		MinFree:          s.reserve.MinFree(),
		Counters:         int(s.counters.count.Load()),
		CounterHits:      s.counters.hits(),
		CounterMisses:    s.counters.misses.Load(),
		CounterEvictions: s.counters.evictions.Load(),
	}
}

// DiskSpace returns the free bytes and the size of the file system of the store. The free bytes do not include the
// reserve. ok is false on systems that do not report them.
func (s *Store) DiskSpace() (free, size uint64, ok bool) {
	free, size, err := s.reserve.Space(s.dir)
	return free, size, err == nil && size != math.MaxUint64
}

// IsDamage reports whether an error of a store means that its files are damaged, or that its directory was deleted or
// replaced.
func IsDamage(err error) bool { return isDamage(err) || errors.Is(err, errLost) }

// IsFull reports whether an error of a store means that its disk is full.
func IsFull(err error) bool { return errors.Is(err, reserve.ErrFull) || reserve.NoRoom(err) }

// Health implements [core.HealthStore].
func (s *Store) Health(context.Context) error {
	failed := s.enter()
	if failed == nil {
		defer s.leave()
		failed = s.failure()
	}
	if failed != nil {
		return unavailable("The store has failed, and the log says why", failed)
	}
	if err := s.requireSpace(); err != nil {
		return unavailable("The disk of the store is full", err)
	}
	if err := s.events.Ready(); err != nil {
		return unavailable("The store cannot write at the moment", fault(err))
	}
	return nil
}

// unavailable returns an error with a public text and a private cause.
func unavailable(text string, cause error) error {
	return fmt.Errorf("%w: %w", &core.Error{Code: core.CodeUnavailable, Message: text}, cause)
}

var _ core.HealthStore = (*Store)(nil)
