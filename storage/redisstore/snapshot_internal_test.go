package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// snapshot returns a snapshot of the account, until the end of the test.
func (m *moveTest) snapshot() core.AccountSnapshot {
	m.t.Helper()
	snapshot, err := m.s.SnapshotAccount(m.t.Context(), moveAccount)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(snapshot.Close)
	return snapshot
}

// A snapshot finishes the tasks that a dead process has left in the outbox. Otherwise a key whose move is under way has no counter
// in the archive.
func TestSnapshotAfterDeath(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	m.mustConsume(1)
	m.beginMoveTo(2)
	snapshot := m.snapshot()
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
	v := &Snapshot{s: m.s, account: moveAccount, id: "1", spread: 100 * time.Millisecond}
	const ahead = 300 * time.Millisecond
	if _, inTime, err := v.open(t.Context(), ahead, ahead); err != nil || !inTime {
		t.Fatal(inTime, err)
	}
	defer func() { v.quit(); v.lease.Wait(); v.close() }()
	m.update(func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: moveAccount}) })
	if now, err := v.renew(t.Context()); err != nil || now < v.instant+v.spread.Microseconds() {
		t.Errorf("the transaction was stored at %d (%v), want at the instant %d or later", now, err, v.instant)
	}
}

// A snapshot that is announced after its instant begins again, with a later one. It drops the before images of the earlier instant.
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
	m.mustConsume(1)
	if _, err := v.announce(t.Context(), time.Second, 0); err != nil {
		t.Fatal(err)
	}
	if err := v.await(t.Context(), v.instant); err != nil {
		t.Fatal(err)
	}
	m.mustConsume(1)
	if err := v.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if users, _, err := v.Users(t.Context(), moveAccount, core.UserFilter{}, core.Page{Number: 1, Size: 10}); err != nil || len(users) != 2 {
		t.Errorf("got %d users, %v, want 2", len(users), err)
	}
	of := core.CounterID{Account: moveAccount, KeyID: "key_1"}
	if counters, err := v.Counters(t.Context(), []core.CounterID{of}); err != nil || counters[0].Requests[core.Year] != 2 {
		t.Errorf("got the counter %+v, %v, want the 2 requests before the last instant", counters, err)
	}
}

// What a snapshot holds does not grow with resources that come and go after its instant. Otherwise an account could fill the memory of
// Redis during a long export, or for a day after the death of an export.
func TestImagesOfNewResources(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	m.mustConsume(1)
	snapshot := m.snapshot()
	comeAndGo := func() {
		m.update(func(tx core.Tx) error {
			u := &core.User{AccountID: moveAccount}
			return errors.Join(tx.PutUser(u), tx.PutKey(&core.Key{AccountID: moveAccount, ID: "key_new", UserID: 1, Digest: core.DigestOf("new")}),
				tx.PutKey(&core.Key{AccountID: moveAccount, ID: "key_other", UserID: u.ID, Digest: core.DigestOf("other")}))
		})
		var user int64
		m.update(func(tx core.Tx) error {
			k, err := tx.Key("key_other")
			if err == nil {
				user, k.UserID = k.UserID, 2
				err = tx.PutKey(k)
			}
			return err
		})
		k, err := m.s.Key(t.Context(), moveAccount, "key_new")
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.s.Consume(t.Context(), &core.Consumption{Account: moveAccount, KeyID: "key_new", KeySeq: k.Seq, UserID: 1,
			Terms: core.Terms{Period: core.Year, Limit: 100}, Cost: 1, Entry: core.Entry{At: time.Now(), KeyID: "key_new", UserID: 1, Cost: 1}})
		if err != nil {
			t.Fatal(err)
		}
		m.update(func(tx core.Tx) error {
			return errors.Join(tx.DeleteKey("key_new"), tx.DeleteKey("key_other"), tx.DeleteUser(user))
		})
	}
	size := func() string {
		return m.server.Do(t, "EVAL", `local sizes, names = '', redis.call('KEYS', '*')
			table.sort(names)
			for _, name in ipairs(names) do
				if string.find(name, 'before:', 1, true) or string.match(name, '}z') then
					local n = redis.call(redis.call('TYPE', name).ok == 'hash' and 'HLEN' or 'ZCARD', name)
					sizes = sizes .. name .. ' ' .. n .. '; '
				end
			end
			return sizes`, "0")
	}
	comeAndGo()
	first := size()
	for range 5 {
		comeAndGo()
	}
	if last := size(); last != first {
		t.Errorf("got %s, want as much as after the first time: %s", last, first)
	}
	users, _, err := snapshot.Users(t.Context(), moveAccount, core.UserFilter{}, core.Page{Number: 1, Size: 10})
	if err != nil || len(users) != 2 {
		t.Errorf("got %d users, %v, want the 2 of the instant", len(users), err)
	}
}

// A clock that is set back after the first before image of a user changes nothing. Otherwise later requests would be in the archive.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	m.mustConsume(1)
	snapshot := m.snapshot()
	m.mustConsume(1)
	hash := m.s.o.usage(moveAccount, 1).counters()
	stamp := strings.Fields(m.server.Do(t, "HGET", hash, "z"))
	stamp[1] = stamp[2] // the instant is ahead of the clock
	m.server.Do(t, "HSET", hash, "z", strings.Join(stamp, " "))
	m.mustConsume(1)
	if entries, _, err := snapshot.History(t.Context(), core.CounterID{Account: moveAccount, KeyID: "key_1"}, time.Time{}, core.Page{Number: 1, Size: 10}); err != nil || len(entries) != 1 {
		t.Errorf("got %d entries, %v, want the one of the instant", len(entries), err)
	}
}

// A history that an earlier snapshot has left is not that of a key without history.
func TestHistoryOfEarlierSnapshot(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	m.mustConsume(1)
	m.server.Do(t, "DEL", m.s.o.usage(moveAccount, 1).history("1")) // its entries have expired
	snapshot := m.snapshot()
	m.server.Do(t, "RPUSH", m.s.o.usage(moveAccount, 1).deletedHistory("1"), "of an earlier snapshot")
	m.moveTo(2)
	if entries, _, err := snapshot.History(t.Context(), core.CounterID{Account: moveAccount, KeyID: "key_1"}, time.Time{}, core.Page{Number: 1, Size: 10}); err != nil || len(entries) != 0 {
		t.Errorf("got %d entries, %v, want none", len(entries), err)
	}
}

// The bound of the differences between the clocks of masters on one machine is short. Transactions wait for twice that time.
func TestClockSpread(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Options{Addresses: redistest.StartCluster(t).Addrs(), Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if spread, err := s.clockSpread(t.Context()); err != nil || spread <= 0 || spread > maxClockSkew {
		t.Errorf("got %v, %v, want a second at most", spread, err)
	}
}
