package eventlog

import (
	"cmp"
	"errors"
	"hash/crc32"
	"os"
	"slices"
	"sync"
)

// segmentList has the segments in ascending order.
type segmentList struct {
	mu  sync.RWMutex // guards all, and the end and hours of each segment
	all []*segment
}

func (s *segmentList) add(g *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, g)
}

// grown updates the end of the last segment after data was written.
func (s *segmentList) grown(g *segment, end int64, h hours, data []byte) {
	crc := crc32.Update(g.crc, castagnoli, data)
	s.mu.Lock()
	defer s.mu.Unlock()
	g.end, g.hours, g.crc = end, g.hours.and(h), crc
}

// snapshot returns a copy of the list, with copies of the segments.
func (s *segmentList) snapshot() []segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]segment, len(s.all))
	for i, g := range s.all {
		list[i] = segment{header: g.header, path: g.path, file: g.file, first: g.first, end: g.end, hours: g.hours}
	}
	return list
}

// at returns the segment that contains a position, and its end.
func (s *segmentList) at(position int64) (g *segment, end int64, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i, found := slices.BinarySearchFunc(s.all, position, func(g *segment, p int64) int { return cmp.Compare(g.base, p) })
	if !found {
		i--
	}
	switch {
	case len(s.all) == 0:
		return nil, 0, &DamageError{segmentName(firstPosition), 0, "the log has no file"}
	case i < 0, position < s.all[i].first:
		return nil, 0, ErrGone
	case position >= s.all[i].end:
		return nil, 0, s.all[i].damage(position, "the log ends before the record")
	}
	return s.all[i], s.all[i].end, nil
}

// From returns the first position of the log, 0 without a segment. The records before it were removed.
func (l *Log) From() int64 {
	l.segments.mu.RLock()
	defer l.segments.mu.RUnlock()
	if len(l.segments.all) == 0 {
		return 0
	}
	return l.segments.all[0].first
}

// Segment describes one segment to the caller.
type Segment struct {
	Base, End int64 // its first position, and the position after its last byte
	Keep            // the retention of all its records, rounded up to an hour
}

// Segments returns the segments, oldest first. The last one is being written.
func (l *Log) Segments() []Segment {
	var list []Segment
	for _, g := range l.segments.snapshot() {
		list = append(list, Segment{g.first, g.end, g.hours.keep()})
	}
	return list
}

// Remove removes the oldest segments that end at a position or before it, never the last
// one. Reads of their records return [ErrGone] from then on.
func (l *Log) Remove(upTo int64) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	s, n := &l.segments, 0 // the list changes only while syncing is held
	for n < len(s.all)-1 && s.all[n].end <= upTo {
		n++
	}
	if n == 0 {
		return nil
	}
	g := l.current.Load()
	status := l.statusLocked(g)
	status.oldest = s.all[n].base
	if err := g.writeStatus(status); err != nil {
		return err
	}
	if l.syncErr == nil {
		l.syncErr = synced(g.file.Sync())
	}
	if l.syncErr != nil {
		return l.syncErr
	}
	removed, left := s.all[:n], slices.Clone(s.all[n:])
	s.mu.Lock()
	s.all = left
	s.mu.Unlock()
	var errs []error
	for _, g := range removed {
		errs = append(errs, g.file.Close(), l.o.FS.Remove(g.path))
	}
	return errors.Join(append(errs, l.o.FS.SyncDir(l.o.Dir))...)
}

// probe is the size of Read's first read in bytes. Most records are shorter.
const probe = 256

// Read returns the record at a position that Append has returned. It uses buf for the record if
// buf is large enough. It returns [ErrGone] when the record was removed, and [ErrDamaged] when
// the record is invalid.
func (l *Log) Read(position int64, buf []byte) ([]byte, error) {
	g, end, err := l.segments.at(position)
	if err != nil {
		return nil, err
	}
	b, err := g.read(position, end, buf)
	if errors.Is(err, os.ErrClosed) {
		return nil, ErrGone
	}
	return b, err
}

// read reads the record at a position. The segment ends at end.
func (g *segment) read(position, end int64, buf []byte) ([]byte, error) {
	b := slices.Grow(buf[:0], probe)[:probe]
	n, err := g.file.ReadAt(b, g.offset(position))
	if n < recordHeader {
		return nil, cmp.Or[error](nonEOF(err), g.damage(position, "the record is cut off"))
	}
	want := recordSize(b)
	if want > n && position+int64(want) < end {
		b = slices.Grow(b[:0], want)[:want]
		n, err = g.file.ReadAt(b, g.offset(position))
	}
	if n < want && nonEOF(err) != nil {
		return nil, err
	}
	if n < want || !validRecord(b[:want], g.seed, position) {
		return nil, g.damage(position, "the record is invalid")
	}
	return b[recordHeader:want], nil
}
