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

// The reserve is a file of min_free bytes with all its blocks allocated, so that no other program can
// take them. On a full disk the reserve shrinks, piece by piece, for writes that must not fail:
//
//   - files that Badger maps (mapped_linux.go): a write to a page without a block is SIGBUS, which
//     ends the process;
//   - blocks of the event log: their callers wait for them;
//   - transactions that create nothing: keys and users are disabled and deleted on a full disk too.
//
// From the first piece until the reserve is whole again the store refuses counts and new resources.
// Checkpoints go on while half of the reserve is left, because only events behind a checkpoint can be
// removed. The other half is for what Badger then has under way.

const (
	reserveName   = "reserve"
	leastGiven    = 1 << 20  // bytes: a small write does not shrink the reserve each time
	openingNeeds  = 24 << 20 // bytes: a memtable (16 MiB), value log and statistics (3 MiB), small files
	manifestAhead = 64 << 10 // bytes allocated behind the MANIFEST: thousands of new tables
	waitForRoom   = 100 * time.Millisecond
)

// waitsMost is how often in a row waitForRoom is waited before Open gives up: 5 s, less when several wait.
const waitsMost = 50

// MinMinFree is the smallest [Options.MinFree] in bytes: half of it holds a memtable.
const MinMinFree = 32 << 20

// errFull means that the disk is full, but for the reserve.
var errFull = core.Logged(errors.New("the disk is full"))

// reserve is the reserve of an open store.
type reserve struct {
	dir      string // of the store
	log      *slog.Logger
	space    func(dir string) (free, size uint64, err error) // diskSpace, but in tests
	full     atomic.Bool                                     // the store refuses counts and new resources
	opening  atomic.Bool                                     // an allocation that fails is an error, and does not wait
	unmapped atomic.Bool                                     // a file could not be mapped
	waits    atomic.Int32                                    // since an allocation had room

	mu   sync.Mutex // guards the fields below
	file *os.File   // nil when the file system cannot allocate: then free space is checked instead
	size int64      // min_free
	held int64      // bytes of the file that are allocated
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

// openReserve opens the reserve in a directory, and makes it n bytes large, 0 for the default. The
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

// fullError says that the disk is too full to open a store.
type fullError struct {
	free uint64
	why  string // that is not enough
}

func (e *fullError) Error() string {
	return fmt.Sprintf("%v: %d MiB are free, %s: make room", errFull, e.free>>20, e.why)
}

func (e *fullError) Is(target error) bool { return target == errFull }

// close closes the file. The next process finds it.
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

// watch makes the reserve whole again when the disk has room. It is called once a second.
func (r *reserve) watch() {
	r.extendManifest()
	slack := int64(0)
	if r.full.Load() {
		slack = r.slack()
	}
	r.fill(slack)
}

// slack is how many bytes must be free beyond min_free before the store resumes, else it would resume
// for a moment only. With fewer it removes the oldest history.
func (r *reserve) slack() int64 { return r.minFree() / 4 }

// minFree returns min_free.
func (r *reserve) minFree() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}

// heldBytes returns the size that the reserve has now.
func (r *reserve) heldBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// fill makes the reserve whole if slack bytes stay free, and notes whether the store is full.
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
	r.setFullLocked(err == nil && (few || !r.hasLocked(r.size, free) || free < leastGiven))
}

// resizeLocked changes the size of the reserve, unless there is no room for it.
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

// hasLocked reports whether the reserve has n bytes, or as many are free where there is no reserve.
func (r *reserve) hasLocked(n int64, free uint64) bool {
	if r.file == nil {
		return free >= uint64(n)
	}
	return r.held >= n
}

// setFullLocked notes whether the store is full, and logs when that changes.
func (r *reserve) setFullLocked(full bool) {
	switch {
	case r.full.Swap(full) == full:
	case full:
		r.log.Error("the disk is full: requests are refused until there is room; keys and users can be disabled and deleted",
			"dir", r.dir, "min_free", r.size, "few_inodes", fewInodes(r.dir))
	default:
		r.log.Info("there is room on the disk again: requests are counted", "dir", r.dir)
	}
}

// give shrinks the reserve by n bytes or a little more, and reports whether it had as many.
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
	left := max(0, r.held-max(n, leastGiven))
	if r.file.Truncate(left) != nil {
		return false
	}
	r.held = left
	return true
}

// ready returns errFull when less than half of the reserve is left: then nothing is written to Badger.
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

// makeRoom shrinks the reserve a little when nothing is free: small files are written without help.
func (r *reserve) makeRoom() {
	if free, _, err := r.space(r.dir); err == nil && free < leastGiven {
		r.give(leastGiven)
	}
}

// allocateFor allocates n bytes of a file that Badger maps, with the help of the reserve. Without any
// room it waits: after an error Badger would leave the file behind, and merge all again. While the
// database is opened it returns the error instead.
func (r *reserve) allocateFor(fd int, n int64) error {
	for {
		err := r.helped(n, func() error { return allocate(fd, n) })
		if err == nil {
			r.waits.Store(0)
		}
		if err == nil || r.opening.Load() {
			return err
		}
		r.wait()
	}
}

// prepareMemtable allocates n bytes of an empty file, which stays empty, with the help of the reserve.
func (r *reserve) prepareMemtable(file *os.File, n int64) error {
	return r.helped(n, func() error { return allocateAhead(int(file.Fd()), 0, n) })
}

// helped runs an allocation of n bytes, and once more with the help of the reserve. The error says that there is
// no room: without allocation the file system has to do.
func (r *reserve) helped(n int64, allocate func() error) error {
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

// noRoom reports whether err says that the disk, or the share of the user, is full.
func noRoom(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
