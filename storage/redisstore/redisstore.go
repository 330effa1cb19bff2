// Package redisstore is a [core.Store] on a Redis or Valkey server that several processes share: a single
// server, a master behind Sentinel, or a Cluster.
//
// Every key name contains a hash tag, which decides its slot in a Cluster. One Lua script changes one slot
// atomically. So data that changes together shares a slot (layout.go):
//
//	{registry}          accounts and owner's keys
//	{<account>}         users, plans and API keys of one account, and its outbox
//	{<account>/<user>}  counters and histories of one user and of its API keys
//
//	Consume ──── one script ───────────────────────────────► {<account>/<user>}
//	Update ───── one batch, if the version is unchanged ───► {<account>}
//	                                                             │ outbox
//	             tasks, before Update returns ◄──────────────────┘
//	               └── delete or move counters ────────────► {<account>/<user>}
//
// Consume runs scripts/consume.lua once. Update collects its writes, and commits them in one batch if the
// version of the account is unchanged (resource.go). Changes that follow in the slots of users are tasks in the
// outbox of the account: the same batch writes them, and Update or a later caller runs them (outbox.go).
//
// The package caches no resources. It reports changes by other processes to a [core.Watcher], and how long
// the watcher may trust its cache (watch.go).
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/singleflight"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/keyedmutex"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// Store is a [core.Store] on Redis. [Open] returns one.
type Store struct {
	resource.Resources

	o            Options
	client       rueidis.Client
	reads        *calls // for commands that need not wait for replicas
	writes       *calls // for writes
	replicaConns replicaConns
	masters      masters

	knownAccounts sync.Map             // ids of existing accounts, each with the value of accountStates before it was read
	accountStates atomic.Uint64        // how often an account was closed, opened or removed, as far as this process knows
	purging       sync.Map             // time.Time by account id: when this process first saw the account being removed
	writeLocks    keyedmutex.Mutex     // serializes the transactions of an account in this process
	drains        singleflight.Group   // running drains of outboxes, by account
	watch         *watch               // receives the changes of other processes
	history       atomic.Int64         // see [Store.SetHistoryCap]
	wait          atomic.Pointer[Wait] // see [Store.SetWait]

	marks       sync.Map              // mark, as remembered, by name
	refused     atomic.Pointer[error] // the error of every call after a loss; nil otherwise
	otherFormat atomic.Pointer[error] // the error of every call while the data has another format; nil otherwise
	losses      atomic.Uint64         // losses that this node has found
	failovers   atomic.Uint64         // failovers and restarts of Redis
	warnings    warningLog
	health      healthCache
	rankQueue   rankQueue
	maxRanked   int // counters of a ranking: core.MaxRanked, less in tests

	background sync.WaitGroup // goroutines that may outlive their call; Close waits for them

	inUse   sync.RWMutex // read-locked by each call to Redis
	closed  bool
	closing atomic.Bool // long calls stop when it is true
}

// Open connects to the servers and checks that they are usable. Its error is one line.
func Open(ctx context.Context, o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	client, err := o.connect()
	if err != nil {
		return nil, fmt.Errorf("redis at %s: %w", o.address(), o.explain(err))
	}
	s := &Store{o: o, client: client, maxRanked: core.MaxRanked}
	s.reads, s.writes = &calls{Client: client, s: s}, s.forLonger(0)
	s.Resources = resource.New(database{s})
	s.rankQueue.quit = make(chan struct{})
	s.warnings.at = map[string]time.Time{}
	s.SetHistoryCap(o.History)
	s.SetWait(o.Wait)
	s.masters.single.Store(newMaster(s, o.address()))
	if err := s.check(ctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("redis at %s: %w", o.address(), o.explain(err))
	}
	if err := startWatch(s); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("redis at %s: %w", o.address(), o.explain(err))
	}
	return s, nil
}

// SetHistoryCap sets the maximum number of entries of a history. 0 means [DefaultHistory].
func (s *Store) SetHistoryCap(entries int) { s.history.Store(int64(cmp.Or(entries, DefaultHistory))) }

// SetWait sets how many replicas must confirm each decision and write.
func (s *Store) SetWait(w Wait) { s.wait.Store(&w) }

// SetAccess sets the credentials of new connections. Open connections stay. It tries to connect in the
// background, and logs a warning if that fails.
func (s *Store) SetAccess(a Access) {
	if s.o.access.Store(&a); s.beginAfterLoss() != nil {
		return
	}
	defer s.end()
	s.background.Go(func() {
		client, err := s.o.connect()
		if err != nil {
			s.o.Logger.Warn("redis accepts no new connection with the changed credentials; open connections continue",
				"address", s.o.address(), "error", s.o.explain(err))
			return
		}
		client.Close()
	})
}

// HistoryCap returns the maximum number of entries of a history.
func (s *Store) HistoryCap() int { return int(s.history.Load()) }

// Close waits for running calls to Redis and for the goroutines of the store, and closes the connections. A second Close does nothing.
func (s *Store) Close() error {
	s.closing.Store(true)
	s.inUse.Lock()
	defer s.inUse.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	close(s.rankQueue.quit)
	s.watch.stop()
	s.background.Wait() // nothing starts goroutines now
	s.client.Close()
	s.replicaConns.close()
	return nil
}

var errClosed = core.Unavailable(errors.New("the store is closed"))

// begin keeps the store open until [Store.end]. It fails after Redis has lost data.
func (s *Store) begin() error {
	if err := s.refusal(); err != nil {
		return err
	}
	return s.beginAfterLoss()
}

// beginAfterLoss is begin for calls that also work after a loss.
func (s *Store) beginAfterLoss() error {
	if s.closing.Load() {
		return errClosed
	}
	s.inUse.RLock()
	if s.closed {
		s.inUse.RUnlock()
		return errClosed
	}
	return nil
}

func (s *Store) end() { s.inUse.RUnlock() }

var _ core.Store = (*Store)(nil)
