package redisstore

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// A counter is 64 bytes: that is how long a value may be for the hash to be kept in one
// piece of memory while it is small (hash-max-listpack-value). The scripts read and
// write it, see COUNTER in shared.lua. Its windows are told by the days, in UTC, on
// which they begin.
const counterSize = 64

const day = 24 * 60 * 60 // seconds

// maxUsed is the largest usage that is counted: what a number of Lua can hold.
const maxUsed = core.MaxLimit

// decodeCounter returns a counter as core knows it.
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

// leaves reports whether a counter is that of a key that is about to move.
func leaves(b string) bool { return b[counterSize-1] == 1 }

// encodeCounter returns the stored form of a counter of a key that has moved so often.
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
	b = append(b, make([]byte, 9)...) // the last denials, the request ids; of a user the latest entry
	return string(append(b, moves, 0))
}
