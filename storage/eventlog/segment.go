package eventlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// segment is a part of the log, and its file.
type segment struct {
	header
	path string
	file File

	first int64 // the first position of the log that is in it: its base, or a later one of the oldest segment after a repair

	// Of the last segment the leader changes these, under the lock of the list.
	end   int64 // the position after the last block
	hours hours // the retention of all records

	room   int64  // the end of the preallocated zeros; of the leader
	crc    uint32 // of all bytes from base to end; of the leader
	status status // guarded by Log.syncing

	invalid *DamageError // of the header and the status, nil for none; as of openSegment
}

// name returns the name of the file.
func (g *segment) name() string { return segmentName(g.base) }

// offset returns the offset of a position in the file.
func (g *segment) offset(position int64) int64 { return position - g.base + dataOffset }

func (g *segment) damage(position int64, format string, args ...any) *DamageError {
	return &DamageError{g.name(), g.offset(position), fmt.Sprintf(format, args...)}
}

// openSegment opens the segment with a base, also with an invalid header.
func openSegment(fs FS, dir string, base int64, flags int) (g *segment, err error) {
	g = &segment{header: header{base: base}, path: filepath.Join(dir, segmentName(base))}
	if g.file, err = fs.Open(g.path, flags); err != nil {
		return nil, err
	}
	b := make([]byte, dataOffset)
	n, err := g.file.ReadAt(b, 0)
	if err = nonEOF(err); err == nil {
		err = g.readHeader(b, n)
	}
	if errors.As(err, &g.invalid) {
		err = nil
	}
	if err == nil {
		var size int64
		size, err = g.file.Size()
		g.end = g.base + size - dataOffset
	}
	if err != nil {
		_ = g.file.Close()
	}
	return g, err
}

// readHeader reads the header and the status out of the first n bytes of the file.
func (g *segment) readHeader(b []byte, n int) error {
	h, number, ok := decodeHeader(b)
	switch {
	case !ok:
		return &DamageError{g.name(), 0, "the header of the segment is invalid"}
	case number != format:
		return &FormatError{g.name(), number}
	case h.base != g.base:
		return &DamageError{g.name(), 8, "the file has the header of another segment: " + segmentName(h.base)}
	case n < dataOffset:
		return &DamageError{g.name(), int64(n), "the file is cut off"}
	}
	g.header, g.first = h, h.base
	for _, at := range []int{slotStride, 2 * slotStride} {
		if s, ok := decodeStatus(b[at:], g.seed, g.base); ok && s.number > g.status.number {
			g.status = s
		}
	}
	if g.status.number == 0 {
		return &DamageError{g.name(), slotStride, "both copies of the status are invalid"}
	}
	return nil
}

// closeAll closes the files of segments.
func closeAll(list []*segment) {
	for _, g := range list {
		_ = g.file.Close()
	}
}

// createSegment creates an empty segment: under another name, until its file is whole.
func createSegment(o Options, h header, s status) (g *segment, err error) {
	g = &segment{header: h, path: filepath.Join(o.Dir, segmentName(h.base)), first: h.base, end: h.base, room: h.base}
	draft := filepath.Join(o.Dir, draftName)
	if g.file, err = o.FS.Open(draft, os.O_RDWR|os.O_CREATE); err != nil {
		return nil, err
	}
	_, err = g.file.WriteAt(g.encode(), 0)
	if err == nil {
		err = errors.Join(g.writeStatus(s), g.file.Truncate(dataOffset))
	}
	if err == nil {
		err = synced(g.file.Sync())
	}
	if err == nil {
		err = o.FS.Rename(draft, g.path)
	}
	if err == nil {
		if err = o.FS.SyncDir(o.Dir); !isDescriptors(err) { // without descriptors the directory was not opened, and no sync has failed
			err = synced(err)
		}
	}
	if err != nil {
		_ = g.file.Close()
		return nil, err
	}
	return g, nil
}

// writeStatus overwrites both copies of the status. The caller holds Log.syncing.
func (g *segment) writeStatus(s status) error {
	s.number = g.status.number + 1
	b := make([]byte, slotStride+slotSize)
	copy(b, s.encode(g.seed, g.base))
	copy(b[slotStride:], b[:slotSize])
	_, err := g.file.WriteAt(b, slotStride)
	if err == nil {
		g.status = s
	}
	return err
}

// zeros is one preallocated page. makeRoom writes single pages, because a system may rewrite all
// pages of a large write when one byte changes.
var zeros [4096]byte

// makeRoom preallocates zeros up to ahead bytes after a position, but not beyond the position full.
// Syncing blocks that overwrite the zeros takes half the time, because the metadata of the file
// system stays the same. After an error, makeRoom does not try again before the end of that space.
func (g *segment) makeRoom(end, ahead, full int64) {
	if end <= g.room {
		return
	}
	g.room = max(end, min(end+ahead, full))
	for at := end; at < g.room; {
		n := min(g.room-at, int64(len(zeros))-g.offset(at)%int64(len(zeros)))
		if _, err := g.file.WriteAt(zeros[:n], g.offset(at)); err != nil {
			return
		}
		at += n
	}
}
