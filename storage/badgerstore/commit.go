package badgerstore

import (
	"errors"
	"sync"

	"github.com/dgraph-io/badger/v4"
)

// Requests that were decided at the same time become durable together. Whoever
// decides a request puts it into the batch that is waiting. If no commit is under
// way he leads: he commits that batch. Otherwise he waits, and the batch is
// committed as soon as the one before it is. While more are waiting after the
// leader's own, a goroutine leads on.

// The bounds of a batch, and of how many batches denials may fill.
const (
	maxBatchEntries = 1024
	maxBatchBytes   = maxWriteBytes
	maxDenied       = 4 // batches

	tallyBytes = 200 // about what a counter takes
)

// errDropped means that a counter was deleted.
var errDropped = errors.New("the counter was deleted")

// batch is what is committed at once: for each counter what it was after the last of
// the requests in it, and the entries of their histories.
type batch struct {
	counters []*counter
	tallies  []tally
	entries  []entry
	bytes    int

	taken bool          // by the leader, who alone asks
	done  chan struct{} // closed when it was committed, or that failed
	err   error         // why it failed; set before done is closed
}

// entry is an entry of the history of the counter at a slot.
type entry struct {
	*badger.Entry
	slot int32
}

func (b *batch) full() bool { return len(b.entries) >= maxBatchEntries || b.bytes >= maxBatchBytes }

// queue holds the batches that wait. An allowed request is in it as long as its caller
// waits, so there are never more than callers. Denied ones are in it while nobody waits:
// when they are too many they are only counted, as denials that the history leaves out.
type queue struct {
	s *Store

	mu      sync.Mutex
	waiting []*batch
	current *batch // the one that is being committed
	leading bool   // someone takes the batches one after another
	unsaved []*counter

	group sync.WaitGroup // of the goroutines that lead
}

// add puts a counter as it is, and an entry for its history unless that is nil, into
// the batch that is waiting. The caller holds the counter's lock, and releases it
// unless add returns true: then the batch does.
func (b *batch) addLocked(c *counter, e *badger.Entry) (kept bool) {
	if kept = c.in != b; kept {
		c.in, c.slot = b, int32(len(b.counters))
		b.counters, b.tallies = append(b.counters, c), append(b.tallies, c.tally)
		b.bytes += tallyBytes
	}
	b.tallies[c.slot] = c.tally
	c.unsaved = false
	if e != nil {
		b.entries = append(b.entries, entry{e, c.slot})
		b.bytes += len(e.Key) + len(e.Value)
	}
	return kept
}

// openLocked returns the batch that takes more.
func (q *queue) openLocked() *batch {
	if n := len(q.waiting); n > 0 && !q.waiting[n-1].full() {
		return q.waiting[n-1]
	}
	b := &batch{done: make(chan struct{})}
	q.waiting = append(q.waiting, b)
	return b
}

// wait returns when the batch was committed, or that failed. When lead is true the
// caller is the one who has to do it.
func (q *queue) wait(b *batch, lead bool) error {
	if lead {
		q.lead(b)
	}
	<-b.done
	return b.err
}

// leadLocked reports whether the caller is to lead, and if so, notes that someone
// does.
func (q *queue) leadLocked() bool {
	if q.leading {
		return false
	}
	q.leading = true
	return true
}

// lead commits batches until none is waiting. After own it lets a goroutine do so.
func (q *queue) lead(own *batch) {
	for {
		b := q.take()
		if b == nil {
			return
		}
		if own != nil && own.taken && own != b {
			q.group.Go(func() {
				q.commit(b)
				q.lead(nil)
			})
			return
		}
		q.commit(b)
	}
}

// take returns the batch that has waited longest. When there is none nobody leads
// any more.
func (q *queue) take() *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.leading, q.current = false, nil
		return nil
	}
	b := q.waiting[0]
	q.waiting = append(q.waiting[:0], q.waiting[1:]...)
	q.current, b.taken = b, true
	for _, c := range b.counters {
		c.in = nil
	}
	return b
}

// commit commits a batch and tells whoever waits for it.
func (q *queue) commit(b *batch) {
	q.s.committing.Lock()
	if b.err = q.s.commitLocked(b.write); b.err != nil {
		for _, c := range b.counters {
			c.end(b.err)
		}
	}
	q.s.committing.Unlock()
	close(b.done)
	for _, c := range b.counters {
		c.release()
	}
}

// write puts a batch into a transaction of badger. A counter that was deleted since
// is left out. When an earlier batch failed that one of the counters was in, this one
// was decided on what is not so, and fails as well.
func (b *batch) write(txn *badger.Txn) error {
	dropped := make([]bool, len(b.counters))
	for i, c := range b.counters {
		switch err := c.why(); {
		case err == errDropped:
			dropped[i] = true
		case err != nil:
			return err
		default:
			if err := txn.Set(counterPath(c.id), b.tallies[i].encode()); err != nil {
				return err
			}
		}
	}
	for _, e := range b.entries {
		if dropped[e.slot] {
			continue
		}
		if err := txn.SetEntry(e.Entry); err != nil {
			return err
		}
	}
	return nil
}

// why returns why a counter is no longer in use, nil when it is.
func (c *counter) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// flush returns when everything is stored that was decided before.
func (q *queue) flush() {
	q.save()
	q.mu.Lock()
	b, lead := q.current, false
	if n := len(q.waiting); n > 0 {
		b, lead = q.waiting[n-1], q.leadLocked()
	}
	q.mu.Unlock()
	if b != nil {
		_ = q.wait(b, lead) // whoever it failed for was told
	}
}

// save puts the counters into a batch that only denials have changed, and no entry
// of a history came with.
func (q *queue) save() {
	q.mu.Lock()
	unsaved := q.unsaved
	q.unsaved = nil
	q.mu.Unlock()
	for _, c := range unsaved {
		if !q.saveOne(c) {
			c.release()
		}
	}
}

func (q *queue) saveOne(c *counter) (kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.unsaved || c.ended != nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.openLocked().addLocked(c, nil)
}
