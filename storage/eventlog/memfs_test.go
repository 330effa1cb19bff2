package eventlog

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// memFS is a file system in memory, of one directory. A power cut loses unsynced content, and
// fault injects errors.
type memFS struct {
	mu    sync.Mutex
	now   map[string]*memFile // by name
	kept  map[string]*memFile // the files at the last sync of the directory
	ops   []nameOp            // changes of names since then
	count int                 // number of changes
	fault func(op, name string, b []byte) (short int, err error)
	at    func(count int) // is called before each change, with mu held
	lazy  bool            // Sync does nothing
}

// nameOp renames a file from one name to another one. "" stands for no name: nameOp creates or removes the file.
type nameOp struct {
	from, to string
	file     *memFile
}

// memFile has the current and the last synced content of a file.
type memFile struct{ now, kept []byte }

func newMemFS() *memFS {
	return &memFS{now: map[string]*memFile{}, kept: map[string]*memFile{}}
}

// change begins a change. The caller unlocks mu.
func (m *memFS) change(op, name string, b []byte) (int, error) {
	m.mu.Lock()
	m.count++
	if m.at != nil {
		m.at(m.count)
	}
	if m.fault != nil {
		return m.fault(op, filepath.Base(name), b)
	}
	return len(b), nil
}

func (m *memFS) List(string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.now)), nil
}

func (m *memFS) Open(path string, flags int) (File, error) {
	_, err := m.change("open", path, nil)
	defer m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	if m.now[name] == nil {
		if flags&os.O_CREATE == 0 {
			return nil, os.ErrNotExist
		}
		m.now[name] = &memFile{}
		m.ops = append(m.ops, nameOp{to: name, file: m.now[name]})
	}
	return &memHandle{fs: m, file: m.now[name], name: name, readOnly: flags&os.O_RDWR == 0}, nil
}

func (m *memFS) Rename(from, to string) error {
	_, err := m.change("rename", to, nil)
	defer m.mu.Unlock()
	if err != nil {
		return err
	}
	from, to = filepath.Base(from), filepath.Base(to)
	m.ops = append(m.ops, nameOp{from, to, m.now[from]})
	m.now[to] = m.now[from]
	delete(m.now, from)
	return nil
}

func (m *memFS) Remove(path string) error {
	_, err := m.change("remove", path, nil)
	defer m.mu.Unlock()
	name := filepath.Base(path)
	if err == nil && m.now[name] == nil {
		err = os.ErrNotExist
	}
	if err == nil {
		m.ops = append(m.ops, nameOp{from: name})
		delete(m.now, name)
	}
	return err
}

func (m *memFS) SyncDir(string) error {
	_, err := m.change("syncdir", "", nil)
	defer m.mu.Unlock()
	if err == nil {
		m.kept, m.ops = maps.Clone(m.now), nil
	}
	return err
}

// clone returns a copy, as a killed process leaves the file system: a later power cut can still lose
// unsynced bytes. The caller holds mu, or runs no other goroutine.
func (m *memFS) clone() *memFS {
	c, copies := newMemFS(), map[*memFile]*memFile{nil: nil}
	copied := func(f *memFile) *memFile {
		if copies[f] == nil && f != nil {
			copies[f] = &memFile{slices.Clone(f.now), slices.Clone(f.kept)}
		}
		return copies[f]
	}
	for name, f := range m.now {
		c.now[name] = copied(f)
	}
	for name, f := range m.kept {
		c.kept[name] = copied(f)
	}
	for _, op := range m.ops {
		c.ops = append(c.ops, nameOp{op.from, op.to, copied(op.file)})
	}
	return c
}

// powerCut returns the file system after a power cut: random unsynced changes of names, and random
// unsynced sectors of each file, are lost.
func (m *memFS) powerCut(random *rand.Rand) *memFS {
	names := maps.Clone(m.kept)
	for _, op := range m.ops {
		if random.IntN(2) == 0 {
			continue
		}
		delete(names, op.from)
		if op.to != "" {
			names[op.to] = op.file
		}
	}
	c := newMemFS()
	for name, f := range names {
		b := f.powerCut(random)
		c.now[name] = &memFile{b, slices.Clone(b)}
	}
	c.kept = maps.Clone(c.now)
	return c
}

func (f *memFile) powerCut(random *rand.Rand) []byte {
	size := len(f.kept)
	switch random.IntN(3) {
	case 0:
		size = len(f.now)
	case 1:
		lo, hi := min(len(f.kept), len(f.now)), max(len(f.kept), len(f.now))
		size = lo + random.IntN(hi-lo+1)
	}
	const sector = 512
	written := []int{0, 30, 90, 100}[random.IntN(4)] // percentage of sectors that reach the disk
	left := make([]byte, size)
	for at := 0; at < size; at += sector {
		from := f.kept
		if random.IntN(100) < written {
			from = f.now
		}
		if at < len(from) {
			copy(left[at:min(at+sector, size)], from[at:])
		}
	}
	return left
}

// memHandle is an open file.
type memHandle struct {
	fs               *memFS
	file             *memFile
	name             string
	closed, readOnly bool
}

func (h *memHandle) ReadAt(b []byte, at int64) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if h.closed {
		return 0, os.ErrClosed
	}
	if at >= int64(len(h.file.now)) {
		return 0, io.EOF
	}
	n := copy(b, h.file.now[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (h *memHandle) change(op string, b []byte) (int, error) {
	n, err := h.fs.change(op, h.name, b)
	if h.readOnly {
		err = errors.New("write to a file that was opened read-only")
	} else if h.closed {
		err = os.ErrClosed
	}
	return n, err
}

func (h *memHandle) WriteAt(b []byte, at int64) (int, error) {
	n, err := h.change("write", b)
	defer h.fs.mu.Unlock()
	if err != nil && n <= 0 {
		return 0, err
	}
	if end := int(at) + n; end > len(h.file.now) {
		h.file.now = append(h.file.now, make([]byte, end-len(h.file.now))...)
	}
	return copy(h.file.now[at:], b[:n]), err
}

func (h *memHandle) Truncate(size int64) error {
	_, err := h.change("truncate", nil)
	defer h.fs.mu.Unlock()
	if err == nil {
		b := make([]byte, size)
		copy(b, h.file.now)
		h.file.now = b
	}
	return err
}

func (h *memHandle) Sync() error {
	_, err := h.change("sync", nil)
	defer h.fs.mu.Unlock()
	if err == nil && !h.fs.lazy {
		h.file.kept = slices.Clone(h.file.now)
	}
	return err
}

func (h *memHandle) Size() (int64, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	return int64(len(h.file.now)), nil
}

func (h *memHandle) Close() error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if h.closed {
		return os.ErrClosed
	}
	h.closed = true
	return nil
}
