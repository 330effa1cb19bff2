package badgerstore

import (
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
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
//
// The transactions of an account come one after the other. Each sets the record applied of its account to its own
// position, as its last write. So replay sees which transactions the tables have, and applies none of these again:
// after a repair, the tables can have later transactions that the event log lacks.

// The kinds of records in the event log other than events. The kind is the first byte of the record; no
// event begins with one of these bytes.
const (
	recordRedo    = 0x80 + iota
	recordPart    // of a transaction
	recordCounter // the state of a counter, see set.go
)

// retryEvery is the time between two attempts to write the redo record of a large transaction.
const retryEvery = 100 * time.Millisecond

// redo is a transaction on its way into the event log.
type redo struct {
	s       *Store
	since   *int64  // see underway.begin
	parts   []int64 // the positions of the parts
	applied path    // of the record that gets the position of the transaction; nil without one
}

// underway is the set of running operations, each with the oldest position of the event log that the
// operation still needs.
type underway struct {
	mu    sync.Mutex
	since map[*int64]struct{}
}

// begin adds an operation that needs the event log from the position that from returns on. The caller
// passes the result to end.
func (u *underway) begin(from func() int64) (since *int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.since == nil {
		u.since = map[*int64]struct{}{}
	}
	since = new(from())
	u.since[since] = struct{}{}
	return since
}

func (u *underway) end(since *int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.since, since)
}

// oldest returns the oldest position that an operation still needs, or end if that is lower.
func (u *underway) oldest(end int64) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	for since := range u.since {
		end = min(end, *since)
	}
	return end
}

// newRedo begins a transaction. applied is nil unless the caller runs all transactions with this path one after the
// other. The caller must call done, also after an error.
func (s *Store) newRedo(applied path) *redo {
	return &redo{s: s, since: s.underway.begin(s.events.Written), applied: applied}
}

func (r *redo) done() { r.s.underway.end(r.since) }

// part writes these writes to the event log, as one part or several.
func (r *redo) part(w *writes) error {
	for _, some := range w.split() {
		position, err := r.s.appendAndWait(func(b []byte, _ int64) []byte { return some.encode(append(b, recordPart)) })
		if err != nil {
			return err
		}
		r.parts = append(r.parts, position)
	}
	return nil
}

// appendAndWait appends a record and waits until it is in the event log.
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
	if !w.fit() || len(r.parts) > 0 {
		if err := r.part(w); err != nil {
			return fault(err)
		}
		w = newWrites()
	}
	if err := firstOf(s.failure(), s.ready()); err != nil {
		return fault(err)
	}
	position, err := s.appendAndWait(func(b []byte, position int64) []byte {
		if r.applied != nil {
			w.put(r.applied, encodeNumber(position))
		}
		b = binary.AppendUvarint(append(b, recordRedo), uint64(len(r.parts)))
		for _, part := range r.parts {
			b = binary.AppendUvarint(b, back(position, part))
		}
		return w.encode(b)
	})
	if position == 0 {
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
		return firstOf(s.apply(w), fault(err))
	}
	if err := s.events.Sync(); err != nil { // a table with some of the parts may be on disk before the next sync
		return fault(err)
	}
	return s.applyParts(account, r.parts, w)
}

// store commits a transaction with only these writes. applied is that of newRedo.
func (s *Store) store(w *writes, applied path) error {
	r := s.newRedo(applied)
	defer r.done()
	return r.commit("", w)
}

// apply applies writes that are in the event log to the database. If they cannot be applied, the store fails.
func (s *Store) apply(w *writes) error {
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
		s.stuck.Store(&err)
		time.Sleep(retryEvery) // the transaction is committed: its record is in the event log
		err = s.write(w, dropped, s.events.End())
	}
	s.stuck.Store(nil)
	if err != nil {
		return s.fail(err)
	}
	return nil
}

// await waits until done is closed. It returns why the store has failed, or why the database cannot be
// written at the moment: then done may be closed much later.
func (s *Store) await(done <-chan struct{}) error {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return s.failure()
		case <-tick.C:
			if err := s.stuck.Load(); err != nil {
				return fault(*err)
			}
		}
	}
}

// applyParts applies the parts of a transaction, and then its last writes. Readers of the account wait until it ends,
// see [Store.await].
func (s *Store) applyParts(account string, parts []int64, last *writes) error {
	done := make(chan struct{})
	s.spreading.Lock()
	s.spread[account] = done
	s.spreading.Unlock()
	defer close(done)
	for _, position := range parts {
		w, err := s.readPart(position)
		if err != nil {
			return s.fail(err) // the account stays in s.spread: it is half written
		}
		if err := s.apply(w); err != nil {
			return err
		}
	}
	if err := s.apply(last); err != nil {
		return err
	}
	s.spreading.Lock()
	delete(s.spread, account)
	s.spreading.Unlock()
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
	r := reading{payload[1:]}
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
