package badgerstore

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

// The reserve is a file of min_free bytes. All its blocks are allocated, so no other program can take them.
// On a full disk the store shrinks the reserve, piece by piece, for writes that must not fail:
//
//   - files that Badger maps (mapped_linux.go): a write to a page without a block is SIGBUS, which
//     ends the process;
//   - blocks of the event log: requests wait for them;
//   - transactions that create no resource: keys and users can be disabled and deleted on a full disk.
//
// From the first piece until the reserve is whole again the store refuses counts and new resources.
// Checkpoints go on while half of the reserve is left, because only history that is in a checkpoint can be
// removed. The other half is for the memtables and compactions that Badger has begun by then.

const (
	reserveName   = "reserve"
	minShrink     = 1 << 20                // bytes: most small writes then need no shrink
	openingNeeds  = 24 << 20               // bytes: a memtable (16 MiB), value log and statistics (3 MiB), small files
	manifestAhead = 64 << 10               // bytes allocated behind the MANIFEST: room for thousands of new tables
	waitForRoom   = 100 * time.Millisecond // between two attempts to allocate
)

// maxWaits is after how many waits for room in a row Open gives up. One goroutine takes 5 s for them.
const maxWaits = 50

// MinMinFree is the smallest [Options.MinFree] in bytes: half of it holds a memtable.
const MinMinFree = 32 << 20

// errFull means that the disk is full, apart from the reserve.
var errFull = core.Logged(errors.New("the disk is full"))

// reserve is the reserve of an open store.
type reserve struct {
	dir      string // of the store
	log      *slog.Logger
	space    func(dir string) (free, size uint64, err error) // diskSpace, but in tests
	full     atomic.Bool                                     // the store refuses counts and new resources
	opening  atomic.Bool                                     // an allocation without room returns an error instead of waiting
	unmapped atomic.Bool                                     // a mapping is waiting: the process has too many
	waits    atomic.Int32                                    // waits for room since an allocation succeeded

	mu   sync.Mutex // guards the fields below
	file *os.File   // nil when the file system cannot allocate: then the free space is checked instead
	size int64      // min_free, in bytes
	held int64      // bytes of the file that are allocated now
}

// minFree returns min_free in bytes: n, or its default when n is 0.
func minFree(n int64, size uint64) int64 {
	if n > 0 {
		return n
	}
	return max(MinMinFree, min(usualMinFree, int64(min(size/8, math.MaxInt64))))
}

// usualMinFree is the default of min_free on a large disk, in bytes. Tests make it smaller.
var usualMinFree int64 = 256 << 20

// openReserve opens the reserve in a directory, and grows it to n bytes; 0 means the default. The
// error is errFull when the disk has no room for a database.
func openReserve(dir string, n int64, log *slog.Logger) (*reserve, error) {
	r := &reserve{dir: dir, log: log, space: diskSpace}
	free, size, err := r.space(dir)
	if err != nil {
		return nil, err
	}
	r.size = minFree(n, size)
	file, err := os.OpenFile(filepath.Join(dir, reserveName), os.O_RDWR|os.O_CREATE, 0o600)
	switch {
	case err == nil:
		r.file, r.held = file, allocated(file)
	case !noRoom(err):
		return nil, err
	}
	if uint64(r.held)+free < openingNeeds {
		r.close()
		return nil, &fullError{free + uint64(r.held), fmt.Sprintf("and %d MiB are needed", openingNeeds>>20)}
	}
	r.fill(0)
	return r, nil
}

// roomFor returns an error unless the disk has room to open a closed store and for some bytes more. short says that the
// room is there only without the reserve.
func roomFor(dir string, bytes uint64) (short bool, err error) {
	free, _, err := diskSpace(dir)
	if err != nil {
		return false, err
	}
	held, need := uint64(0), openingNeeds+bytes
	if file, err := os.Open(filepath.Join(dir, reserveName)); err == nil {
		held = uint64(allocated(file))
		_ = file.Close()
	}
	if free+min(held, math.MaxUint64-free) < need {
		return false, &fullError{free + held, fmt.Sprintf("and %d MiB are needed", (need+1<<20-1)>>20)}
	}
	return free < need, nil
}

// fullError says that the disk is too full to open a store.
type fullError struct {
	free uint64
	why  string // why free is too little
}

func (e *fullError) Error() string {
	return fmt.Sprintf("%v: %d MiB are free, %s: make room", errFull, e.free>>20, e.why)
}

func (e *fullError) Is(target error) bool { return target == errFull }

// close closes the file. The file stays for the next process.
func (r *reserve) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		_ = r.file.Close()
		r.file, r.held = nil, 0
	}
}

// SetMinFree changes the size of the reserve in bytes; 0 means the default, see [Options.MinFree].
func (s *Store) SetMinFree(bytes int64) {
	r := s.reserve
	_, size, err := r.space(r.dir)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.size = minFree(bytes, size)
	r.mu.Unlock()
	r.fill(0)
}

// watch fills the reserve when the disk has room. The background calls watch once a second.
func (r *reserve) watch() {
	r.extendManifest()
	slack := int64(0)
	if r.full.Load() {
		slack = r.slack()
	}
	r.fill(slack)
}

// slack is how many bytes must be free beyond min_free before a full store resumes. Without slack it would be
// full again after a moment. With less free space the store removes the oldest history.
func (r *reserve) slack() int64 { return r.minFree() / 4 }

// minFree returns min_free in bytes.
func (r *reserve) minFree() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}

// heldBytes returns the current size of the reserve.
func (r *reserve) heldBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// fill grows the reserve to min_free if slack bytes then stay free, and updates full.
func (r *reserve) fill(slack int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	free, _, err := r.space(r.dir)
	few := fewInodes(r.dir)
	enough := err == nil && !few && free >= uint64(max(0, r.size-r.held)+slack)
	if enough {
		r.resizeLocked(r.size)
	} else if r.full.Load() {
		return
	}
	r.setFullLocked(err == nil && (few || !r.hasLocked(r.size, free) || free < minShrink))
}

// resizeLocked changes the size of the reserve. Without room for the new size, the reserve stays as it is.
func (r *reserve) resizeLocked(size int64) {
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
	case noRoom(err):
		_ = r.file.Truncate(r.held)
	case size > r.held: // the file system cannot allocate
		_ = r.file.Close()
		_ = os.Remove(r.file.Name())
		r.file, r.held = nil, 0
	}
}

// hasLocked reports whether the reserve has n bytes. Where there is no reserve, n bytes must be free.
func (r *reserve) hasLocked(n int64, free uint64) bool {
	if r.file == nil {
		return free >= uint64(n)
	}
	return r.held >= n
}

// setFullLocked sets full, and logs each change. Lines that end a state of an error are warnings, here and elsewhere:
// a log without Info, like that of the command protect, has them too.
func (r *reserve) setFullLocked(full bool) {
	switch {
	case r.full.Swap(full) == full:
	case full:
		r.log.Error("the disk is full: requests are refused until there is room; keys and users can be disabled and deleted",
			"dir", r.dir, "min_free", r.size, "few_inodes", fewInodes(r.dir))
	default:
		r.log.Warn("there is room on the disk again: requests are counted", "dir", r.dir)
	}
}

// give shrinks the reserve by n bytes, at least by minShrink. It returns false when the reserve is smaller than n.
func (r *reserve) give(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.giveLocked(n)
}

func (r *reserve) giveLocked(n int64) bool {
	r.setFullLocked(true)
	if r.held < n {
		return false
	}
	left := max(0, r.held-max(n, minShrink))
	if r.file.Truncate(left) != nil {
		return false
	}
	r.held = left
	return true
}

// ready returns errFull when less than half of the reserve is left. Nothing may be written to Badger then.
func (r *reserve) ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil && r.held >= r.size/2 {
		return nil
	}
	free, _, err := r.space(r.dir)
	if err == nil && int64(min(free, math.MaxInt64/2))+r.held < r.size/2 {
		return errFull
	}
	return nil
}

// makeRoom shrinks the reserve when less than minShrink is free, because small files are not allocated ahead.
func (r *reserve) makeRoom() {
	if free, _, err := r.space(r.dir); err == nil && free < minShrink {
		r.give(minShrink)
	}
}

// allocateFor allocates n bytes of a file that Badger maps, and shrinks the reserve for them. Without any room it
// waits: after an error Badger would leave the file behind, and begin the compaction again. While the database is
// being opened, allocateFor returns the error instead.
func (r *reserve) allocateFor(fd int, n int64) error {
	for {
		err := r.allocateHelped(n, func() error { return allocate(fd, n) })
		if err == nil {
			r.waits.Store(0)
		}
		if err == nil || r.opening.Load() {
			return err
		}
		r.wait()
	}
}

// prepareMemtable allocates n bytes for a file, and shrinks the reserve for them. The file stays empty.
func (r *reserve) prepareMemtable(file *os.File, n int64) error {
	return r.allocateHelped(n, func() error { return allocateAhead(int(file.Fd()), 0, n) })
}

// allocateHelped runs an allocation of n bytes. Without room it shrinks the reserve and tries again. It returns only
// errors about room: a file system that cannot allocate is used without allocation.
func (r *reserve) allocateHelped(n int64, allocate func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := allocate()
	if noRoom(err) && r.giveLocked(n) {
		err = allocate()
	}
	if noRoom(err) {
		return err
	}
	return nil
}

// wait waits for room.
func (r *reserve) wait() {
	r.waits.Add(1)
	time.Sleep(waitForRoom)
}

// noRoom reports whether err says that the disk, or the disk quota of the user, is full.
func noRoom(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
