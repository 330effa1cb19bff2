// Package reserve keeps room on the disk for writes that must not fail. The reserve is a file of min_free bytes. All its
// blocks are allocated, so no other program can take them. On a full disk the reserve shrinks, piece by piece, for
//
//   - files that Badger maps (mapped_linux.go): a write to a page without a block is SIGBUS, which
//     ends the process;
//   - blocks of the event log: requests wait for them;
//   - transactions that create no resource: keys and users can be disabled and deleted on a full disk.
//
// From the first piece until the reserve is whole again the store refuses counts and new resources.
// Checkpoints go on while half of the reserve is left, because only history that is in a checkpoint can be
// removed. The other half is for the memtables and compactions that Badger has begun by then.
package reserve

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Name is the name of the file in the directory of a store.
const Name = "reserve"

// OpeningNeeds is the number of bytes that opening a store needs: a memtable (16 MiB), value log and statistics (3 MiB),
// and small files.
const OpeningNeeds = 24 << 20

// MinShrink is the least number of bytes by which the reserve shrinks: most small writes then need no other shrink.
const MinShrink = 1 << 20

// manifestAhead is the number of bytes allocated after the end of the MANIFEST: room for thousands of new tables.
const manifestAhead = 64 << 10

// WaitForRoom is the time between two attempts to allocate.
const WaitForRoom = 100 * time.Millisecond

// MaxWaits is the number of waits for room in a row after which the opening of a store gives up: 5 s for one goroutine.
const MaxWaits = 50

// MinSize is the smallest min_free in bytes: half of it has room for a memtable.
const MinSize = 32 << 20

// ErrFull means that the disk is full, apart from the reserve.
var ErrFull = core.Logged(errors.New("the disk is full"))

// Reserve is the reserve of an open store. Its methods may be called concurrently.
type Reserve struct {
	dir      string // of the store
	log      *slog.Logger
	Space    func(dir string) (free, size uint64, err error) // the function Space; tests change it
	full     atomic.Bool                                     // the store refuses counts and new resources
	Opening  atomic.Bool                                     // an allocation without room returns an error instead of waiting
	unmapped atomic.Bool                                     // a mapping waits, because the process is at its limit of mappings
	Waits    atomic.Int32                                    // waits for room since an allocation succeeded

	mu   sync.Mutex // guards the fields below
	file *os.File   // nil when the file system cannot allocate: then the reserve checks the free space instead
	size int64      // min_free, in bytes
	held int64      // bytes of the file that are allocated now
}

// sizeFor returns min_free in bytes: n, or its default when n is 0.
func sizeFor(n int64, size uint64) int64 {
	if n > 0 {
		return n
	}
	return max(MinSize, min(DefaultSize, int64(min(size/8, math.MaxInt64))))
}

// DefaultSize is the default of min_free on a large disk, in bytes. Tests make it smaller.
var DefaultSize int64 = 256 << 20

// Open opens the reserve in a directory, and grows it to n bytes; 0 means the default. The
// error is ErrFull when the disk has no room for a database.
func Open(dir string, n int64, log *slog.Logger) (*Reserve, error) {
	r := &Reserve{dir: dir, log: log, Space: Space}
	free, size, err := r.Space(dir)
	if err != nil {
		return nil, err
	}
	r.size = sizeFor(n, size)
	file, err := os.OpenFile(filepath.Join(dir, Name), os.O_RDWR|os.O_CREATE, 0o600)
	switch {
	case err == nil:
		r.file, r.held = file, allocated(file)
	case !NoRoom(err):
		return nil, err
	}
	if uint64(r.held)+free < OpeningNeeds {
		r.Close()
		return nil, &FullError{free + uint64(r.held), fmt.Sprintf("and %d MiB are needed", OpeningNeeds>>20)}
	}
	r.fill(0)
	return r, nil
}

// None returns a reserve of no bytes, for a directory that is removed soon.
func None(dir string, log *slog.Logger) *Reserve {
	return &Reserve{dir: dir, log: log, Space: Space}
}

// RoomFor returns an error unless the disk has room to open a closed store, and for more bytes. short reports that this
// needs the space of the reserve.
func RoomFor(dir string, bytes uint64) (short bool, err error) {
	free, _, err := Space(dir)
	if err != nil {
		return false, err
	}
	held, need := uint64(Size(dir)), OpeningNeeds+bytes
	if free+min(held, math.MaxUint64-free) < need {
		return false, &FullError{free + held, fmt.Sprintf("and %d MiB are needed", (need+1<<20-1)>>20)}
	}
	return free < need, nil
}

// Size returns the size of the reserve of a closed store in bytes, 0 without a reserve.
func Size(dir string) int64 {
	file, err := os.Open(filepath.Join(dir, Name))
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }()
	return allocated(file)
}

// FullError says that the disk is too full to open a store.
type FullError struct {
	Free uint64 // bytes
	Why  string // the reason in words, such as "too little to replay the event log"
}

func (e *FullError) Error() string {
	return fmt.Sprintf("%v: %d MiB are free, %s: make room", ErrFull, e.Free>>20, e.Why)
}

func (e *FullError) Is(target error) bool { return target == ErrFull }

// Close closes the file. The file stays for the next process.
func (r *Reserve) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		_ = r.file.Close()
		r.file, r.held = nil, 0
	}
}

// SetMinFree changes the size of the reserve in bytes; 0 means the default.
func (r *Reserve) SetMinFree(bytes int64) {
	_, size, err := r.Space(r.dir)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.size = sizeFor(bytes, size)
	r.mu.Unlock()
	r.fill(0)
}

// Full reports whether the disk is full: the store then refuses counts and new resources.
func (r *Reserve) Full() bool { return r.full.Load() }

// Watch fills the reserve when the disk has room. The owner calls Watch once a second.
func (r *Reserve) Watch() {
	r.ExtendManifest()
	slack := int64(0)
	if r.full.Load() {
		slack = r.Slack()
	}
	r.fill(slack)
}

// Slack is the number of free bytes beyond min_free that a full store needs to resume: otherwise it would soon be full
// again. With less free space, the store removes the oldest history.
func (r *Reserve) Slack() int64 { return r.MinFree() / 4 }

// MinFree returns min_free in bytes.
func (r *Reserve) MinFree() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}

// Held returns the current size of the reserve.
func (r *Reserve) Held() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// fill grows the reserve to min_free if slack bytes then stay free, and updates full.
func (r *Reserve) fill(slack int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	free, _, err := r.Space(r.dir)
	few := fewInodes(r.dir)
	enough := err == nil && !few && free >= uint64(max(0, r.size-r.held)+slack)
	if enough {
		r.resizeLocked(r.size)
	} else if r.full.Load() {
		return
	}
	r.setFullLocked(err == nil && (few || !r.hasLocked(r.size, free) || free < MinShrink))
}

// resizeLocked changes the size of the reserve. Without room for the new size, the reserve stays as it is.
func (r *Reserve) resizeLocked(size int64) {
	if r.file == nil || size == r.held {
		return
	}
	err := r.file.Truncate(min(size, r.held))
	if err == nil && size > r.held {
		err = allocate(int(r.file.Fd()), size)
	}
	switch {
	case err == nil:
		r.held = size
	case NoRoom(err):
		_ = r.file.Truncate(r.held)
	case size > r.held: // the file system cannot allocate
		_ = r.file.Close()
		_ = os.Remove(r.file.Name())
		r.file, r.held = nil, 0
	}
}

// hasLocked reports whether the reserve has n bytes. Without a reserve, it reports whether n bytes are free.
func (r *Reserve) hasLocked(n int64, free uint64) bool {
	if r.file == nil {
		return free >= uint64(n)
	}
	return r.held >= n
}

// setFullLocked sets full, and logs each change. The line for the end of an error state is a warning, here and elsewhere,
// so that logs without Info have it, too.
func (r *Reserve) setFullLocked(full bool) {
	switch {
	case r.full.Swap(full) == full:
	case full:
		r.log.Error("the disk is full: requests are refused until space is free; keys and users can be disabled and deleted",
			"dir", r.dir, "min_free", r.size, "few_inodes", fewInodes(r.dir))
	default:
		r.log.Warn("the disk has free space again: requests are counted", "dir", r.dir)
	}
}

// Give shrinks the reserve by n bytes, at least by MinShrink. It returns false when the reserve is smaller than n.
func (r *Reserve) Give(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.giveLocked(n)
}

func (r *Reserve) giveLocked(n int64) bool {
	if r.size == 0 { // see None
		return false
	}
	r.setFullLocked(true)
	if r.held < n {
		return false
	}
	left := max(0, r.held-max(n, MinShrink))
	if r.file.Truncate(left) != nil {
		return false
	}
	r.held = left
	return true
}

// Ready returns ErrFull when less than half of the reserve is left. Then the store must not write to Badger.
func (r *Reserve) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil && r.held >= r.size/2 {
		return nil
	}
	free, _, err := r.Space(r.dir)
	if err == nil && int64(min(free, math.MaxInt64/2))+r.held < r.size/2 {
		return ErrFull
	}
	return nil
}

// MakeRoom shrinks the reserve when less than MinShrink is free, because small files are not allocated ahead.
func (r *Reserve) MakeRoom() {
	if free, _, err := r.Space(r.dir); err == nil && free < MinShrink {
		r.Give(MinShrink)
	}
}

// allocateFor allocates n bytes of a file that Badger maps, and shrinks the reserve for them. Without any room,
// allocateFor waits, because after an error Badger would leave the file behind and begin the compaction again. While the
// database is being opened, allocateFor returns the error instead.
func (r *Reserve) allocateFor(fd int, n int64) error {
	for {
		err := r.allocateHelped(n, func() error { return allocate(fd, n) })
		if err == nil {
			r.Waits.Store(0)
		}
		if err == nil || r.Opening.Load() {
			return err
		}
		r.Wait()
	}
}

// PrepareMemtable allocates n bytes for a file, and shrinks the reserve for them. The file stays empty.
func (r *Reserve) PrepareMemtable(file *os.File, n int64) error {
	return r.allocateHelped(n, func() error { return allocateAhead(int(file.Fd()), 0, n) })
}

// allocateHelped runs an allocation of n bytes. Without room it shrinks the reserve and tries again. It returns only
// errors about room: a file system that cannot allocate is used without allocation.
func (r *Reserve) allocateHelped(n int64, allocate func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := allocate()
	if NoRoom(err) && r.giveLocked(n) {
		err = allocate()
	}
	if NoRoom(err) {
		return err
	}
	return nil
}

// Wait waits for [WaitForRoom].
func (r *Reserve) Wait() {
	r.Waits.Add(1)
	time.Sleep(WaitForRoom)
}

// NoRoom reports whether err means that the disk, or the disk quota of the user, is full.
func NoRoom(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
