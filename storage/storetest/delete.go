package storetest

import (
	"fmt"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

var deleteCases = []testCase{
	{name: "delete/in flight", run: deleteInFlight,
		promise: "a request in progress does not restore a deleted key or user"},
	{name: "delete/user with many keys", run: deleteUserWithManyKeys,
		promise: "after DeleteUser no call finds any key of the user, however many there were"},
	{name: "delete/days", run: deleteUserWithDays,
		promise: "the days of a deleted user stay in the sum of the account, for each meter, and nowhere else"},
	{name: "delete/days at once", run: deleteUserInUse,
		promise: "the sum of an account is the same after its users are deleted, also when several are deleted at once"},
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

func deleteUserWithDays(e *env) {
	keys := e.sharing("key_1", "key_2", "key_3")
	account, user := keys[0].AccountID, keys[0].UserID
	own := newKey(account, "key_own", user, "plan_1")
	other := newUser(account, "other")
	e.put(other)
	kept := newKey(account, "key_kept", other.ID, "")
	putAll(e, e.Store, own, kept)
	from, to := noon.AddDate(0, 0, -40), noon
	used := []*core.Key{keys[0], own, kept}
	for at := from; !at.After(to); at = at.AddDate(0, 0, 8) {
		for _, k := range used {
			e.allowed(tokens(cost(request(k, at), 3), 20))
		}
	}
	for _, k := range used {
		e.allowed(adjusted(request(k, to), "tokens", -5))
		e.consume(limit(tokens(request(k, to), 9), core.Month, 1)) // denied
		h := e.hold(holding(tokens(request(k, to), 7)))
		_, err := e.settle(account, h, 1, 2, to)
		e.ok("Settle", err)
	}
	read := func(of core.DaysFilter) []core.DayTotals {
		e.Helper()
		of.Account = account
		days, err := e.Store.Days(e.ctx, of, core.DateOf(from), core.DateOf(to))
		e.ok("Days", err)
		return days
	}
	sum, left := read(core.DaysFilter{}), read(core.DaysFilter{UserID: other.ID})
	last := core.DayTotals{Date: core.DateOf(to), Traffic: core.Traffic{Allowed: 3 * (3 + 1), Denied: 3}, Meters: []core.MeterTotals{
		{Meter: core.MeterCount, MeterTraffic: core.MeterTraffic{Allowed: 3 * 2}},
		{Meter: "tokens", MeterTraffic: core.MeterTraffic{Allowed: 3 * (20 + 2), Denied: 3 * 9, Adjusted: 3 * -5}}}}
	e.same("the last day of the account", last, sum[len(sum)-1])
	e.same("the requests of the last day", core.Traffic{Allowed: 3 * 2, Denied: 3}, last.Requests())

	e.update(account, func(tx core.Tx) error { return tx.DeleteUser(user) })
	for range 2 {
		e.same("days of the account", sum, read(core.DaysFilter{}))
		e.same("days of the deleted user", core.NewDays(core.DateOf(from), core.DateOf(to)), read(core.DaysFilter{UserID: user}))
		e.same("days of its key", core.NewDays(core.DateOf(from), core.DateOf(to)), read(core.DaysFilter{KeyID: own.ID}))
		e.same("days of the other user", left, read(core.DaysFilter{UserID: other.ID}))
		e.reopen()
	}
	e.update(account, func(tx core.Tx) error { return tx.DeleteUser(other.ID) })
	e.same("days of the account without users", sum, read(core.DaysFilter{}))
	lists, err := e.Store.DaysOf(e.ctx, []core.CounterID{{Account: account}}, core.DateOf(from), core.DateOf(to))
	e.ok("DaysOf", err)
	var deleted []core.DayTotals
	for i := range lists[0] {
		deleted = append(deleted, lists[0][i].Totals(false))
	}
	e.same("DaysOf the deleted users", slices.DeleteFunc(sum, func(d core.DayTotals) bool { return d.Allowed == 0 }), deleted)
}

func deleteUserInUse(e *env) {
	const n, times = 8, 10
	account := e.account()
	var keys []*core.Key
	for i := range n {
		u := newUser(account, fmt.Sprint("user ", i))
		e.put(u)
		keys = append(keys, newKey(account, fmt.Sprintf("key_%d", i), u.ID, []string{"", "plan_1"}[i%2]))
	}
	putAll(e, e.Store, keys...)
	e.hammer(n, times, func(i, _ int) core.Consumption { return tokens(request(keys[i], noon), 5) })
	e.parallel(n, func(i int) {
		e.update(account, func(tx core.Tx) error { return tx.DeleteUser(keys[i].UserID) })
	})
	days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: account}, today, today)
	e.ok("Days", err)
	e.same("days of the account", []core.DayTotals{{Date: today, Traffic: core.Traffic{Allowed: n * times}, Meters: []core.MeterTotals{
		{Meter: "tokens", MeterTraffic: core.MeterTraffic{Allowed: 5 * n * times}}}}}, days)
	e.sameReopened(account)
}
