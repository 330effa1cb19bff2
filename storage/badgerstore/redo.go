package badgerstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Each transaction is first written to the event log, as a redo record with its paths and values. A large
// transaction is split: its parts come first, and the redo record commits them. Then the store applies
// the writes to the database and answers the caller. After a crash the next start applies the redo
// records again: replay.go.
//
//	redo record  recordRedo, number of parts, distance back to each part: uvarints; writes
//	part         recordPart; writes
//
// Each part is applied in its own transaction of the database. Readers of the account wait until all
// parts are applied.

// The kinds of records in the event log. The kind is the first byte of the record. A record whose first byte is below
// recordRedo is an event, and this byte has its flags.
const (
	recordRedo    = 0x80 + iota
	recordPart    // of a transaction
	recordCounter // the state of a counter, see import.go
	recordEvent   // an event with a reason other than the quota, or an adjustment, see history.go
)

// isEvent reports whether a record is an event.
func isEvent(payload []byte) bool { return payload[0] < recordRedo || payload[0] == recordEvent }

// retryEvery is the pause before the event log or the database is tried again.
const retryEvery = 100 * time.Millisecond

// redo is a transaction on its way into the event log.
type redo struct {
	s     *Store
	since *int64  // see inFlight.begin
	parts []int64 // the positions of the parts
}

// inFlight is the set of running operations, each with the oldest position of the event log that the
// operation still needs.
type inFlight struct {
	mu    sync.Mutex
	since map[*int64]struct{}
}

// begin adds an operation that needs the event log from the position that from returns on. The caller
// passes the result to end.
func (f *inFlight) begin(from func() int64) (since *int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since == nil {
		f.since = map[*int64]struct{}{}
	}
	since = new(from())
	f.since[since] = struct{}{}
	return since
}

func (f *inFlight) end(since *int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.since, since)
}

// oldest returns the oldest position that an operation still needs, or end if that is lower.
func (f *inFlight) oldest(end int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for since := range f.since {
		end = min(end, *since)
	}
	return end
}

// newRedo begins a transaction. The caller must call done, also after an error.
func (s *Store) newRedo() *redo { return &redo{s: s, since: s.inFlight.begin(s.events.Written)} }

func (r *redo) done() { r.s.inFlight.end(r.since) }

// part writes w to the event log, as one part or several.
func (r *redo) part(w *writes) error {
	if w.err != nil {
		return w.err
	}
	for _, part := range w.split() {
		position, err := r.s.appendAndWait(func(b []byte, _ int64) []byte { return part.encode(append(b, recordPart)) })
		if err != nil {
			return err
		}
		r.parts = append(r.parts, position)
	}
	return nil
}

// appendAndWait appends a record and waits until the record is written.
func (s *Store) appendAndWait(encode func(b []byte, position int64) []byte) (position int64, err error) {
	if err := s.events.Ready(); err != nil {
		return 0, err
	}
	position, t, err := s.events.AppendAwaited(encode, eventlog.Keep{})
	if err != nil {
		return 0, err
	}
	return position, t.Wait()
}

// commit writes the redo record with the last writes, and applies the transaction. commit applies the
// transaction also after a temporary error of the event log: the event log keeps the record in memory
// and writes it as soon as it can.
func (r *redo) commit(account string, w *writes) error {
	s := r.s
	if w.err != nil {
		return w.err
	}
	if !w.fit() || len(r.parts) > 0 {
		if err := r.part(w); err != nil {
			return fault(err)
		}
		w = newWrites()
	}
	if err := firstOf(s.failure(), s.ready()); err != nil {
		return fault(err)
	}
	var appended int64
	position, err := s.appendAndWait(func(b []byte, position int64) []byte {
		appended = position
		s.unapplied.add(position, len(r.parts) > 0)
		b = binary.AppendUvarint(append(b, recordRedo), uint64(len(r.parts)))
		for _, part := range r.parts {
			b = binary.AppendUvarint(b, back(position, part))
		}
		return w.encode(b)
	})
	if position == 0 {
		s.unapplied.remove(appended)
		return fault(err)
	}
	for len(r.parts) > 0 && errors.Is(err, eventlog.ErrTemporary) && s.stopped() == nil {
		time.Sleep(retryEvery) // applying parts now could leave some of them in a table without a redo record in the event log
		err = s.events.Flush()
	}
	if err != nil && (!errors.Is(err, eventlog.ErrTemporary) || len(r.parts) > 0) {
		return s.fail(err)
	}
	if len(r.parts) == 0 {
		return firstOf(s.apply(w, position), fault(err))
	}
	if err := s.events.Sync(); err != nil { // a table with some of the parts may be on disk before the next sync
		return fault(err)
	}
	return s.applyParts(account, r.parts, w, position)
}

// store commits a transaction with the writes w.
func (s *Store) store(w *writes) error {
	r := s.newRedo()
	defer r.done()
	return r.commit("", w)
}

// apply applies writes that are in the event log to the database: the last writes of the transaction at a position, or
// a part of a transaction, with position 0. The store fails when apply fails.
func (s *Store) apply(w *writes, position int64) error {
	dropped, err := w.dropped()
	if err != nil {
		return s.fail(err)
	}
	s.committing.Lock()
	defer s.committing.Unlock()
	// A counter takes no requests while it is being deleted. Its events up to now do not count.
	s.counters.hold(dropped, s.events.Written())
	defer func(held []ref) { s.counters.release(held, err == nil) }(dropped)
	for err = s.write(w, dropped, s.events.End()); errors.Is(err, eventlog.ErrTemporary) && s.stopped() == nil; {
		s.applyErr.Store(&err)
		time.Sleep(retryEvery) // the transaction is committed: its record is in the event log
		err = s.write(w, dropped, s.events.End())
	}
	s.applyErr.Store(nil)
	if err != nil {
		return s.fail(err)
	}
	s.unapplied.remove(position)
	return nil
}

// await waits until done is closed. It returns an error when the store has failed, and when the database cannot be
// written at the moment: then done may be closed much later.
func (s *Store) await(done <-chan struct{}) error {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return s.failure()
		case <-tick.C:
			if err := s.applyErr.Load(); err != nil {
				return fault(*err)
			}
		}
	}
}

// applyParts applies the parts of the transaction at a position, and then its last writes. Readers of the account wait until it ends,
// see [Store.await].
func (s *Store) applyParts(account string, parts []int64, last *writes, position int64) error {
	done := make(chan struct{})
	s.applyingMu.Lock()
	s.applying[account] = done
	s.applyingMu.Unlock()
	defer close(done)
	for _, position := range parts {
		w, err := s.readPart(position)
		if err != nil {
			return s.fail(err) // the account stays in s.applying, because its transaction is half applied
		}
		if err := s.apply(w, 0); err != nil {
			return err
		}
	}
	if err := s.apply(last, position); err != nil {
		return err
	}
	s.applyingMu.Lock()
	delete(s.applying, account)
	s.applyingMu.Unlock()
	return nil
}

// readPart returns the writes of the part at a position of the event log.
func (s *Store) readPart(position int64) (*writes, error) {
	payload, err := s.events.Read(position, nil)
	if err != nil {
		return nil, err
	}
	if payload[0] != recordPart {
		return nil, errEvent
	}
	return decodeWrites(payload[1:])
}

// decodeRedo decodes the redo record at a position: the positions of its parts, and its own writes.
func decodeRedo(payload []byte, position int64) (parts []int64, w *writes, err error) {
	r := decoder{payload[1:]}
	n := r.uvarint()
	if n > math.MaxInt32 {
		return nil, nil, errEvent
	}
	for range n {
		parts = append(parts, r.back(position))
		if r.failed() {
			return nil, nil, errEvent
		}
	}
	if r.failed() {
		return nil, nil, errEvent
	}
	w, err = decodeWrites(r.rest)
	return parts, w, err
}

// The largest number of records and bytes in one transaction of Badger. Badger's own limits are about 15 % of a
// memtable. These limits are well below, and keep each commit short.
const (
	maxWrites     = 4000
	maxWriteBytes = 512 << 10
)

// The largest path and value of one record. Badger refuses keys of more than 65,000 bytes, and appends its version to a path.
const (
	maxPathBytes  = 64_000
	maxValueBytes = 256 << 10
)

// writes are the changes of a transaction. Deleting a counter is a separate kind of write, because a counter shares its
// page with others.
type writes struct {
	byPath map[string]write
	pages  map[string]bool // the pages that counters are deleted from
	bytes  int
	err    error // a record that Badger could not apply; it must not get into the event log, which is replayed at each start
}

type write struct {
	value []byte // nil to delete
	drop  bool   // deletes a counter: the path is a droppedPath
}

func newWrites() *writes { return &writes{byPath: map[string]write{}, pages: map[string]bool{}} }

// put writes a record, or deletes it when the value is nil.
func (w *writes) put(p path, value []byte) { w.add(p, write{value: value}) }

// drop deletes a counter with its history.
func (w *writes) drop(of ref) { w.add(droppedPath(of), write{drop: true}) }

func (w *writes) add(p path, one write) {
	if len(p) > maxPathBytes || len(one.value) > maxValueBytes {
		w.err = &core.Error{Code: core.CodeInternal, Message: fmt.Sprintf("A record of %d bytes with a key of %d bytes does not fit into the database (%q…)", len(one.value), len(p), p[:1])}
	}
	w.byPath[string(p)] = one
	w.bytes += len(p) + len(one.value)
	if last := len(p) - 1; one.drop && last >= 0 {
		page := string(append(p[:last:last], p[last]>>pageBits))
		if !w.pages[page] {
			w.pages[page] = true
			w.bytes += typicalPageBytes
		}
	}
}

// value returns the new value at a path, nil for a deletion. ok is false without a write at the path.
func (w *writes) value(p path) (value []byte, ok bool) {
	one, ok := w.byPath[string(p)]
	return one.value, ok
}

// fit reports whether the writes fit into one transaction of Badger.
func (w *writes) fit() bool { return len(w.byPath) <= maxWrites && w.bytes <= maxWriteBytes }

// split splits the writes into parts that each fit into one transaction of Badger.
func (w *writes) split() []*writes {
	var parts []*writes
	last := newWrites()
	for _, p := range slices.Sorted(maps.Keys(w.byPath)) { // sorting keeps the counters of a page together
		if !last.fit() || last.bytes+len(w.byPath[p].value) > maxWriteBytes || len(parts) == 0 {
			last = newWrites()
			parts = append(parts, last)
		}
		last.add(path(p), w.byPath[p])
	}
	return parts
}

// write commits the records of writes in one transaction of Badger, and then the pages of the deleted counters in others:
// a page has up to 440 KiB (64 counters with [core.MaxMetersEver] meters), and a transaction takes 630 KB on a small disk.
// After a crash in between, the replay writes all of them again. The events of deleted counters up to a position do not
// count. The caller holds committing.
func (s *Store) write(w *writes, dropped []ref, position int64) error {
	err := s.commitReadyLocked(func(txn *table.Txn) error {
		for p, one := range w.byPath {
			if one.drop {
				continue
			}
			if err := setOrDelete(txn, path(p), one.value); err != nil {
				return err
			}
		}
		return nil
	})
	for rest := dropped; len(rest) > 0 && err == nil; {
		err = s.commitReadyLocked(func(txn *table.Txn) error {
			for bytes := 0; len(rest) > 0 && bytes < pageTxnBytes; {
				n := countOnSamePage(rest)
				size, err := dropCounters(txn, rest[:n], position)
				if err != nil {
					return err
				}
				bytes += size
				rest = rest[n:]
			}
			return nil
		})
	}
	return err
}

// dropped returns the counters that the writes delete, in the order of their pages.
func (w *writes) dropped() (list []ref, err error) {
	for p, one := range w.byPath {
		if !one.drop {
			continue
		}
		r := decoder{path(p)[1:]}
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

// commitLocked runs fill on a transaction of Badger and commits the transaction. It returns an error when Badger cannot
// be written to now. The commit is not synced, because it follows from the event log. The caller holds committing, so
// only one commit runs at a time.
func (s *Store) commitLocked(fill func(*table.Txn) error) error {
	if err := firstOf(s.failure(), s.ready()); err != nil {
		return fault(err)
	}
	return s.commitReadyLocked(fill)
}

// commitReadyLocked is commitLocked without the check: the event log already has the writes of fill.
func (s *Store) commitReadyLocked(fill func(*table.Txn) error) error {
	txn := s.db.NewTxn()
	defer txn.Discard()
	if err := fill(txn); err != nil {
		return fault(err)
	}
	if err := s.beforeCommit(); err != nil {
		return fault(err)
	}
	s.failpoint(failCommit)
	if err := s.badgerError(s.db.Commit(txn, s.endMemtable)); err != nil {
		return err
	}
	s.failpoint(failCommitted)
	return nil
}

// errBadger means that Badger could not commit. Badger may then have no memtable, and the next read would end the
// process.
var errBadger = errors.New("the database cannot be written")

// badgerError fails the store after an error of Badger, except after a temporary error of the event log, and when the
// disk space or the descriptor for the next memtable is missing.
func (s *Store) badgerError(err error) error {
	if errors.Is(err, table.ErrUnprepared) && (reserve.NoRoom(err) || noDescriptors(err)) {
		err = fmt.Errorf("%w: %w", eventlog.ErrTemporary, err)
	}
	if err == nil || errors.Is(err, eventlog.ErrTemporary) {
		return fault(err)
	}
	return s.fail(fmt.Errorf("%w: %w", errBadger, err))
}

// encode appends the writes in the format of a redo record.
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

// The kinds of writes in a redo record.
const (
	opSet = iota
	opDelete
	opDrop
)

// decodeWrites decodes the result of encode.
func decodeWrites(record []byte) (*writes, error) {
	w := newWrites()
	for r := (decoder{record}); len(r.rest) > 0 || r.failed(); {
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
