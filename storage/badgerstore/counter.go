package badgerstore

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// tally is what is stored of a counter: the counter itself and where its history
// stands.
type tally struct {
	core.Counter

	history uint64 // names the history; 0 while there is none
	entries int64  // how many were ever appended: they are numbered from 1
	newest  time.Time
	late    time.Duration
}

// append gives the next entry its number. It returns too by how much the entry is
// late: earlier than one before it. The clock may step back, and two requests may
// be counted in the other order than they came.
func (t *tally) append(at time.Time) (number int64, late time.Duration) {
	if t.history == 0 {
		t.history = newHistory()
	}
	t.entries++
	if at.After(t.newest) || t.entries == 1 {
		t.newest = at
	}
	late = t.newest.Sub(at)
	t.late = max(t.late, late)
	return t.entries, late
}

// newHistory returns the name of a history that is in nobody's use: there are 2⁶⁴.
func newHistory() uint64 {
	for {
		if h := rand.Uint64(); h != 0 {
			return h
		}
	}
}

// encode returns the record of a counter.
//
//	history         8 bytes
//	entries         uvarint
//	newest, late    time, uvarint of nanoseconds
//	last used       time
//	omitted denials uvarint
//	for each period its start and what was used, varint and uvarint
func (t *tally) encode() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 96), t.history)
	b = binary.AppendUvarint(b, uint64(t.entries))
	b = binary.AppendUvarint(appendTime(b, t.newest), uint64(t.late))
	b = appendTime(b, t.LastUsedAt)
	b = binary.AppendUvarint(b, uint64(t.DeniedOmitted))
	for _, w := range t.Tallies {
		b = binary.AppendUvarint(binary.AppendVarint(b, w.Start), uint64(w.Used))
	}
	return b
}

// decodeTally returns the tally of a record, the zero tally when there is none.
func decodeTally(record []byte) (t tally, err error) {
	if record == nil {
		return t, nil
	}
	r := reading{record}
	t.history, t.entries = r.uint64(), int64(r.uvarint())
	t.newest, t.late = r.time(), time.Duration(r.uvarint())
	t.LastUsedAt, t.DeniedOmitted = r.time(), int64(r.uvarint())
	for i := range t.Tallies {
		t.Tallies[i] = core.Tally{Start: r.varint(), Used: int64(r.uvarint())}
	}
	if r.failed() {
		return tally{}, errRecord
	}
	return t, nil
}

// counter is a counter in memory. It is ahead of what is stored by the requests that
// were decided and not committed yet.
type counter struct {
	id core.CounterID

	mu      sync.Mutex
	loaded  bool
	certain bool  // the key or user exists although there may be no record
	unsaved bool  // it was changed by denials that are in no batch
	ended   error // why it is no longer in use: errDropped, or what a commit failed of
	tally         // guarded by mu

	slot int32  // in the batch; guarded by the queue's lock, as is
	in   *batch // the one that waits and that it is in

	pins         int32 // guarded by the shard's lock, as is what follows
	shard        *shard
	newer, older *counter // by when they were asked for last
}
