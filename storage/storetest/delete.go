package storetest

import (
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

var deleteCases = []testCase{
	{name: "delete/in flight", run: deleteInFlight,
		promise: "a request in progress does not restore a deleted key or user"},
	{name: "delete/user with many keys", run: deleteUserWithManyKeys,
		promise: "after DeleteUser no call finds any key of the user, however many there were"},
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
				e.update(account, func(tx core.Tx) error {
					if round%2 == 0 {
						return tx.DeleteKey(k.ID)
					}
					return tx.DeleteUser(u.ID)
				})
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
	left := newKey(account, "key_left", other.ID, "plan_1")
	putAll(e, e.Store, append(keys, left)...)
	for i := 0; i < n; i += 50 {
		e.allowed(request(keys[i], noon))
		e.allowed(request(keys[i+1], noon))
	}
	e.update(account, func(tx core.Tx) error { return tx.DeleteUser(u.ID) })
	again := newUser(account, "again")
	again.Email, again.ExternalID = new("USER@example.com"), "cus_user"
	e.put(again)
	for range 2 {
		e.manyGone(u, keys, left)
		e.reopen()
	}
}

// manyGone fails unless a user and its keys are deleted and another user remains.
func (e *env) manyGone(u *core.User, keys []*core.Key, left *core.Key) {
	e.Helper()
	account := u.AccountID
	for _, f := range []core.KeyFilter{{}, {PlanID: new("plan_1")}, {Status: core.KeyActive}} {
		e.wantKeys(account, f, left.ID)
	}
	e.wantKeys(account, core.KeyFilter{UserID: u.ID})
	e.wantKeys(account, core.KeyFilter{PlanID: new("")})
	e.wantUsers(account, core.UserFilter{OnPlan: "plan_1"}, left.UserID)
	ids := []core.CounterID{{Account: account, UserID: u.ID}}
	for i, k := range keys {
		ids = append(ids, keyCounter(k))
		if i%50 > 1 && i < len(keys)-10 {
			continue
		}
		_, err := e.Store.Key(e.ctx, account, k.ID)
		e.isErr("Key "+k.ID, err, core.ErrKeyNotFound)
		for _, d := range k.Digests() {
			_, err := e.Store.KeyByDigest(e.ctx, d)
			e.isErr("KeyByDigest of "+k.ID, err, core.ErrKeyNotFound)
		}
		if got := e.historyTotal(keyCounter(k)); got != 0 {
			e.Errorf("history of %s: got %d entries, want none", k.ID, got)
		}
	}
	counters, err := e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	e.same("counters", make([]core.Counter, len(ids)), counters)
}
