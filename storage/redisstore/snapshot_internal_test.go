package redisstore

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// A snapshot finishes the tasks that a dead process has left in the outbox. Otherwise a key whose move is under way has no counter
// in the archive.
func TestSnapshotAfterDeath(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	m.mustConsume(1)
	_, err := m.s.update(t.Context(), moveAccount, false, func(tx core.Tx) error { // without the tasks
		k, err := tx.Key("key_1")
		if err != nil {
			return err
		}
		k.UserID = 2
		return tx.PutKey(k)
	})
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := m.s.SnapshotAccount(t.Context(), moveAccount)
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	m.mustConsume(2)
	m.moveTo(1)
	of := core.CounterID{Account: moveAccount, KeyID: "key_1"}
	counters, err := snapshot.Counters(t.Context(), []core.CounterID{of})
	if err != nil || counters[0].Requests[core.Year] != 1 {
		t.Errorf("got the counter %+v, %v, want the request before the snapshot", counters, err)
	}
	if entries, _, err := snapshot.History(t.Context(), of, time.Time{}, core.Page{Number: 1, Size: 10}); err != nil || len(entries) != 1 {
		t.Errorf("got the history %v, %v, want the request before the snapshot", entries, err)
	}
}

// Transactions wait before the instant of a snapshot, and go on afterwards. Otherwise a new user or a task could escape the snapshot.
func TestTransactionsWait(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	v := &Snapshot{s: m.s, account: moveAccount, id: "1"}
	const ahead = 300 * time.Millisecond
	if _, inTime, err := v.open(t.Context(), ahead, ahead); err != nil || !inTime {
		t.Fatal(inTime, err)
	}
	defer func() { v.quit(); v.lease.Wait(); v.close() }()
	m.update(func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: moveAccount}) })
	if now, err := v.renew(t.Context(), m.s.o.account(moveAccount)); err != nil || now < v.instant {
		t.Errorf("the transaction was stored at %d (%v), want at the instant %d or later", now, err, v.instant)
	}
}

// A snapshot that is announced after its instant begins again, with a later one.
func TestSnapshotBeginsAgain(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	v := &Snapshot{s: m.s, account: moveAccount, id: "1", pages: map[string]nextPage{}}
	defer func() { v.quit(); v.lease.Wait(); v.close() }()
	for _, ahead := range []time.Duration{0, time.Microsecond} {
		if inTime, err := v.announce(t.Context(), ahead, 0); err != nil || inTime {
			t.Errorf("%v ahead: got %v, %v, want that it took too long", ahead, inTime, err)
		}
	}
	if err := v.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if users, _, err := v.Users(t.Context(), moveAccount, core.UserFilter{}, core.Page{Number: 1, Size: 10}); err != nil || len(users) != 2 {
		t.Errorf("got %d users, %v, want 2", len(users), err)
	}
}
