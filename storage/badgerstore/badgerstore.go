// Package badgerstore is the embedded [core.Store]: everything is in one directory, and needs no other process.
//
//	                 Consume                             Update
//	                    │                                  │
//	       counters in memory (cache.go)        transactions (redo.go)
//	                    │ events                           │ redo records
//	                    ▼                                  ▼
//	┌───────────────────────────────────────────────────────────────────┐
//	│ event log (storage/eventlog): the truth, and the history          │
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
//	imaged    the oldest image has everything before it: retention.imaged; older segments may be removed
//
// After a kill, replay begins at the last mark that Badger still has, in most cases that of the last checkpoint. After a Close without an
// error there is nothing to replay.
//
// # Locks
//
// A goroutine takes locks in this order:
//
//	life                   a method reads; Close and heal write
//	registry, writers      the transactions of an account
//	checkpointer.running   a checkpoint
//	unapplied              a transaction reads; the making of a snapshot writes
//	committing             a commit of Badger
//	halfApplied            a transaction of several commits writes; a view reads
//	shard.mu               the counters of one shard; of two shards, the one with the lower index first
//	the locks of eventlog, table, ranking and diskspace, which call this package only by hooks that take no lock above
//
// Under retention.running it takes none of these. retention.imaging comes before halfApplied.
//
// # Where to look
//
//	badgerstore.go  Store, Durability; what a failed store refuses; close.go; stats.go, metrics and health
//	consume.go      Consume, in five steps; request ids
//	hold.go         open holds; settle.go, their settlement
//	counter.go      the state of a counter; counterrecord.go, its record
//	cache.go        counters in memory; load.go, loading a counter from its page and its events
//	event.go        events; eventrecord.go, their records; history.go, the history of a counter, which is its events
//	checkpoint.go   writing changed counters to their pages: layout.go, days.go, archive.go
//	usage.go        sums over counters
//	ranking.go      the fullest counters of each account, in memory: storage/ranking
//	resource.go     accounts, users, plans and keys, for storage/resource; redo.go and writes.go, their transactions
//	import.go       histories and counters of another store
//	layout.go       the keys of Badger
//	open.go         opening a store: events.go, its event log; then its database, or a new one; replay.go; dir.go, its directories
//	retention.go    removing old segments and records
//	snapshot.go     a view of a serving store at one instant
//	background.go   the goroutines of a store, and the daily scrub
//	image.go        the images of the database, from which it is rebuilt
//	heal.go         opening the files again while the store serves, after damage or a failed write
//	check.go        verifying a stopped store; repair.go, repairing its event log
//
// [Durability] says which answers survive which crashes. A store that lost its end has the state of an earlier moment.
package badgerstore

import (
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/keyedmutex"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/ranking"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// MinMinFree is the smallest [Options.MinFree] in bytes.
const MinMinFree = diskspace.MinSize

// Options are the settings of [Open]. The zero value has the defaults.
type Options struct {
	Durability Durability   // which crashes an answered write survives; see [Store.SetDurability]
	Logger     *slog.Logger // gets the errors of background work; slog.Default by default

	// CounterCache is the number of counters in memory, of keys and users together; DefaultCounterCache by default.
	// The smallest effective value is 4,096.
	CounterCache int

	// MinFree is the free disk space in bytes below which the store refuses counts and new resources, at least
	// [MinMinFree]. Default: 256 MiB, or an eighth of a smaller disk. See [Store.SetMinFree].
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
	boot        uint64          // identifies the boot of the machine; table.Boot() by default
	failpoint   func(failpoint) // called at each failpoint

	pagesEvery int64 // see replay.writePages; the constant pagesEvery by default
	memtable   int64 // see [table.Options]
}

// Store is a [core.Store] on disk.
type Store struct {
	resource.Resources

	db       *table.DB
	held     *badger.Txn // the view of a snapshot, nil for a store
	dir      string
	release  func()        // ends the claim of the directory
	options  Options       // as Open has completed them
	identity []fs.FileInfo // of the directory of the store and of the event log, as Open found them
	log      *slog.Logger
	space    *diskspace.Watch

	life    sync.RWMutex // read-locked while a method runs
	closing atomic.Bool  // Close was called: waiting methods end
	closed  bool         // guarded by life

	registry keyedmutex.Mutex // by account: held while the account, its owner's keys or its access are changed; "" while one is created
	audits   keyedmutex.Mutex // by account: held while a transaction appends to its audit log; taken after registry or writers
	writers  keyedmutex.Mutex // by account: held by a transaction from its first read to its last write

	committing   sync.Mutex // held during a commit of Badger
	indexed      int64      // the largest position of a record of kindIndexed; guarded by committing
	inFlight     inFlight   // what running operations still need of the event log
	failed       atomic.Pointer[error]
	beforeCommit func() error // before each commit; for tests

	unapplied   sync.RWMutex // read-locked by a transaction from before its redo record until it is applied
	halfApplied sync.RWMutex // locked while a transaction of several commits is applied

	accounts     accountNumbers
	counters     *counterCache
	holds        *openHoldCounts
	rankings     ranking.Rankings
	cacheSize    atomic.Int64 // of counters, see SetCounterCache; 0 before the first call
	events       *eventlog.Log
	checkpointer *checkpointer
	background   background
	failpoint    func(failpoint)

	healing healing

	retention  retention
	snapshot   atomic.Pointer[Snapshot] // the snapshot that is being made, or open; nil without one
	verified   atomic.Int64             // when the last scrub ended without damage, Unix seconds; 0 before the first scrub
	unreadable atomic.Uint64            // the value of table.Unreadable at the last verification of the tables
	now        func() time.Time
	clock      atomic.Int64 // the result of now, Unix seconds, updated every syncEvery
}

var errClosed = core.Unavailable(errors.New("the store is closed"))

// enter begins a method. It returns core.ErrUnavailable when the store is closed, damaged or lost. Close waits until
// the method calls leave.
func (s *Store) enter() error {
	if !s.life.TryRLock() { // Close or heal holds the lock or waits for the lock
		if s.healing.runs.Load() {
			return errHealing
		}
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

// fail makes the store refuse all later writes, and returns err for the caller of the method. The first error stays, but
// a doubt about the database replaces an error that passes.
func (s *Store) fail(err error) error {
	err = core.Logged(err)
	before := s.failed.Load()
	if before != nil && (doubtful(*before) || !passes(*before) || !doubtful(err)) || !s.failed.CompareAndSwap(before, &err) {
		return fault(err)
	}
	message := "the store refuses all writes: remove the cause and restart this process"
	switch {
	case doubtful(err):
		message = "the database is damaged: it is rebuilt from the event log, and requests are refused until then"
		s.db.Doubt() // the next start rebuilds the database, also when its files can be read again
	case passes(err):
		message = "requests are refused until the event log can be written again"
	case isDamage(err):
		message = "the store is damaged and refuses everything: stop this process and run limitkeeper check"
	}
	if (doubtful(err) || passes(err)) && s.background.runs() {
		go s.heal()
	}
	s.log.Error(message, "dir", s.dir, "error", err)
	s.checkpointer.wakeWaiting() // waiting requests end with the error
	return fault(err)
}

// failure returns the error of fail, nil when the store has not failed.
func (s *Store) failure() error {
	if err := s.failed.Load(); err != nil {
		return fault(*err)
	}
	return nil
}

// inDoubt returns the error of fail that has put the database in doubt, nil without one.
func (s *Store) inDoubt() error {
	if err := s.failed.Load(); err != nil && doubtful(*err) {
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

// SetCounterCache changes [Options.CounterCache] of an open store.
func (s *Store) SetCounterCache(n int) {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	if n <= 0 {
		n = DefaultCounterCache
	}
	s.cacheSize.Store(int64(n)) // for the counters of a database that is rebuilt
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
func (s *Store) SetMinFree(bytes int64) { s.space.SetMinFree(bytes) }

// SetDurability changes the durability of an open store. When it returns, earlier answers have the new durability,
// too.
func (s *Store) SetDurability(d Durability) {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	s.events.SetPower(d == Power)
	if d == Power {
		_ = s.syncEvents() // an error has failed the store, and is logged
	}
}

// syncEvents writes and syncs all appended events.
func (s *Store) syncEvents() error { return firstOf(s.events.Flush(), s.events.Sync()) }
