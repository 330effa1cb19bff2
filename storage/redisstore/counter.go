package redisstore

import (
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// counterSize is the size of a usual counter in bytes. Redis keeps a small hash in one compact listpack
// while its values have at most 64 bytes (hash-max-listpack-value). shared.lua describes the fields.
const counterSize = 64

const day = 24 * 60 * 60 // seconds

// maxUsed is the maximum of a stored usage: the largest integer that a Lua number represents exactly.
const maxUsed = core.MaxLimit

// The form of a counter, its byte 64: see shared.lua.
const (
	formMoving = 1 << iota
	formWide
	formMeters
)

// maxNarrow is the maximum of a usage that is not in the wide form.
const maxNarrow = 1<<40 - 1

// decodeCounter decodes a stored counter without its other meters.
func decodeCounter(b string) (c core.Counter, err error) {
	if len(b) < counterSize {
		return core.Counter{}, record.ErrDamaged
	}
	form := b[counterSize-1]
	last := record.NewReader([]byte(b[40:]))
	if s, ns := last.Uint(5), last.Uint(4); s != 0 || ns != 0 {
		c.LastUsedAt, c.At = time.Unix(int64(s), int64(ns)).UTC(), int64(s)
	}
	c.DeniedOmitted = int64(last.Uint(4))
	size := 5
	r := record.NewReader([]byte(b))
	if form&formWide != 0 {
		size, r = 7, record.NewReader([]byte(b[counterSize:]))
		c.At = int64(r.Uint(5))
	}
	for p := range c.Requests {
		c.Requests[p] = int64(r.Uint(size))
	}
	c.Today = int64(r.Uint(size))
	if last.Failed() || r.Failed() || form&formWide != 0 && !r.Ended() || form&formWide == 0 && len(b) != counterSize {
		return core.Counter{}, record.ErrDamaged
	}
	return c, nil
}

// isMoving reports whether a counter is frozen because its key moves to another user.
func isMoving(b string) bool { return b[counterSize-1]&formMoving != 0 }

// hasMeters reports whether a counter has other meters than requests.
func hasMeters(b string) bool { return b[counterSize-1]&formMeters != 0 }

// encodeCounter encodes the counter of a key that has moved as often as moves says, without its other meters.
func encodeCounter(c *core.Counter, moves uint8) string {
	var s, ns int64
	if !c.LastUsedAt.IsZero() {
		s, ns = c.LastUsedAt.Unix(), int64(c.LastUsedAt.Nanosecond())
	}
	form, usage := byte(0), append(c.Requests[:], c.Today)
	if c.At != s || slices.Max(usage) > maxNarrow {
		form |= formWide
	}
	if c.Meters != nil {
		form |= formMeters
	}
	b := make([]byte, 0, counterSize)
	for _, used := range usage {
		if form&formWide != 0 {
			used = 0
		}
		b = record.AppendUint(b, 5, uint64(used))
	}
	b = record.AppendUint(b, 5, uint64(s))
	b = record.AppendUint(b, 4, uint64(ns))
	b = record.AppendUint(b, 4, uint64(min(c.DeniedOmitted, 1<<32-1)))
	b = append(b, make([]byte, 9)...) // of a key: latest denials, start of request ids; of a user: time of the latest entry
	b = append(b, moves, form)
	if form&formWide != 0 {
		b = record.AppendUint(b, 5, uint64(max(0, c.At)))
		for _, used := range usage {
			b = record.AppendUint(b, 7, uint64(min(used, maxUsed)))
		}
	}
	return string(b)
}

// encodeMeters encodes the meters of a counter other than requests, "" without any.
func encodeMeters(c *core.Counter) string {
	var b []byte
	for m := c.Meters; m != nil; m = m.Next {
		b = appendMeter(b, m.Meter)
		for _, used := range m.Usage {
			b = record.AppendUint(b, 7, uint64(min(used, maxUsed)))
		}
	}
	return string(b)
}

// appendMeter appends the name of a meter and its length, as the scripts read it.
func appendMeter(b []byte, name string) []byte { return append(append(b, byte(len(name))), name...) }

// decodeWithMeters decodes a stored counter and the field with its other meters.
func decodeWithMeters(b, meters string) (c core.Counter, err error) {
	if c, err = decodeCounter(b); err == nil && hasMeters(b) {
		err = decodeMeters(&c, meters)
	}
	return c, err
}

// decodeMeters adds the other meters to a counter.
func decodeMeters(c *core.Counter, b string) error {
	for r := record.NewReader([]byte(b)); !r.Ended(); {
		name := r.Bytes(int(r.Uint(1)))
		var t core.PeriodUsage
		for p := range t {
			t[p] = int64(r.Uint(7))
		}
		if r.Failed() {
			return record.ErrDamaged
		}
		c.SetMeter(name, t)
	}
	return nil
}
