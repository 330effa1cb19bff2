package badgerstore

import (
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// A sweep removes index records of request ids and days of the archive whose time is over. It follows
// each scrub. Badger's own TTL goes by the clock of the machine: while that is wrong it hides records
// that count, and a compaction drops them.

const (
	sweepTurn = maxWrites / 2         // records after which it pauses
	sweepRest = 10 * time.Millisecond // at most 200,000 records a second are read
)

// sweep removes what is kept no longer at a time. rest pauses, and returns false to stop.
func (s *Store) sweep(now time.Time, rest func(time.Duration) bool) error {
	remembered, oldest := s.rememberedFrom(now), core.DateOf(now.Add(-archiveTime))
	err := s.removeIf(at(kindRepeat), rest, func(_ path, value []byte) (bool, error) {
		position, err := decodeNumber(value)
		return position < remembered, err
	})
	return firstOf(err, s.removeIf(at(kindDay), rest, func(p path, _ []byte) (bool, error) { return dateIn(p) < oldest, nil }))
}

// rememberedFrom returns the position before which no request id is remembered at a time.
func (s *Store) rememberedFrom(now time.Time) (position int64) {
	for _, g := range s.events.Segments() {
		if position = g.Base; g.Hard >= now.Unix() {
			break
		}
	}
	return position
}

// removeIf removes the records whose paths begin with prefix and for which over returns true.
func (s *Store) removeIf(prefix path, rest func(time.Duration) bool, over func(p path, value []byte) (bool, error)) error {
	for from := prefix; from != nil && rest(sweepRest); {
		var old []path
		next, seen := path(nil), 0
		err := s.db.View(func(txn *badger.Txn) error {
			return snapshot{txn}.eachFrom(prefix, from, true, func(p path, value []byte) (bool, error) {
				if seen++; seen > sweepTurn {
					next = append(next, p...)
					return false, nil
				}
				is, err := over(p, value)
				if is {
					old = append(old, append(path(nil), p...))
				}
				return true, err
			})
		})
		if err == nil && len(old) > 0 {
			err = s.removeAll(old, over)
		}
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}

// removeAll removes the records of paths, but for those that were written anew.
func (s *Store) removeAll(old []path, over func(p path, value []byte) (bool, error)) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	return s.commitLocked(func(txn *table.Txn) error {
		for _, p := range old {
			value, err := snapshot{txn.Txn}.get(p)
			if err != nil {
				return err
			}
			is, err := over(p, value)
			if err == nil && is {
				err = txn.Delete(p)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
