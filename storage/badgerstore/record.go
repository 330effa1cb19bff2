package badgerstore

import (
	"encoding/binary"
	"errors"
	"time"
)

// errRecord means that a record cannot be read.
var errRecord = errors.New("a record is damaged")

// encodeNumber returns the record that is nothing but a number.
func encodeNumber(n int64) []byte { return binary.AppendUvarint(nil, uint64(n)) }

// decodeNumber returns the number of a record, 0 when there is no record.
func decodeNumber(record []byte) (int64, error) {
	if record == nil {
		return 0, nil
	}
	n, size := binary.Uvarint(record)
	if size != len(record) || size <= 0 {
		return 0, errRecord
	}
	return int64(n), nil
}

// encodeRef returns the record that names a numbered resource of an account.
func encodeRef(account string, number int64) []byte { return path(nil).text(account).number(number) }

func decodeRef(record []byte) (account string, number int64, err error) {
	r := reading{record}
	account, number = r.text(), int64(r.uint64())
	if r.failed() {
		return "", 0, errRecord
	}
	return account, number, nil
}

// reading takes a binary record apart. When anything is missing it has failed, and
// what it has returned means nothing.
type reading struct{ rest []byte }

func (r *reading) failed() bool { return r.rest == nil }

func (r *reading) uvarint() uint64 {
	n, size := binary.Uvarint(r.rest)
	r.skip(size, size > 0)
	return n
}

func (r *reading) varint() int64 {
	n, size := binary.Varint(r.rest)
	r.skip(size, size > 0)
	return n
}

func (r *reading) uint64() (n uint64) {
	if len(r.rest) >= 8 {
		n = binary.BigEndian.Uint64(r.rest)
	}
	r.skip(8, len(r.rest) >= 8)
	return n
}

func (r *reading) text() (s string) {
	n := r.uvarint()
	fits := n <= uint64(len(r.rest))
	if fits {
		s = string(r.rest[:n])
	}
	r.skip(int(n), fits)
	return s
}

// time reads what appendTime has written.
func (r *reading) time() time.Time {
	seconds, nanoseconds := r.varint(), r.uvarint()
	return time.Unix(seconds, int64(nanoseconds)).UTC()
}

func (r *reading) skip(size int, ok bool) {
	if !ok || r.rest == nil {
		r.rest = nil
		return
	}
	r.rest = r.rest[size:]
}

// appendText appends a text, for [reading.text].
func appendText(b []byte, s string) []byte { return path(b).text(s) }

// appendTime appends an instant, exactly.
func appendTime(b []byte, t time.Time) []byte {
	b = binary.AppendVarint(b, t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()))
}
