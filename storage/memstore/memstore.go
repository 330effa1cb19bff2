// Package memstore is the reference implementation of [core.Store]: all data in maps under one
// mutex, and every list by a scan. It is simple enough to be obviously correct, for tests. Nothing
// survives the process.
package memstore

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// Store is a [core.Store] in memory.
type Store struct {
	mu     sync.Mutex // guards the rest
	closed bool
	data
}

// data is the content of a Store. The resources that it points to are replaced, never changed.
type data struct {
	accounts     []*core.Account // in the order of creation
	ownerKeys    []*core.OwnerKey
	resources    map[string]*resources // by the ID of the account
	counters     map[core.CounterID]*core.Counter
	buckets      map[core.CounterID]core.Bucket
	histories    map[core.CounterID][]core.Entry // oldest first
	days         map[core.CounterID]*days
	firstResults map[core.CounterID]firstResults // of keys
	access       map[string]*core.Access         // by the ID of the account
}

// resources are the users, plans and keys of an account.
type resources struct {
	users map[int64]*core.User
	plans map[string]*core.Plan
	keys  map[string]*core.Key

	lastUser, lastPlan, lastKey int64 // the largest ID and Seqs given so far
}

// New returns an empty store.
func New() *Store {
	return &Store{data: data{
		resources:    map[string]*resources{},
		counters:     map[core.CounterID]*core.Counter{},
		buckets:      map[core.CounterID]core.Bucket{},
		histories:    map[core.CounterID][]core.Entry{},
		days:         map[core.CounterID]*days{},
		firstResults: map[core.CounterID]firstResults{},
		access:       map[string]*core.Access{},
	}}
}

// Reopen closes the store and returns a new one with the same content, as after a restart of the
// process: the number of denials in the current second is lost, the number recorded on the day is
// kept.
func (s *Store) Reopen() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	next := &Store{data: s.data}
	next.counters, next.buckets = map[core.CounterID]*core.Counter{}, map[core.CounterID]core.Bucket{}
	for id, c := range s.counters {
		kept := c.Saved()
		next.counters[id] = &kept
	}
	return next
}

// Close makes every method return [core.ErrUnavailable]. It may be called again.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// locked runs fn under the lock unless the store is closed.
func (s *Store) locked(fn func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return core.Unavailable(errors.New("the store is closed"))
	}
	return fn()
}

// Update implements [core.Store]. fn works on a copy, which replaces the resources of the account
// if fn returns nil.
func (s *Store) Update(_ context.Context, account string, fn func(core.Tx) error) error {
	return s.locked(func() error {
		before := s.resources[account]
		tx := &tx{account: account, missing: before == nil, before: before.orNone(), after: before.clone()}
		if err := fn(tx); err != nil {
			return err
		}
		if !tx.missing {
			s.resources[account] = tx.after
			s.forget(tx.deleted)
		}
		return nil
	})
}

// orNone returns r, or empty resources if r is nil.
func (r *resources) orNone() *resources {
	if r == nil {
		return &resources{}
	}
	return r
}

// clone returns a copy that shares the users, plans and keys.
func (r *resources) clone() *resources {
	c := *r.orNone()
	c.users, c.plans, c.keys = maps.Clone(c.users), maps.Clone(c.plans), maps.Clone(c.keys)
	return &c
}

// of returns the resources of an account, empty if it is missing.
func (s *Store) of(account string) *resources { return s.resources[account].orNone() }

var _ core.Store = (*Store)(nil)
