package eventlog

import (
	"runtime"
	"time"
)

// minBatch is the number of waiters of a block below which its leader yields once, if it had to wait for its turn: then
// runnable goroutines can join. It costs latency when the processors are busy.
const minBatch = 8

// A leader that can write at once yields first, so that others can join its block. With one caller a yield wakes an idle
// processor in vain: a decision takes 5.9 µs if each leader yields, and 2.3 µs if none does (BenchmarkDecide, process,
// callers=1). Behind a proxy with 32 connections, 100 requests cause 22 writes with this rule, and 64 if a leader yields
// only when others joined the block before, which costs 1.6 µs of CPU time a request.
const (
	yieldsAfterShared = 16  // the number of leaders that yield after a block with several waiters
	probeEvery        = 512 // then one leader in so many blocks yields, to find out whether others join again
)

// Why one goroutine at a time writes the log, and each waiter returns after its record was written:
//
//  1. Under mu, a waiter joins the open block. The first waiter of a block is its leader: at once if leading is false, which
//     it sets to true, else later. So a block with waiters has one leader.
//  2. The leader that has its turn runs commit. take puts an empty block in the place of the open one, under mu: after
//     that nobody joins the block or adds a record to it.
//  3. write changes the files. No other goroutine does: leading stays true until finish.
//  4. finish reads, under mu, whether the open block has a leader. If so, leading stays true, and finish gives that leader
//     its turn by mayWrite. Else leading becomes false, and the next waiter leads at once. A waiter joins either before finish, and is
//     seen, or after it, and sees leading. So no block with waiters stays without a turn.
//  5. Followers read err after done is closed, which finish does after write has set err. The leader reads its own.
//  6. Flush waits for the block that is being written as a follower, or joins the open block as in 1. So after Flush all
//     records of earlier calls are written. A record without a waiter is written with the next block that has one.
//
// Sync and rotate hold syncing, never mu, while they sync. Order of the locks: syncing, the list of segments; mu is held alone.

// joinLocked makes the caller a waiter of the open block.
func (l *Log) joinLocked() Ticket {
	b := l.open
	b.waits++
	switch {
	case !l.leading:
		l.leading, b.led = true, true
		return Ticket{l, b, true, l.yields > 0}
	case !b.led:
		b.led, b.mayWrite = true, make(chan struct{})
		return Ticket{l, b, true, false}
	}
	b.followLocked()
	return Ticket{l, b, false, false}
}

func (b *block) followLocked() {
	if b.done == nil && !b.finished {
		b.done = make(chan struct{})
	}
}

// Wait waits until the record is in the file, and with durability power on disk.
func (t Ticket) Wait() error {
	if !t.leads {
		<-t.b.done
		return t.b.err
	}
	yields := t.yields
	if t.b.mayWrite != nil { // the block before it was being written
		<-t.b.mayWrite
		t.l.mu.Lock()
		yields = t.b.waits < minBatch
		t.l.mu.Unlock()
	}
	if yields {
		runtime.Gosched()
	}
	t.l.commit()
	return t.b.err
}

// commit writes the open block, as its leader, and hands over to the next leader.
func (l *Log) commit() {
	b := l.take()
	if b.err == nil {
		if b.err = l.write(b); b.err != nil {
			l.fail(b.err)
		}
	}
	l.finish(b)
}

// take closes the open block and opens another one after it.
func (l *Log) take() *block {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.open
	b.err = l.failed
	end := b.start
	if !b.empty() {
		b.bytes = append(b.bytes, marker)
		end += int64(len(b.bytes))
	}
	l.writing, l.open, l.free = b, newBlock(end, l.free), nil
	switch {
	case b.waits > 1:
		l.yields = yieldsAfterShared
	case l.yields > -probeEvery:
		l.yields--
	default:
		l.yields = 1
	}
	return b
}

// write writes a block into the last segment. It uses pwrite: a copy into a shared mapping of the file takes the same CPU time
// for a request behind a proxy with 32 connections, and 1 to 2 µs more with 128, because each request then writes its own block.
func (l *Log) write(b *block) error {
	if b.empty() {
		return nil
	}
	sealBlock(b.bytes, l.seed, b.start, l.durable.Load(), b.hours)
	g := l.current.Load()
	if g == nil || g.end-g.base >= l.o.SegmentSize {
		if err := l.rotate(b.start); err != nil {
			return temporary(err)
		}
		g = l.current.Load()
	}
	began := time.Now()
	if _, err := g.file.WriteAt(b.bytes, g.offset(b.start)); err != nil {
		_ = g.file.Truncate(g.offset(b.start)) // otherwise Open finds a torn write
		return temporary(err)
	}
	end := b.start + int64(len(b.bytes))
	l.segments.grown(g, end, b.hours, b.bytes)
	l.written.Store(end)
	if l.o.OnWrite != nil {
		l.o.OnWrite(b.records, time.Since(began))
	}
	if !l.power.Load() {
		return nil
	}
	g.makeRoom(end, l.o.Ahead, g.base+l.o.SegmentSize)
	l.syncing.Lock()
	defer l.syncing.Unlock()
	return l.syncLocked()
}

// fail makes the log refuse all later records. The first error stays.
func (l *Log) fail(err error) {
	l.mu.Lock()
	isFirst := l.failed == nil
	if isFirst {
		l.failed = err
		l.stopped.Store(true)
	}
	l.mu.Unlock()
	if isFirst && l.o.OnFailure != nil {
		l.o.OnFailure(err)
	}
}

// finish wakes the waiters of a block and the leader of the next one.
func (l *Log) finish(b *block) {
	l.mu.Lock()
	b.finished = true
	done, mayWrite := b.done, l.open.mayWrite
	l.writing = nil
	if cap(b.bytes) <= maxFree {
		l.free = b.bytes
	}
	b.bytes = nil
	l.leading = mayWrite != nil
	l.mu.Unlock()
	// The woken goroutines need the lock at once. The next leader goes first, and writes while the others are woken.
	if mayWrite != nil {
		close(mayWrite)
	}
	if done != nil {
		close(done)
	}
}

// Ready returns nil while the log takes records, which costs one atomic load. Otherwise it returns the error of the log.
func (l *Log) Ready() error {
	if !l.stopped.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// Flush waits until all records appended before the call are in the files.
func (l *Log) Flush() error {
	l.mu.Lock()
	var t Ticket
	switch {
	case l.failed != nil:
		err := l.failed
		l.mu.Unlock()
		return err
	case !l.open.empty():
		t = l.joinLocked()
	case l.writing == nil:
		l.mu.Unlock()
		return nil
	default:
		t = Ticket{l, l.writing, false, false}
		t.b.followLocked()
	}
	l.mu.Unlock()
	return t.Wait()
}
