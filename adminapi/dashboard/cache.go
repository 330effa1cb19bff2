package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A result is cached for cacheFactor times its computation time, at most maxCacheTime. A small account
// sees current values; a large account spends at most 2 % of a CPU on them.
const (
	cacheFactor  = 50
	maxCacheTime = 15 * time.Second
)

// errComputing is the error for callers that waited for a computation that panicked.
var errComputing = errors.New("the computation panicked")

// resultCache caches expensive results for a short time. Concurrent calls for the same name wait for
// one computation.
type resultCache struct {
	mu      sync.Mutex // guards entries and their expiry
	entries map[string]*cacheEntry
}

type cacheEntry struct {
	once  sync.Once
	until time.Time // expiry, zero while the computation runs
	value any
	err   error
}

// cached returns the cached result for name, or else calls compute.
func cached[T any](q *request, name string, compute func(context.Context) (T, error)) (T, error) {
	return cachedIn(q.r.Context(), &q.s.results, name, compute)
}

func cachedIn[T any](ctx context.Context, m *resultCache, name string, compute func(context.Context) (T, error)) (T, error) {
	k := m.get(name)
	k.once.Do(func() {
		start := time.Now()
		k.err = errComputing // if compute panics
		defer func() { m.setExpiry(k, time.Since(start)) }()
		k.value, k.err = compute(context.WithoutCancel(ctx)) // other requests may wait for the result
	})
	if k.err != nil {
		var none T
		return none, k.err
	}
	return k.value.(T), nil
}

// get returns the entry for a name, and creates it if needed. It deletes expired entries.
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

// setExpiry sets the expiry of an entry from its computation time. Errors expire at once.
func (m *resultCache) setExpiry(k *cacheEntry, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k.until = time.Now()
	if k.err == nil {
		k.until = k.until.Add(min(cacheFactor*took, maxCacheTime))
	}
}
