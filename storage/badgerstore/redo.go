package badgerstore

import (
	"errors"
	"fmt"
	"sync"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// Each transaction is first written to the event log, as a redo record with its paths and values. Then the store applies the writes to
// the database and answers the caller. After a crash the next start applies the redo records again: replay.go.
//
// A transaction with more writes than Badger takes at once is applied in several transactions of Badger. All new
// views wait until the last one is committed.

// The kinds of records in the event log. The kind is the first byte of the record. A record whose first byte is below
// flagsEnd is an event, and this byte has its flags.
const (
	recordRedo       = flagsEnd + iota // followed by the result of writes.encode
	recordCounter                      // the state of a counter, see import.go
	recordNothing                      // shows that the event log can be written, see heal.go
	recordHold                         // an event that opens a hold, see event.codeHold
	recordSettlement                   // an event that ends a hold
)

// isEvent reports whether a record is an event.
func isEvent(payload []byte) bool { return payload[0] < flagsEnd || payload[0] >= recordHold }

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
	record := w.encode()
	position, err := s.appendAndWait(func(b []byte, _ int64) []byte { return append(append(b, recordRedo), record...) })
	if err != nil {
		return fault(err)
	}
	w.position = position
	return s.apply(w)
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

// apply applies writes that are in the event log to the database. The store fails when apply fails.
func (s *Store) apply(w *writes) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	// A counter takes no requests while it is being deleted. Its events up to now do not count.
	s.counters.markBusy(w.dropped, s.events.Written())
	if !w.fit() {
		s.halfApplied.Lock()
		defer s.halfApplied.Unlock()
	}
	err := s.write(w, s.events.End())
	s.counters.clearBusy(w.dropped, err == nil)
	switch {
	case err == nil:
		s.endHolds(w)
		s.forgetPurged(w.purged)
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
