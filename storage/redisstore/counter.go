package redisstore

import (
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Sizes in bytes. shared.lua describes the fields of a counter. Redis keeps a small hash in one compact listpack while its values have
// at most 64 bytes (hash-max-listpack-value), as a usual counter of 7 periods.
const (
	usageAt     = 24                                      // the fields before the usage
	counterSize = usageAt + 5*(len(core.PeriodUsage{})+1) // the usage of each period, and of the calendar day
)

const day = 24 * 60 * 60 // seconds

// maxUsed is the maximum of a stored usage: the largest integer that a Lua number represents exactly.
const maxUsed = core.MaxLimit

// The form of a counter, its byte usageAt: see shared.lua.
const (
	formMoving = 1 << iota
	formWide
	formMeters
)

// maxNarrow is the maximum of a usage that is not in the wide form.
const maxNarrow = 1<<40 - 1

// decodeCounter decodes the stored counter of a field, without its other meters. denials is the keylessField of a user.
func decodeCounter(field, b, denials string) (c core.Counter, err error) {
	r := record.NewReader([]byte(b))
	if s, ns := r.Uint(5), r.Uint(4); s != 0 || ns != 0 {
		c.LastUsedAt, c.At = time.Unix(int64(s), int64(ns)).UTC(), int64(s)
	}
	c.DeniedOmitted = int64(r.Uint(4))
	if field == userField {
		r.Bytes(9) // time of the latest entry
		c.LastRefused = int64(record.NewReader([]byte(denials)).Uint(5))
	} else {
		c.LastRefused = int64(r.Uint(4))
		r.Bytes(5) // see encodeCounter
	}
	r.Bytes(1) // number of moves
	form, size := byte(r.Uint(1)), 5
	if form&formWide != 0 {
		size = 7
	}
	for p := range c.Requests {
		c.Requests[p] = int64(r.Uint(size))
	}
	c.Today = int64(r.Uint(size))
	if form&formWide != 0 {
		c.At = int64(r.Uint(5))
	}
	if r.Failed() || !r.Ended() {
		return core.Counter{}, record.ErrDamaged
	}
	return c, nil
}

// isMoving reports whether a counter is frozen because its key moves to another user.
func isMoving(b string) bool { return b[usageAt-1]&formMoving != 0 }

// hasMeters reports whether a counter has other meters than requests.
func hasMeters(b string) bool { return b[usageAt-1]&formMeters != 0 }

// encodeCounter encodes the counter of a key that has moved as often as moves says, without its other meters.
func encodeCounter(c *core.Counter, moves uint8) string {
	var s, ns int64
	if !c.LastUsedAt.IsZero() {
		s, ns = c.LastUsedAt.Unix(), int64(c.LastUsedAt.Nanosecond())
	}
	form, size, usage := byte(0), 5, append(c.Requests[:], c.Today)
	if c.At != s || slices.Max(usage) > maxNarrow {
		form, size = formWide, 7
	}
	if c.Meters != nil {
		form |= formMeters
	}
	b := make([]byte, 0, counterSize)
	b = record.AppendUint(b, 5, uint64(s))
	b = record.AppendUint(b, 4, uint64(ns))
	b = record.AppendUint(b, 4, uint64(min(c.DeniedOmitted, 1<<32-1)))
	b = append(b, make([]byte, 9)...) // of a key: latest denials, start of request ids; of a user: time of the latest entry
	b = append(b, moves, form)
	for _, used := range usage {
		b = record.AppendUint(b, size, uint64(min(used, maxUsed)))
	}
	if form&formWide != 0 {
		b = record.AppendUint(b, 5, uint64(max(0, c.At)))
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

// decodeWithMeters decodes the stored counter of a field and the fields with its other meters and, of a user, its denials.
func decodeWithMeters(field, b, meters, denials string) (c core.Counter, err error) {
	if c, err = decodeCounter(field, b, denials); err == nil && hasMeters(b) {
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
