package core

// Stats are figures of a running service, for metrics.
type Stats struct {
	CacheHits   uint64 // look-ups of keys, users and plans answered from memory
	CacheMisses uint64 // those that asked the store
	CachedKeys  int    // keys in memory
}

// Stats returns the figures since the service was made.
func (s *Service) Stats() Stats {
	return Stats{
		CacheHits:   s.keys.hits.Load() + s.users.hits.Load() + s.plans.hits.Load(),
		CacheMisses: s.keys.misses.Load() + s.users.misses.Load() + s.plans.misses.Load(),
		CachedKeys:  s.keys.present.Len(),
	}
}
