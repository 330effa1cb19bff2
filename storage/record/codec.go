package record

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

// Codec codes a binary record: it encodes or decodes the record. One function describes a record for both directions: it calls a method for each member in
// the order of the record. Each method appends the member to the record, or reads it into the variable. Failed, Fail, Ended and Rest concern only decoding:
// after a missing or invalid member, Failed returns true and the variables are invalid.
type Codec struct {
	Reader
	b       []byte
	encodes bool
}

// encoders keeps codecs of Append: a codec on the stack would move to the heap at each call.
var encoders = sync.Pool{New: func() any { return &Codec{encodes: true} }}

// maxKept is the size in bytes of the largest buffer that encoders keeps.
const maxKept = 64 << 10

// Append appends the record that code describes to b. code must not keep its argument.
func Append(b []byte, code func(*Codec)) []byte {
	c := encoders.Get().(*Codec)
	c.b = c.b[:0]
	code(c)
	b = append(b, c.b...)
	if cap(c.b) <= maxKept {
		encoders.Put(c)
	}
	return b
}

// Decoder returns a codec that decodes a record.
func Decoder(record []byte) Codec { return Codec{Reader: Reader{record}} }

// Decodes reports whether the codec decodes.
func (c *Codec) Decodes() bool { return !c.encodes }

// Byte codes a byte.
func (c *Codec) Byte(n *byte) {
	if c.encodes {
		c.b = append(c.b, *n)
	} else if b := c.Take(1); b != nil {
		*n = b[0]
	}
}

// Fixed codes the lowest size bytes of a number, big-endian. size is at most 8.
func (c *Codec) Fixed(size int, n *uint64) {
	if c.encodes {
		c.b = AppendUint(c.b, size, *n)
	} else {
		*n = c.Uint(size)
	}
}

// Text codes the length of a text in bytes, a uvarint, and the text.
func (c *Codec) Text(s *string) {
	if c.encodes {
		c.b = AppendText(c.b, *s)
	} else {
		*s = c.Reader.Text()
	}
}

// Time codes the Unix seconds of a time, a varint, and its nanoseconds, a uvarint. A decoded time is in UTC.
func (c *Codec) Time(t *time.Time) {
	if c.encodes {
		c.b = AppendTime(c.b, *t)
	} else {
		*t = c.Reader.Time()
	}
}

// Bool codes a bool as a byte: 1 for true.
func (c *Codec) Bool(b *bool) {
	n := byte(0)
	if *b {
		n = 1
	}
	if c.Byte(&n); !c.encodes {
		*b = n == 1
	}
}

// Number codes a number that is not negative, as a uvarint. Decoding drops the bits that T lacks.
func Number[T ~int | ~int32 | ~int64 | ~uint8 | ~uint32 | ~uint64](c *Codec, n *T) {
	if c.encodes {
		c.b = binary.AppendUvarint(c.b, uint64(*n))
	} else {
		*n = T(c.Uvarint())
	}
}

// Signed codes a number as a varint. Decoding drops the bits that T lacks.
func Signed[T ~int32 | ~int64](c *Codec, n *T) {
	if c.encodes {
		c.b = binary.AppendVarint(c.b, int64(*n))
	} else {
		*n = T(c.Varint())
	}
}

// Index codes the index of an element in a list of at most 256, as a byte. It encodes an element that is not in the list as 0. Decoding fails for an index
// beyond the list.
func Index[T comparable](c *Codec, element *T, list []T) {
	i := byte(0)
	if c.encodes {
		i = byte(max(0, slices.Index(list, *element)))
	}
	switch c.Byte(&i); {
	case c.encodes:
	case int(i) < len(list):
		*element = list[i]
	default:
		c.Fail()
	}
}

// List codes the length of a list, a uvarint, and then calls element to code each element. Decoding appends the elements to the list.
func List[T any](c *Codec, list *[]T, element func(*T)) {
	n := uint64(len(*list))
	Number(c, &n)
	for i := uint64(0); i < n && (c.encodes || !c.Failed()); i++ {
		if !c.encodes {
			*list = append(*list, *new(T))
		}
		element(&(*list)[i])
	}
}
