package badgerstore

import (
	"sync"
	"sync/atomic"

	"github.com/limitkeeper/limitkeeper/core"
)

// DefaultCounterCache is how many counters are kept in memory unless configured
// otherwise: those of the keys that core keeps by default, and of a user for each.
const DefaultCounterCache = 2 * core.DefaultKeyCache

// shards is how many parts the counters in memory have, each with its own lock. The
// counters of a page are in one.
const shards = 256

// fewest is how many counters a shard has room for, whatever the limit: a request needs
// two at once, and its key and user, or those of others, may be in the same shard.
const fewest = 16

// counter is a counter in memory. Everything in it is guarded by the lock of its
// shard.
type counter struct {
	ref
	shard   *shard
	gone    bool  // it is not in memory any more
	index   int32 // where it is in the list of its shard
	visited bool  // it was asked for since the hand passed

	dirty    bool // it is not as its page has it
	unsaved  bool // nor as its page and its events have it: it stays until it is folded
	unlogged bool // nor as a record of the event log has it: see set.go

	empty   bool          // it is only held, and was not read
	changes uint32        // how often it was changed
	busy    chan struct{} // closed when it was read, or is deleted; nil when it can be used
	counterState
	few [fewLinks]int64 // the chain, as long as it is short: what lies together is found together
}

// fewLinks is how many links the chains of histories of up to 247 entries have at most, and
// most of those of longer ones.
const fewLinks = 7

// readLocked gives a counter what was read of it, and up to where its page has it.
func (c *counter) readLocked(t counterState, base int64) {
	c.counterState = t
	c.chain = append(c.few[:0], t.chain...)
	c.dirty, c.visited = t.applied != base, true
	delete(c.shard.pending, c.ref)
}

// head is where the events of a counter that is not in memory end, and how many there
// are that its page has not.
type head struct {
	position int64
	events   int32
}

// shard is a part of the counters. Those that are asked for again and again stay: a
// hand goes round, spares who was asked for since it passed, and takes out who was not.
// (Y. Zhang and others, SIEVE is simpler than LRU, NSDI 2024, on a ring.)
type shard struct {
	mu    sync.Mutex // guards what follows
	byRef map[ref]*counter
	list  []*counter
	hand  int
	all   *counters

	// pending has the counters that are not in memory and not as their pages have
	// them.
	pending map[ref]head

	repeats repeats

	_ [64]byte // nobody shares a cache line with the next one
}

// counters are the counters in memory.
//
// A counter is busy while it is read, and while its key or user is deleted: it is there
// so that nobody reads it a second time, and whoever wants it waits.
type counters struct {
	shards  [shards]shard
	limit   atomic.Int64
	count   atomic.Int64 // how many there are
	written func() int64 // the position up to which the event log can be read
}

func newCounters(limit int, written func() int64) *counters {
	all := &counters{written: written}
	for i := range all.shards {
		all.shards[i].all = all
		all.shards[i].byRef = map[ref]*counter{}
		all.shards[i].pending = map[ref]head{}
	}
	all.resize(limit)
	return all
}

// resize changes how many counters are kept.
func (all *counters) resize(limit int) {
	all.limit.Store(int64(limit))
	for i := range all.shards {
		s := &all.shards[i]
		s.mu.Lock()
		for tries := 2 * len(s.list); tries > 0 && all.count.Load() > int64(limit); tries -= farthest {
			for s.evictLocked(all.written()) && all.count.Load() > int64(limit) {
			}
		}
		s.mu.Unlock()
	}
}

// shard returns where a counter is kept.
func (all *counters) shard(r ref) *shard { return &all.shards[r.shard()] }

func (r ref) shard() int {
	h := uint64(r.number>>pageBits)<<8 ^ uint64(r.account)<<1 ^ uint64(r.kind>>1&1)
	h *= 0x9E3779B97F4A7C15 // 2⁶⁴ divided by the golden ratio
	return int(h >> 56)
}

// lock locks the shards of two counters.
func (all *counters) lock(a, b ref) (of, other *shard) {
	i, j := a.shard(), b.shard()
	all.shards[min(i, j)].mu.Lock()
	if i != j {
		all.shards[max(i, j)].mu.Lock()
	}
	return &all.shards[i], &all.shards[j]
}

func unlock(of, other *shard) {
	of.mu.Unlock()
	if of != other {
		other.mu.Unlock()
	}
}

// getLocked returns a counter, nil when it is not in memory.
func (s *shard) getLocked(r ref) *counter {
	c := s.byRef[r]
	if c != nil && !c.visited {
		c.visited = true
	}
	return c
}

// held returns the counter with a name that a handle leads to, nil when it leads
// elsewhere. It may be gone. No lock is needed: what is far away in the memory is waited
// for before the others have to wait too, and for both counters of a request at once.
func held(h *core.Handle, r ref) *counter {
	if h == nil {
		return nil
	}
	if c, _ := h.Load().(*counter); c != nil && c.ref == r {
		return c
	}
	return nil
}

// findLocked is getLocked for who has a handle and has looked where it leads.
func (s *shard) findLocked(r ref, c *counter, h *core.Handle) *counter {
	if c != nil && c.shard == s && !c.gone {
		c.visited = true
		return c
	}
	c = s.getLocked(r)
	if c != nil && h != nil {
		h.Store(c)
	}
	return c
}

// addLocked adds a counter that is not in memory, and makes room for it.
func (s *shard) addLocked(r ref, written int64) *counter {
	s.all.count.Add(1)
	for range 2 { // one more than is added, when there are too many
		if s.all.count.Load() > s.all.limit.Load() && len(s.list) >= fewest {
			s.evictLocked(written)
		}
	}
	c := &counter{ref: r, shard: s, index: int32(len(s.list))}
	s.list = append(s.list, c)
	s.byRef[r] = c
	return c
}

// farthest is how many counters are looked at to find one that goes.
const farthest = 32

// evictLocked takes a counter out of memory, and reports whether it found one. It
// does not look far.
func (s *shard) evictLocked(written int64) bool {
	for range farthest {
		if len(s.list) == 0 {
			return false
		}
		if s.hand >= len(s.list) {
			s.hand = 0
		}
		c := s.list[s.hand]
		switch {
		case c.visited:
			c.visited = false
		case c.evictable(written):
			if c.dirty {
				s.pending[c.ref] = head{position: c.applied, events: 1}
			}
			s.removeLocked(c)
			return true
		}
		s.hand++
	}
	return false
}

// evictable reports whether all that is in a counter can be read from its page and
// from its events.
func (c *counter) evictable(written int64) bool {
	return c.busy == nil && c.applied < written && !c.unsaved
}

// removeLocked takes a counter out.
func (s *shard) removeLocked(c *counter) {
	last := len(s.list) - 1
	s.list[c.index] = s.list[last]
	s.list[c.index].index = c.index
	s.list[last] = nil
	s.list = s.list[:last]
	delete(s.byRef, c.ref)
	c.gone, c.chain, c.days = true, nil, nil // a handle may keep it
	s.all.count.Add(-1)
}

// changedLocked notes that a counter was changed.
func (c *counter) changedLocked() {
	c.dirty = true
	c.changes++
}
