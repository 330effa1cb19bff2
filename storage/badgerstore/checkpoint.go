package badgerstore

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// A checkpoint writes the state of each changed counter to its page, and then the mark, a position, to the database.
// After a kill, the next start replays the event log from the last mark that Badger still has. Requests are counted during a
// checkpoint: the page has, for each counter, the position of the last event that its state includes.

const (
	// The pause after a checkpoint is pauseFactor times as long as the checkpoint, but at least checkpointEvery and at most
	// maxCheckpointPause. It ends early after checkpointBytes of the event log or checkpointRequestIDs request ids. During
	// the pause Badger merges the new tables for half as long as the checkpoint took. So both use a tenth of the time.
	checkpointEvery      = 10 * time.Second
	pauseFactor          = 14
	maxCheckpointPause   = time.Minute
	checkpointBytes      = 1 << 30
	checkpointRequestIDs = 100_000

	// Requests wait while the last checkpoint lacks this many bytes of the event log, or this many request ids.
	maxPending           = 2 * checkpointBytes
	maxPendingRequestIDs = 10 * checkpointRequestIDs

	batchBytes    = 4 << 20  // records of counters that are encoded before their pages are written
	batchCounters = 1 << 16  // counters that are gathered before their pages are written; those without a record have no bytes
	pageTxnBytes  = 64 << 10 // pages written in one transaction; requests can run between two
)

// checkpointer is the state of the checkpoints of a store.
type checkpointer struct {
	running sync.Mutex    // held by the running checkpoint
	wake    chan struct{} // begins a checkpoint

	mark        atomic.Int64          // the last checkpoint includes all events before this position
	maxPending  atomic.Int64          // the constant maxPending; tests change it
	requestIDs  atomic.Int64          // request ids since the last checkpoint
	failed      atomic.Pointer[error] // the error of the last checkpoint, nil after a success
	checkpoints atomic.Uint64         // checkpoints written
	at          atomic.Int64          // when the last checkpoint ended without an error, Unix nanoseconds
	waits       atomic.Uint64         // requests that waited for a checkpoint

	waiting sync.Mutex
	ended   sync.Cond // a checkpoint has ended, or waiting requests must end; with the lock waiting
}

func newCheckpointer() *checkpointer {
	c := &checkpointer{wake: make(chan struct{}, 1)}
	c.ended.L = &c.waiting
	c.maxPending.Store(maxPending)
	c.at.Store(time.Now().UnixNano())
	return c
}

// waitForRoom waits until the events after the last checkpoint are below the limits of hasRoom. It returns an error
// when the store has failed or is being closed, and when a checkpoint fails meanwhile.
func (c *checkpointer) waitForRoom(s *Store) error {
	if c.hasRoom(s) {
		return nil
	}
	c.waiting.Lock()
	defer c.waiting.Unlock()
	for !c.hasRoom(s) {
		if err := s.stopped(); err != nil { // if nil, a later wakeWaiting ends Wait
			return err
		}
		c.waits.Add(1)
		c.ended.Wait()
		if err := c.failed.Load(); err != nil && !c.hasRoom(s) {
			return firstOf(s.stopped(), *err)
		}
	}
	return nil
}

// hasRoom reports whether requests need not wait for a checkpoint. It requests a checkpoint when one is due.
func (c *checkpointer) hasRoom(s *Store) bool {
	pending, requestIDs := s.events.Written()-c.mark.Load(), c.requestIDs.Load()
	if pending >= checkpointBytes || requestIDs >= checkpointRequestIDs {
		c.request()
	}
	return pending < c.maxPending.Load() && requestIDs < maxPendingRequestIDs
}

// request requests a checkpoint now.
func (c *checkpointer) request() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// wakeWaiting wakes all callers of waitForRoom that wait.
func (c *checkpointer) wakeWaiting() {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	c.ended.Broadcast()
}

// batch is a batch of counters and request ids that a checkpoint writes.
type batch struct {
	counters   []batched
	requestIDs []batchedRequestID
	bytes      []byte // the encoded records of counters
}

// batched is the state of a counter in a batch.
type batched struct {
	ref
	position int64     // of the last event in this state
	counter  *counter  // nil when it is not in memory
	changes  uint32    // the value of counter.changes at that time
	record   []byte    // within batch.bytes, nil when the counter is not in memory
	ended    endedDays // the days to archive
}

// batchedRequestID is a request id in a batch, or the key of a hold: see requestIDs. position is the position of the event, 0 for a record to remove.
type batchedRequestID struct {
	requestKey
	position int64
}

// checkpoint writes a checkpoint with all events that were answered before the call. Its error is one of the store, because
// requests that wait for the checkpoint answer with it.
func (s *Store) checkpoint() error {
	s.checkpointer.running.Lock()
	defer s.checkpointer.running.Unlock()
	defer s.checkpointer.wakeWaiting()
	began := time.Now()
	err := fault(s.checkpointAll())
	s.checkpointer.failed.Store(nil)
	if err != nil {
		s.checkpointer.failed.Store(&err)
	} else {
		s.checkpointer.at.Store(time.Now().UnixNano())
	}
	if s.options.OnCheckpoint != nil {
		s.options.OnCheckpoint(time.Since(began), err)
	}
	return err
}

func (s *Store) checkpointAll() error {
	s.failpoint(failCheckpoint)
	if err := s.events.Flush(); err != nil {
		return err
	}
	requestIDs := s.checkpointer.requestIDs.Load()
	upTo := s.inFlight.oldest(s.events.Written())
	var b batch
	for i := range s.counters.shards {
		runtime.Gosched() // lets requests run first
		b.take(s, &s.counters.shards[i])
		if len(b.bytes) >= batchBytes || len(b.requestIDs) >= maxWrites || len(b.counters) >= batchCounters {
			if err := s.writeBatch(&b); err != nil {
				return err
			}
		}
	}
	if err := s.writeBatch(&b); err != nil {
		return err
	}
	s.checkpointer.requestIDs.Add(-requestIDs)
	return s.writeMark(upTo)
}

// appendUnlogged appends the state of each counter of a shard whose last changes are not in the event log. The caller holds the
// lock of the shard, and then calls Flush of the event log, which returns the error of the append, too.
func (s *Store) appendUnlogged(sh *shard) {
	for e := range sh.table.All() {
		if c := &e.Value; c.savedBy == byNothing {
			_ = s.appendSet(c)
		}
	}
}

// take adds the changed counters and the new request ids of a shard.
func (b *batch) take(s *Store, sh *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.appendUnlogged(sh)
	for e := range sh.table.All() {
		if c := &e.Value; c.dirty {
			b.add(c)
		}
	}
	for of, h := range sh.pending {
		b.counters = append(b.counters, batched{ref: of, position: h.position})
	}
	for id, position := range sh.requestIDs.positions {
		b.requestIDs = append(b.requestIDs, batchedRequestID{id, position})
	}
	sh.requestIDs.taken = s.events.End()
}

// add adds a counter. The caller holds the lock of its shard.
func (b *batch) add(c *counter) {
	from := len(b.bytes)
	state, ended := c.forPage(c.kind)
	b.bytes = state.encode(b.bytes)
	b.counters = append(b.counters, batched{c.ref, c.applied, c, c.changes, b.bytes[from:len(b.bytes):len(b.bytes)], ended})
	c.daysSet = false
}

// writeBatch writes a batch and empties it.
func (s *Store) writeBatch(b *batch) error {
	if len(b.counters) == 0 && len(b.requestIDs) == 0 {
		return nil
	}
	if err := s.events.Flush(); err != nil { // writes the records that take has appended
		return err
	}
	slices.SortFunc(b.counters, func(x, y batched) int { return x.compare(y.ref) })
	s.failpoint(failPages)
	if err := firstOf(s.writePages(b), s.writeRequestIDs(b.requestIDs)); err != nil {
		return err
	}
	b.markWritten(s.counters)
	b.counters, b.requestIDs, b.bytes = b.counters[:0], b.requestIDs[:0], b.bytes[:0]
	return nil
}

// writePages writes the pages of a batch, about pageTxnBytes in each transaction. It marks the counters of a transaction as written even if a later
// one fails: the archive has their changes of days.
func (s *Store) writePages(b *batch) error {
	for rest := b.counters; len(rest) > 0; {
		runtime.Gosched()
		before := rest
		err := s.commitTxn(func(txn *badger.Txn) error {
			for size, pages := 0, 0; len(rest) > 0 && size < pageTxnBytes && pages < maxWrites/4; pages++ {
				n := countOnSamePage(rest)
				written, done, err := s.writePage(txn, rest[:n])
				if err != nil || !done {
					return err
				}
				size += written
				rest = rest[n:]
			}
			return nil
		})
		if err != nil {
			return err
		}
		s.counters.markWritten(before[:len(before)-len(rest)])
	}
	return nil
}

// onPage is implemented by values with a cell on a page of counters.
type onPage interface{ page() ref }

// countOnSamePage returns how many counters at the start of the list are on the same page.
func countOnSamePage[C onPage](counters []C) int {
	first := counters[0].page()
	for i, c := range counters {
		if c.page() != first {
			return i
		}
	}
	return len(counters)
}

// writePage writes the days of counters of one page to the archive, and then the counters to the page. It returns how many
// bytes it has written. done is false when days are left: then the caller commits, and calls writePage again.
func (s *Store) writePage(txn *badger.Txn, counters []batched) (size int, done bool, err error) {
	a := archiveUpdate{page: counters[0].page()}
	archived := 0
	size, err = changePage(txn, a.page, func(p *page) (_ bool, err error) {
		for i := range counters {
			c, record := &counters[i], counters[i].record
			if record == nil {
				t, _, err := s.stateAt(p[c.cell()], c.ref, c.position)
				if err != nil {
					return false, err
				}
				t, c.ended = t.forPage(c.kind)
				record = t.encode(nil)
			}
			if appliedOf(p[c.cell()]) <= c.position { // otherwise the counter was deleted since take
				p[c.cell()] = record
				a.add(c.cell(), c.ended)
			}
		}
		a.clearCells |= p.clearDropped(s.checkpointer.mark.Load())
		archived, done, err = a.write(txn)
		return done, err
	})
	return size + archived, done, err
}

// clearDropped clears the cells of counters that were deleted before a position, and returns these cells. The mark is at that
// position or after it, so no replay reads an event of these counters.
func (p *page) clearDropped(mark int64) (cells uint64) {
	for cell, record := range p {
		if isDropped(record) && appliedOf(record) < mark {
			p[cell] = nil
			cells |= 1 << cell
		}
	}
	return cells
}

// writeRequestIDs writes the index records of request ids and of holds, which have the positions of their events, and removes records of closed holds.
func (s *Store) writeRequestIDs(list []batchedRequestID) error {
	for chunk := range slices.Chunk(list, maxWrites/2) {
		err := s.commitTxn(func(txn *badger.Txn) error {
			for _, r := range chunk {
				value := encodeNumber(r.position)
				if r.position == 0 {
					value = nil
				}
				if err := setOrDelete(txn, requestIDPath(r.requestKey), value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// markWritten marks counters as written. A counter that has not changed since take is no longer dirty. A counter that was loaded since take is another
// object, and stays dirty. A counter that was loaded from the earlier page still has changes of days that are now in the archive: markWritten drops these
// changes.
func (all *counterCache) markWritten(list []batched) {
	for _, written := range list {
		sh := all.shard(written.ref)
		sh.mu.Lock()
		sh.written++
		if c := sh.peekLocked(written.ref); c != nil {
			if (c == written.counter || c.onPage < written.position) && !c.daysSet { // otherwise the archive has days that SetDays has replaced
				c.dropArchived(written.ended)
			}
			if c == written.counter && c.changes == written.changes {
				c.dirty, c.savedBy = false, byEvents
			}
			c.onPage = max(c.onPage, written.position)
		}
		if sh.pending[written.ref].position == written.position {
			delete(sh.pending, written.ref)
		}
		sh.mu.Unlock()
	}
}

// markWritten marks the request ids of a batch as written.
func (b *batch) markWritten(all *counterCache) {
	for _, r := range b.requestIDs {
		sh := all.shard(r.key)
		sh.mu.Lock()
		if sh.requestIDs.positions[r.requestKey] == r.position {
			delete(sh.requestIDs.positions, r.requestKey)
		}
		sh.requestIDs.removals++
		sh.mu.Unlock()
	}
}

// writeMark writes the mark: the database includes all events before the position.
func (s *Store) writeMark(upTo int64) error {
	s.failpoint(failPagesWritten)
	if upTo > s.checkpointer.mark.Load() {
		if err := s.events.Sync(); err != nil {
			return err
		}
		err := s.commitTxn(func(txn *badger.Txn) error { return txn.Set(at(kindCheckpoint), encodeNumber(upTo)) })
		if err != nil {
			return err
		}
		s.checkpointer.mark.Store(upTo)
		s.checkpointer.checkpoints.Add(1)
	}
	s.failpoint(failMarked)
	return s.failOnDamage(s.db.StoreState(s.state()))
}

// state returns what the database contains after the last checkpoint.
func (s *Store) state() table.State {
	return table.State{Position: s.checkpointer.mark.Load(), Log: s.events.Durable(), Time: s.clock.Load(), Verified: s.verified.Load()}
}
