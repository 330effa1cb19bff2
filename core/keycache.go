package core

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

// The bounds of what is remembered of unknown keys.
const (
	absentSize = 10_000
	absentFor  = time.Second
)

// cache remembers what the store holds under a key, the least recently used is
// forgotten first. It also remembers briefly, in bounded room, what the store does
// not hold. A miss asks the store once, however many wait for it.
//
// Whoever changes the store calls forget before answering: no get that begins after
// it returns what was before, not even by way of a look-up that began earlier.
type cache[K comparable, V any] struct {
	load     func(context.Context, K) (*V, error)
	notFound error // what load returns for what the store does not hold
	name     func(K) string
	clock    func() time.Time

	present *lru.Cache[K, *V]
	absent  *lru.Cache[K, time.Time] // until when
	flights singleflight.Group
	hits    atomic.Uint64
	misses  atomic.Uint64

	mu    sync.Mutex // held to add and to forget
	epoch uint64     // counts the calls of forget
}

func newCache[K comparable, V any](size int, clock func() time.Time, notFound error,
	name func(K) string, load func(context.Context, K) (*V, error)) *cache[K, V] {
	c := &cache[K, V]{load: load, notFound: notFound, name: name, clock: clock}
	c.present, _ = lru.New[K, *V](max(size, 1)) // fails for sizes below 1 only
	c.absent, _ = lru.New[K, time.Time](absentSize)
	return c
}

// get returns what is held under k. It is shared: the caller must not change it.
func (c *cache[K, V]) get(ctx context.Context, k K) (*V, error) {
	if v, ok := c.present.Get(k); ok {
		c.hits.Add(1)
		return v, nil
	}
	if until, ok := c.absent.Get(k); ok && c.clock().Before(until) {
		c.hits.Add(1)
		return nil, c.notFound
	}
	c.misses.Add(1)
	return c.ask(ctx, k)
}

// ask loads k from the store, together with everyone who asks for it meanwhile.
func (c *cache[K, V]) ask(ctx context.Context, k K) (*V, error) {
	v, err, _ := c.flights.Do(c.name(k), func() (any, error) {
		if v, ok := c.present.Peek(k); ok { // since get looked
			return v, nil
		}
		epoch := c.now()
		v, err := c.load(context.WithoutCancel(ctx), k)
		c.add(k, v, err, epoch)
		return v, err
	})
	if err != nil {
		return nil, err
	}
	return v.(*V), nil
}

func (c *cache[K, V]) now() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

// add remembers the outcome of a look-up, unless something was forgotten since it
// began: then it may be what was before.
func (c *cache[K, V]) add(k K, v *V, err error, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.epoch != epoch:
	case err == nil:
		c.present.Add(k, v)
	case errors.Is(err, c.notFound):
		c.absent.Add(k, c.clock().Add(absentFor))
	}
}

// forget drops what is remembered under the keys. Look-ups under way are neither
// remembered nor joined.
func (c *cache[K, V]) forget(keys ...K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	for _, k := range keys {
		c.flights.Forget(c.name(k))
		c.present.Remove(k)
		c.absent.Remove(k)
	}
}

// resize changes how much is remembered.
func (c *cache[K, V]) resize(size int) { c.present.Resize(max(size, 1)) }
