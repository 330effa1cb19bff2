package badgerstore

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Folding writes a checkpoint: the state of each changed counter goes to its page, and then the mark, a position,
// to the database. The next start replays the event log from the mark on. Requests are counted during a fold: the
// page has, for each counter, the position of the last event that its state includes.

const (
	// A fold begins every foldEvery, or earlier after foldBytes of the event log or foldRepeats request ids. The pause
	// after a fold is 9 times as long as the fold, but at most maxFoldPause: folds take a tenth of the time.
	foldEvery    = 10 * time.Second
	maxFoldPause = time.Minute
	foldBytes    = 1 << 30
	foldRepeats  = 100_000

	// Requests wait while this many bytes of the event log, or this many request ids, are not folded.
	maxUnfolded = 2 * foldBytes
	maxRepeats  = 10 * foldRepeats

	batchBytes = 4 << 20  // records of counters that are encoded before their pages are written
	turnBytes  = 64 << 10 // pages written in one transaction; requests can run between two
)

// folder is the state of folding.
type folder struct {
	running sync.Mutex    // held by the fold that runs
	wake    chan struct{} // begins a fold

	mark       atomic.Int64          // everything in the event log before this position is folded
	most       atomic.Int64          // maxUnfolded, but in tests
	remembered atomic.Int64          // request ids since the last fold
	failed     atomic.Pointer[error] // the error of the last fold, nil without one
	folds      atomic.Uint64         // checkpoints written
	waits      atomic.Uint64         // how often a request has waited for a fold

	mu     sync.Mutex    // guards passed
	passed chan struct{} // closed when the current fold ends
}

func newFolder() *folder {
	f := &folder{wake: make(chan struct{}, 1), passed: make(chan struct{})}
	f.most.Store(maxUnfolded)
	return f
}

// room waits until the event log may take another event. It returns why it may not.
func (f *folder) room(s *Store) error {
	for {
		unfolded := s.events.Written() - f.mark.Load()
		if unfolded >= foldBytes || f.remembered.Load() >= foldRepeats {
			f.hurry()
		}
		if !f.full(s) {
			return nil
		}
		f.waits.Add(1)
		f.mu.Lock()
		passed := f.passed
		f.mu.Unlock()
		if !f.full(s) {
			return nil
		}
		err := s.stopped() // if nil, a later pass closes passed
		if err == nil {
			<-passed
			err = s.stopped()
		}
		if err != nil {
			return err
		}
		if err := f.failed.Load(); err != nil && f.full(s) {
			return *err
		}
	}
}

// full reports whether so much is not folded that requests wait.
func (f *folder) full(s *Store) bool {
	return s.events.Written()-f.mark.Load() >= f.most.Load() || f.remembered.Load() >= maxRepeats
}

// hurry begins a fold now.
func (f *folder) hurry() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// pass wakes the callers of room that wait.
func (f *folder) pass() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.passed)
	f.passed = make(chan struct{})
}

// folding is a batch of counters and request ids that a fold writes.
type folding struct {
	counters []folded
	repeats  []foldedRepeat
	bytes    []byte // the encoded records of counters
}

// folded is the state of a counter in a batch.
type folded struct {
	ref
	position   int64       // of the last event in this state
	counter    *counter    // nil when it is not in memory
	changes    uint32      // of the counter at that time
	from, upTo int32       // the record within folding.bytes, empty when the counter is not in memory
	days       *unarchived // the days to archive, nil without any
}

// foldedRepeat is a request id in a batch, with the position of its event.
type foldedRepeat struct {
	repeat
	position int64
}

// fold writes a checkpoint of everything that was answered before the call.
func (s *Store) fold() error {
	s.folder.running.Lock()
	defer s.folder.running.Unlock()
	defer s.folder.pass()
	err := s.foldAll()
	s.folder.failed.Store(nil)
	if err != nil {
		s.folder.failed.Store(&err)
	}
	return err
}

func (s *Store) foldAll() error {
	s.step(stepFold)
	if err := s.events.Flush(); err != nil {
		return err
	}
	s.folder.remembered.Store(0)
	upTo := s.underway.oldest(s.events.Written())
	var batch folding
	for i := range s.counters.shards {
		runtime.Gosched() // requests go first
		batch.take(s, &s.counters.shards[i])
		if len(batch.bytes) >= batchBytes || len(batch.repeats) >= maxWrites {
			if err := s.foldBatch(&batch); err != nil {
				return err
			}
		}
	}
	if err := s.foldBatch(&batch); err != nil {
		return err
	}
	return s.mark(upTo)
}

// take adds the changed counters and the new request ids of a shard.
func (b *folding) take(s *Store, sh *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for e := range sh.table.All() {
		c := &e.Value
		if c.unlogged {
			_ = s.appendSet(c) // the next Flush returns the error, too
		}
		if c.dirty {
			b.add(c)
		}
	}
	for of, h := range sh.unfolded {
		b.counters = append(b.counters, folded{ref: of, position: h.position})
	}
	for of, position := range sh.repeats.positions {
		b.repeats = append(b.repeats, foldedRepeat{of, position})
	}
}

// add adds a counter. The caller holds the lock of its shard.
func (b *folding) add(c *counter) {
	from := len(b.bytes)
	b.bytes = c.encode(b.bytes)
	b.counters = append(b.counters, folded{c.ref, c.applied, c, c.changes, int32(from), int32(len(b.bytes)), c.days.unarchived()})
}

// foldBatch writes a batch and empties it.
func (s *Store) foldBatch(b *folding) error {
	if len(b.counters) == 0 && len(b.repeats) == 0 {
		return nil
	}
	if err := s.events.Flush(); err != nil { // the records that take has appended
		return err
	}
	slices.SortFunc(b.counters, func(x, y folded) int { return x.compare(y.ref) })
	s.step(stepPages)
	if err := firstOf(s.writePages(b), s.writeRepeats(b.repeats)); err != nil {
		return err
	}
	b.finish(s.counters)
	b.counters, b.repeats, b.bytes = b.counters[:0], b.repeats[:0], b.bytes[:0]
	return nil
}

// writePages writes the pages of a batch, about turnBytes in each transaction.
func (s *Store) writePages(b *folding) error {
	for rest := b.counters; len(rest) > 0; {
		runtime.Gosched()
		s.committing.Lock()
		err := s.commitLocked(func(txn *table.Txn) error {
			for size, pages := 0, 0; len(rest) > 0 && size < turnBytes && pages < maxWrites/4; pages++ {
				n := onOnePage(rest)
				written, done, err := s.writePage(txn, rest[:n], b.bytes)
				if err != nil || !done {
					return err
				}
				size += written
				rest = rest[n:]
			}
			return nil
		})
		s.committing.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// paged is a counter, or another value with a slot on a page.
type paged interface{ page() ref }

// onOnePage returns how many counters at the start of the list are on the same page.
func onOnePage[C paged](counters []C) int {
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
func (s *Store) writePage(txn *table.Txn, counters []folded, records []byte) (size int, done bool, err error) {
	p := pagePath(counters[0].page())
	old, err := snapshot{txn.Txn}.get(p)
	if err != nil {
		return 0, false, err
	}
	pg, err := decodePage(old)
	if err != nil {
		return 0, false, err
	}
	a := archiving{page: counters[0].page()}
	for _, c := range counters {
		record, days := records[c.from:c.upTo:c.upTo], c.days
		if len(record) == 0 {
			if record, days, err = s.caughtUp(pg[c.slot()], c); err != nil {
				return 0, false, err
			}
		}
		if appliedOf(pg[c.slot()]) <= c.position { // otherwise the counter was deleted since take
			pg[c.slot()] = record
			a.add(c.slot(), days)
		}
	}
	a.forget |= pg.tidy(s.folder.mark.Load())
	if size, done, err = a.write(txn); err != nil || !done {
		return size, false, err
	}
	record := pg.encode()
	return size + len(record), true, setPage(txn, counters[0].page(), record, old != nil)
}

// caughtUp applies the events since a record to a counter that is not in memory. It returns the new record, and
// the days to archive.
func (s *Store) caughtUp(record []byte, c folded) ([]byte, *unarchived, error) {
	t, err := decodeTally(record)
	if err != nil {
		return nil, nil, err
	}
	if err := s.catchUp(&t, c.ref, c.position); err != nil {
		return nil, nil, err
	}
	return t.encode(nil), t.days.unarchived(), nil
}

// tidy clears the slots of counters that were deleted before a position, and returns these slots. The event log is
// folded up to that position, so no replay reads an event of these counters.
func (p *page) tidy(mark int64) (slots uint64) {
	for slot, record := range p {
		if isDropped(record) && appliedOf(record) < mark {
			p[slot] = nil
			slots |= 1 << slot
		}
	}
	return slots
}

// writeRepeats writes the index records of request ids. Each has the position of the event of its request.
func (s *Store) writeRepeats(list []foldedRepeat) error {
	for some := range slices.Chunk(list, maxWrites/2) {
		s.committing.Lock()
		err := s.commitLocked(func(txn *table.Txn) error {
			for _, r := range some {
				if err := txn.Set(repeatPath(r.repeat), encodeNumber(r.position)); err != nil {
					return err
				}
			}
			return nil
		})
		s.committing.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// finish notes that a batch is written. A counter that has not changed since take is no longer dirty. A counter that
// was evicted and loaded again since then is another object, and stays as it is.
func (b *folding) finish(all *counterCache) {
	for _, f := range b.counters {
		sh := all.shard(f.ref)
		sh.mu.Lock()
		if c := sh.peekLocked(f.ref); c != nil && c == f.counter {
			c.archived(f.days)
			if c.changes == f.changes {
				c.dirty, c.unsaved = false, false
			}
		}
		if sh.unfolded[f.ref].position == f.position {
			delete(sh.unfolded, f.ref)
		}
		sh.mu.Unlock()
	}
	for _, r := range b.repeats {
		sh := all.shard(r.key)
		sh.mu.Lock()
		if sh.repeats.positions[r.repeat] == r.position {
			delete(sh.repeats.positions, r.repeat)
		}
		sh.repeats.folded++
		sh.mu.Unlock()
	}
}

// mark writes the mark: everything in the event log before the position is in the database.
func (s *Store) mark(upTo int64) error {
	s.step(stepFolded)
	if upTo > s.folder.mark.Load() {
		if err := s.events.Sync(); err != nil {
			return err
		}
		s.committing.Lock()
		err := s.commitLocked(func(txn *table.Txn) error { return txn.Set(at(kindFolded), encodeNumber(upTo)) })
		s.committing.Unlock()
		if err != nil {
			return err
		}
		s.folder.mark.Store(upTo)
		s.folder.folds.Add(1)
		if err := s.db.Committed(upTo); err != nil {
			return err
		}
	}
	s.step(stepMarked)
	return s.flush()
}

// flushBytes is the default of [Options.flushBytes]: how far the tables may be behind the mark, in bytes of the
// event log. After a crash the store replays these bytes, and the records behind the mark.
const flushBytes = 64 << 20

// flush stores the position up to which everything is in tables. When the mark is flushBytes ahead of that
// position, flush makes Badger write its memtable to a table.
func (s *Store) flush() error {
	position, err := s.db.Flushed()
	if err != nil {
		return err
	}
	position = max(position, s.flushed.Load())
	mark := table.Mark{Position: position, Log: s.events.Durable(), Time: s.clock.Load()}
	err = s.db.Checkpoint(mark)
	if noRoom(err) && s.reserve.give(minShrink) { // without checkpoints no history can be removed
		err = s.db.Checkpoint(mark)
	}
	if err := s.failOnDamage(err); err != nil {
		return err
	}
	s.flushed.Store(position)
	left := s.folder.mark.Load() - s.flushed.Load()
	if left < s.flushBytes && (left == 0 || !s.retention.wanted.Load()) {
		return nil
	}
	s.committing.Lock()
	defer s.committing.Unlock()
	if err := firstOf(s.failure(), s.ready()); err != nil {
		return fault(err)
	}
	return s.badgerError(s.db.Flush(s.syncEvents))
}
