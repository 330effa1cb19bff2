package badgerstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// The ledger is one long sequence of bytes. A position in it is where a frame of an
// event begins; the first is 1. It is cut into segments, one file each, named by the
// position of its first byte. A file begins with a header, and then has frames up to
// where the next segment begins. The last one has them up to the end of the file, up to
// zeros that were written ahead, or up to a frame that is not whole.

const (
	ledgerDir     = "ledger" // within the directory of the store
	segmentSuffix = ".seg"
	segmentSize   = 64 << 20 // a segment that has reached it is the last no longer
	aheadSize     = 1 << 20  // how much room is made at once, with durability power: see [segment.makeRoom]
	firstPosition = 1
	headerSize    = 16
	segmentMagic  = "lkseg\x00\x00\x01" // with the version of the format
)

// errGone means that an event is not in the ledger any more.
var errGone = errors.New("the event has expired")

// segment is a part of the ledger.
type segment struct {
	base int64
	path string
	file file

	// Of the last one the ledger's commit changes these, under the lock of segments.
	end int64 // the position after its last byte
	kept

	room int64 // up to where room was made after the end; of whoever leads
}

// offset returns where in the file a position is.
func (g *segment) offset(position int64) int64 { return position - g.base + headerSize }

// segments are the files of the ledger.
type segments struct {
	disk  disk
	dir   string
	size  int64 // of a segment; tests have small ones
	ahead int64 // how much room is made at once, likewise

	mu   sync.RWMutex // guards what follows
	list []*segment   // in ascending order, never empty once the store is open
}

func segmentPath(dir string, base int64) string { return filepath.Join(dir, segmentName(base)) }

func segmentName(base int64) string { return fmt.Sprintf("%016x%s", base, segmentSuffix) }

// name returns what a segment is called in an error.
func (g *segment) name() string { return filepath.Join(ledgerDir, segmentName(g.base)) }

// openSegments opens the files in a directory.
func openSegments(d disk, dir string) (*segments, error) {
	all := &segments{disk: d, dir: dir, size: segmentSize, ahead: aheadSize}
	names, err := d.names(dir)
	if err != nil {
		return nil, err
	}
	bases := basesOf(names)
	for i, base := range bases {
		if err := all.openOne(base, i == len(bases)-1); err != nil {
			all.close()
			return nil, err
		}
	}
	for i, g := range all.list[:max(0, len(all.list)-1)] {
		g.end = min(g.end, all.list[i+1].base)
	}
	return all, nil
}

// basesOf returns the bases of the segments with the names, in ascending order.
func basesOf(names []string) (bases []int64) {
	for _, name := range names {
		digits, isSegment := strings.CutSuffix(name, segmentSuffix)
		if base, err := strconv.ParseInt(digits, 16, 64); isSegment && err == nil {
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	return bases
}

// openOne opens a segment after the others. Where it ends is not known yet, but that it
// is not after the end of the file. If the last file has no header, a process was ended
// while it began the segment.
func (all *segments) openOne(base int64, last bool) error {
	g := &segment{base: base, path: segmentPath(all.dir, base)}
	f, err := all.disk.open(g.path)
	if err != nil {
		return err
	}
	g.file = f
	header := make([]byte, headerSize)
	_, err = f.ReadAt(header, 0)
	switch {
	case err != nil && err != io.EOF:
		return errors.Join(err, f.Close())
	case last && (err == io.EOF || allZero(header)):
		return errors.Join(f.Close(), all.disk.remove(g.path))
	}
	if string(header[:8]) != segmentMagic || int64(binary.BigEndian.Uint64(header[8:])) != base {
		_ = f.Close()
		return fmt.Errorf("%s: %w: it does not begin like a segment", g.name(), errLedger)
	}
	size, err := f.size()
	if err != nil {
		_ = f.Close()
		return err
	}
	g.end = base + size - headerSize
	all.list = append(all.list, g)
	return nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// begin makes a segment that begins at a position the last one.
func (all *segments) begin(base int64) (*segment, error) {
	path := segmentPath(all.dir, base)
	f, err := all.disk.open(path)
	if err != nil {
		return nil, err
	}
	header := binary.BigEndian.AppendUint64([]byte(segmentMagic), uint64(base))
	_, err = f.WriteAt(header, 0)
	if err := firstOf(err, f.sync(), all.disk.syncDir(all.dir)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	g := &segment{base: base, path: path, file: f, end: base}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.list = append(all.list, g)
	return g, nil
}

// zeros is what room is made of, a page of memory at a time: a system that has read or
// written more at once may write all of it again when a byte of it changes.
var zeros [4096]byte

// makeRoom makes sure that a file is written up to a position and some way further, but
// not beyond where it is full: bytes that replace others are brought to the disk without a
// change of the file system's own records, in half the time. That is all that is lost
// where it fails. It is tried again where the room would have ended.
func (all *segments) makeRoom(g *segment, end int64) {
	if end <= g.room {
		return
	}
	g.room = max(end, min(end+all.ahead, g.base+all.size))
	for at := end; at < g.room; {
		n := min(g.room-at, int64(len(zeros))-g.offset(at)%int64(len(zeros)))
		if _, err := g.file.WriteAt(zeros[:n], g.offset(at)); err != nil {
			return
		}
		at += n
	}
}

// isRoom reports whether what is in the file after its end is room, of which so much is
// made at once.
func (g *segment) isRoom(end, ahead int64) (bool, error) {
	if g.end-end > ahead {
		return false, nil
	}
	return g.onlyZeros(end, g.end)
}

// onlyZeros reports whether there is nothing else between two positions in the file.
func (g *segment) onlyZeros(from, to int64) (bool, error) {
	b := make([]byte, to-from)
	_, err := g.file.ReadAt(b, g.offset(from))
	return allZero(b), nonEOF(err)
}

// last returns the segment that is written to, nil when there is none.
func (all *segments) last() *segment {
	all.mu.RLock()
	defer all.mu.RUnlock()
	if n := len(all.list); n > 0 {
		return all.list[n-1]
	}
	return nil
}

// grown notes that a segment was written up to a position.
func (all *segments) grown(g *segment, end int64, k kept) {
	all.mu.Lock()
	defer all.mu.Unlock()
	g.end, g.kept = end, g.and(k)
}

// at returns the segment that a position is in, nil when there is none.
func (all *segments) at(position int64) *segment {
	all.mu.RLock()
	defer all.mu.RUnlock()
	i, found := slices.BinarySearchFunc(all.list, position, func(g *segment, p int64) int { return cmp.Compare(g.base, p) })
	if !found {
		i--
	}
	if i < 0 || position >= all.list[i].end {
		return nil
	}
	return all.list[i]
}

// probe is how much is read to see how long an event is: most are shorter.
const probe = 256

// read returns the event at a position, or errGone.
func (all *segments) read(position int64) (event, error) {
	g := all.at(position)
	if g == nil {
		return event{}, errGone
	}
	b, err := g.frameAt(position, make([]byte, 0, probe))
	if errors.Is(err, os.ErrClosed) {
		return event{}, errGone // it was removed meanwhile
	}
	if err != nil {
		return event{}, err
	}
	return decodeEvent(b, position)
}

// frameAt reads the frame at a position.
func (g *segment) frameAt(position int64, b []byte) ([]byte, error) {
	n, err := g.file.ReadAt(b[:probe], g.offset(position))
	if n < frameSize {
		return nil, firstOf(err, errLedger)
	}
	size, ok := frame(b[:n])
	if !ok {
		return nil, errLedger
	}
	if size <= n {
		return b[:size], nil
	}
	b = make([]byte, size)
	if n, err = g.file.ReadAt(b, g.offset(position)); n < size {
		return nil, firstOf(err, errLedger)
	}
	return b, nil
}

// removable returns the oldest segments that end before a position and that mayGo accepts. It
// stops at the first segment that must stay, and before the last one: older events of a
// history are found through younger ones.
func (all *segments) removable(before int64, mayGo func(*segment) bool) (list []*segment) {
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, g := range all.list[:max(0, len(all.list)-1)] {
		if g.end > before || !mayGo(g) {
			break
		}
		list = append(list, g)
	}
	return list
}

// remove removes a segment.
func (all *segments) remove(g *segment) error {
	all.mu.Lock()
	all.list = slices.DeleteFunc(all.list, func(other *segment) bool { return other == g })
	all.mu.Unlock()
	return errors.Join(g.file.Close(), all.disk.remove(g.path))
}

// bytes returns how long all segments are.
func (all *segments) bytes() (sum int64) {
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, g := range all.list {
		sum += g.end - g.base
	}
	return sum
}

func (all *segments) close() {
	for _, g := range all.list {
		_ = g.file.Close()
	}
}
