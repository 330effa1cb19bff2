package badgerstore

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Folding writes the counters as they are to their pages, so that opening the store
// need not read the events of the event log up to then. Counting goes on meanwhile:
// a page says of each counter up to which event it has got them.

const (
	foldEvery    = 10 * time.Second // and no more than a tenth of the time, or as soon as
	foldBytes    = 1 << 30          // so much of the event log is not folded, or
	foldRepeats  = 100_000          // so many request ids
	unfoldedMost = 2 * foldBytes    // whoever counts waits while so much is not folded,
	repeatsMost  = 10 * foldRepeats // or so many request ids

	batchBytes = 4 << 20     // of records of counters that are taken at once
	turnBytes  = 64 << 10    // of pages that are written at once: then whoever decides goes first
	longPause  = time.Minute // between two times, at most
)

// folder folds.
type folder struct {
	running sync.Mutex // held to fold
	wake    chan struct{}

	mark       atomic.Int64          // everything in the event log before it is folded
	most       atomic.Int64          // how many bytes may be unfolded
	remembered atomic.Int64          // request ids since the last time
	failed     atomic.Pointer[error] // why it failed the last time, nil when it did not
	folds      atomic.Uint64
	waits      atomic.Uint64 // how often someone had to wait

	mu     sync.Mutex // guards what follows
	passed chan struct{}
}

func newFolder() *folder {
	f := &folder{wake: make(chan struct{}, 1), passed: make(chan struct{})}
	f.most.Store(unfoldedMost)
	return f
}

// room returns when there is room in the event log for another event.
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
		<-passed
		if err := s.failure(); err != nil {
			return err
		}
		if err := f.failed.Load(); err != nil && f.full(s) {
			return *err
		}
	}
}

// full reports whether there is no room.
func (f *folder) full(s *Store) bool {
	return s.events.Written()-f.mark.Load() >= f.most.Load() || f.remembered.Load() >= repeatsMost
}

// hurry lets folding begin.
func (f *folder) hurry() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// pass lets go on who waits for room.
func (f *folder) pass() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.passed)
	f.passed = make(chan struct{})
}

// folding is a batch of counters that are being folded.
type folding struct {
	counters []folded
	repeats  []foldedRepeat
	bytes    []byte // the records of counters
}

// folded is a counter as it is folded.
type folded struct {
	ref
	position   int64    // up to which it has got its events
	counter    *counter // nil when it is not in memory
	changes    uint32
	from, upTo int32       // its record within the bytes
	days       *unarchived // nil when they are in the archive
}

type foldedRepeat struct {
	repeat
	position int64
}

// fold folds everything that was answered before.
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
		runtime.Gosched() // whoever decides goes first
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

// take adds what is to be folded of a shard.
func (b *folding) take(s *Store, sh *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, c := range sh.list {
		if c.unlogged {
			_ = s.appendSet(c) // the event log says the error again when it is flushed
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
	if err := s.events.Flush(); err != nil { // what take has appended
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

// writePages writes the pages of a batch, some in a transaction at a time.
func (s *Store) writePages(b *folding) error {
	for rest := b.counters; len(rest) > 0; {
		runtime.Gosched()
		s.committing.Lock()
		err := s.commitLocked(func(txn *table.Txn) error {
			for size, pages := 0, 0; len(rest) > 0 && size < turnBytes && pages < maxWrites; pages++ {
				n := onOnePage(rest)
				written, err := s.writePage(txn, rest[:n], b.bytes)
				if err != nil {
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

// paged is what has a place on a page.
type paged interface{ page() ref }

// onOnePage returns how many of the counters are on the page of the first.
func onOnePage[C paged](counters []C) int {
	first := counters[0].page()
	for i, c := range counters {
		if c.page() != first {
			return i
		}
	}
	return len(counters)
}

// writePage puts counters that are on one page there, and their days into the archive,
// and returns how long that is.
func (s *Store) writePage(txn *table.Txn, counters []folded, records []byte) (int, error) {
	p := pagePath(counters[0].page())
	old, err := snapshot{txn.Txn}.get(p)
	if err != nil {
		return 0, err
	}
	pg, err := decodePage(old)
	if err != nil {
		return 0, err
	}
	a := archiving{page: counters[0].page()}
	for _, c := range counters {
		record, days := records[c.from:c.upTo:c.upTo], c.days
		if len(record) == 0 {
			if record, days, err = s.caughtUp(pg[c.slot()], c); err != nil {
				return 0, err
			}
		}
		if appliedOf(pg[c.slot()]) <= c.position { // else it was deleted meanwhile
			pg[c.slot()] = record
			a.add(c.slot(), days)
		}
	}
	a.forget |= pg.tidy(s.folder.mark.Load())
	size, err := a.write(txn)
	if err != nil {
		return 0, err
	}
	record := pg.encode()
	return size + len(record), setPage(txn, counters[0].page(), record, old != nil)
}

// caughtUp returns the record of a counter that is not in memory, and its days that are
// not in the archive.
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

// tidy forgets the counters that were deleted before the event log was folded up to a
// position: no event of them is read any more. It returns their slots.
func (p *page) tidy(mark int64) (slots uint64) {
	for slot, record := range p {
		if isDropped(record) && appliedOf(record) < mark {
			p[slot] = nil
			slots |= 1 << slot
		}
	}
	return slots
}

// writeRepeats writes what leads to the events of requests with an id.
func (s *Store) writeRepeats(list []foldedRepeat) error {
	for some := range slices.Chunk(list, maxWrites/2) {
		s.committing.Lock()
		err := s.commitLocked(func(txn *table.Txn) error {
			for _, r := range some {
				if err := txn.SetEntry(newRepeat(r.repeat, r.position)); err != nil {
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

// finish notes that a batch was folded: what has not changed since is as it is stored.
// A counter that has left the memory meanwhile and is there again is another one.
func (b *folding) finish(all *counters) {
	for _, f := range b.counters {
		sh := all.shard(f.ref)
		sh.mu.Lock()
		if c := sh.byRef[f.ref]; c != nil && c == f.counter {
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

// mark stores that everything before a position is in the database.
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

// flushBytes is the default of [Options.flushBytes]: bytes of the event log between the oldest
// position from which a crash makes the store replay, and the last checkpoint.
const flushBytes = 64 << 20

// flush stores the position that the tables have reached. When the last checkpoint is flushBytes
// ahead of the tables, flush makes Badger write its memtable to a table.
func (s *Store) flush() error {
	position, err := s.db.Flushed()
	if err != nil {
		return err
	}
	position = max(position, s.flushed.Load())
	mark := table.Mark{Position: position, Log: s.events.Durable(), Time: s.clock.Load()}
	err = s.db.Checkpoint(mark)
	if noRoom(err) && s.reserve.give(leastGiven) { // without a checkpoint no history can be removed
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
	return s.badgerError(s.db.Flush(s.beforeMemtable))
}
