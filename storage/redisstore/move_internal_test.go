package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// moveTest is a key that moves between users.
type moveTest struct {
	t      *testing.T
	s      *Store
	server *redistest.Server
}

const moveAccount = "acct_1"

func newMoveTest(t *testing.T) *moveTest {
	t.Helper()
	server := redistest.Start(t)
	s, err := Open(t.Context(), Options{Addresses: []string{server.Addr()}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	m := &moveTest{t: t, s: s, server: server}
	err = s.CreateAccount(t.Context(), &core.Account{ID: moveAccount, Name: "a"}, &core.OwnerKey{ID: "okey_1", AccountID: moveAccount})
	if err != nil {
		t.Fatal(err)
	}
	m.update(func(tx core.Tx) error {
		for range 2 {
			if err := tx.PutUser(&core.User{AccountID: moveAccount}); err != nil {
				return err
			}
		}
		return tx.PutKey(&core.Key{AccountID: moveAccount, ID: "key_1", UserID: 1, Digest: secrets.DigestOf("1")})
	})
	return m
}

// leaveTasks runs a transaction, and leaves its tasks in the outbox, as a process that dies.
func (m *moveTest) leaveTasks(fn func(core.Tx) error) error {
	m.t.Helper()
	return resource.New(undrained{database{m.s}}).Update(m.t.Context(), moveAccount, fn)
}

type undrained struct{ database }

func (d undrained) Change(ctx context.Context, in resource.Scope, fn func(resource.Reader) (*resource.Changes, error)) error {
	_, err := d.s.change(ctx, in, fn)
	return err
}

func (m *moveTest) update(fn func(core.Tx) error) {
	m.t.Helper()
	if err := m.s.Update(m.t.Context(), moveAccount, fn); err != nil {
		m.t.Fatalf("Update: %v", err)
	}
}

// moveTo moves the key to a user.
func (m *moveTest) moveTo(user int64) {
	m.t.Helper()
	m.update(moveKeyTo(user))
}

// beginMoveTo moves the key to a user, like a process that dies before it runs the tasks.
func (m *moveTest) beginMoveTo(user int64) {
	m.t.Helper()
	if err := m.leaveTasks(moveKeyTo(user)); err != nil {
		m.t.Fatal(err)
	}
}

func moveKeyTo(user int64) func(core.Tx) error {
	return func(tx core.Tx) error {
		k, err := tx.Key("key_1")
		if err != nil {
			return err
		}
		k.UserID = user
		return tx.PutKey(k)
	}
}

// consume sends a request with the key as a key of a user.
func (m *moveTest) consume(user int64) error {
	_, err := m.s.Consume(m.t.Context(), &core.Consumption{Account: moveAccount, KeyID: "key_1", KeySeq: 1, UserID: user,
		Terms: core.Terms{Period: core.Year, Limit: 100}, Cost: 1, Entry: core.Entry{At: time.Now(), KeyID: "key_1", UserID: user, Cost: 1}})
	return err
}

func (m *moveTest) mustConsume(user int64) {
	m.t.Helper()
	if err := m.consume(user); err != nil {
		m.t.Fatalf("Consume: %v", err)
	}
}

// check fails the test unless the key has counted want requests, in one slot.
func (m *moveTest) check(want int64) {
	m.t.Helper()
	cs, err := m.s.Counters(m.t.Context(), []core.CounterID{{Account: moveAccount, KeyID: "key_1"}})
	if err != nil {
		m.t.Fatalf("Counters: %v", err)
	}
	if got := cs[0].Requests[core.Year]; got != want {
		m.t.Errorf("the key has counted %d, want %d", got, want)
	}
	_, n, err := m.s.History(m.t.Context(), core.CounterID{Account: moveAccount, KeyID: "key_1"}, time.Time{}, core.Page{Number: 1, Size: 1})
	if err != nil || int64(n) != want {
		m.t.Errorf("History: %d, %v; want %d", n, err, want)
	}
	if users := m.countersFound(); users > 1 {
		m.t.Errorf("the key has counters with %d users, want one at most", users)
	}
}

// countersFound returns the number of users in whose slots the key has a counter.
func (m *moveTest) countersFound() (n int) {
	for user := range int64(2) {
		counters := m.s.o.usage(moveAccount, user+1).counters()
		there, err := m.s.do(context.Background(), m.s.client.B().Hexists().Key(counters).Field("1").Build()).AsBool()
		if err != nil {
			m.t.Fatal(err)
		}
		if there {
			n++
		}
	}
	return n
}

// A process that stops during a move, and continues when others have finished it and moved the key on,
// does no harm: the key counts in one slot, and loses nothing.
func TestSlowMove(t *testing.T) {
	m := newMoveTest(t)
	for range 3 {
		m.mustConsume(1)
	}
	first := task{kind: moveKeyCounter, seq: 1, from: 1, to: 2, move: 1}
	left, err := m.s.atSource(t.Context(), moveBeginScript, moveAccount, first)
	if err != nil {
		t.Fatal(err)
	}
	m.moveTo(2)
	m.check(3)
	m.moveTo(1)
	m.mustConsume(1)
	for range 2 {
		if err := m.s.copyMoved(t.Context(), moveAccount, first, left); err != nil {
			t.Fatal(err)
		}
		m.check(4)
		if _, err := m.s.atSource(t.Context(), moveEndScript, moveAccount, first); err != nil {
			t.Fatal(err)
		}
		m.check(4)
		if left, err = m.s.atSource(t.Context(), moveBeginScript, moveAccount, first); err != nil {
			t.Fatal(err)
		}
	}
	m.refused(2)
	m.moveTo(2)
	m.mustConsume(2)
	m.check(5)
}

// A process that creates the counters of a key at a location that is no longer current creates nothing. A
// counter there would split the usage of the key.
func TestLateCreateCounters(t *testing.T) {
	for name, used := range map[string]int{"never used": 0, "used": 2} {
		t.Run(name, func(t *testing.T) {
			m := newMoveTest(t)
			for range used {
				m.mustConsume(1)
			}
			m.moveTo(2)
			n := m.s.o.usage(moveAccount, 1)
			if err := m.s.createCounters(t.Context(), n, "1", encodeCounter(&core.Counter{}, 0)); err != nil {
				t.Fatal(err)
			}
			m.refused(1)
			m.mustConsume(2)
			m.check(int64(used) + 1)
			for range 300 { // the number of a move is a byte and wraps
				m.moveTo(1)
				m.moveTo(2)
			}
			m.mustConsume(2)
			m.check(int64(used) + 2)
		})
	}
}

// refused fails the test if the key can count as a key of the user.
func (m *moveTest) refused(user int64) {
	m.t.Helper()
	if err := m.consume(user); !errors.Is(err, core.ErrKeyNotFound) {
		m.t.Errorf("Consume with the key as a key of user %d: %v, want ErrKeyNotFound", user, err)
	}
}

// A key or user that is created again with the same Seq or ID counts again.
func TestReusedSeqAfterMove(t *testing.T) {
	m := newMoveTest(t)
	m.mustConsume(1)
	m.moveTo(2)
	m.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") })
	m.refused(2)
	for _, user := range []int64{1, 2} {
		m.update(func(tx core.Tx) error {
			return tx.PutKey(&core.Key{AccountID: moveAccount, ID: "key_1", Seq: 1, UserID: user, Digest: secrets.DigestOf("1")})
		})
		m.mustConsume(user)
		m.check(1)
		m.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") })
		m.refused(user)
	}
}

// A key that moves to a user that the same transaction puts again keeps its counter.
func TestMoveToUserPutAgain(t *testing.T) {
	m := newMoveTest(t)
	if err := m.consume(1); err != nil {
		t.Fatal(err)
	}
	m.update(func(tx core.Tx) error { return tx.DeleteUser(2) })
	m.update(func(tx core.Tx) error {
		return errors.Join(tx.PutUser(&core.User{AccountID: moveAccount, ID: 2}), moveKeyTo(2)(tx))
	})
	counters, err := m.s.Counters(t.Context(), []core.CounterID{{Account: moveAccount, KeyID: "key_1"}})
	if err != nil || counters[0].Requests[core.Year] != 1 {
		t.Errorf("the counter of the key: %v, %v, want 1", counters, err)
	}
}

// A page without a size is empty.
func TestPageOfSizeZero(t *testing.T) {
	m := newMoveTest(t)
	users, total, err := m.s.Users(t.Context(), moveAccount, core.UserFilter{}, core.Page{Number: 1})
	if err != nil || len(users) != 0 || total != 2 {
		t.Errorf("got %d users of %d, %v, want 0 of 2", len(users), total, err)
	}
}
