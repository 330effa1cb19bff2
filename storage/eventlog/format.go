package eventlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"
)

// Sizes in bytes. See doc.go for the drawing.
const (
	headerSize   = 44   // of a segment
	slotSize     = 32   // of a copy of the status
	slotStride   = 1024 // the two copies are in sectors of their own: at 1024 and 2048
	dataOffset   = 4096 // of the first block: in a page of its own
	blockHeader  = 20
	blockMarker  = 1
	recordHeader = 8

	// MaxRecord is the largest length of a record.
	MaxRecord = 1 << 30
)

const (
	magic  = "lkevlog" // the number of the format follows
	format = 1

	marker  = 0xa5 // the last byte of a block
	unknown = 1<<32 - 1

	segmentSuffix = ".seg"
	draftName     = "spare" // a segment, before it has its name

	firstPosition = 1
	maxPosition   = 1 << 62
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian
)

func checksum(b []byte, seed uint32, position int64) uint32 {
	return crc32.Update(seed^uint32(position)^uint32(position>>32), castagnoli, b)
}

func segmentName(base int64) string { return fmt.Sprintf("%016x%s", base, segmentSuffix) }

// baseOf returns the base in the name of a segment.
func baseOf(name string) (base int64, ok bool) {
	digits, isSegment := strings.CutSuffix(name, segmentSuffix)
	base, err := strconv.ParseInt(digits, 16, 64)
	return base, isSegment && err == nil && base >= firstPosition && base < maxPosition && name == segmentName(base)
}

// header is the header of a segment.
type header struct {
	base int64
	seed uint32 // of all checksums of the log

	// Of the previous segment; base 0 when there was none.
	prevBase  int64
	prevCRC   uint32 // of everything in it, from its base to base
	prevHours hours  // until when it must be kept
}

func (h *header) encode() []byte {
	b := make([]byte, headerSize)
	copy(b, magic)
	b[len(magic)] = format
	le.PutUint64(b[8:], uint64(h.base))
	le.PutUint64(b[16:], uint64(h.prevBase))
	le.PutUint32(b[24:], h.prevCRC)
	le.PutUint32(b[28:], h.seed)
	le.PutUint32(b[32:], h.prevHours.until)
	le.PutUint32(b[36:], h.prevHours.hard)
	le.PutUint32(b[40:], checksum(b[:40], 0, h.base))
	return b
}

// decodeHeader decodes the header of a segment with any format, which it returns. Of other formats only the base is known.
func decodeHeader(b []byte) (h header, number int, ok bool) {
	h.base = int64(le.Uint64(b[8:]))
	h.prevBase = int64(le.Uint64(b[16:]))
	h.prevCRC, h.seed = le.Uint32(b[24:]), le.Uint32(b[28:])
	h.prevHours = hours{le.Uint32(b[32:]), le.Uint32(b[36:])}
	return h, int(b[len(magic)]), string(b[:len(magic)]) == magic && le.Uint32(b[40:]) == checksum(b[:40], 0, h.base)
}

// status has the values of a segment that change. Of its two copies, the copy with the higher number is valid.
type status struct {
	number uint64
	synced int64 // all bytes before this position are on disk
	oldest int64 // the first position of the log: the records before it were removed
	sealed bool  // a next segment exists, and begins at synced
}

func (s *status) encode(seed uint32, base int64) []byte {
	b := make([]byte, slotSize)
	le.PutUint64(b, s.number)
	le.PutUint64(b[8:], uint64(s.synced))
	le.PutUint64(b[16:], uint64(s.oldest))
	if s.sealed {
		b[24] = 1
	}
	le.PutUint32(b[28:], checksum(b[:28], seed, base))
	return b
}

func decodeStatus(b []byte, seed uint32, base int64) (s status, ok bool) {
	s = status{number: le.Uint64(b), synced: int64(le.Uint64(b[8:])), oldest: int64(le.Uint64(b[16:])), sealed: b[24] == 1}
	return s, s.number > 0 && le.Uint32(b[28:]) == checksum(b[:28], seed, base)
}

// sealBlock completes the block b that begins at a position: b has room for the header, then
// the records, then the marker. durable is the position up to which the log is on disk.
func sealBlock(b []byte, seed uint32, position, durable int64, h hours) {
	b[len(b)-blockMarker] = marker
	le.PutUint32(b[4:], uint32(len(b)-blockHeader-blockMarker))
	le.PutUint32(b[8:], uint32(min(position-durable, unknown)))
	le.PutUint32(b[12:], h.until)
	le.PutUint32(b[16:], h.hard)
	le.PutUint32(b, checksum(b[4:blockHeader], ^seed, position))
}

// blockInfo is the decoded header of a block.
type blockInfo struct {
	end    int64 // the position after the block
	synced int64 // the sync offset, 0 when it is unknown
	hours  hours
}

// decodeBlock decodes the header of a block at a position.
func decodeBlock(b []byte, seed uint32, position int64) (i blockInfo, ok bool) {
	length, back := le.Uint32(b[4:]), le.Uint32(b[8:])
	i = blockInfo{end: position + blockHeader + int64(length) + blockMarker, hours: hours{le.Uint32(b[12:]), le.Uint32(b[16:])}}
	if back != unknown {
		i.synced = position - int64(back)
	}
	return i, length > recordHeader && i.end < maxPosition && le.Uint32(b) == checksum(b[4:blockHeader], ^seed, position)
}

// sealRecord completes a record at a position: b has room for the header, then the payload.
func sealRecord(b []byte, seed uint32, position int64) {
	le.PutUint32(b[4:], uint32(len(b)-recordHeader))
	le.PutUint32(b, checksum(b[4:], seed, position))
}

// recordSize returns the length of the record that b begins with, header included.
func recordSize(b []byte) int { return recordHeader + int(le.Uint32(b[4:])) }

// validRecord reports whether b is a record that was written at a position.
func validRecord(b []byte, seed uint32, position int64) bool {
	return len(b) > recordHeader && le.Uint32(b) == checksum(b[4:], seed, position)
}

// Keep is the retention of a record, in Unix seconds. The log stores both times; its owner uses
// them to choose the segments to remove.
type Keep struct {
	Until int64 // the end of its retention
	Hard  int64 // the record must not be removed earlier, for any reason; 0 for no such time
}

// hours is the encoded Keep of a block: hours since 1970, rounded up.
type hours struct{ until, hard uint32 }

func hoursOf(k Keep) hours {
	in := func(seconds int64) uint32 { return uint32(min(max(0, seconds+3599)/3600, math.MaxUint32)) }
	return hours{in(k.Until), in(k.Hard)}
}

func (h hours) keep() Keep { return Keep{int64(h.until) * 3600, int64(h.hard) * 3600} }

// and returns the retention of two records together.
func (h hours) and(other hours) hours {
	return hours{max(h.until, other.until), max(h.hard, other.hard)}
}
