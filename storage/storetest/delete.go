package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var deleteCases = []testCase{
	{name: "delete/key with usage", run: deleteKeyWithUsage,
		promise: "DeleteKey deletes a key with its counter and its history; the usage remains in the counter and history of its user"},
	{name: "delete/user with usage", run: deleteUserWithUsage,
		promise: "DeleteUser deletes a user and its keys with their counters and histories"},
	{name: "delete/just denied", run: deleteJustDenied,
		promise: "the history of a deleted key or user stays empty, even if requests were denied just before"},
	{name: "delete/missing", run: deleteNotThere,
		promise: "a request of a missing key or user counts nothing and is ErrKeyNotFound or ErrUserNotFound"},
	{name: "delete/in flight", run: deleteInFlight,
		promise: "a request in progress does not restore a deleted key or user"},
	{name: "delete/user with many keys", run: deleteUserWithManyKeys,
		promise: "after DeleteUser no call finds any key of the user, however many there were"},
}

func deleteKeyWithUsage(e *env) {
	keys := e.user1("key_1", "key_10")
	gone, left := keys[0], keys[1]
	gone.PlanID = ""
	e.put(gone)
	e.allowed(endpoint(request(gone, noon), "/1"))
	e.allowed(endpoint(request(left, noon), "/2"))
	e.allowed(endpoint(request(gone, noon), "/3"))
	e.denied(limit(endpoint(request(gone, noon), "/4"), core.Month, 2))
	e.awaitHistory(keyCounter(gone), 3)
	e.deleteKeys(gone.AccountID, gone.ID)
	check := func() {
		e.Helper()
		e.same("counter of the deleted key", core.Counter{}, e.counter(keyCounter(gone)))
		e.wantHistory(keyCounter(gone), time.Time{})
		e.same("counter of the user", usedCounter(2, noon), e.counter(userCounter(gone)))
		e.wantHistory(userCounter(gone), time.Time{}, "/4", "/3", "/2", "/1")
		e.same("counter of the other key", usedCounter(1, noon), e.counter(keyCounter(left)))
		e.wantHistory(keyCounter(left), time.Time{}, "/2")
	}
	check()
	e.reopen()
	check()
}

func deleteUserWithUsage(e *env) {
	keys := e.user1("key_1", "key_2", "key_3")
	account := keys[0].AccountID
	e.put(newUser(account, "second user"))
	keys[1].PlanID = ""
	e.put(keys[1])
	for _, k := range keys {
		e.allowed(request(k, noon))
	}
	moved := keys[2]
	moved.UserID = 2
	e.put(moved)
	e.allowed(endpoint(request(moved, noon), "/moved"))
	e.deleteUsers(account, 1)
	check := func() {
		e.Helper()
		for _, id := range []core.CounterID{keyCounter(keys[0]), keyCounter(keys[1]), {Account: account, UserID: 1}} {
			e.same(fmt.Sprintf("counter %+v", id), core.Counter{}, e.counter(id))
			e.wantHistory(id, time.Time{})
		}
		e.wantKey(moved)
		e.same("counter of the key that moved away", usedCounter(2, noon), e.counter(keyCounter(moved)))
		e.wantHistory(keyCounter(moved), time.Time{}, "/moved", "/")
		e.wantHistory(userCounter(moved), time.Time{}, "/moved")
	}
	check()
	e.reopen()
	check()
}

// deleteJustDenied deletes before the entries of denied requests must be in the history.
func deleteJustDenied(e *env) {
	const rounds, each = 5, 3
	account := e.account()
	for round := range rounds {
		u := newUser(account, "user")
		e.put(u)
		gone := newKey(account, fmt.Sprintf("key_gone%d", round), u.ID, "plan_1")
		other := newKey(account, fmt.Sprintf("key_other%d", round), u.ID, "plan_1")
		e.put(gone, other)
		deny := func(k *core.Key) {
			for range each {
				e.denied(limit(request(k, noon), core.Month, 0))
			}
		}
		deny(gone)
		e.deleteKeys(account, gone.ID)
		e.awaitHistory(userCounter(gone), each)
		deny(other)
		e.deleteUsers(account, u.ID)
	}
	check := func(when string) {
		e.Helper()
		for round := range rounds {
			for _, id := range []core.CounterID{
				{Account: account, KeyID: fmt.Sprintf("key_gone%d", round)},
				{Account: account, KeyID: fmt.Sprintf("key_other%d", round)},
				{Account: account, UserID: int64(round + 1)},
			} {
				if got := e.historyTotal(id); got != 0 {
					e.Errorf("history of %+v %s: got %d entries, want none", id, when, got)
				}
				e.same(fmt.Sprintf("counter %+v %s", id, when), core.Counter{}, e.counter(id))
			}
		}
	}
	check("after deletion")
	e.reopen()
	check("after reopening")
}

func deleteNotThere(e *env) {
	keys := e.user1("key_1", "key_2", "key_3")
	account := keys[0].AccountID
	e.put(newUser(account, "second user"))
	stays, moved := keys[1], keys[2]
	for _, k := range keys {
		e.allowed(request(k, noon))
	}
	moved.UserID = 2
	e.put(moved)
	e.deleteKeys(account, keys[0].ID)
	refused := func(c core.Consumption, want error) {
		e.Helper()
		for _, c := range []core.Consumption{c, cost(c, 0), limit(c, core.Day, 0)} {
			v, err := e.Store.Consume(e.ctx, &c)
			e.isErr(fmt.Sprintf("consume of key %s, user %d", c.KeyID, c.UserID), err, want)
			if v.Allowed {
				e.Errorf("consume of key %s, user %d: got allowed", c.KeyID, c.UserID)
			}
		}
	}
	never := *stays
	never.ID, never.Seq = "key_never", 1000
	refused(request(keys[0], noon), core.ErrKeyNotFound)
	refused(request(&never, noon), core.ErrKeyNotFound)
	e.allowed(request(stays, noon))
	e.deleteUsers(account, 1)
	refused(request(stays, noon), core.ErrKeyNotFound)
	stale := *moved
	stale.UserID = 1
	refused(request(&stale, noon), core.ErrUserNotFound)
	e.allowed(request(moved, noon))
	e.same("counter of the deleted user", core.Counter{}, e.counter(core.CounterID{Account: account, UserID: 1}))
	e.same("counter of the key that never was", core.Counter{}, e.counter(keyCounter(&never)))
}

func deleteInFlight(e *env) {
	const rounds, callers, times = 10, 4, 20
	account := e.account()
	for round := range rounds {
		u := newUser(account, "user")
		e.put(u)
		k := newKey(account, fmt.Sprintf("key_%d", round), u.ID, "plan_1")
		e.put(k)
		e.parallel(callers+1, func(i int) {
			if i == callers {
				if round%2 == 0 {
					e.deleteKeys(account, k.ID)
				} else {
					e.deleteUsers(account, u.ID)
				}
				return
			}
			for range times {
				c := request(k, noon)
				if _, err := e.Store.Consume(e.ctx, &c); err != nil {
					e.isErr("consume while it is deleted", err, core.ErrKeyNotFound)
				}
			}
		})
		e.same("counter of the deleted key", core.Counter{}, e.counter(keyCounter(k)))
		if got := e.historyTotal(keyCounter(k)); got != 0 {
			e.Errorf("history of the deleted key: got %d entries, want none", got)
		}
		if round%2 == 1 {
			e.same("counter of the deleted user", core.Counter{}, e.counter(userCounter(k)))
		}
	}
}

func deleteUserWithManyKeys(e *env) {
	const n = 2500
	account := e.account()
	u, other := newUser(account, "user"), newUser(account, "other")
	u.Email, u.ExternalID = new("user@example.com"), "cus_user"
	e.put(u, other)
	var keys []*core.Key
	for i := range n {
		k := newKey(account, fmt.Sprintf("key_%d", i), u.ID, []string{"", "plan_1"}[i%2])
		k.Previous = []core.GraceValue{{Digest: digest(account, k.ID, 2), Until: noon}}
		keys = append(keys, k)
	}
	for some := range slices.Chunk(keys, 100) {
		var things []any
		for _, k := range some {
			things = append(things, k)
		}
		e.put(things...)
	}
	left := newKey(account, "key_left", other.ID, "plan_1")
	e.put(left)
	for i := 0; i < n; i += 50 {
		e.allowed(request(keys[i], noon))
		e.allowed(request(keys[i+1], noon))
	}
	e.deleteUsers(account, u.ID)
	e.manyGone(u, keys, left)
	e.addUser(account, "USER@example.com")
	e.addExternal(account, "cus_user")
	e.reopen()
	e.manyGone(u, keys, left)
}

// manyGone fails unless a user and its keys are deleted and another user remains.
func (e *env) manyGone(u *core.User, keys []*core.Key, left *core.Key) {
	e.Helper()
	account := u.AccountID
	e.wantKeys(account, core.KeyFilter{}, left.ID)
	e.wantKeys(account, core.KeyFilter{UserID: u.ID})
	e.wantKeys(account, core.KeyFilter{PlanID: new("plan_1")}, left.ID)
	e.wantKeys(account, core.KeyFilter{PlanID: new("")})
	e.wantKeys(account, core.KeyFilter{Status: core.KeyActive}, left.ID)
	e.wantUsers(account, core.UserFilter{OnPlan: "plan_1"}, left.UserID)
	_, err := e.Store.User(e.ctx, account, u.ID)
	e.isErr("User", err, core.ErrUserNotFound)
	ids := []core.CounterID{{Account: account, UserID: u.ID}}
	for i, k := range keys {
		ids = append(ids, keyCounter(k))
		if i%50 <= 1 || i > len(keys)-10 {
			e.noKey(account, k.ID, 2)
			e.wantHistory(keyCounter(k), time.Time{})
		}
	}
	counters, err := e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	e.same("counters", make([]core.Counter, len(ids)), counters)
	e.wantHistory(ids[0], time.Time{})
	e.wantKey(left)
}
