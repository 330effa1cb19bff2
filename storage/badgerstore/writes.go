package badgerstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
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

// split returns parts that each fit into a transaction of badger.
func (w *writes) split() []*writes {
	var parts []*writes
	last := newWrites()
	for _, p := range slices.Sorted(maps.Keys(w.byPath)) { // counters by their pages
		if !last.fit() || len(parts) == 0 {
			last = newWrites()
			parts = append(parts, last)
		}
		last.add(path(p), w.byPath[p])
	}
	return parts
}

// write carries out writes in one transaction of badger. The events of deleted counters up to a
// position do not count. The caller holds committing.
func (s *Store) write(w *writes, dropped []ref, position int64) error {
	return s.commitReadyLocked(func(txn *table.Txn) error {
		for p, one := range w.byPath {
			if one.drop {
				continue
			}
			if err := setOrDelete(txn, path(p), one.value); err != nil {
				return err
			}
		}
		for rest := dropped; len(rest) > 0; {
			n := onOnePage(rest)
			if err := dropCounters(txn, rest[:n], position); err != nil {
				return err
			}
			rest = rest[n:]
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

func setOrDelete(txn *table.Txn, p path, value []byte) error {
	if value == nil {
		return txn.Delete(p)
	}
	return txn.Set(p, value)
}

// commitLocked runs fill on a transaction of badger and commits it, if badger can be written to now.
// Only one commit is under way at a time. What was committed need not be on disk: it follows from the
// event log.
func (s *Store) commitLocked(fill func(*table.Txn) error) error {
	if err := firstOf(s.failure(), s.ready()); err != nil {
		return fault(err)
	}
	return s.commitReadyLocked(fill)
}

// commitReadyLocked does so without asking: the event log has what fill writes.
func (s *Store) commitReadyLocked(fill func(*table.Txn) error) error {
	txn := s.db.NewTxn()
	defer txn.Discard()
	if err := fill(txn); err != nil {
		return fault(err)
	}
	if err := s.onCommit(); err != nil {
		return fault(err)
	}
	s.step(stepCommit)
	if err := s.badgerError(s.db.Commit(txn, s.syncEvents)); err != nil {
		return err
	}
	s.step(stepCommitted)
	return nil
}

// errBadger means that Badger could not commit. It may be left without a memtable then, and ends the
// process when it is read.
var errBadger = errors.New("the database cannot be written")

// badgerError makes the store fail after an error of Badger. It does not after a temporary error of the event log, or
// when the file of the next memtable lacks room or a descriptor.
func (s *Store) badgerError(err error) error {
	if errors.Is(err, table.ErrUnprepared) && (noRoom(err) || noDescriptors(err)) {
		err = fmt.Errorf("%w: %w", eventlog.ErrTemporary, err)
	}
	if err == nil || errors.Is(err, eventlog.ErrTemporary) {
		return fault(err)
	}
	return s.fail(fmt.Errorf("%w: %w", errBadger, err))
}

// encode appends the writes, as a redo record has them.
func (w *writes) encode(record []byte) []byte {
	record = slices.Grow(record, w.bytes+8*len(w.byPath))
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

// What is done at a path, in a redo record.
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
