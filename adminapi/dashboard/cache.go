package dashboard

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// A result is cached for cacheFactor times its computation time, at most maxCacheTime. A small account
// sees current values; a large account spends at most 2 % of a CPU on them.
const (
	cacheFactor  = 50
	maxCacheTime = 15 * time.Second
)

// resultCache caches expensive results for a short time. Concurrent calls for the same name wait for
// one computation.
type resultCache struct {
	running singleflight.Group
	mu      sync.Mutex // guards entries
	entries map[string]*cacheEntry
}

type cacheEntry struct {
	value any
	until time.Time
}

// cached returns the cached result for name, or else calls compute.
func cached[T any](q *request, name string, compute func(context.Context) (T, error)) (v T, err error) {
	m := &q.s.results
	found, err, _ := m.running.Do(name, func() (any, error) {
		if e := m.get(name); e != nil {
			return e.value, nil
		}
		start := time.Now()
		v, err := compute(context.WithoutCancel(q.r.Context())) // other requests may wait for the result
		if err == nil {
			m.put(name, &cacheEntry{v, time.Now().Add(min(cacheFactor*time.Since(start), maxCacheTime))})
		}
		return v, err
	})
	if err == nil {
		v = found.(T)
	}
	return v, err
}

// get returns the entry for a name, nil for none. It deletes expired entries.
func (m *resultCache) get(name string) *cacheEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(m.entries, func(_ string, e *cacheEntry) bool { return !now.Before(e.until) })
	return m.entries[name]
}

func (m *resultCache) put(name string, e *cacheEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries == nil {
		m.entries = map[string]*cacheEntry{}
	}
	m.entries[name] = e
}
