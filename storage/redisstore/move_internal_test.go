package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// moving is a key of two users.
type moving struct {
	t      *testing.T
	s      *Store
	server *redistest.Server
}

const movingAccount = "acct_1"

func newMoving(t *testing.T) *moving {
	t.Helper()
	server := redistest.Start(t)
	s, err := Open(t.Context(), Options{Addresses: []string{server.Addr()}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	m := &moving{t: t, s: s, server: server}
	err = s.CreateAccount(t.Context(), &core.Account{ID: movingAccount, Name: "a"}, &core.OwnerKey{ID: "okey_1", AccountID: movingAccount})
	if err != nil {
		t.Fatal(err)
	}
	m.update(func(tx core.Tx) error {
		for range 2 {
			if err := tx.PutUser(&core.User{AccountID: movingAccount}); err != nil {
				return err
			}
		}
		return tx.PutKey(&core.Key{AccountID: movingAccount, ID: "key_1", UserID: 1, Digest: core.DigestOf("1")})
	})
	return m
}

func (m *moving) update(fn func(core.Tx) error) {
	m.t.Helper()
	if err := m.s.Update(m.t.Context(), movingAccount, fn); err != nil {
		m.t.Fatalf("Update: %v", err)
	}
}

// to moves the key to a user.
func (m *moving) to(user int64) {
	m.t.Helper()
	m.update(func(tx core.Tx) error {
		k, err := tx.Key("key_1")
		if err != nil {
			return err
		}
		k.UserID = user
		return tx.PutKey(k)
	})
}

// consume asks a request with the key as one of a user.
func (m *moving) consume(user int64) error {
	_, err := m.s.Consume(m.t.Context(), &core.Consumption{Account: movingAccount, KeyID: "key_1", KeySeq: 1, UserID: user,
		Terms: core.Terms{Period: core.Year, Limit: 100}, Cost: 1, Entry: core.Entry{At: time.Now(), KeyID: "key_1", UserID: user, Cost: 1}})
	return err
}

func (m *moving) mustConsume(user int64) {
	m.t.Helper()
	if err := m.consume(user); err != nil {
		m.t.Fatalf("Consume: %v", err)
	}
}

// check fails the test unless the key has counted so much, in one place.
func (m *moving) check(want int64) {
	m.t.Helper()
	cs, err := m.s.Counters(m.t.Context(), []core.CounterID{{Account: movingAccount, KeyID: "key_1"}})
	if err != nil {
		m.t.Fatalf("Counters: %v", err)
	}
	if got := cs[0].Windows[core.Year].Used; got != want {
		m.t.Errorf("the key has counted %d, want %d", got, want)
	}
	_, n, err := m.s.History(m.t.Context(), core.CounterID{Account: movingAccount, KeyID: "key_1"}, time.Time{}, core.Page{Number: 1, Size: 1})
	if err != nil || int64(n) != want {
		m.t.Errorf("History: %d, %v; want %d", n, err, want)
	}
	if places := m.places(); places > 1 {
		m.t.Errorf("the key has counters with %d users, want one at most", places)
	}
}

// places returns with how many users the key has a counter.
func (m *moving) places() (n int) {
	for user := range int64(2) {
		counters := m.s.o.usage(movingAccount, user+1).counters()
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

// Who is slow to do the chores of a move, as a process that was stopped for a while, does
// no harm when others have done them since and the key has moved on: it counts in one
// place, and nothing is lost.
func TestSlowMove(t *testing.T) {
	m := newMoving(t)
	for range 3 {
		m.mustConsume(1)
	}
	first := chore{kind: moveKey, seq: 1, from: 1, to: 2, move: 1}
	left, err := m.s.leave(t.Context(), movingAccount, first)
	if err != nil {
		t.Fatal(err)
	}
	m.to(2)
	m.check(3)
	m.to(1)
	m.mustConsume(1)
	for range 2 {
		if err := m.s.arrive(t.Context(), movingAccount, first, left); err != nil {
			t.Fatal(err)
		}
		m.check(4)
		if err := m.s.depart(t.Context(), movingAccount, first); err != nil {
			t.Fatal(err)
		}
		m.check(4)
		if left, err = m.s.leave(t.Context(), movingAccount, first); err != nil {
			t.Fatal(err)
		}
	}
	m.refused(2)
	m.to(2)
	m.mustConsume(2)
	m.check(5)
}

// Who has read that a key is with a user, and makes its counter there when it has moved
// since, makes none: it would count beside the one that decides.
func TestSlowAdmission(t *testing.T) {
	for name, used := range map[string]int{"never used": 0, "used": 2} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			for range used {
				m.mustConsume(1)
			}
			m.to(2)
			n := m.s.o.usage(movingAccount, 1)
			if err := m.s.makeCounters(t.Context(), n, "1", encodeCounter(&core.Counter{}, 0)); err != nil {
				t.Fatal(err)
			}
			m.refused(1)
			m.mustConsume(2)
			m.check(int64(used) + 1)
			for range 300 { // the number of a move is a byte
				m.to(1)
				m.to(2)
			}
			m.mustConsume(2)
			m.check(int64(used) + 2)
		})
	}
}

// refused fails the test unless the key counts nothing as one of the user.
func (m *moving) refused(user int64) {
	m.t.Helper()
	if err := m.consume(user); !errors.Is(err, core.ErrKeyNotFound) {
		m.t.Errorf("Consume with the key as one of user %d: %v, want ErrKeyNotFound", user, err)
	}
}

// A key or user that was put again, with the number that it had, counts again.
func TestPutAgainAfterMove(t *testing.T) {
	m := newMoving(t)
	m.mustConsume(1)
	m.to(2)
	m.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") })
	m.refused(2)
	for _, user := range []int64{1, 2} {
		m.update(func(tx core.Tx) error {
			return tx.PutKey(&core.Key{AccountID: movingAccount, ID: "key_1", Seq: 1, UserID: user, Digest: core.DigestOf("1")})
		})
		m.mustConsume(user)
		m.check(1)
		m.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") })
		m.refused(user)
	}
}
