package eventlog

import (
	"bufio"
	"io"
	"iter"
)

// unit is a valid block.
type unit struct {
	start int64
	bytes []byte // valid until the next block is read
	hours hours
}

func (u *unit) end() int64 { return u.start + int64(len(u.bytes)) }

// records yields the positions and payloads of the records.
func (u *unit) records() iter.Seq2[int64, []byte] {
	return func(yield func(int64, []byte) bool) {
		for at := blockHeader; at < len(u.bytes)-blockMarker; {
			n := recordSize(u.bytes[at:])
			if !yield(u.start+int64(at), u.bytes[at+recordHeader:at+n]) {
				return
			}
			at += n
		}
	}
}

// units yields the blocks of a segment from its base up to a position at most. It ends at the first
// invalid block. An error is an error of reading the file.
func (g *segment) units(upTo int64) iter.Seq2[*unit, error] { return g.unitsFrom(g.base, upTo) }

// unitsFrom is units from another position on, where a block may begin.
func (g *segment) unitsFrom(from, upTo int64) iter.Seq2[*unit, error] {
	return func(yield func(*unit, error) bool) {
		s := scanner{g: g, upTo: upTo, at: from}
		s.in = bufio.NewReaderSize(io.NewSectionReader(g.file, g.offset(from), upTo-from), int(max(blockHeader, min(upTo-from, 1<<20))))
		for {
			u, err := s.block()
			if err != nil {
				yield(nil, err)
				return
			}
			if u == nil || !yield(u, nil) {
				return
			}
			s.at = u.end()
		}
	}
}

type scanner struct {
	g        *segment
	in       *bufio.Reader
	at, upTo int64
	buf      []byte
	unit     unit // the yielded block, which is reused
}

// block returns the block at s.at, nil for an invalid block.
func (s *scanner) block() (*unit, error) {
	b, err := s.in.Peek(blockHeader)
	if err != nil {
		return nil, nonEOF(err)
	}
	info, ok := decodeBlock(b, s.g.seed, s.at)
	if !ok {
		return nil, nil
	}
	if b, err = s.read(info.end - s.at); b == nil {
		return nil, err
	}
	if !validBody(b, s.g.seed, s.at) {
		return nil, nil
	}
	s.unit = unit{start: s.at, bytes: b, hours: info.hours}
	return &s.unit, nil
}

// read returns the next n bytes, nil when fewer bytes are left.
func (s *scanner) read(n int64) ([]byte, error) {
	if n > s.upTo-s.at {
		return nil, nil
	}
	if int64(cap(s.buf)) < n {
		s.buf = make([]byte, n)
	}
	if _, err := io.ReadFull(s.in, s.buf[:n]); err != nil {
		return nil, nonEOF(err)
	}
	return s.buf[:n], nil
}

// validBody reports whether the records and the marker of a block at a position are valid.
func validBody(b []byte, seed uint32, position int64) bool {
	last := len(b) - blockMarker
	at := blockHeader
	for last-at > recordHeader {
		n := recordSize(b[at:])
		if n > last-at || !validRecord(b[at:at+n], seed, position+int64(at)) {
			return false
		}
		at += n
	}
	return at == last && b[last] == marker
}

// syncedAfter returns the largest sync offset in the headers of blocks from a position on, and the
// position of the first such header; 0 without any. It tries each byte as the beginning of a block,
// because the length of an invalid block may be wrong, too.
func (g *segment) syncedAfter(from, upTo int64) (synced, first int64, err error) {
	const overlap = blockHeader - 1
	b := make([]byte, min(upTo-from, 1<<20))
	for at := from; upTo-at >= blockHeader; {
		n := min(upTo-at, int64(len(b)))
		if n, err := g.file.ReadAt(b[:n], g.offset(at)); nonEOF(err) != nil || n < blockHeader {
			return synced, first, nonEOF(err)
		}
		for i := range n - overlap {
			position := at + i
			// The cheap checks rule out zeros and nearly all other bytes.
			if length, back := le.Uint32(b[i+4:]), int64(le.Uint32(b[i+8:])); length <= recordHeader || back > position-g.base {
				continue
			}
			if info, ok := decodeBlock(b[i:], g.seed, position); ok {
				synced = max(synced, info.synced)
				if first == 0 {
					first = position
				}
			}
		}
		at += n - overlap
	}
	return synced, first, nil
}
