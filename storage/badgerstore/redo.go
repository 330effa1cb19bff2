package badgerstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// Each transaction is first written to the event log, as a redo record with its paths and values. The encoded writes of a large
// transaction are cut into parts, so that no request waits for the write of a large block: the parts come first, and the redo
// record commits them. Then the store applies the writes to the database and answers the caller. After a crash the next start
// applies the redo records again: replay.go.
//
//	redo record  recordRedo, number of parts, distance back to each part: uvarints; writes if there is no part
//	part         recordPart; writes
//
// A transaction with more writes than Badger takes at once is applied in several transactions of Badger. All new
// views wait until the last one is committed.

// The kinds of records in the event log. The kind is the first byte of the record. A record whose first byte is below
// recordRedo is an event, and this byte has its flags.
const (
	recordRedo    = 0x80 + iota
	recordPart    // of a transaction
	recordCounter // the state of a counter, see import.go
)

// isEvent reports whether a record is an event.
func isEvent(payload []byte) bool { return payload[0] < recordRedo }

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

// commit writes the redo record of a transaction, and applies the writes.
func (s *Store) commit(w *writes) error {
	if err := firstOf(w.err, s.failure(), s.ready()); err != nil {
		return fault(err)
	}
	s.unapplied.RLock()
	defer s.unapplied.RUnlock()
	since := s.inFlight.begin(s.events.Written)
	defer s.inFlight.end(since)
	var err error
	if w.position, err = s.appendWrites(w.encode()); err != nil {
		return fault(err)
	}
	return s.apply(w)
}

// maxPart is the largest size of a part in bytes.
const maxPart = 128 << 10

// appendWrites appends the encoded writes of a transaction to the event log and waits until they are written. It returns the
// position of the redo record, 0 when there is none.
func (s *Store) appendWrites(record []byte) (int64, error) {
	var parts []int64
	if len(record) > maxPart {
		for part := range slices.Chunk(record, maxPart) {
			position, err := s.appendAndWait(func(b []byte, _ int64) []byte { return append(append(b, recordPart), part...) })
			if err != nil {
				return 0, err
			}
			parts = append(parts, position)
		}
		record = nil
	}
	return s.appendAndWait(func(b []byte, position int64) []byte {
		b = binary.AppendUvarint(append(b, recordRedo), uint64(len(parts)))
		for _, part := range parts {
			b = binary.AppendUvarint(b, back(position, part))
		}
		return append(b, record...)
	})
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

// readWrites returns the writes of the redo record at a position, with those in its parts.
func (s *Store) readWrites(payload []byte, position int64) (*writes, error) {
	r := newDecoder(payload[1:])
	var parts []byte
	for n := r.Uvarint(); n > 0; n-- {
		at := r.back(position)
		if r.Failed() {
			return nil, errEvent
		}
		part, err := s.events.Read(at, nil)
		if err != nil {
			return nil, err
		}
		if part[0] != recordPart {
			return nil, errEvent
		}
		parts = append(parts, part[1:]...)
	}
	if r.Failed() {
		return nil, errEvent
	}
	return decodeWrites(append(parts, r.Rest()...))
}

// apply applies writes that are in the event log to the database. The store fails when apply fails.
func (s *Store) apply(w *writes) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	// A counter takes no requests while it is being deleted. Its events up to now do not count.
	s.counters.hold(w.dropped, s.events.Written())
	if !w.fit() {
		s.halfApplied.Lock()
		defer s.halfApplied.Unlock()
	}
	err := s.write(w, s.events.End())
	s.counters.release(w.dropped, err == nil)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, errBadger):
		err = fmt.Errorf("%w: %w", errBadger, err) // readers are refused: the transaction may be half applied
	}
	return s.fail(err)
}

// commitTxn runs fill on a transaction of Badger and commits the transaction. It returns an error when Badger cannot
// be written to now. The commit is not synced, because it follows from the event log.
func (s *Store) commitTxn(fill func(*badger.Txn) error) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	if err := firstOf(s.failure(), s.ready()); err != nil {
		return fault(err)
	}
	return s.commitLocked(s.events.Written(), fill)
}

// commitLocked is commitTxn without the check: the event log already has the writes of fill, before the position upTo. The
// caller holds committing, so only one commit runs at a time.
func (s *Store) commitLocked(upTo int64, fill func(*badger.Txn) error) error {
	if err := s.inDoubt(); err != nil { // Badger may have no memtable
		return err
	}
	txn := s.db.NewTransaction(true)
	defer txn.Discard()
	s.indexed = max(s.indexed, upTo, s.events.Written())
	err := txn.Set(at(kindIndexed), encodeNumber(s.indexed))
	if err == nil {
		err = fill(txn)
	}
	if err == nil {
		err = s.beforeCommit()
	}
	if err != nil {
		return fault(err)
	}
	s.failpoint(failCommit)
	if err := txn.Commit(); err != nil {
		return s.fail(fmt.Errorf("%w: %w", errBadger, err))
	}
	s.failpoint(failCommitted)
	return nil
}

// errBadger means that Badger could not commit. Badger may then have no memtable, and the next commit would end the process. The
// database is rebuilt.
var errBadger = errors.New("the database cannot be written")
