package badgerstore

import (
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// A sweep removes the index records of expired request ids, and expired days of the archive. It follows each
// scrub. The store does not use Badger's TTL, because Badger reads the clock of the machine: a wrong clock would
// hide records that are still needed, and a compaction would drop them.

const (
	sweepBatch = maxWrites / 2         // records read between two pauses
	sweepPause = 10 * time.Millisecond // limits a sweep to 200,000 records a second
)

// sweep removes the records that are expired at a time. pause waits, and returns false to end the sweep.
func (s *Store) sweep(now time.Time, pause func(time.Duration) bool) error {
	remembered, oldest := s.rememberedFrom(now), core.DateOf(now.Add(-archiveTime))
	err := s.removeIf(at(kindRepeat), pause, func(_ path, value []byte) (bool, error) {
		position, err := decodeNumber(value)
		return position < remembered, err
	})
	return firstOf(err, s.removeIf(at(kindDay), pause, func(p path, _ []byte) (bool, error) { return dateIn(p) < oldest, nil }))
}

// rememberedFrom returns the position of the oldest event whose request id may still be remembered at a time.
func (s *Store) rememberedFrom(now time.Time) (position int64) {
	for _, g := range s.events.Segments() {
		if position = g.Base; g.Hard >= now.Unix() {
			break
		}
	}
	return position
}

// removeIf removes the records whose paths begin with prefix and for which expired returns true.
func (s *Store) removeIf(prefix path, pause func(time.Duration) bool, expired func(p path, value []byte) (bool, error)) error {
	for from := prefix; from != nil && pause(sweepPause); {
		var old []path
		next, seen := path(nil), 0
		err := s.db.View(func(txn *badger.Txn) error {
			return snapshot{txn}.eachFrom(prefix, from, true, func(p path, value []byte) (bool, error) {
				if seen++; seen > sweepBatch {
					next = append(next, p...)
					return false, nil
				}
				remove, err := expired(p, value)
				if remove {
					old = append(old, append(path(nil), p...))
				}
				return true, err
			})
		})
		if err == nil && len(old) > 0 {
			err = s.removeAll(old, expired)
		}
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}

// removeAll removes the records of paths, except records that are not expired: they were written again since
// they were read.
func (s *Store) removeAll(old []path, expired func(p path, value []byte) (bool, error)) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	return s.commitLocked(func(txn *table.Txn) error {
		for _, p := range old {
			value, err := snapshot{txn.Txn}.get(p)
			if err != nil {
				return err
			}
			remove, err := expired(p, value)
			if err == nil && remove {
				err = txn.Delete(p)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
