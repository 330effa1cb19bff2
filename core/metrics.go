package core

import "sync/atomic"

// Stats are figures of a running service, for metrics.
type Stats struct {
	CacheHits   uint64 // look-ups of keys, users and plans answered from memory
	CacheMisses uint64 // those that asked the store
	CachedKeys  int    // keys in memory
}

// Stats returns the figures since the service was made.
func (s *Service) Stats() Stats {
	return Stats{
		CacheHits:   s.hits.sum(),
		CacheMisses: s.keys.misses.Load() + s.users.misses.Load() + s.plans.misses.Load(),
		CachedKeys:  s.keys.present.Len(),
	}
}

// tally is a sum that many add to at once, each where few others do: a single number
// would travel between the processors with every decision.
type tally struct {
	stripes [tallyStripes]struct {
		n atomic.Uint64
		_ [120]byte // processors fetch two lines of 64 bytes at a time
	}
	given atomic.Uint32
}

const tallyStripes = 64

// stripe returns where to add, to be kept by whoever does.
func (t *tally) stripe() int { return int(t.given.Add(1) % tallyStripes) }

func (t *tally) add(stripe int, n uint64) { t.stripes[stripe].n.Add(n) }

func (t *tally) sum() (n uint64) {
	for i := range t.stripes {
		n += t.stripes[i].n.Load()
	}
	return n
}
