package badgerstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// The bounds of what is written in one transaction of badger. Its own are some 15
// percent of a memtable, in bytes and in records of the largest size; ours are well
// below, and small enough that nobody waits long for a commit.
const (
	maxWrites     = 4000
	maxWriteBytes = 512 << 10
)

// writes are the records to be written by a transaction. Deleting a counter is a kind
// of its own: it shares a page with others.
type writes struct {
	byPath map[string]write
	pages  map[string]bool // those that counters are dropped from
	bytes  int
}

type write struct {
	value []byte // nil to delete
	drop  bool   // the path is that of a counter, see droppedPath
}

func newWrites() *writes { return &writes{byPath: map[string]write{}, pages: map[string]bool{}} }

// put writes a record, or deletes it when the value is nil.
func (w *writes) put(p path, value []byte) { w.add(p, write{value: value}) }

// drop deletes a counter with its history.
func (w *writes) drop(of ref) { w.add(droppedPath(of), write{drop: true}) }

func (w *writes) add(p path, one write) {
	w.byPath[string(p)] = one
	w.bytes += len(p) + len(one.value)
	if last := len(p) - 1; one.drop && last >= 0 {
		page := string(append(p[:last:last], p[last]>>pageBits))
		if !w.pages[page] {
			w.pages[page] = true
			w.bytes += maxPageBytes
		}
	}
}

// of returns the value that is to be written at a path, if any is.
func (w *writes) of(p path) ([]byte, bool) {
	one, ok := w.byPath[string(p)]
	return one.value, ok
}

// fit reports whether one transaction holds all.
func (w *writes) fit() bool { return len(w.byPath) <= maxWrites && w.bytes <= maxWriteBytes }

// store commits all in one transaction. Nobody counts on a counter that is deleted
// from before to after it: what the event log has of it until then does not count.
func (s *Store) store(w *writes) (err error) {
	dropped, err := w.dropped()
	if err != nil {
		return fault(err)
	}
	s.committing.Lock()
	defer s.committing.Unlock()
	s.counters.hold(dropped, s.events.Written())
	defer func(held []ref) { s.counters.release(held, err == nil) }(dropped)
	return s.commitLocked(func(txn *badger.Txn) error {
		for p, one := range w.byPath {
			if one.drop {
				continue
			}
			if err := setOrDelete(txn, path(p), one.value); err != nil {
				return err
			}
		}
		position := s.events.End()
		for len(dropped) > 0 {
			n := onOnePage(dropped)
			if err := dropCounters(txn, dropped[:n], position); err != nil {
				return err
			}
			dropped = dropped[n:]
		}
		return nil
	})
}

// dropped returns the counters that are to be deleted, as their pages are in order.
func (w *writes) dropped() (list []ref, err error) {
	for p, one := range w.byPath {
		if !one.drop {
			continue
		}
		r := reading{path(p)[1:]}
		of := ref{account: uint32(r.uint64())}
		if len(r.rest) > 0 {
			of.kind = uint32(r.rest[0])
			r.skip(1, true)
		}
		of.number = int64(r.uint64())
		if r.failed() {
			return nil, errRecord
		}
		list = append(list, of)
	}
	slices.SortFunc(list, ref.compare)
	return list, nil
}

func setOrDelete(txn *badger.Txn, p path, value []byte) error {
	if value == nil {
		return txn.Delete(p)
	}
	return txn.Set(p, value)
}

// commitLocked runs fill on a transaction of badger, commits it and makes it as
// durable as the store is to be. Only one commit is under way at a time: what was
// committed and what is on the disk never change places.
func (s *Store) commitLocked(fill func(*badger.Txn) error) error {
	if err := s.failure(); err != nil {
		return err
	}
	if err := s.ready(); err != nil {
		return fault(err)
	}
	txn := s.db.NewTransaction(true)
	defer txn.Discard()
	if err := fill(txn); err != nil {
		return fault(err)
	}
	if err := s.onCommit(); err != nil {
		return fault(err)
	}
	s.step(stepCommit)
	if err := txn.Commit(); err != nil {
		return s.fail(fmt.Errorf("%w: %w", errBadger, err))
	}
	s.step(stepCommitted)
	return s.committedLocked()
}

// errBadger means that Badger could not commit. It may be left without a memtable then, and ends the
// process when it is read.
var errBadger = errors.New("the database cannot be written")

// encode returns the writes as a record of the journal.
func (w *writes) encode() []byte {
	record := make([]byte, 0, w.bytes+8*len(w.byPath))
	for p, one := range w.byPath {
		op := byte(opSet)
		if one.drop {
			op = opDrop
		} else if one.value == nil {
			op = opDelete
		}
		record = appendText(append(record, op), p)
		if op == opSet {
			record = binary.AppendUvarint(record, uint64(len(one.value)))
			record = append(record, one.value...)
		}
	}
	return record
}

// What is done at a path, in a record of the journal.
const (
	opSet = iota
	opDelete
	opDrop
)

// decodeWrites returns the writes that encode has encoded.
func decodeWrites(record []byte) (*writes, error) {
	w := newWrites()
	for r := (reading{record}); len(r.rest) > 0 || r.failed(); {
		op := r.uvarint()
		p := path(r.text())
		switch one := (write{drop: op == opDrop}); {
		case op == opSet:
			one.value = []byte(r.text())
			w.add(p, one)
		case op <= opDrop:
			w.add(p, one)
		default:
			return nil, errRecord
		}
		if r.failed() {
			return nil, errRecord
		}
	}
	return w, nil
}
