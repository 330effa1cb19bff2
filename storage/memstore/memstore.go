// Package memstore is the reference implementation of [core.Store]: all data in maps under one
// mutex, and every list by a scan. It is simple enough to be obviously correct, for tests. Nothing
// survives the process.
package memstore

import (
	"context"
	"errors"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/ranking"
)

// Store is a [core.Store] in memory.
type Store struct {
	mu     sync.Mutex // guards the rest
	closed bool
	data
}

// data is the content of a Store.
type data struct {
	accounts  []*core.Account // in the order of creation
	ownerKeys []*core.OwnerKey
	resources map[string]*resources // by the ID of the account
	usages    map[core.CounterID]*usage
	holds     map[string][]*core.Hold // by account, in the order in which they were opened
	rankings  *ranking.Rankings
	audits    map[auditName]*auditLog
}

// New returns an empty store.
func New() *Store {
	return &Store{data: data{resources: map[string]*resources{}, usages: map[core.CounterID]*usage{}, holds: map[string][]*core.Hold{},
		rankings: &ranking.Rankings{}, audits: map[auditName]*auditLog{}}}
}

// Reopen closes the store and returns a new one with the same content, as after a restart of the
// process: the number of denials in the current second is lost, the number recorded on the day is
// kept.
func (s *Store) Reopen() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, u := range s.usages {
		u.counter, u.buckets = u.counter.Saved(), core.Buckets{}
	}
	return &Store{data: s.data}
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
func (s *Store) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return s.locked(func() error {
		before := s.of(account)
		tx := &tx{account: account, missing: s.isMissing(account), before: before, after: before.clone()}
		if err := fn(tx); err != nil {
			return err
		}
		if s.resources[account] != nil {
			s.append(core.NewAuditing(ctx, account), false, tx.audit)
			s.endMoved(account, tx.before, tx.after)
			s.resources[account] = tx.after
			for _, id := range tx.deleted {
				if id.KeyID == "" {
					s.usage(core.CounterID{Account: account}).days.AddWhole(s.usage(id).days.List())
				}
				delete(s.usages, id)
				s.dropHolds(id)
			}
		}
		return nil
	})
}

var _ core.Store = (*Store)(nil)
