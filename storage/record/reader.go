package record

import (
	"encoding/binary"
	"time"
)

// Reader decodes a binary record. Once a member is missing, the reader has failed and its results
// are invalid.
type Reader struct{ rest []byte }

// NewReader returns a reader of a record.
func NewReader(record []byte) *Reader { return &Reader{record} }

// Failed reports whether a member was missing, or Fail was called.
func (r *Reader) Failed() bool { return r.rest == nil }

// Fail makes Failed return true, for a member that was read but is invalid.
func (r *Reader) Fail() { r.rest = nil }

// Ended reports whether the whole record was read, or the reader has failed.
func (r *Reader) Ended() bool { return len(r.rest) == 0 }

// Rest returns the bytes behind the last read, without a copy. It is nil after a failure.
func (r *Reader) Rest() []byte { return r.rest }

// Uvarint reads a number written by [binary.AppendUvarint].
func (r *Reader) Uvarint() uint64 {
	if len(r.rest) > 0 && r.rest[0] < 0x80 { // most numbers
		return uint64(r.Take(1)[0])
	}
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.Fail()
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

// Varint reads a number written by [binary.AppendVarint].
func (r *Reader) Varint() int64 {
	n := r.Uvarint()
	return int64(n>>1) ^ -int64(n&1)
}

// Uint reads a big-endian number of size bytes, at most 8.
func (r *Reader) Uint(size int) (n uint64) {
	for _, b := range r.Take(uint64(size)) {
		n = n<<8 | uint64(b)
	}
	return n
}

// Bytes reads n bytes.
func (r *Reader) Bytes(n int) string { return string(r.Take(uint64(n))) }

// Text reads a text written by [AppendText].
func (r *Reader) Text() string { return string(r.Take(r.Uvarint())) }

// Time reads a time written by [AppendTime].
func (r *Reader) Time() time.Time {
	seconds, nanoseconds := r.Varint(), r.Uvarint()
	return time.Unix(seconds, int64(nanoseconds)).UTC()
}

// Take returns the next n bytes, nil if the record is shorter. They share the memory of the record.
func (r *Reader) Take(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.rest = nil
	}
	if r.rest == nil {
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// AppendText appends a text and its length.
func AppendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// AppendTime appends a time in seconds and nanoseconds.
func AppendTime(b []byte, t time.Time) []byte {
	b = binary.AppendVarint(b, t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()))
}

// AppendUint appends the lowest size bytes of a number, big-endian.
func AppendUint(b []byte, size int, n uint64) []byte {
	for i := size - 1; i >= 0; i-- {
		b = append(b, byte(n>>(8*i)))
	}
	return b
}
