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

// maxUnawaited is how many bytes the open block takes of records for which nobody waits.
const maxUnawaited = 1 << 20

// retryEvery is the least time between two attempts to write after a temporary error.
const retryEvery = 100 * time.Millisecond

// Options says where a log is and how it is written.
type Options struct {
	FS  FS     // nil for [OS]
	Dir string // must exist

	// SegmentSize is the length in bytes at which a segment is the last no longer; 0 for the
	// default.
	SegmentSize int64
	// Ahead is how much room is written ahead with Power; 0 for the default.
	Ahead int64
	// Power syncs each block before its waiters return.
	Power bool
	// Known is a position up to which the caller knows that the log was on disk; 0 for none.
	// A log that ends before it is damaged.
	Known int64
	// Boot identifies the time since the machine was started, as [Boot] returns it; 0 when
	// it is unknown.
	Boot uint64

	// Help makes room for so many bytes on a full disk, and reports whether it has: then the log tries
	// once more. Nil for no help.
	Help func(bytes int64) bool

	// NoteEvery is how soon after a write the status says how far the log is written, without a sync. Open needs
	// the status to tell a file that was cut off after a kill from a torn write. 0 for only with each Sync.
	NoteEvery time.Duration

	// OnTorn is called by Open when it cuts off a torn write.
	OnTorn func(Torn)
	// OnState is called with an error when the log begins to refuse records, and with nil when
	// it takes them again. It must not call the log.
	OnState func(error)
}

// Torn is a torn write that was cut off.
type Torn struct {
	File   string // its name in the directory of the log
	Offset int64  // in the file, in bytes
	Bytes  int64  // how many were cut off
}

// Log is an open log. Its methods may be called concurrently.
type Log struct {
	o     Options
	seed  uint32
	power atomic.Bool

	mu       sync.Mutex // guards the fields up to tried
	open     *block     // takes records
	writing  *block     // nil when no block is being written
	leading  bool       // a leader is at work, or about to be
	crowded  bool       // more than one caller waited for the last block: the next leader yields, see [Ticket.Wait]
	free     []byte     // a buffer to use again
	failed   error      // final
	refusing error      // temporary: cleared when the backlog was written
	tried    time.Time  // when writing failed last

	stopped atomic.Bool   // failed or refusing is set
	noting  atomic.Bool   // a call of note is coming
	written atomic.Int64  // the position up to which everything is in the files
	blocks  atomic.Uint64 // written since Open

	backlog      []byte // blocks that could not be written yet, of the leader
	backlogHours hours
	spare        File     // the next segment, opened ahead; of the leader
	begun        *segment // the next segment, which has its name, but may not have it on disk; of the leader

	dir syncer // the directory; nil when FS cannot keep it open

	syncing sync.Mutex              // held to sync, to rotate and to write a status
	syncErr error                   // final; guarded by syncing
	current atomic.Pointer[segment] // the last one, nil when there is none; changed with syncing
	durable atomic.Int64            // the position up to which everything is on disk

	segments segmentList
}

// block is a batch of records that one write brings into the file: room for the header, then
// the records.
type block struct {
	start int64
	bytes []byte
	waits int   // how many callers wait
	hours hours // until when a record must be kept

	led      bool          // a leader waits for its turn, or is at work
	turn     chan struct{} // closed when it is the leader's turn
	done     chan struct{} // closed when it was written or failed; made for the first follower
	finished bool
	err      error // why it failed; set before done is closed
}

func newBlock(start int64, buf []byte) *block {
	return &block{start: start, bytes: append(buf[:0], make([]byte, blockHeader)...)}
}

func (b *block) empty() bool { return len(b.bytes) == blockHeader }

// role is what a waiter does for its block.
type role uint8

const (
	follow    role = iota // waits until the block was written
	leadLater             // waits for its turn, then writes the block
	leadNow               // writes the block
)

// Ticket is a record that the caller waits for.
type Ticket struct {
	l    *Log
	b    *block
	role role

	crowded bool // of a leader: others are likely to join
}

// Append adds a record for which nobody waits. encode appends the payload of the record at a
// position to b and returns the result; it must not call the log. The order of positions is that
// of the calls. The error is [ErrTemporary] or final; then the record is not in the log and
// never will be.
func (l *Log) Append(encode func(b []byte, position int64) []byte, keep Keep) (position int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(encode, keep)
}

// AppendAwaited is Append for a caller that waits: it must call [Ticket.Wait], or nobody else's
// record may ever be written.
func (l *Log) AppendAwaited(encode func(b []byte, position int64) []byte, keep Keep) (position int64, t Ticket, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if position, err = l.appendLocked(encode, keep); err != nil {
		return 0, Ticket{}, err
	}
	return position, l.joinLocked(), nil
}

func (l *Log) appendLocked(encode func([]byte, int64) []byte, keep Keep) (int64, error) {
	if err := l.errLocked(); err != nil {
		return 0, err
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
	return position, nil
}

func (l *Log) errLocked() error {
	if l.failed != nil {
		return l.failed
	}
	return l.refusing
}

// Idle reports whether the open block takes another record for which nobody waits.
func (l *Log) Idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open.bytes) < maxUnawaited && l.errLocked() == nil
}

// End returns the position at which the next record is at the earliest.
func (l *Log) End() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open.start + int64(len(l.open.bytes))
}

// Written returns the position up to which everything is in the files.
func (l *Log) Written() int64 { return l.written.Load() }

// Durable returns the position up to which everything is on disk.
func (l *Log) Durable() int64 { return l.durable.Load() }

// Blocks returns how many blocks were written since Open.
func (l *Log) Blocks() uint64 { return l.blocks.Load() }

// Safe reports whether the record at a position is where a record is that was waited for.
func (l *Log) Safe(position int64) bool {
	if l.power.Load() {
		return position < l.durable.Load()
	}
	return position < l.written.Load()
}

// SetPower changes whether each block is synced before its waiters return. The caller
// calls Flush and Sync after it.
func (l *Log) SetPower(power bool) { l.power.Store(power) }
