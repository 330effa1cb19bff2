package eventlog

import (
	"bufio"
	"hash/crc32"
	"io"
	"iter"
	"slices"
)

// extent is what a walk over the blocks of a segment has read.
type extent struct {
	end   int64  // the position after the last valid block
	crc   uint32 // of all valid blocks
	hours hours  // the retention of all records
}

// walk is the one reader of segments: it reads the blocks between two positions, and verifies each. It ends at the first
// invalid block. It calls fn, unless fn is nil, with the position and the payload of each record, and ends at the first
// error of fn. The payload is valid until fn returns. Any other error is an error of reading the file. A block begins at from.
func (g *segment) walk(from, upTo int64, fn func(position int64, payload []byte) error) (x extent, err error) {
	in, b := g.reader(from, upTo), make([]byte, blockHeader)
	for x.end = from; ; {
		b = b[:blockHeader]
		if _, err := io.ReadFull(in, b); err != nil {
			return x, nonEOF(err)
		}
		info, ok := decodeBlock(b, g.seed, x.end)
		if !ok || info.end > upTo {
			return x, nil
		}
		rest := int(info.end-x.end) - blockHeader
		b = slices.Grow(b, rest)[:blockHeader+rest]
		if _, err := io.ReadFull(in, b[blockHeader:]); err != nil || !validBody(b, g.seed, x.end) {
			return x, nonEOF(err)
		}
		for at := blockHeader; fn != nil && at < len(b)-blockMarker; {
			n := recordSize(b[at:])
			if err := fn(x.end+int64(at), b[at+recordHeader:at+n]); err != nil {
				return x, err
			}
			at += n
		}
		x.end, x.crc, x.hours = info.end, crc32.Update(x.crc, castagnoli, b), x.hours.and(info.hours)
	}
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

// headers returns each valid header of a block between two positions. It tries each byte as the beginning of a block,
// because the length of an invalid block may be wrong, too. An error of reading the file ends the sequence, and is stored in err.
func (g *segment) headers(from, upTo int64, err *error) iter.Seq2[int64, blockInfo] {
	return func(yield func(int64, blockInfo) bool) {
		in := g.reader(from, upTo)
		for position := from; ; position++ {
			b, failed := in.Peek(blockHeader)
			if failed != nil {
				*err = nonEOF(failed)
				return
			}
			if le.Uint32(b[4:]) > 0 { // rules out zeros at little cost
				if info, ok := decodeBlock(b, g.seed, position); ok && !yield(position, info) {
					return
				}
			}
			_, _ = in.Discard(1)
		}
	}
}

// reader returns a reader of the bytes between two positions.
func (g *segment) reader(from, upTo int64) *bufio.Reader {
	return bufio.NewReaderSize(io.NewSectionReader(g.file, g.offset(from), upTo-from), int(max(blockHeader, min(upTo-from, 1<<20))))
}
