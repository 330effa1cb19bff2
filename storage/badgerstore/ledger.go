package badgerstore

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// ledger is the journal that every counted request is written to, and the history
// that it stays in. Requests that were decided at the same time are written together,
// as one block: whoever finds nobody writing leads, and writes what has come together;
// whoever comes meanwhile is in the next block, which the first of them leads as soon
// as the one before it is written.
//
// Events are in it in the order in which their counters were changed: they are
// appended while the locks of these are held.
type ledger struct {
	*segments
	power atomic.Bool // every block is synced before it is answered
	step  func(step)

	mu      sync.Mutex // guards what follows
	open    *block     // takes events
	writing *block     // nil when nothing is being written
	leading bool       // someone leads, or is about to
	end     int64      // the position after the last event
	free    []byte     // a buffer to use again
	failed  error      // after which nothing is written any more

	blocks  atomic.Uint64 // how many were written
	written atomic.Int64  // the position up to which everything is in the files
	current *segment      // the last one; of whoever leads

	syncing    sync.Mutex   // held to sync, guards what follows
	synced     *segment     // the one that was synced last: those before it are on the disk
	syncFailed error        // why one failed
	durable    atomic.Int64 // the position up to which everything is on the disk
}

// newLedger returns a ledger whose files are not open yet.
func newLedger(o Options) *ledger {
	l := &ledger{segments: &segments{}, step: o.step, end: firstPosition}
	if l.step == nil {
		l.step = never
	}
	l.power.Store(o.Durability == Power)
	l.open = &block{start: firstPosition}
	return l
}

// block is what is written at once.
type block struct {
	start int64
	bytes []byte
	waits int // how many wait for it
	kept

	led      bool          // someone leads it, or waits for his turn to
	turn     chan struct{} // closed when it is his turn
	done     chan struct{} // closed when it was written, or that failed; made when someone waits
	finished bool          // so it is closed, or would be
	err      error         // why it failed; set before
}

// role is what someone does for the block that he waits for.
type role uint8

const (
	follow    role = iota // waits until it is written
	leadLater             // waits for his turn and writes it
	leadNow               // writes it
)

// maxIdle is how many bytes of denials, for which nobody waits, a block takes.
const maxIdle = 1 << 20

// append writes an event into the open block and returns its position. The caller
// holds the locks of its counters.
func (l *ledger) append(e *event, k kept) (position int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	position, err = l.appendLocked(e, k)
	return position, err
}

func (l *ledger) appendLocked(e *event, k kept) (position int64, err error) {
	if l.failed != nil {
		return 0, l.failed
	}
	b, position := l.open, l.end
	b.bytes = e.append(b.bytes, position)
	b.kept = b.and(k)
	l.end = b.start + int64(len(b.bytes))
	return position, nil
}

// appendAndJoin appends an event for which the caller waits.
func (l *ledger) appendAndJoin(e *event, k kept) (position int64, b *block, r role, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if position, err = l.appendLocked(e, k); err != nil {
		return 0, nil, follow, err
	}
	b = l.open
	return position, b, l.joinLocked(), nil
}

// joinLocked makes the caller one who waits for the open block.
func (l *ledger) joinLocked() role {
	b := l.open
	b.waits++
	switch {
	case !l.leading:
		l.leading, b.led = true, true
		return leadNow
	case !b.led:
		b.led, b.turn = true, make(chan struct{})
		return leadLater
	}
	b.waitedForLocked()
	return follow
}

func (b *block) waitedForLocked() {
	if b.done == nil && !b.finished {
		b.done = make(chan struct{})
	}
}

// await returns when a block was written, and as durable as the ledger is to be, or
// why that failed.
func (l *ledger) await(b *block, r role) error {
	switch r {
	case follow:
		<-b.done
		return b.err
	case leadLater:
		<-b.turn
	}
	l.commit()
	return b.err
}

// commit writes the open block, for whoever leads it, and hands the lead on.
func (l *ledger) commit() {
	l.gather()
	b := l.take()
	if b.err == nil {
		b.err = l.write(b)
	}
	l.finish(b)
}

// company is how many make a block that is worth its write.
const company = 8

// gather lets those run who are about to come, so that they share the block, if few do
// yet. It is not for nothing: beside work that keeps all processors busy whoever lets
// others run waits for them long.
func (l *ledger) gather() {
	l.mu.Lock()
	few := l.open.waits < company
	l.mu.Unlock()
	if few {
		runtime.Gosched()
	}
}

// take closes the open block and begins another one.
func (l *ledger) take() *block {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.open
	b.err = l.failed
	l.writing = b
	l.open = &block{start: l.end, bytes: l.free[:0]}
	l.free = nil
	return b
}

// write writes a block into the files.
func (l *ledger) write(b *block) error {
	if len(b.bytes) == 0 {
		return nil
	}
	if l.current == nil || l.current.end-l.current.base >= l.size {
		l.step(stepRotate)
		if err := l.rotate(b.start); err != nil {
			return err
		}
	}
	l.step(stepWrite)
	g := l.current
	if _, err := g.file.WriteAt(b.bytes, g.offset(b.start)); err != nil {
		return err
	}
	end := b.start + int64(len(b.bytes))
	l.grown(g, end, b.kept)
	l.written.Store(end)
	l.blocks.Add(1)
	l.step(stepWritten)
	if l.power.Load() {
		l.makeRoom(g, end)
		err := l.sync()
		l.step(stepSynced)
		return err
	}
	return nil
}

// rotate begins the segment that begins at a position. All before it is on the disk
// then: that a file is cut off, or missing, before another one is no power cut.
func (l *ledger) rotate(base int64) error {
	if err := l.sync(); err != nil {
		return err
	}
	g, err := l.begin(base)
	if err != nil {
		return err
	}
	l.current = g
	return nil
}

// finish tells whoever waits for a block, and hands the lead to whoever leads the next
// one. When nobody does, nobody waits for it.
func (l *ledger) finish(b *block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.err != nil && l.failed == nil {
		l.failed = b.err
	}
	b.finished = true
	if b.done != nil {
		close(b.done)
	}
	l.writing = nil
	l.free = b.bytes
	b.bytes = nil
	if l.open.led {
		close(l.open.turn)
		return
	}
	l.leading = false
}

// flush returns when everything is in the files that was appended before.
func (l *ledger) flush() error {
	l.mu.Lock()
	b, r := l.writing, follow
	switch {
	case l.failed != nil:
		l.mu.Unlock()
		return l.failed
	case len(l.open.bytes) > 0:
		b = l.open
		r = l.joinLocked()
	case b == nil:
		l.mu.Unlock()
		return nil
	default:
		b.waitedForLocked()
	}
	l.mu.Unlock()
	return l.await(b, r)
}

// idle reports whether the open block takes an event for which nobody waits.
func (l *ledger) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open.bytes) < maxIdle && l.failed == nil
}

// answered reports whether the event at a position is where an answered one has to be.
func (l *ledger) answered(position int64) bool {
	if l.power.Load() {
		return position < l.durable.Load()
	}
	return position < l.written.Load()
}

// position returns the position of the event that comes next.
func (l *ledger) position() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// sync brings everything to the disk that is in the files. When that fails it is final:
// a second try may succeed without the bytes of the first.
func (l *ledger) sync() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	end := l.written.Load()
	if l.syncFailed != nil || end == l.durable.Load() {
		return l.syncFailed
	}
	for _, g := range l.from(l.synced) {
		if err := g.file.sync(); err != nil && l.has(g) {
			l.syncFailed = err
			return err
		} // else it was removed meanwhile: it is folded, and was on the disk before
		l.synced = g
	}
	l.durable.Store(end)
	return nil
}

// has reports whether a segment was not removed.
func (all *segments) has(g *segment) bool {
	all.mu.RLock()
	defer all.mu.RUnlock()
	return slices.Contains(all.list, g)
}

// from returns the segments from one on; all when it is nil.
func (all *segments) from(first *segment) []*segment {
	all.mu.RLock()
	defer all.mu.RUnlock()
	for i, g := range all.list {
		if g == first {
			return append([]*segment(nil), all.list[i:]...)
		}
	}
	return append([]*segment(nil), all.list...)
}
