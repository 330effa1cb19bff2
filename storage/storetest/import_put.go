package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

func importMovedKey(e *env) {
	k := e.user1("key_1")[0]
	account := k.AccountID
	e.put(newUser(account, "second user"), newUser(account, "third user"))
	e.append(account, entry(k, 1))
	e.setCounters([]core.CounterID{keyCounter(k)}, usedCounter(7, noon))
	for i, user := range []int64{2, 3, 1} {
		k.UserID = user
		e.put(k)
		e.append(account, entry(k, 10*i+2), entry(k, 10*i+3))
	}
	check := func() {
		e.Helper()
		of := func(user int64) core.CounterID { return core.CounterID{Account: account, UserID: user} }
		e.wantHistory(keyCounter(k), time.Time{}, "/23", "/22", "/13", "/12", "/3", "/2", "/1")
		e.wantHistory(of(1), time.Time{}, "/23", "/22", "/1")
		e.wantHistory(of(2), time.Time{}, "/3", "/2")
		e.wantHistory(of(3), time.Time{}, "/13", "/12")
		e.same("counter of the key", usedCounter(7, noon), e.counter(keyCounter(k)))
	}
	check()
	e.deleteUsers(account, 3)
	e.wantHistory(keyCounter(k), time.Time{}, "/23", "/22", "/13", "/12", "/3", "/2", "/1")
	e.reopen()
	e.wantHistory(keyCounter(k), time.Time{}, "/23", "/22", "/13", "/12", "/3", "/2", "/1")
	e.wantHistory(core.CounterID{Account: account, UserID: 3}, time.Time{})
}

func importNumbers(e *env) {
	account := e.account()
	last := func(when string, want core.Numbers) {
		e.Helper()
		got, err := e.importer().LastNumbers(e.ctx, account)
		e.ok("LastNumbers", err)
		e.same("the last numbers "+when, want, got)
	}
	last("of a new account", core.Numbers{})
	u, p, k := newUser(account, "user"), newPlan(account, "plan_7"), newKey(account, "key_9", 5, "")
	u.ID, p.Seq, k.Seq = 5, 7, 9
	e.put(u, p)
	e.put(k)
	e.deleteKeys(account, "key_9")
	e.update(account, func(tx core.Tx) error { return tx.DeletePlan("plan_7") })
	e.deleteUsers(account, 5)
	last("of deleted resources", core.Numbers{User: 5, Plan: 7, Key: 9})
	earlier, low := newUser(account, "earlier"), newKey(account, "key_2", 3, "")
	earlier.ID, low.Seq = 3, 2
	e.put(earlier)
	e.put(low)
	e.reopen()
	u, p, k = newUser(account, "next"), newPlan(account, "plan_next"), newKey(account, "key_next", 3, "")
	e.put(u, p, k)
	if u.ID != 6 || p.Seq != 8 || k.Seq != 10 {
		e.Errorf("the next numbers: got user %d, plan %d, key %d, want 6, 8, 10", u.ID, p.Seq, k.Seq)
	}
	e.wantUsers(account, core.UserFilter{}, 3, 6)
	e.wantKeys(account, core.KeyFilter{}, "key_2", "key_next")
	e.reopen()
	last("of a store that was opened again", core.Numbers{User: 6, Plan: 8, Key: 10})
	if got, err := e.importer().LastNumbers(e.ctx, "acct_missing"); err != nil || got != (core.Numbers{}) {
		e.Errorf("the last numbers of a missing account: got %+v, %v, want none", got, err)
	}
}

// importPutAgain deletes and puts the same resources several times, with and without reopening.
func importPutAgain(e *env) {
	keys := e.user1("key_1", "key_2")
	account, k, other := keys[0].AccountID, *keys[0], *keys[1]
	u, err := e.Store.User(e.ctx, account, 1)
	e.ok("User", err)
	for round := range 6 {
		e.putAgainEmpty(fmt.Sprintf("in round %d", round), &k, &other)
		e.append(account, entry(&k, 1), entry(&other, 2))
		e.append(account, entry(&k, 3))
		e.allowed(endpoint(request(&k, noon), "/4"))
		e.setCounters([]core.CounterID{keyCounter(&k), userCounter(&k)}, usedCounter(20, noon), usedCounter(30, noon))
		e.wantHistory(keyCounter(&k), time.Time{}, "/4", "/3", "/1")
		e.wantHistory(userCounter(&k), time.Time{}, "/4", "/3", "/2", "/1")
		if round%3 == 1 {
			e.deleteKeys(account, k.ID)
			e.wantHistory(userCounter(&k), time.Time{}, "/4", "/3", "/2", "/1")
			e.put(&k)
			e.wantHistory(keyCounter(&k), time.Time{})
			e.append(account, entry(&k, 5))
			e.wantHistory(keyCounter(&k), time.Time{}, "/5")
			e.wantHistory(userCounter(&k), time.Time{}, "/5", "/4", "/3", "/2", "/1")
		}
		if round%2 == 1 {
			e.reopen()
		}
		e.deleteUsers(account, 1)
		if round%3 == 2 {
			e.reopen()
		}
		e.put(u)
		e.put(&k, &other)
	}
	e.reopen()
	e.putAgainEmpty("at the end", &k, &other)
	e.append(account, entry(&k, 6))
	e.deleteKeys(account, k.ID)
	third := newKey(account, "key_3", 1, "plan_1")
	third.Seq = k.Seq
	e.put(third)
	e.wantHistory(keyCounter(third), time.Time{})
	e.append(account, entry(third, 7))
	e.reopen()
	e.wantHistory(keyCounter(third), time.Time{}, "/7")
	e.wantHistory(userCounter(third), time.Time{}, "/7", "/6")
	e.noKey(account, k.ID, 1)
}

// importNumberAtOnce gives the number of a key to another key in the transaction that deletes the
// first.
func importNumberAtOnce(e *env) {
	k := e.user1("key_m")[0]
	account := k.AccountID
	for i, id := range []string{"key_a", "key_z"} { // sorted before and after the first key
		e.allowed(request(k, noon))
		next := newKey(account, id, 1, "plan_1")
		next.Seq = k.Seq
		e.update(account, func(tx core.Tx) error {
			return errors.Join(tx.DeleteKey(k.ID), tx.PutKey(next))
		})
		e.noKey(account, k.ID, 1)
		e.same("counter of "+id, core.Counter{}, e.counter(keyCounter(next)))
		e.wantHistory(keyCounter(next), time.Time{})
		e.wantUsed(userCounter(next), core.Month, noon, 0)
		e.same("usage after the first request with "+id, int64(1), e.allowed(endpoint(request(next, noon), "/%d", i)).Used)
		if i == 0 {
			e.reopen()
		}
		k = next
	}
}

// importPutAgainMoved deletes a key that has had several users, puts it again, and moves it to them
// again.
func importPutAgainMoved(e *env) {
	k := e.user1("key_1")[0]
	account := k.AccountID
	u, err := e.Store.User(e.ctx, account, 1)
	e.ok("User", err)
	e.put(newUser(account, "second user"), newUser(account, "third user"))
	n, with := 0, map[int64][]string{}
	for round := range 4 {
		var want []string
		for _, user := range []int64{1, 2, 3, 2, 1}[round%2:] {
			k.UserID = user
			e.put(k)
			n++
			e.append(account, entry(k, n))
			want, with[user] = append(want, fmt.Sprintf("/%d", n)), append(with[user], fmt.Sprintf("/%d", n))
			e.wantHistory(keyCounter(k), time.Time{}, reversed(want)...)
			e.wantHistory(userCounter(k), time.Time{}, reversed(with[user])...)
		}
		e.allowed(cost(request(k, noon), 0))
		if round < 2 {
			e.deleteKeys(account, k.ID)
		} else {
			e.deleteUsers(account, 1)
			e.put(u)
			with[1] = nil
		}
		k.UserID = 1
		e.put(k)
		e.wantHistory(keyCounter(k), time.Time{})
	}
}

// putAgainEmpty fails unless the keys of the user 1 are unused.
func (e *env) putAgainEmpty(when string, keys ...*core.Key) {
	e.Helper()
	for _, k := range keys {
		e.wantKey(k)
		for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
			e.wantHistory(of, time.Time{})
			e.same(fmt.Sprintf("counter %+v %s", of, when), core.Counter{}, e.counter(of))
		}
	}
}
