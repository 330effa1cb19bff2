// Package redisstore is a [core.Store] on a Redis or Valkey server that several
// processes share: a single server, one behind Sentinel, or a Cluster.
//
// What is decided in one step is in one slot, so that it is atomic on a Cluster too
// (layout.go): the accounts and owner's keys; the users, plans and keys of an account;
// the counters and histories of a user with those of its keys. A decision is one
// script (scripts/consume.lua). A transaction on an account is a batch of commands
// that runs if nobody has changed the account since it began (tx.go); what follows
// from it in other slots is written down in the same step and done afterwards, by
// whoever comes first (chores.go).
//
// The package has no cache of resources. It tells a [core.Watcher] what others change,
// and how long what it has told may be relied on (watch.go).
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
)

// Store is a [core.Store] on Redis. It is made by [Open].
type Store struct {
	o            Options
	client       rueidis.Client
	replicaConns replicaConns
	nodes        *nodes
	deadlines    deadlines

	knownAccounts sync.Map                 // ids of accounts that are known to exist; none is ever deleted
	writeLocks    keyedMutex               // transactions, by their account
	drains        singleflight.Group       // by account
	watch         *watch                   // of what others change
	windowStarts  windowStarts             // for decisions
	settings      atomic.Pointer[settings] // what may change while it is open

	marks     marks
	refused   atomic.Pointer[error] // why every call is refused; nil while none is
	losses    atomic.Uint64         // found by this node
	failovers atomic.Uint64         // and restarts
	warnings  warningLog

	inUse   sync.RWMutex // held to use the store
	closed  bool
	closing atomic.Bool // long work ends early
}

// tune is what of the options may change.
type settings struct {
	history int
	wait    Wait
}

// Open connects to the servers and checks that they can be used. The error says in one
// line what is wrong.
func Open(ctx context.Context, o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	client, err := o.connect()
	if err != nil {
		return nil, fmt.Errorf("redis at %s: %w", o.where(), o.explain(err))
	}
	s := &Store{o: o, client: client, deadlines: deadlines{timeout: o.Timeout}}
	s.warnings.at = map[string]time.Time{}
	s.marks.all = map[string]*mark{}
	s.SetHistory(o.History)
	s.nodes = newNodes(s)
	if err := s.check(ctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("redis at %s: %w", o.where(), o.explain(err))
	}
	startWatch(s)
	return s, nil
}

// SetHistory changes how many entries a history holds at most; 0 stands for the
// default.
func (s *Store) SetHistory(entries int) {
	s.changeSettings(func(t *settings) { t.history = cmp.Or(entries, DefaultHistory) })
}

// SetWait changes for which replicas decisions and writes wait.
func (s *Store) SetWait(w Wait) {
	s.changeSettings(func(t *settings) { t.wait = w })
}

// SetAccess changes what connections are made with from now on; those that there are
// stay. When none can be made it is logged at once, and not only when one is needed.
func (s *Store) SetAccess(a Access) {
	if s.o.access.Store(&a); s.beginAfterLoss() != nil {
		return
	}
	go func() {
		defer s.end()
		client, err := s.o.connect()
		if err != nil {
			s.o.Logger.Warn("redis takes no new connection with the access that it was given; those that there are go on",
				"address", s.o.where(), "error", s.o.explain(err))
			return
		}
		client.Close()
	}()
}

func (s *Store) changeSettings(change func(*settings)) {
	t := settings{history: s.o.History, wait: s.o.Wait}
	if old := s.settings.Load(); old != nil {
		t = *old
	}
	change(&t)
	s.settings.Store(&t)
}

// HistoryCap returns how many entries a history holds at most.
func (s *Store) HistoryCap() int { return s.settings.Load().history }

// Close waits for what is under way and closes the connections. It may be called
// again.
func (s *Store) Close() error {
	s.closing.Store(true)
	s.inUse.Lock()
	defer s.inUse.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.watch.stop()
	s.client.Close()
	s.replicaConns.close()
	return nil
}

var errClosed = core.Unavailable(errors.New("the store is closed"))

// begin keeps the store from being closed until [Store.end]. It returns an error after Redis has lost
// data.
func (s *Store) begin() error {
	if err := s.refusal(); err != nil {
		return err
	}
	return s.beginAfterLoss()
}

// hold is begin for calls that work after a loss too.
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
