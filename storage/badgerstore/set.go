package badgerstore

import (
	"encoding/binary"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// Imports and denials beyond the history change a counter without an event. Then the whole state of
// the counter is written to the event log, and later events continue from it.
//
//	recordCounter         1 byte
//	account, kind, number uvarints
//	archive stale         1 byte: 1 when the days in the archive do not count
//	days                  their number, a uvarint; for each its date, a varint, the index of the
//	                      value, a uvarint, and the value, a uvarint
//	tally                 see [tally.encode]

// appendSet appends the state of a counter to the event log. The caller holds the lock of its shard.
func (s *Store) appendSet(c *counter) error {
	_, err := s.events.Append(c.encodeSet, eventlog.Keep{})
	c.unlogged = err != nil
	return err
}

// encodeSet appends the record of the state of a counter. The position is that of the record; the
// counter has applied everything up to it.
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

// decodeSet returns the counter of a record that encodeSet has encoded.
func decodeSet(payload []byte) (of ref, t tally, err error) {
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
	if t, err = decodeTally(r.rest); err == nil && (over.archiveStale || len(over.list) > 0) {
		*t.over() = over
	}
	return of, t, err
}

// keepDays adds days of before that are to be put into the archive.
func (t *tally) keepDays(before *unarchived) {
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
