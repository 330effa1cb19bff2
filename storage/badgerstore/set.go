package badgerstore

import (
	"encoding/binary"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// An import, or a denial that the history has no room for, changes a counter without an event. The store then writes
// the whole state of the counter to the event log. Later events continue from that state.
//
//	recordCounter         1 byte
//	account, kind, number uvarints
//	archive stale         1 byte: 1 when the days in the archive do not count
//	days                  number of days, a uvarint; for each day: date, a varint; index of the
//	                      value, a uvarint; value, a uvarint
//	tally                 see [tally.encode]

// appendSet appends the state of a counter to the event log. The caller holds the lock of its shard.
func (s *Store) appendSet(c *counter) error {
	_, err := s.events.Append(c.encodeSet, eventlog.Keep{})
	c.unlogged = err != nil
	return err
}

// encodeSet appends the record with the state of a counter to b. position is the position of the record. The
// counter has applied all events up to there.
func (c *counter) encodeSet(b []byte, position int64) []byte {
	c.applied = position
	b = append(b, recordCounter)
	b = binary.AppendUvarint(b, uint64(c.account))
	b = binary.AppendUvarint(b, uint64(c.kind))
	b = binary.AppendUvarint(b, uint64(c.number))
	var over unarchived
	if days := c.days.unarchived(); days != nil {
		over = *days
	}
	stale := byte(0)
	if over.archiveStale {
		stale = 1
	}
	b = binary.AppendUvarint(append(b, stale), uint64(len(over.list)))
	for _, d := range over.list {
		b = binary.AppendVarint(b, int64(d.date))
		b = binary.AppendUvarint(b, uint64(d.number))
		b = binary.AppendUvarint(b, uint64(d.used))
	}
	return c.encode(b)
}

// decodeSet decodes a record of encodeSet: a counter and its state.
func decodeSet(payload []byte) (of ref, t counterState, err error) {
	r := reading{payload[1:]}
	of = ref{account: uint32(r.uvarint()), kind: uint32(r.uvarint()), number: int64(r.uvarint())}
	over := unarchived{archiveStale: r.uvarint() == 1}
	for n := r.uvarint(); n > 0 && !r.failed(); n-- {
		d := dayNumber{date: core.Date(r.varint()), number: uint8(r.uvarint()), used: int64(r.uvarint())}
		if d.number >= dayNumbers {
			return of, t, errEvent
		}
		over.list = append(over.list, d)
	}
	if r.failed() || len(r.rest) == 0 {
		return of, t, errEvent
	}
	if t, err = decodeState(r.rest); err == nil && (over.archiveStale || len(over.list) > 0) {
		*t.over() = over
	}
	return of, t, err
}

// keepDays adds the days of before that still have to be archived.
func (t *counterState) keepDays(before *unarchived) {
	if before == nil || t.days != nil && t.days.over != nil && t.days.over.archiveStale {
		return
	}
	over := t.over()
	over.archiveStale = before.archiveStale
	for _, d := range before.list {
		if !slices.ContainsFunc(over.list, d.same) {
			over.list = append(over.list, d)
		}
	}
}
