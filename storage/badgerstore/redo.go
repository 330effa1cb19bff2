package badgerstore

import (
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
)

// A transaction is written to the event log first, as a redo record: the paths and values that it
// writes. A large transaction has parts before its redo record, and has happened only when that
// record is in the event log. Then the writes are applied to the database, and the caller is
// answered. When the store is opened after a crash, redo records are applied again: replay.go.
//
//	redo record  recordRedo, number of parts, how far back each part is: uvarints; writes
//	part         recordPart; writes
//
// A transaction of several parts is applied in as many transactions of the database. Meanwhile
// readers of the account wait.

// The kinds of records of the event log beside events: their first byte, which no event has.
const (
	recordRedo    = 0x80 + iota
	recordPart    // of a transaction
	recordCounter // a counter as it is, see set.go
)

// retryEvery is the time between two attempts to write the redo record of a large transaction.
const retryEvery = 100 * time.Millisecond

// redo is a transaction on its way into the event log.
type redo struct {
	s     *Store
	since *int64
	parts []int64 // their positions
}

// underway has the operations that need the event log from a position on.
type underway struct {
	mu    sync.Mutex
	since map[*int64]struct{}
}

// begin adds an operation that needs the event log from a position on. The caller calls end.
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

// oldest returns up to which position, at most end, no operation needs the event log.
func (u *underway) oldest(end int64) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	for since := range u.since {
		end = min(end, *since)
	}
	return end
}

// newRedo begins a transaction. The caller calls done in any case.
func (s *Store) newRedo() *redo { return &redo{s: s, since: s.underway.begin(s.events.Written)} }

func (r *redo) done() { r.s.underway.end(r.since) }

// part writes a part of the transaction to the event log.
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

// commit writes the redo record with the last writes, and applies the transaction. After a
// temporary error of the event log the transaction is applied, too: the event log keeps the record and
// writes it as soon as it can.
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
		time.Sleep(retryEvery) // else a table may have a half of the transaction, and the event log nothing
		err = s.events.Flush()
	}
	if err != nil && (!errors.Is(err, eventlog.ErrTemporary) || len(r.parts) > 0) {
		return s.fail(err)
	}
	if len(r.parts) == 0 {
		return firstOf(s.apply(w), fault(err))
	}
	if err := s.events.Sync(); err != nil { // a table with a half of the transaction may be on disk at once
		return fault(err)
	}
	return s.applyParts(account, r.parts)
}

// store commits a transaction of these writes.
func (s *Store) store(w *writes) error {
	r := s.newRedo()
	defer r.done()
	return r.commit("", w)
}

// apply applies writes of the event log to the database. When that fails, the store fails.
func (s *Store) apply(w *writes) error {
	dropped, err := w.dropped()
	if err != nil {
		return s.fail(err)
	}
	s.committing.Lock()
	defer s.committing.Unlock()
	// A counter that is deleted takes no requests meanwhile. Its events up to now do not count.
	s.counters.hold(dropped, s.events.Written())
	defer func(held []ref) { s.counters.release(held, err == nil) }(dropped)
	for err = s.write(w, dropped, s.events.End()); errors.Is(err, eventlog.ErrTemporary) && s.stopped() == nil; {
		s.stuck.Store(&err)
		time.Sleep(retryEvery) // the event log has the writes, so they have happened
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

// applyParts applies the parts of a transaction. Readers of the account wait.
func (s *Store) applyParts(account string, parts []int64) error {
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
	s.spreading.Lock()
	delete(s.spread, account)
	s.spreading.Unlock()
	return nil
}

// readPart reads a part of a transaction from the event log.
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

// decodeRedo returns the positions of the parts of a redo record, and its own writes.
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
