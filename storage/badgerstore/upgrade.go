package badgerstore

import (
	"fmt"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Before schema 6 transactions were in the database alone, and the newest in write-ahead logs of
// memtables. Such a store is opened once with these logs, upgraded and closed. Then all its data is
// in tables, and it is opened like any other store. An interrupted upgrade begins again.

// The schemas before that of this version which it reads.
const (
	withoutDays  = 2
	withoutKept  = 3 // counters without denials of a day, segments without the end of their request ids
	withFormat1  = 4 // an event log of format 1
	withoutPages = 5 // no indexes of pages, no transactions in the event log
)

// upgrade brings the store of an earlier version up to date. highest has the largest numbers in
// its events. The caller closes the store.
func (s *Store) upgrade(highest map[ref]int64) error {
	return firstOf(s.applyJournals(), s.raiseNumbers(highest), s.listOldPages(), s.keepDays(), s.checkpoint(), s.storeSchema())
}

// storeSchema stores the version in the database alone.
func (s *Store) storeSchema() error {
	s.committing.Lock()
	defer s.committing.Unlock()
	return s.commitLocked(func(txn *table.Txn) error { return txn.Set(at(kindSchema), encodeNumber(schema)) })
}

// raiseNumbers makes sure that the numbers of keys and users in events are not given again: after a
// power cut the event log may have had events of keys that the database had lost.
func (s *Store) raiseNumbers(highest map[ref]int64) error {
	w := newWrites()
	err := s.db.View(func(txn *badger.Txn) error {
		for of, number := range highest {
			a, err := found[core.Account](snapshot{txn}, accountPath(int64(of.account)), nil)
			if err != nil {
				return err
			}
			if a == nil {
				continue
			}
			p := lastPath(a.ID, byte(of.kind))
			last, err := snapshot{txn}.number(p)
			if err != nil {
				return err
			}
			if number > last {
				w.put(p, encodeNumber(number))
			}
		}
		return nil
	})
	return firstOf(err, s.apply(w))
}

// keepDays writes the archive anew. Before schema 6, Badger removed its records by the clock of the machine: a clock that is
// wrong by a year would remove them all. Now the daily sweep removes them.
func (s *Store) keepDays() error {
	w := newWrites()
	err := s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(at(kindDay), true, func(p path, value []byte) (bool, error) {
			w.put(p, slices.Clone(value))
			if w.fit() {
				return true, nil
			}
			some := w
			w = newWrites()
			return true, s.apply(some)
		})
	})
	return firstOf(err, s.apply(w))
}

// A transaction that was too large for one of badger was written to a journal first: chunks, and
// then a record that says how many there are. One without that record did not happen.
//
//	path              value
//	stripe, chunk     writes
//	stripe, complete  account, how many chunks there are
const journalEnd = -1

func journalPath(stripe, chunk int64) path { return at(kindJournal).number(stripe).number(chunk) }

// applyJournals applies the rest of each complete journal, and drops the others.
func (s *Store) applyJournals() error {
	chunks := map[int64][]int64{}
	err := s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(at(kindJournal), false, func(p path, _ []byte) (bool, error) {
			r := reading{p[1:]}
			stripe, chunk := int64(r.uint64()), int64(r.uint64())
			chunks[stripe] = append(chunks[stripe], chunk)
			return true, nil
		})
	})
	if err != nil {
		return err
	}
	for stripe, list := range chunks {
		happened := slices.Contains(list, journalEnd) // it sorts last, and goes last
		for _, chunk := range list {
			if err := s.applyChunk(journalPath(stripe, chunk), happened && chunk != journalEnd); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyChunk removes a record of a journal, and applies its writes if the journal is complete.
func (s *Store) applyChunk(p path, happened bool) error {
	w := newWrites()
	if happened {
		var record []byte
		err := s.db.View(func(txn *badger.Txn) (err error) {
			record, err = snapshot{txn}.get(p)
			return err
		})
		if err != nil {
			return err
		}
		if w, err = decodeWrites(record); err != nil {
			return fmt.Errorf("a journal: %w", err)
		}
	}
	w.put(p, nil)
	return s.apply(w)
}
