package redisstore

import (
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// counterSize is the size of a stored counter in bytes. Redis keeps a small hash in one compact listpack
// while its values have at most 64 bytes (hash-max-listpack-value). shared.lua describes the fields. A
// window is stored as the day, in UTC, on which it starts.
const counterSize = 64

const day = 24 * 60 * 60 // seconds

// maxUsed is the maximum of a stored usage: the largest integer that a Lua number represents exactly.
const maxUsed = core.MaxLimit

// decodeCounter decodes a stored counter.
func decodeCounter(b string) (c core.Counter, err error) {
	r := record.NewReader([]byte(b))
	for p := range c.Windows {
		c.Windows[p].Start = int64(r.Uint(3)) * day
	}
	for p := range c.Windows {
		c.Windows[p].Used = int64(r.Uint(7))
	}
	if s, ns := r.Uint(5), r.Uint(4); s != 0 || ns != 0 {
		c.LastUsedAt = time.Unix(int64(s), int64(ns)).UTC()
	}
	c.DeniedOmitted = int64(r.Uint(4))
	if r.Failed() || len(b) != counterSize {
		return core.Counter{}, record.ErrDamaged
	}
	return c, nil
}

// isMoving reports whether a counter is frozen because its key moves to another user.
func isMoving(b string) bool { return b[counterSize-1] == 1 }

// encodeCounter encodes the counter of a key that has moved as often as moves says.
func encodeCounter(c *core.Counter, moves uint8) string {
	b := make([]byte, 0, counterSize)
	for _, t := range c.Windows {
		b = record.AppendUint(b, 3, uint64(t.Start/day))
	}
	for _, t := range c.Windows {
		b = record.AppendUint(b, 7, uint64(min(t.Used, maxUsed)))
	}
	var s, ns int64
	if !c.LastUsedAt.IsZero() {
		s, ns = c.LastUsedAt.Unix(), int64(c.LastUsedAt.Nanosecond())
	}
	b = record.AppendUint(b, 5, uint64(s))
	b = record.AppendUint(b, 4, uint64(ns))
	b = record.AppendUint(b, 4, uint64(min(c.DeniedOmitted, 1<<32-1)))
	b = append(b, make([]byte, 9)...) // of a key: latest denials, start of request ids; of a user: time of the latest entry
	return string(append(b, moves, 0))
}

// dayStarts are the starts of all windows that contain a day.
type dayStarts struct {
	begin, end int64 // of the day, Unix seconds; then the start days, as consume.lua expects them
	packed     []byte
}

// windowStarts caches the dayStarts of the latest request.
type windowStarts struct{ current atomic.Pointer[dayStarts] }

// of returns the start days of the windows that contain a time, encoded for consume.lua.
func (t *windowStarts) of(at time.Time) []byte {
	sec := at.Unix()
	if d := t.current.Load(); d != nil && d.begin <= sec && sec < d.end {
		return d.packed
	}
	w := core.Day.Window(at)
	d := &dayStarts{begin: w.Start.Unix(), end: w.Start.Unix() + day}
	for _, p := range core.Periods() {
		d.packed = record.AppendUint(d.packed, 3, uint64(max(0, p.Window(at).Start.Unix()/day)))
	}
	t.current.Store(d)
	return d.packed
}
