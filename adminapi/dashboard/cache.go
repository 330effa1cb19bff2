package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"
)

// What was added up is shown as it was for so much longer than it took, and no longer than
// this: a small account sees what is, and a large one costs little.
const (
	cacheFactor  = 50
	maxCacheTime = 15 * time.Second
)

// errComputing is what others get who waited for an add that panicked.
var errComputing = errors.New("adding up was given up")

// resultCache keeps what is dear to add up, for a moment. Who asks for the same at the same time
// waits for one answer.
type resultCache struct {
	mu      sync.Mutex // guards what follows
	entries map[string]*cacheEntry
}

type cacheEntry struct {
	once  sync.Once
	until time.Time // zero while it is made
	value any
	err   error
}

// cached returns what add adds up, or what it has added up a moment ago for the same
// name.
func cached[T any](q *request, name string, compute func(context.Context) (T, error)) (T, error) {
	return cachedIn(q.r.Context(), &q.s.results, name, compute)
}

func cachedIn[T any](ctx context.Context, m *resultCache, name string, compute func(context.Context) (T, error)) (T, error) {
	k := m.get(name)
	k.once.Do(func() {
		began := time.Now()
		k.err = errComputing // unless add comes back
		defer func() { m.setExpiry(k, time.Since(began)) }()
		k.value, k.err = compute(context.WithoutCancel(ctx)) // who waits for it may be another one
	})
	if k.err != nil {
		var none T
		return none, k.err
	}
	return k.value.(T), nil
}

// get returns what is kept for a name, or is being made.
func (m *resultCache) get(name string) *cacheEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for n, k := range m.entries {
		if !k.until.IsZero() && !now.Before(k.until) {
			delete(m.entries, n)
		}
	}
	if m.entries == nil {
		m.entries = map[string]*cacheEntry{}
	}
	if m.entries[name] == nil {
		m.entries[name] = new(cacheEntry)
	}
	return m.entries[name]
}

// setExpiry says how long something is kept that took so long. A failure is not.
func (m *resultCache) setExpiry(k *cacheEntry, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k.until = time.Now()
	if k.err == nil {
		k.until = k.until.Add(min(cacheFactor*took, maxCacheTime))
	}
}
