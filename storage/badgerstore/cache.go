package badgerstore

import (
	"errors"
	"hash/maphash"
	"strconv"
	"sync"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
)

// counterCache is how many counters are kept in memory, those of keys and users
// taken together. Those that are in use are kept beyond it.
const counterCache = 100_000

// shards is how many parts the counters in memory have, each with its own lock.
const shards = 64

// counters are the counters in memory: the least recently used are forgotten.
type counters struct {
	db     *badger.DB
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu    sync.Mutex // guards what follows
	limit int
	byID  map[core.CounterID]*counter
	ring  counter // its newer is the one that was asked for longest ago, its older the last one
}

func newCounters(db *badger.DB, limit int) *counters {
	all := &counters{db: db, seed: maphash.MakeSeed()}
	for i := range all.shards {
		s := &all.shards[i]
		s.limit, s.byID = max(1, limit/shards), map[core.CounterID]*counter{}
		s.ring.newer, s.ring.older = &s.ring, &s.ring
	}
	return all
}

// shard returns where a counter is kept. Accounts and IDs of keys are random; users
// of one account are told apart by their number.
func (all *counters) shard(id core.CounterID) *shard {
	name := id.KeyID
	if name == "" {
		name = strconv.FormatInt(id.UserID, 36)
	}
	return &all.shards[maphash.String(all.seed, name)%shards]
}

// acquire returns a counter and keeps it in memory until it is released. It need
// not be loaded.
func (all *counters) acquire(id core.CounterID) *counter {
	s := all.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byID[id]
	if c == nil {
		c = &counter{id: id, shard: s}
		s.byID[id] = c
		s.evictLocked()
	} else {
		c.unlinkLocked()
	}
	c.linkLocked(&s.ring)
	c.pins++
	return c
}

// release lets go of a counter.
func (c *counter) release() {
	c.shard.mu.Lock()
	defer c.shard.mu.Unlock()
	c.pins--
}

// evictLocked forgets counters that nobody uses while there are too many. It does
// not look far for one.
func (s *shard) evictLocked() {
	c := s.ring.newer
	for tries := 0; len(s.byID) > s.limit && c != &s.ring && tries < 8; tries++ {
		next := c.newer
		if c.pins == 0 {
			delete(s.byID, c.id)
			c.unlinkLocked()
		}
		c = next
	}
}

// linkLocked makes a counter the one that was asked for last.
func (c *counter) linkLocked(ring *counter) {
	c.older, c.newer = ring.older, ring
	c.older.newer, c.newer.older = c, c
}

func (c *counter) unlinkLocked() {
	c.older.newer, c.newer.older = c.newer, c.older
	c.older, c.newer = nil, nil
}

// drop ends the counters with the ids, if they are in memory: they were deleted.
func (all *counters) drop(ids []core.CounterID) {
	for _, id := range ids {
		s := all.shard(id)
		s.mu.Lock()
		c := s.byID[id]
		s.mu.Unlock()
		if c != nil {
			c.end(errDropped)
		}
	}
}

// end takes a counter out of use. Whoever asks for it next gets another one, which
// is read from what is stored.
func (c *counter) end(why error) {
	c.shard.mu.Lock()
	if c.shard.byID[c.id] == c {
		delete(c.shard.byID, c.id)
		c.unlinkLocked()
	}
	c.shard.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = why
	}
}

// errUncertain means that a counter has no record: its key or user is new, or was
// deleted.
var errUncertain = errors.New("the counter has no record")

// loadLocked reads what is stored, once. It is all there is: a counter with a
// request that is not committed yet is never forgotten.
func (c *counter) loadLocked(db *badger.DB) error {
	if c.loaded {
		return nil
	}
	return db.View(func(txn *badger.Txn) error {
		record, err := snapshot{txn}.get(counterPath(c.id))
		if err != nil {
			return err
		}
		if record == nil && !c.certain {
			return errUncertain
		}
		c.tally, err = decodeTally(record)
		c.loaded = err == nil
		return err
	})
}

// assure notes that the key or user of a counter exists. Should it be deleted, the
// counter goes out of use.
func (c *counter) assure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.certain = true
}
