package eventlog

import (
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of [Options], in bytes.
const (
	DefaultSegmentSize = 64 << 20
	DefaultAhead       = 1 << 20
)

// maxUnawaited is the largest size in bytes of the open block while it takes records without a waiter.
const maxUnawaited = 1 << 20

// maxFree is the largest buffer in bytes that is kept for the next block.
const maxFree = 2 * maxUnawaited

// Options are the settings of a log.
type Options struct {
	FS  FS     // nil for [OS]
	Dir string // must exist

	// SegmentSize is the size in bytes at which the next segment begins; 0 for the default.
	SegmentSize int64
	// Ahead is the number of bytes to preallocate with Power; 0 for the default.
	Ahead int64
	// Power syncs each block before its waiters return.
	Power bool
	// Known is a position up to which the caller knows that the log was on disk; 0 for none.
	// A log that ends before it is damaged.
	Known int64
	// OnTorn is called by Open when it cuts off a torn write.
	OnTorn func(Torn)
	// OnFailure is called with the error after which the log refuses all records. It must not call the log.
	OnFailure func(error)
	// OnWrite is called after each write of blocks, with the number of their records and the duration of the write. May
	// be nil. It must not call the log, and delays the callers that wait for the block.
	OnWrite func(records int, took time.Duration)
	// OnSync is called after each sync of the last segment, with its duration. May be nil. It must not call the log.
	OnSync func(took time.Duration)
}

// Torn is a torn write at the end of a log, which Open cuts off.
type Torn struct {
	File   string // its name in the directory of the log
	Offset int64  // in the file, in bytes
	Bytes  int64  // number of bytes to cut off; 0 for no torn write
}

// Log is an open log. Its methods may be called concurrently.
type Log struct {
	o     Options
	seed  uint32
	power atomic.Bool

	mu      sync.Mutex // guards the fields up to failed
	open    *block     // takes records
	writing *block     // nil when no block is being written
	leading bool       // a leader writes, or is about to write
	yields  int        // above 0: the number of leaders that yield; else minus the number of blocks since the last yield, see [probeEvery]
	free    []byte     // a buffer for reuse
	failed  error      // the first error of a write or sync, after which the log refuses all records

	stopped atomic.Bool  // failed is set
	written atomic.Int64 // all records before this position are in the files

	syncing sync.Mutex              // held to sync, to rotate and to write a status
	syncErr error                   // final; guarded by syncing
	current atomic.Pointer[segment] // the last segment, nil without any; changed while syncing is held
	durable atomic.Int64            // all records before this position are on disk

	segments segmentList
}

// block is a batch of records that are written at once: space for the header, then the records.
type block struct {
	start   int64
	bytes   []byte
	records int
	waits   int   // number of waiting callers
	hours   hours // the retention of all records

	led      bool          // the block has a leader
	mayWrite chan struct{} // closed when the leader may write
	done     chan struct{} // closed when the block was written or has failed; created for the first follower
	finished bool
	err      error // the error of the write; set before done is closed
}

func newBlock(start int64, buf []byte) *block {
	return &block{start: start, bytes: append(buf[:0], make([]byte, blockHeader)...)}
}

func (b *block) empty() bool { return len(b.bytes) == blockHeader }

// Ticket is the ticket of an appended record, to wait for its write.
type Ticket struct {
	l      *Log
	b      *block
	leads  bool // the caller writes the block; otherwise it waits for the leader
	yields bool // the leader has its turn at once, and yields before it writes
}

// Append adds a record without a waiter. encode appends the payload of the record at a position
// to b and returns the result; it must not call the log. Positions have the order of the calls.
// After an error the record is never written.
func (l *Log) Append(encode func(b []byte, position int64) []byte, keep Keep) (position int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(encode, keep)
}

// AppendAwaited is Append for a caller that waits. The caller must call [Ticket.Wait], because it
// may be the leader that writes the records of other callers.
func (l *Log) AppendAwaited(encode func(b []byte, position int64) []byte, keep Keep) (position int64, t Ticket, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if position, err = l.appendLocked(encode, keep); err != nil {
		return 0, Ticket{}, err
	}
	return position, l.joinLocked(), nil
}

func (l *Log) appendLocked(encode func([]byte, int64) []byte, keep Keep) (int64, error) {
	if l.failed != nil {
		return 0, l.failed
	}
	b := l.open
	at := len(b.bytes)
	position := b.start + int64(at)
	bytes := encode(append(b.bytes, make([]byte, recordHeader)...), position)
	if n := len(bytes) - at - recordHeader; n < 1 || n > MaxRecord {
		return 0, ErrRecordSize
	}
	sealRecord(bytes[at:], l.seed, position)
	b.bytes, b.hours = bytes, b.hours.and(hoursOf(keep))
	b.records++
	return position, nil
}

// TakesUnawaited reports whether the open block takes another record without a waiter.
func (l *Log) TakesUnawaited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open.bytes) < maxUnawaited && l.failed == nil
}

// End returns a position after all records. The next record gets it, or a later one when a new block begins first.
func (l *Log) End() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open.start + int64(len(l.open.bytes))
}

// Written returns the position up to which all records are in the files.
func (l *Log) Written() int64 { return l.written.Load() }

// Durable returns the position up to which all records are on disk.
func (l *Log) Durable() int64 { return l.durable.Load() }

// Safe reports whether the record at a position is as durable as a record after Wait.
func (l *Log) Safe(position int64) bool {
	if l.power.Load() {
		return position < l.durable.Load()
	}
	return position < l.written.Load()
}

// Power reports whether each block is synced before its waiters return.
func (l *Log) Power() bool { return l.power.Load() }

// SetPower changes whether each block is synced before its waiters return. The caller
// calls Flush and Sync after it.
func (l *Log) SetPower(power bool) { l.power.Store(power) }
