// Package keyedmutex has a mutex for each key, for example for each account.
package keyedmutex

import (
	"context"
	"errors"
	"sync"
)

// ErrTooMany means that [Mutex.MaxWaiting] callers wait for the key already.
var ErrTooMany = errors.New("too many callers wait for this key")

// Mutex is a mutex for each key. The zero value is ready for use. An unlocked key takes no memory.
type Mutex struct {
	MaxWaiting int // callers that may wait for one key; 0 for any number

	mu    sync.Mutex
	byKey map[string]*entry // keys that are locked or awaited
}

type entry struct {
	free    chan struct{} // has an element while the key is not locked
	callers int           // callers that hold the key or wait for it
}

// Lock locks a key, and returns the function that unlocks it. It returns [ErrTooMany] at once when
// MaxWaiting callers wait, and the error of ctx when ctx ends first.
func (m *Mutex) Lock(ctx context.Context, key string) (unlock func(), err error) {
	e := m.join(key)
	if e == nil {
		return nil, ErrTooMany
	}
	select {
	case <-e.free:
		return func() { e.free <- struct{}{}; m.leave(key, e) }, nil
	case <-ctx.Done():
		m.leave(key, e)
		return nil, ctx.Err()
	}
}

// join adds a caller to a key. It returns nil when too many callers wait.
func (m *Mutex) join(key string) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.byKey[key]
	if e == nil {
		e = &entry{free: make(chan struct{}, 1)}
		e.free <- struct{}{}
		if m.byKey == nil {
			m.byKey = map[string]*entry{}
		}
		m.byKey[key] = e
	}
	if m.MaxWaiting > 0 && e.callers > m.MaxWaiting {
		return nil
	}
	e.callers++
	return e
}

// leave removes a caller from a key.
func (m *Mutex) leave(key string, e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.callers--; e.callers == 0 {
		delete(m.byKey, key)
	}
}
