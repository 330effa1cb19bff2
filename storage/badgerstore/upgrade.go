package badgerstore

import (
	"fmt"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Before schema 6, transactions were only in the database, and the newest ones only in the write-ahead logs of
// memtables. Open opens such a store with these logs, upgrades it and closes it. Then all data is in tables, and Open
// opens the store like any other one. An interrupted upgrade starts again.

// The earlier schemas that this version reads. See schema for their differences.
const (
	withoutDays  = 2
	withoutKept  = 3
	withFormat1  = 4
	withoutPages = 5
)

// upgrade upgrades the store of an earlier version. highest has the largest numbers in its events. The caller closes
// the store.
func (s *Store) upgrade(highest map[ref]int64) error {
	return firstOf(s.applyJournals(), s.raiseNumbers(highest), s.listOldPages(), s.keepDays(), s.checkpoint(), s.storeSchema())
}

// storeSchema stores the schema in the database, without a redo record.
func (s *Store) storeSchema() error {
	s.committing.Lock()
	defer s.committing.Unlock()
	return s.commitLocked(func(txn *table.Txn) error { return txn.Set(at(kindSchema), encodeNumber(schema)) })
}

// raiseNumbers raises the last numbers of keys and users to the numbers in events, so new resources get unused numbers.
// After a power cut, the event log of an earlier version may have events of keys that the database has lost.
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

// keepDays rewrites the records of the archive without a TTL. Before schema 6, Badger expired these records by the clock
// of the machine: a clock that is wrong by a year would expire all of them. Now the daily sweep removes them.
func (s *Store) keepDays() error {
	w := newWrites()
	err := s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(at(kindDay), true, func(p path, value []byte) (bool, error) {
			w.put(p, slices.Clone(value))
			if w.fit() {
				return true, nil
			}
			full := w
			w = newWrites()
			return true, s.apply(full)
		})
	})
	return firstOf(err, s.apply(w))
}

// Before schema 6, a transaction that was too large for one transaction of Badger was first written to a journal: its
// chunks, and then a record that ends the journal. A journal without that record was not committed.
//
//	path                value
//	stripe, chunk       writes
//	stripe, journalEnd  account, number of chunks
const journalEnd = -1

func journalPath(stripe, chunk int64) path { return at(kindJournal).number(stripe).number(chunk) }

// applyJournals applies the remaining chunks of each committed journal, and removes the other journals.
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
		committed := slices.Contains(list, journalEnd) // journalEnd sorts last, so it is removed last
		for _, chunk := range list {
			if err := s.applyChunk(journalPath(stripe, chunk), committed && chunk != journalEnd); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyChunk removes a record of a journal. With apply, it also applies the writes in the record.
func (s *Store) applyChunk(p path, apply bool) error {
	w := newWrites()
	if apply {
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
