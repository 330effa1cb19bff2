package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var importCounterCases = []testCase{
	{name: "import/counters", run: importCounters, imports: true,
		promise: "SetCounters replaces counters as a whole, by larger or smaller values, and does not change histories"},
	{name: "import/counters decide", run: importCountersDecide, imports: true,
		promise: "a counter that was set decides the next request"},
	{name: "import/many counters", run: importManyCounters, imports: true,
		promise: "SetCounters accepts MaxImport counters, and all are durable when it returns"},
	{name: "import/counters missing", run: importCountersNotThere, imports: true,
		promise: "a counter of a missing key or user is ErrKeyNotFound or ErrUserNotFound, and nothing deleted comes back"},
	{name: "import/counters while counting", run: importCountersBesideCounting, imports: true,
		promise: "a concurrent Consume happens before SetCounters, and is overwritten, or after it, and counts on top"},
	{name: "import/closed", run: importClosed, imports: true, own: true,
		promise: "after Close SetHistory, AppendHistory, SetCounters, SetDays and CounterDays return ErrUnavailable"},
}

// setCounters sets counters.
func (e *env) setCounters(ids []core.CounterID, counters ...core.Counter) {
	e.Helper()
	e.ok("SetCounters", e.importer().SetCounters(e.ctx, ids, counters))
}

// windowed returns a counter with a different usage in each period, and a time that is not the last use.
func windowed(n int64, denied int64) (c core.Counter) {
	c.At, c.Today = noon.AddDate(0, 1, 3).Unix(), n+7
	for p := range c.Requests {
		c.Requests[p] = n + int64(p)
	}
	c.LastUsedAt, c.DeniedOmitted = noon.Add(time.Duration(n)), denied
	return c
}

func importCounters(e *env) {
	keys := e.user1("key_1", "key_2", "key_3")
	account := keys[0].AccountID
	for i, k := range keys {
		e.allowed(cost(request(k, noon), int64(10*i+1)))
	}
	histories := e.snapshot(account).Histories
	ids := []core.CounterID{{Account: account, UserID: 1}, keyCounter(keys[2]), {Account: account, KeyID: "key_1", UserID: 1}, keyCounter(keys[1])}
	idle := windowed(40, 0)
	idle.LastUsedAt = time.Time{}
	for round, want := range [][]core.Counter{
		{windowed(core.MaxLimit-7, 0), windowed(3, 17), idle, windowed(0, 1<<31)},
		{windowed(5, 0), {}, windowed(8, 2), {LastUsedAt: noon}},
		{{}, windowed(1, 1), {}, usedCounter(5, noon)},
	} {
		e.setCounters(ids, want...)
		for i, id := range ids {
			e.same(fmt.Sprintf("counter %+v of round %d", id, round), want[i], e.counter(id))
		}
		e.setCounters(ids, want...)
		if round < 2 {
			e.reopen()
		}
		got, err := e.Store.Counters(e.ctx, ids)
		e.ok("Counters", err)
		e.same(fmt.Sprintf("the counters of round %d", round), want, got)
		e.utc(got[1].LastUsedAt)
	}
	e.same("histories", histories, e.snapshot(account).Histories)
	e.setCounters(nil)
}

func importCountersDecide(e *env) {
	keys := e.user1("key_1", "key_2")
	own, shared := keys[0], keys[1]
	shared.PlanID = ""
	e.put(shared)
	for _, k := range keys {
		c := limit(request(k, noon), core.Day, 10)
		e.denied(limit(c, core.Day, 0))
		e.setCounters([]core.CounterID{c.DecidingCounter()}, usedCounter(9, noon))
		e.same("Consume", core.Usage{Window: core.Day.Window(noon), Used: 10}, e.allowed(c))
		e.denied(c)
		e.setCounters([]core.CounterID{c.DecidingCounter()}, usedCounter(4, noon.Add(time.Hour)))
		e.same("Consume", core.Usage{Window: core.Day.Window(noon), Used: 5}, e.allowed(c))
		e.setCounters([]core.CounterID{c.DecidingCounter()}, usedCounter(4, noon.AddDate(0, 0, 1)))
		e.same("Consume", core.Usage{Window: core.Day.Window(noon.AddDate(0, 0, 1)), Used: 5}, e.allowed(c))
	}
	e.reopen()
	for _, k := range keys {
		c := limit(request(k, noon.AddDate(0, 0, 1)), core.Day, 7)
		e.same("Consume after reopening", core.Usage{Window: core.Day.Window(c.Entry.At), Used: 6}, e.allowed(c))
	}
	e.wantUsed(keyCounter(own), core.Month, noon, 6)
}

func importManyCounters(e *env) {
	account := e.account()
	_, keys := Fill(e, e.Store, account, core.MaxImport+200)
	var ids []core.CounterID
	var want []core.Counter
	for i, k := range keys {
		ids, want = append(ids, keyCounter(k)), append(want, windowed(int64(i), int64(i%3)))
	}
	e.setCounters(ids[:core.MaxImport], want[:core.MaxImport]...)
	e.setCounters(ids[core.MaxImport:], want[core.MaxImport:]...)
	for range 2 {
		for from := 0; from < len(ids); from += 500 {
			to := min(from+500, len(ids))
			got, err := e.Store.Counters(e.ctx, ids[from:to])
			e.ok("Counters", err)
			e.same("counters", want[from:to], got)
		}
		e.reopen()
	}
}

func importCountersNotThere(e *env) {
	k := e.user1("key_1")[0]
	account := k.AccountID
	refused := func(what string, want error, ids ...core.CounterID) {
		e.Helper()
		counters := make([]core.Counter, len(ids))
		for i := range counters {
			counters[i] = usedCounter(5, noon)
		}
		e.isErr("SetCounters of "+what, e.importer().SetCounters(e.ctx, ids, counters), want)
	}
	user2 := core.CounterID{Account: account, UserID: 2}
	refused("a key that never was", core.ErrKeyNotFound, core.CounterID{Account: account, KeyID: "key_never"})
	refused("a user that never was", core.ErrUserNotFound, user2)
	refused("a key of no account", core.ErrKeyNotFound, core.CounterID{Account: "acct_missing", KeyID: "key_1"})
	refused("a user of no account", core.ErrUserNotFound, core.CounterID{Account: "acct_missing", UserID: 1})
	e.setCounters([]core.CounterID{keyCounter(k), userCounter(k)}, usedCounter(5, noon), usedCounter(6, noon))
	e.deleteUsers(account, 1)
	refused("a deleted key", core.ErrKeyNotFound, keyCounter(k))
	refused("a deleted user", core.ErrUserNotFound, userCounter(k))
	e.put(newUser(account, "second user"))
	e.same("counter of a new user", core.Counter{}, e.counter(user2))
	e.reopen()
	for _, id := range []core.CounterID{keyCounter(k), userCounter(k), user2} {
		e.same(fmt.Sprintf("counter %+v", id), core.Counter{}, e.counter(id))
	}
}

func importCountersBesideCounting(e *env) {
	const callers, times, high = 8, 50, 1_000_000
	k := e.user1("key_1")[0]
	im := e.importer()
	var calls atomic.Int64
	half, set := make(chan struct{}), make(chan struct{})
	e.parallel(callers+1, func(i int) {
		if i == callers {
			<-half
			if err := im.SetCounters(e.ctx, []core.CounterID{keyCounter(k)}, []core.Counter{usedCounter(high, noon)}); err != nil {
				e.Errorf("SetCounters: %v", err)
			}
			close(set)
			return
		}
		for n := 0; n < times || !closed(set); n++ {
			if calls.Add(1) == callers*times/2 {
				close(half)
			}
			c := limit(endpoint(request(k, noon), "/%d/%d", i, n), core.Month, 2*high)
			if v, err := e.Store.Consume(e.ctx, &c); err != nil || !v.Allowed {
				e.Errorf("Consume: got %t, %v, want allowed", v.Allowed, err)
			}
		}
	})
	requests := e.counter(keyCounter(k)).Requests
	for p, used := range requests {
		if used < high || used > high+calls.Load() || used != requests[0] {
			e.Errorf("usage in the %v: got %d, want the same in each period, %d and up to %d more", core.Period(p), used, high, calls.Load())
		}
	}
	if got := e.historyTotal(keyCounter(k)); int64(got) != calls.Load() {
		e.Errorf("history: got %d entries, want %d", got, calls.Load())
	}
	before := e.snapshot(k.AccountID)
	e.reopen()
	e.same("the account after reopening", before, e.snapshot(k.AccountID))
}

// closed reports whether a channel is closed.
func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func importClosed(e *env) {
	k := e.user1("key_1")[0]
	e.append(k.AccountID, entry(k, 1))
	im := e.importer()
	e.ok("Close", e.Store.Close())
	_, err := im.CounterDays(e.ctx, keyCounter(k))
	e.isErr("CounterDays", err, core.ErrUnavailable)
	e.isErr("SetDays", im.SetDays(e.ctx, keyCounter(k), someDays(1, false)), core.ErrUnavailable)
	e.isErr("AppendHistory", im.AppendHistory(e.ctx, keyCounter(k), []core.Entry{entry(k, 2)}, forever), core.ErrUnavailable)
	e.isErr("SetHistory", im.SetHistory(e.ctx, keyCounter(k), []core.Entry{entry(k, 2)}, forever), core.ErrUnavailable)
	e.isErr("SetCounters", im.SetCounters(e.ctx, []core.CounterID{keyCounter(k)}, []core.Counter{usedCounter(3, noon)}), core.ErrUnavailable)
	e.Store = e.Reopen(e)
	e.wantHistory(keyCounter(k), time.Time{}, "/1")
	e.same("counter", core.Counter{}, e.counter(keyCounter(k)))
}

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
