package badgerstore

import (
	"maps"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// A transaction that is too large for one of badger is first written to a journal,
// in chunks. Then one more record says that it is complete: with that the transaction
// has happened. Now it is spread: chunk after chunk is carried out and deleted, in one
// transaction of badger each. Meanwhile whoever reads the account waits. A journal that
// is complete when the store is opened is spread then, one that is not is dropped.
//
//	path                  value
//	stripe, chunk         what is to be written
//	stripe, complete      account, how many chunks there were
const complete = -1 // sorts last

// journal is the journal of a transaction. A stripe has one at a time: that of the
// transaction that holds its lock.
type journal struct {
	s      *Store
	stripe int
	chunks int
}

func journalPath(stripe, chunk int) path {
	return at(kindJournal).number(int64(stripe)).number(int64(chunk))
}

// append writes a part of the transaction.
func (j *journal) append(w *writes) error {
	for _, part := range w.split() {
		one := newWrites()
		one.put(journalPath(j.stripe, j.chunks), part.encode())
		if err := j.s.store(one); err != nil {
			return err
		}
		j.chunks++
	}
	return nil
}

// split returns parts that each fit into a transaction, and one record more.
func (w *writes) split() []*writes {
	var parts []*writes
	last := newWrites()
	for _, p := range slices.Sorted(maps.Keys(w.byPath)) { // counters by their pages
		one := w.byPath[p]
		if !last.fit() || len(parts) == 0 {
			last = newWrites()
			parts = append(parts, last)
		}
		last.add(path(p), one)
	}
	return parts
}

// store completes the transaction with a last part and spreads it.
func (j *journal) store(account string, last *writes) error {
	if err := j.append(last); err != nil {
		j.drop()
		return err
	}
	mark := newWrites()
	mark.put(journalPath(j.stripe, complete), encodeRef(account, int64(j.chunks)))
	if err := j.s.store(mark); err != nil {
		return err
	}
	return j.s.spreadOver(account, j)
}

// drop deletes a journal that was not completed. What it leaves behind is dropped
// when the store is opened again.
func (j *journal) drop() {
	for ; j.chunks > 0; j.chunks-- {
		w := newWrites()
		w.put(journalPath(j.stripe, j.chunks-1), nil)
		if j.s.store(w) != nil {
			return
		}
	}
}

// spreadOver carries out a journal while nobody reads the account. When that fails
// the store is of no use until it is opened again.
func (s *Store) spreadOver(account string, j *journal) error {
	done := make(chan struct{})
	s.spreading.Lock()
	s.spread[account] = done
	s.spreading.Unlock()
	defer close(done)

	if err := j.carryOut(); err != nil {
		return s.fail(err) // the account stays in s.spread: it is half written
	}
	s.spreading.Lock()
	delete(s.spread, account)
	s.spreading.Unlock()
	return nil
}

// carryOut writes what is left of a complete journal.
func (j *journal) carryOut() error {
	for chunk := range j.chunks {
		if err := j.carryOutChunk(chunk); err != nil {
			return err
		}
	}
	w := newWrites()
	w.put(journalPath(j.stripe, complete), nil)
	return j.s.store(w)
}

func (j *journal) carryOutChunk(chunk int) error {
	p := journalPath(j.stripe, chunk)
	var record []byte
	err := j.s.db.View(func(txn *badger.Txn) (err error) {
		record, err = snapshot{txn}.get(p)
		return err
	})
	if err != nil || record == nil { // it was carried out before
		return err
	}
	w, err := decodeWrites(record)
	if err != nil {
		return err
	}
	w.put(p, nil)
	return j.s.store(w)
}

// recoverJournals carries out the journals that are complete and drops the others.
func (s *Store) recoverJournals() error {
	journals, left, err := s.leftJournals()
	if err != nil {
		return err
	}
	for _, j := range journals {
		if err := j.carryOut(); err != nil {
			return err
		}
		delete(left, j.stripe)
	}
	for _, w := range left {
		for _, part := range w.split() {
			if err := s.store(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// leftJournals returns the journals that are complete, and what deletes the chunks
// of each stripe.
func (s *Store) leftJournals() (journals []*journal, left map[int]*writes, err error) {
	left = map[int]*writes{}
	err = s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(at(kindJournal), true, func(p path, value []byte) (bool, error) {
			r := reading{p[1:]}
			stripe, chunk := int(r.uint64()), int(r.uint64())
			if left[stripe] == nil {
				left[stripe] = newWrites()
			}
			left[stripe].put(journalPath(stripe, chunk), nil)
			if chunk != complete {
				return true, nil
			}
			_, chunks, err := decodeRef(value)
			journals = append(journals, &journal{s: s, stripe: stripe, chunks: int(chunks)})
			return true, err
		})
	})
	return journals, left, err
}
