package redisstore

import (
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// counting are the names that a decision on a key uses. Whoever asks for decisions keeps
// them with the key.
type counting struct {
	account                 string
	user, seq               int64
	field                   string
	counters, ofUser, ofKey string // the counters, the histories
}

// counting returns the names for a request, from its handle if they are there.
func (s *Store) counting(c *core.Consumption) *counting {
	if c.KeyHandle != nil {
		if k, ok := c.KeyHandle.Load().(*counting); ok && k.seq == c.KeySeq && k.user == c.UserID && k.account == c.Account {
			return k
		}
	}
	n, field := s.o.usage(c.Account, c.UserID), fieldOf(c.KeySeq)
	k := &counting{account: c.Account, user: c.UserID, seq: c.KeySeq, field: field,
		counters: n.counters(), ofUser: n.history(userField), ofKey: n.history(field)}
	if c.KeyHandle != nil {
		c.KeyHandle.Store(k)
	}
	return k
}

// days are the days, packed, on which the windows of a day begin.
type days struct {
	begin, end int64 // of the day, in Unix seconds
	packed     []byte
}

// today remembers the windows of the day of the last request.
type today struct{ days atomic.Pointer[days] }

// starts returns the days on which the windows begin that a time is in, packed.
func (t *today) starts(at time.Time) []byte {
	sec := at.Unix()
	if d := t.days.Load(); d != nil && d.begin <= sec && sec < d.end {
		return d.packed
	}
	w := core.Day.Window(at)
	d := &days{begin: w.Start.Unix(), end: w.Start.Unix() + day}
	for _, p := range core.Periods() {
		d.packed = record.AppendUint(d.packed, 3, uint64(max(0, p.Window(at).Start.Unix()/day)))
	}
	t.days.Store(d)
	return d.packed
}
