package badgerstore

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// lossyDisk is a disk in memory with simulated power cuts. After a cut, each file has its synced bytes and a random part
// of the bytes written since. Names in directories behave alike.
type lossyDisk struct {
	mu     sync.Mutex
	dirs   map[string]*lossyDir
	ops    int            // number of changes
	before func(ops int)  // is called before each change, with mu held
	broken bool           // sync does nothing
	failed error          // the error of every change, nil for none
	synced map[string]int // number of syncs by directory
	boot   uint64         // identifies the boot of the machine; each cut changes it
}

// lossyDir has the current and the last synced files of a directory by name.
type lossyDir struct{ now, kept map[string]*lossyFile }

// lossyFile has the current and the last synced bytes of a file.
type lossyFile struct{ now, kept []byte }

func newLossyDisk() *lossyDisk {
	return &lossyDisk{dirs: map[string]*lossyDir{}, synced: map[string]int{}, before: func(int) {}, boot: 1}
}

// change begins a change.
func (d *lossyDisk) change() (unlock func(), err error) {
	d.mu.Lock()
	d.ops++
	d.before(d.ops)
	return d.mu.Unlock, d.failed
}

func (d *lossyDisk) dir(path string) *lossyDir {
	dir := d.dirs[path]
	if dir == nil {
		dir = &lossyDir{now: map[string]*lossyFile{}, kept: map[string]*lossyFile{}}
		d.dirs[path] = dir
	}
	return dir
}

func (d *lossyDisk) List(dir string) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.dir(dir).now {
		names = append(names, name)
	}
	return names, nil
}

func (d *lossyDisk) Open(path string, flags int) (eventlog.File, error) {
	unlock, err := d.change()
	defer unlock()
	if err != nil {
		return nil, err
	}
	dir, name := d.dir(filepath.Dir(path)), filepath.Base(path)
	if dir.now[name] == nil {
		if flags&os.O_CREATE == 0 {
			return nil, os.ErrNotExist
		}
		dir.now[name] = &lossyFile{}
	}
	return &lossyHandle{d: d, f: dir.now[name]}, nil
}

func (d *lossyDisk) Rename(from, to string) error {
	unlock, err := d.change()
	defer unlock()
	if err == nil {
		dir := d.dir(filepath.Dir(from)).now
		dir[filepath.Base(to)] = dir[filepath.Base(from)]
		delete(dir, filepath.Base(from))
	}
	return err
}

func (d *lossyDisk) Remove(path string) error {
	unlock, err := d.change()
	defer unlock()
	if err == nil {
		delete(d.dir(filepath.Dir(path)).now, filepath.Base(path))
	}
	return err
}

func (d *lossyDisk) SyncDir(path string) error {
	unlock, err := d.change()
	defer unlock()
	if err != nil || d.broken {
		return err
	}
	d.synced[path]++
	dir := d.dir(path)
	clear(dir.kept)
	for name, f := range dir.now {
		dir.kept[name] = f
	}
	return nil
}

// options returns options for a store with the event log on the disk.
func (d *lossyDisk) options(o Options) Options {
	o.fs, o.boot = d, d.boot
	return o
}

// cut returns the disk after a power cut. The caller holds mu.
func (d *lossyDisk) cut(random *rand.Rand) *lossyDisk {
	after := newLossyDisk()
	after.boot = d.boot + 1
	for path, dir := range d.dirs {
		if d.synced[filepath.Dir(path)] == 0 && random.IntN(2) == 0 {
			continue // the parent was never synced, so the directory may be lost
		}
		for name, f := range dir.afterCut(random) {
			b := f.afterCut(random)
			left := &lossyFile{now: b, kept: slices.Clone(b)}
			after.dir(path).now[name], after.dir(path).kept[name] = left, left
		}
		after.synced[filepath.Dir(path)]++
	}
	return after
}

// at returns a disk that has only the event log of the store in from, as that of a store in to.
func (d *lossyDisk) at(from, to string) *lossyDisk {
	moved := newLossyDisk()
	moved.boot = d.boot
	moved.dirs[filepath.Join(to, eventLogDir)] = d.dir(filepath.Join(from, eventLogDir))
	moved.synced[to]++
	return moved
}

// afterCut returns the files whose names survive a power cut.
func (dir *lossyDir) afterCut(random *rand.Rand) map[string]*lossyFile {
	left := map[string]*lossyFile{}
	for name, f := range dir.kept {
		if dir.now[name] == f || random.IntN(2) == 0 {
			left[name] = f
		}
	}
	for name, f := range dir.now {
		if dir.kept[name] != f && random.IntN(2) == 0 {
			left[name] = f
		}
	}
	return left
}

const diskBlock = 4096

// afterCut returns the bytes of a file after a power cut: the synced bytes, and random blocks of the bytes written since.
// Lost blocks at the end of a grown file are zeros.
func (f *lossyFile) afterCut(random *rand.Rand) []byte {
	return afterCut(f.kept, f.now, random)
}

func afterCut(kept, now []byte, random *rand.Rand) []byte {
	size := len(kept)
	switch random.IntN(3) {
	case 0:
		size = len(now)
	case 1:
		size = min(len(kept), len(now)) + random.IntN(max(len(kept), len(now))-min(len(kept), len(now))+1)
	}
	chance := []int{0, 30, 90, 100}[random.IntN(4)] // percentage of blocks that reach the disk
	left := make([]byte, size)
	for at := 0; at < size; at += diskBlock {
		from := kept
		if random.IntN(100) < chance {
			from = now
		}
		if at < len(from) {
			copy(left[at:min(at+diskBlock, size)], from[at:])
		}
	}
	return left
}

// lossyHandle is an open file.
type lossyHandle struct {
	d      *lossyDisk
	f      *lossyFile
	closed bool
}

func (h *lossyHandle) ReadAt(b []byte, at int64) (int, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if h.closed {
		return 0, os.ErrClosed
	}
	if at >= int64(len(h.f.now)) {
		return 0, io.EOF
	}
	n := copy(b, h.f.now[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// change begins a change of the file.
func (h *lossyHandle) change() (unlock func(), err error) {
	unlock, err = h.d.change()
	if h.closed {
		err = os.ErrClosed
	}
	return unlock, err
}

func (h *lossyHandle) WriteAt(b []byte, at int64) (int, error) {
	unlock, err := h.change()
	defer unlock()
	if err != nil {
		return 0, err
	}
	if end := int(at) + len(b); end > len(h.f.now) {
		h.f.now = append(h.f.now, make([]byte, end-len(h.f.now))...)
	}
	return copy(h.f.now[at:], b), nil
}

func (h *lossyHandle) Truncate(size int64) error {
	unlock, err := h.change()
	defer unlock()
	if err == nil {
		now := make([]byte, size)
		copy(now, h.f.now)
		h.f.now = now
	}
	return err
}

func (h *lossyHandle) Sync() error {
	unlock, err := h.change()
	defer unlock()
	if err == nil && !h.d.broken {
		h.f.kept = slices.Clone(h.f.now)
	}
	return err
}

func (h *lossyHandle) Size() (int64, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	return int64(len(h.f.now)), nil
}

func (h *lossyHandle) Close() error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	h.closed = true
	return nil
}

// TestLossyDisk: a lossyDisk keeps synced bytes and names, and loses others at random. Otherwise the tests of power cuts
// would prove nothing.
func TestLossyDisk(t *testing.T) {
	lost := map[string]int{}
	random := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		d := newLossyDisk()
		_ = d.SyncDir("/")
		for _, name := range []string{"/dir/kept", "/dir/gone"} {
			f, err := d.Open(name, os.O_RDWR|os.O_CREATE)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = f.WriteAt([]byte("synced"), 0)
			_ = f.Sync()
			_, _ = f.WriteAt([]byte(strings.Repeat("written", 2000)), 6)
		}
		_ = d.SyncDir("/dir")
		_ = d.Remove("/dir/gone")
		_, _ = d.Open("/dir/new", os.O_RDWR|os.O_CREATE)
		after := d.cut(random)
		files := after.dirs["/dir"].now
		kept := files["kept"]
		if kept == nil || !strings.HasPrefix(string(kept.now), "synced") {
			t.Fatalf("a file that was synced: got %v", kept)
		}
		rest := strings.TrimRight(string(kept.now[6:]), "\x00")
		lost["all"] += boolToInt(rest == "")
		lost["nothing"] += boolToInt(len(rest) == 14000)
		lost["the middle"] += boolToInt(strings.Contains(rest, "\x00"))
		lost["a removal"] += boolToInt(files["gone"] != nil)
		lost["a new file"] += boolToInt(files["new"] == nil)
	}
	for _, part := range []string{"all", "nothing", "the middle", "a removal", "a new file"} {
		if lost[part] < 10 || lost[part] > 190 {
			t.Errorf("lost %s: got %d of 200 times, want 10 to 190", part, lost[part])
		}
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

var _ eventlog.FS = (*lossyDisk)(nil)
