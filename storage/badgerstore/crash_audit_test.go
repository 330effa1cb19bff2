package badgerstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// audit reads the whole event log and returns its problems: an invalid record, an event whose number or links do not
// match the previous events, an event before the redo record of its key or user, a counter that is not the sum of its
// events, a counter without its key or user.
func audit(s *Store) []string { return newAuditing().audit(s) }

// audit continues after the last record that it has read, also in another store with the same event log.
func (a *auditing) audit(s *Store) []string {
	a.s, a.problems = s, nil
	if err := s.events.Flush(); err != nil {
		return []string{fmt.Sprintf("error: flush: %v", err)}
	}
	if err := a.read(); err != nil {
		return []string{fmt.Sprintf("wrong: %v", err)}
	}
	for of, t := range a.counters {
		a.counter(of, t)
	}
	if mark, end := s.checkpointer.mark.Load(), s.events.End(); mark > end {
		a.problem("the mark of the last checkpoint is %d, and the event log ends at %d", mark, end)
	}
	return a.problems
}

type auditing struct {
	s        *Store
	counters map[ref]*counterEvents
	next     int64 // the position of the next record to read
	end      int64 // of a snapshot, 0 for a store
	problems []string

	created map[ref]bool // keys and users that redo records make, false when they are deleted later
	// maxRemoved has, by kind, the largest number that a removed redo record may have given. A kind without an entry may have
	// any number.
	maxRemoved map[uint32]int64
}

func newAuditing() *auditing {
	return &auditing{counters: map[ref]*counterEvents{}, created: map[ref]bool{}, maxRemoved: map[uint32]int64{}}
}

// counterEvents are the events of a counter in the event log.
type counterEvents struct {
	first     int64   // the number of the first event
	positions []int64 // of the events from first on
	used      int64   // the sum of their costs
}

func (t *counterEvents) last() int64 { return t.first + int64(len(t.positions)) - 1 }

// of returns the position of the event with a number, 0 for an unknown event.
func (t *counterEvents) of(number int64) int64 {
	if number < t.first || number > t.last() {
		return 0
	}
	return t.positions[number-t.first]
}

func (a *auditing) problem(format string, args ...any) {
	a.problems = append(a.problems, "wrong: "+fmt.Sprintf(format, args...))
}

// read reads all records from next on.
func (a *auditing) read() error {
	if a.oldest() > a.next { // the segments in between were removed
		clear(a.created)
		clear(a.maxRemoved)
	}
	err := a.s.events.Replay(max(a.next, a.oldest()), func(position int64, payload []byte) error {
		if a.end > 0 && position >= a.end {
			return nil
		}
		if payload[0] == recordRedo {
			return a.redo(payload, position)
		}
		if payload[0] == recordCounter {
			of, t, err := decodeSet(payload)
			if old := a.counters[of]; old != nil && t.entries == 0 { // SetHistory has cleared the history
				a.counters[of] = &counterEvents{first: 1, used: old.used}
			}
			return err
		}
		if !isEvent(payload) {
			return nil
		}
		e, err := decodeEvent(payload, position)
		if err != nil {
			return fmt.Errorf("at %d: %w", position, err)
		}
		key, user := e.refs()
		if a.event(user, &e, position); key != user {
			a.event(key, &e, position)
		}
		return nil
	})
	a.next = a.s.events.Written()
	return err
}

// redo records the keys and users that a transaction creates and deletes.
func (a *auditing) redo(payload []byte, position int64) error {
	w, err := decodeWrites(payload[1:])
	if err != nil {
		return err
	}
	if _, begins := w.value(at(kindSchema)); begins { // the first record of a store
		a.maxRemoved[kindKey], a.maxRemoved[kindUser] = 0, 0
	}
	made, err := a.s.createdCounters(w)
	for _, of := range w.dropped {
		a.created[of] = false
	}
	for _, of := range made {
		a.created[of] = true
	}
	for _, kind := range []uint32{kindKey, kindUser} {
		last, given := w.value(lastPath(acct, resource.Kind(kind)))
		if _, sure := a.maxRemoved[kind]; given && !sure {
			n, lastErr := decodeNumber(last)
			a.maxRemoved[kind], err = n, firstOf(err, lastErr)
		}
	}
	return err
}

// checkCreated checks that the redo record of a key or user comes before its events.
func (a *auditing) checkCreated(of ref, position int64) {
	_, made := a.created[of]
	if sure, known := a.maxRemoved[of.kind]; known && of.number > sure && !made {
		a.problem("%v at %d: it is counted before it is created", of, position)
	}
}

// event adds an event to the events of its counter. These start again after removed segments, and when a number that was
// lost in a power cut is used again.
func (a *auditing) event(of ref, e *event, position int64) {
	l := e.linkOf(of.kind)
	if l.number == 0 {
		return
	}
	a.checkCreated(of, position)
	t := a.counters[of]
	if t == nil || l.number == 1 && len(t.positions) > 0 || l.prev != 0 && l.prev < a.oldest() {
		t = &counterEvents{first: l.number}
		a.counters[of] = t
	}
	t.positions = append(t.positions, position)
	switch {
	case l.number != t.last():
		a.problem("%v at %d: got number %d, want %d", of, position, l.number, t.last())
	case l.number > t.first && l.prev != t.of(l.number-1):
		a.problem("%v at %d: the previous event is at %d, want %d", of, position, l.prev, t.of(l.number-1))
	case jump(l.number) >= t.first && l.jump != t.of(jump(l.number)):
		a.problem("%v at %d: entry %d is at %d, want %d", of, position, jump(l.number), l.jump, t.of(jump(l.number)))
	}
	if !e.Denied && !e.uncounted && (of.kind == kindKey || e.shared) {
		t.used += e.Cost
	}
}

// counter compares a counter with its events, if its key or user exists. Otherwise it forgets the events, because they
// belong to a deleted key or user.
func (a *auditing) counter(of ref, t *counterEvents) {
	p := userPath(acct, of.number)
	if of.kind == kindKey {
		p = keyPath(acct, of.number)
	}
	exists := false
	err := a.s.inView(func(r view) error {
		err := r.read(p, func([]byte) error { return nil })
		exists = err == nil
		if err == badger.ErrKeyNotFound {
			return nil
		}
		return err
	})
	if err != nil || !exists {
		if err != nil {
			a.problem("%v: %v", of, err)
		} else if a.created[of] {
			a.problem("%v: it has counted, was not deleted, and does not exist", of)
		}
		delete(a.counters, of)
		return
	}
	got, err := peekOne(a.s, of)
	if err == nil && got.entries == 0 && t.of(t.last()) < a.s.checkpointer.mark.Load() {
		return // the number is in use again
	}
	if err == nil && got.lastPosition() < a.oldest() && got.entries >= t.last() && got.lastPosition() >= t.of(t.last()) {
		delete(a.counters, of)
		return // the last events have expired, maybe before they were audited
	}
	if err != nil || got.entries != t.last() || got.lastPosition() != t.of(t.last()) || got.applied < got.lastPosition() {
		a.problem("%v: got %d entries up to %d, applied %d, %v, want %d up to %d",
			of, got.entries, got.lastPosition(), got.applied, err, t.last(), t.of(t.last()))
		return
	}
	if used := got.Requests[core.Year]; t.first == 1 && used != t.used {
		a.problem("%v: got %d used, want %d", of, used, t.used)
	}
	n := got.entries
	for i := len(got.chain) - 1; i >= 0; i-- {
		if want := t.of(n); want != 0 && got.chain[i] != want {
			a.problem("%v: the chain has entry %d at %d, want %d", of, n, got.chain[i], want)
		}
		n = jump(n)
	}
}

// oldest returns the first position of the oldest segment.
func (a *auditing) oldest() int64 {
	for _, g := range a.s.events.Segments() {
		return g.Base
	}
	return firstPosition
}

// TestAuditNotices: the audit finds an event of a key that was not created, and a key that has counted and is missing.
// Otherwise the tests of kills and power cuts would prove nothing.
func TestAuditNotices(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	known(t, s, "key", "lost")
	consume(t, s, request("key", 1, endless, noon))
	consume(t, s, request("lost", 1, endless, noon))
	if problems := audit(s); len(problems) > 0 {
		t.Fatalf("a whole store: got %q", problems)
	}
	lost := keyRef(t, s, "lost")
	e := event{account: lost.account, key: 99, ofKey: link{number: 1}, ofUser: link{number: 1}}
	e.UserID = 99
	record := e.encode(nil)
	if _, err := s.appendAndWait(record.append); err != nil {
		t.Fatal(err)
	}
	err := s.commitTxn(func(txn *badger.Txn) error { return txn.Delete(keyPath(acct, lost.number)) })
	if err != nil {
		t.Fatal(err)
	}
	problems := strings.Join(audit(s), "\n")
	for text, want := range map[string]int{"counted before it is created": 2, "does not exist": 1} {
		if got := strings.Count(problems, text); got != want {
			t.Errorf("%q occurs %d times in %q, want %d", text, got, problems, want)
		}
	}
}
