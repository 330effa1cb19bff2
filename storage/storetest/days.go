package storetest

import (
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var dayCases = []testCase{
	{name: "days/allowed and denied", run: daysAllowedAndDenied,
		promise: "Days returns the allowed and the denied cost, recorded in the history or not; repeats and requests of cost 0 are not included"},
	{name: "days/range", run: daysRange,
		promise: "Days returns each day from first to last, in that order and without a gap"},
	{name: "days/filter", run: daysWhose,
		promise: "the days of a key have its requests; of a user, the requests with its keys; of a plan, the requests of its keys and those that the counters of its users decided; of an account, the requests of its users"},
	{name: "days/clock steps back", run: daysClockStepsBack,
		promise: "each number of a day is left only for a later day"},
	{name: "days/many days", run: daysMany,
		promise: "DaysKept days are kept, also after reopening"},
	{name: "days/exact", run: daysExact,
		promise: "each of many concurrent requests is in the days once"},
	{name: "days/deleted", run: daysDeleted,
		promise: "deleting a key deletes its days and keeps those of its user; deleting the user deletes them"},
	{name: "days/key moved", run: daysChangeHands,
		promise: "a key that moves to another user keeps its days; each user has the days of the requests made while the key was its own"},
	{name: "days/set", run: daysSet, imports: true,
		promise: "SetDays replaces the days of a key or user, and CounterDays returns them; the day of the day window has the usage of that window"},
	{name: "days/set and counted on", run: daysSetCountedOn, imports: true,
		promise: "requests after SetDays are added to the days that were set"},
	{name: "days/missing", run: daysNotThere, imports: true,
		promise: "SetDays of a missing key or user is ErrKeyNotFound or ErrUserNotFound; CounterDays of one is empty"},
}

const today = core.Date(20524) // the day of noon

// onDay returns the request a number of days later.
func onDay(c core.Consumption, days int) core.Consumption {
	c.Entry.At = c.Entry.At.AddDate(0, 0, days)
	return c
}

// wantDays fails unless the days from first on have the traffic in numbers: allowed and denied of
// the first day, then of the next.
func (e *env) wantDays(of core.DaysFilter, first core.Date, numbers ...int64) {
	e.Helper()
	want := make([]core.DayTotals, len(numbers)/2)
	for i := range want {
		want[i] = core.DayTotals{Date: first + core.Date(i), Traffic: core.Traffic{Allowed: numbers[2*i], Denied: numbers[2*i+1]}}
	}
	got, err := e.Store.Days(e.ctx, of, first, first+core.Date(len(want)-1))
	e.ok("Days", err)
	e.same(fmt.Sprintf("days of %+v", of), want, got)
}

func daysOfKey(k *core.Key) core.DaysFilter {
	return core.DaysFilter{Account: k.AccountID, KeyID: k.ID}
}
func daysOfUser(k *core.Key) core.DaysFilter {
	return core.DaysFilter{Account: k.AccountID, UserID: k.UserID}
}

func daysAllowedAndDenied(e *env) {
	k := e.user1("key_1")[0]
	if got := core.DateOf(noon); got != today {
		e.Fatalf("the day of noon: got %d, want %d", got, today)
	}
	e.wantDays(daysOfKey(k), today, 0, 0)
	c := withRequestID(cost(limit(request(k, noon), core.Day, 10), 4), "id")
	e.allowed(c)
	e.allowed(c)
	e.allowed(cost(c, 2)) // a repeat
	e.allowed(cost(limit(request(k, noon), core.Day, 10), 0))
	e.wantDays(daysOfKey(k), today, 4, 0)
	d := cost(limit(request(k, noon), core.Day, 10), 7)
	for range 3 * core.DeniedPerSecond {
		e.denied(d)
	}
	e.denied(cost(limit(request(k, noon), core.Day, 0), 0))
	e.allowed(cost(d, 6))
	want := []int64{0, 0, 10, 7 * 3 * core.DeniedPerSecond, 0, 0}
	for range 2 {
		for _, of := range []core.DaysFilter{daysOfKey(k), daysOfUser(k), {Account: k.AccountID, PlanID: "plan_1"}, {Account: k.AccountID}} {
			e.wantDays(of, today-1, want...)
		}
		e.reopen()
	}
}

func daysRange(e *env) {
	k := e.user1("key_1")[0]
	for _, day := range []int{0, 3, 4} {
		for range day + 1 {
			e.allowed(onDay(request(k, noon), day))
		}
	}
	midnight := time.Date(2026, time.March, 18, 0, 0, 0, 0, time.UTC) // six days after noon
	e.allowed(request(k, midnight.Add(-time.Nanosecond)))
	e.denied(limit(request(k, midnight.Add(-time.Nanosecond)), core.Day, 1))
	e.allowed(request(k, midnight))
	e.denied(limit(request(k, midnight), core.Day, 0))
	for range 2 {
		e.wantDays(daysOfKey(k), today-2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0, 5, 0, 1, 1, 1, 1, 0, 0)
		e.wantDays(daysOfKey(k), today+3, 4, 0)
		e.wantDays(daysOfKey(k), today+6, 1, 1)
		e.wantDays(daysOfUser(k), today+1, 0, 0, 0, 0, 4, 0)
		e.reopen()
	}
	list, err := e.Store.Days(e.ctx, daysOfKey(k), today-core.DaysKept+1, today)
	e.ok("Days", err)
	if len(list) != core.DaysKept || list[core.DaysKept-1].Allowed != 1 {
		e.Errorf("DaysKept days: got %d, want %d, the last with 1 allowed", len(list), core.DaysKept)
	}
}

func daysWhose(e *env) {
	second, shared, own, other := e.twoPlans()
	account := second.AccountID
	spend := func(k *core.Key, plan string, allowed, denied int64) {
		c := under(request(k, noon), plan, core.Month, 1_000)
		e.allowed(cost(c, allowed))
		if denied > 0 {
			e.denied(cost(limit(c, core.Month, 0), denied))
		}
	}
	spend(shared, "plan_1", 1, 10)
	spend(own, "plan_2", 2, 20)
	spend(other, "plan_2", 4, 40)
	check := func(what string, key, user1, user2, plan1, plan2, all [2]int64) {
		e.Helper()
		for _, w := range []struct {
			of   core.DaysFilter
			want [2]int64
		}{
			{daysOfKey(own), key}, {core.DaysFilter{Account: account, UserID: 1}, user1}, {core.DaysFilter{Account: account, UserID: 2}, user2},
			{core.DaysFilter{Account: account, PlanID: "plan_1"}, plan1}, {core.DaysFilter{Account: account, PlanID: "plan_2"}, plan2},
			{core.DaysFilter{Account: account}, all},
			{core.DaysFilter{Account: account, PlanID: "plan_never"}, [2]int64{}}, {core.DaysFilter{Account: account, KeyID: "key_never"}, [2]int64{}},
			{core.DaysFilter{Account: account, UserID: 9}, [2]int64{}},
		} {
			e.wantDays(w.of, today, w.want[:]...)
		}
		if e.Failed() {
			e.Fatalf("%s", what)
		}
	}
	check("as made", [2]int64{2, 20}, [2]int64{3, 30}, [2]int64{4, 40}, [2]int64{1, 10}, [2]int64{6, 60}, [2]int64{7, 70})
	own.PlanID = "plan_1"
	e.put(own)
	second.PlanID = ""
	e.put(second)
	check("on other plans", [2]int64{2, 20}, [2]int64{3, 30}, [2]int64{4, 40}, [2]int64{3, 30}, [2]int64{0, 0}, [2]int64{7, 70})
	shared.PlanID = "plan_2"
	e.put(shared)
	spend(shared, "plan_2", 8, 80)
	check("with one more key on a plan of its own", [2]int64{2, 20}, [2]int64{11, 110}, [2]int64{4, 40}, [2]int64{3, 30}, [2]int64{9, 90}, [2]int64{15, 150})
	e.reopen()
	check("opened again", [2]int64{2, 20}, [2]int64{11, 110}, [2]int64{4, 40}, [2]int64{3, 30}, [2]int64{9, 90}, [2]int64{15, 150})
}

func daysClockStepsBack(e *env) {
	k := e.user1("key_1")[0]
	c := request(k, noon)
	e.allowed(onDay(c, 2))
	e.allowed(c)                      // counts in the window two days later
	e.denied(limit(c, core.Month, 0)) // no later day has denials
	e.allowed(cost(onDay(c, 1), 3))
	e.denied(limit(onDay(c, 3), core.Month, 0))
	e.denied(cost(limit(onDay(c, 1), core.Month, 0), 5))
	e.allowed(cost(onDay(c, 4), 7))
	for range 2 {
		e.wantDays(daysOfKey(k), today, 0, 1, 0, 0, 5, 0, 0, 6, 7, 0)
		e.wantDays(daysOfUser(k), today, 0, 1, 0, 0, 5, 0, 0, 6, 7, 0)
		e.reopen()
	}
	e.allowed(c)
	e.wantDays(daysOfUser(k), today+3, 0, 6, 8, 0)
}

func daysMany(e *env) {
	keys := e.user1("key_1", "key_2")
	var want []int64
	for day := range core.DaysKept {
		n := int64(day%3) + 1
		e.allowed(cost(onDay(request(keys[0], noon), day), n))
		if day%2 == 0 {
			e.allowed(cost(onDay(request(keys[1], noon), day), 10))
		}
		denied := int64(0)
		if day%7 == 0 {
			denied = 2
			e.denied(cost(limit(onDay(request(keys[0], noon), day), core.Day, 0), denied))
		}
		want = append(want, n, denied)
		if day == core.DaysKept/3 {
			e.reopen()
		}
	}
	for range 2 {
		e.wantDays(daysOfKey(keys[0]), today, want...)
		e.wantDays(daysOfKey(keys[1]), today, 10, 0, 0, 0, 10, 0)
		e.wantDays(daysOfUser(keys[0]), today+core.DaysKept-3, want[len(want)-6], want[len(want)-5], 10+want[len(want)-4], want[len(want)-3],
			want[len(want)-2], want[len(want)-1])
		e.reopen()
	}
}

func daysExact(e *env) {
	const callers, times, quota = 16, 25, 300
	keys := e.user1("key_1", "key_2")
	for _, k := range keys {
		k.PlanID = ""
		e.put(k)
	}
	e.parallel(callers, func(i int) {
		for range times {
			c := limit(request(keys[i%2], noon), core.Day, quota)
			if _, err := e.Store.Consume(e.ctx, &c); err != nil {
				e.Errorf("Consume: %v", err)
			}
		}
	})
	e.wantDays(daysOfUser(keys[0]), today, quota, callers*times-quota)
	e.wantDays(core.DaysFilter{Account: keys[0].AccountID}, today, quota, callers*times-quota)
	var allowed, denied int64
	for _, k := range keys {
		got, err := e.Store.Days(e.ctx, daysOfKey(k), today, today)
		e.ok("Days", err)
		allowed, denied = allowed+got[0].Allowed, denied+got[0].Denied
	}
	if allowed != quota || denied != callers*times-quota {
		e.Errorf("the days of both keys: got %d allowed and %d denied, want %d and %d", allowed, denied, quota, callers*times-quota)
	}
	before := e.snapshot(keys[0].AccountID)
	e.reopen()
	e.same("the account after reopening", before, e.snapshot(keys[0].AccountID))
}

func daysDeleted(e *env) {
	keys := e.user1("key_1", "key_2")
	account := keys[0].AccountID
	for day := range 3 {
		for _, k := range keys {
			e.allowed(onDay(request(k, noon), day))
			e.denied(limit(onDay(request(k, noon), day), core.Day, 0))
		}
		if day == 1 {
			e.reopen()
		}
	}
	e.update(account, func(tx core.Tx) error { return tx.DeleteKey("key_1") })
	for range 2 {
		e.wantDays(daysOfKey(keys[0]), today, 0, 0, 0, 0, 0, 0)
		e.wantDays(daysOfKey(keys[1]), today, 1, 1, 1, 1, 1, 1)
		e.wantDays(daysOfUser(keys[0]), today, 2, 2, 2, 2, 2, 2)
		e.wantDays(core.DaysFilter{Account: account, PlanID: "plan_1"}, today, 1, 1, 1, 1, 1, 1)
		e.wantDays(core.DaysFilter{Account: account}, today, 2, 2, 2, 2, 2, 2)
		e.reopen()
	}
	e.deleteUsers(account, 1)
	e.put(newUser(account, "next"))
	again := newKey(account, "key_1", 2, "plan_1")
	again.Digest = digest(account, "key_1", 9)
	e.put(again)
	e.allowed(onDay(request(again, noon), 1))
	for range 2 {
		e.wantDays(daysOfUser(keys[0]), today, 0, 0, 0, 0, 0, 0)
		e.wantDays(daysOfKey(again), today, 0, 0, 1, 0, 0, 0)
		e.wantDays(core.DaysFilter{Account: account}, today, 0, 0, 1, 0, 0, 0)
		e.reopen()
	}
}

func daysChangeHands(e *env) {
	k := e.user1("key_1")[0]
	account := k.AccountID
	e.put(newUser(account, "second"))
	for day, user := range []int64{1, 2, 1, 2} {
		k.UserID = user
		e.put(k)
		e.allowed(cost(onDay(request(k, noon), day), int64(day+1)))
		e.denied(cost(limit(onDay(request(k, noon), day), core.Day, 0), 10))
	}
	for range 2 {
		e.wantDays(daysOfKey(k), today, 1, 10, 2, 10, 3, 10, 4, 10)
		e.wantDays(core.DaysFilter{Account: account, UserID: 1}, today, 1, 10, 0, 0, 3, 10, 0, 0)
		e.wantDays(core.DaysFilter{Account: account, UserID: 2}, today, 0, 0, 2, 10, 0, 0, 4, 10)
		e.reopen()
	}
}

// someDays returns days up to the day of noon.
func someDays(n int64, shared bool) (list []core.CounterDay) {
	for _, ago := range []core.Date{core.DaysKept - 1, 200, 100, 7, 1, 0} {
		day := core.CounterDay{Date: today - ago, Traffic: core.Traffic{Allowed: n + int64(ago), Denied: int64(ago % 3)}}
		if shared {
			day.Shared = core.Traffic{Allowed: n + 1, Denied: int64(ago % 2)}
		}
		list = append(list, day)
	}
	return list
}

// wantCounterDays fails unless the days are stored.
func (e *env) wantCounterDays(id core.CounterID, want []core.CounterDay) {
	e.Helper()
	got, err := e.importer().CounterDays(e.ctx, id)
	e.ok("CounterDays", err)
	e.same(fmt.Sprintf("days of %+v", id), want, got)
}

func daysSet(e *env) {
	k := e.user1("key_1")[0]
	im := e.importer()
	e.wantCounterDays(keyCounter(k), nil)
	for _, n := range []int64{1 << 40, 5} {
		ofKey, ofUser := someDays(n, false), someDays(n, true)
		e.setCounters([]core.CounterID{keyCounter(k), userCounter(k)}, usedCounter(ofKey[5].Allowed, noon), usedCounter(ofUser[5].Shared.Allowed, noon))
		e.ok("SetDays", im.SetDays(e.ctx, keyCounter(k), ofKey))
		e.ok("SetDays", im.SetDays(e.ctx, userCounter(k), ofUser))
		for range 2 {
			e.wantCounterDays(keyCounter(k), ofKey)
			e.wantCounterDays(userCounter(k), ofUser)
			e.wantDays(daysOfKey(k), today-1, n+1, 1, n, 0)
			e.wantDays(daysOfUser(k), today-1, n+1, 1, n, 0)
			e.reopen()
			im = e.importer()
		}
	}
	e.setCounters([]core.CounterID{keyCounter(k), userCounter(k)}, usedCounter(77, noon), usedCounter(88, noon))
	e.wantDays(daysOfKey(k), today-1, 6, 1, 77, 0)
	e.ok("SetDays", im.SetDays(e.ctx, keyCounter(k), nil))
	e.ok("SetDays", im.SetDays(e.ctx, userCounter(k), nil))
	for range 2 {
		e.wantCounterDays(keyCounter(k), []core.CounterDay{{Date: today, Traffic: core.Traffic{Allowed: 77}}})
		e.wantCounterDays(userCounter(k), []core.CounterDay{{Date: today, Shared: core.Traffic{Allowed: 88}}})
		e.reopen()
	}
}

func daysSetCountedOn(e *env) {
	k := e.user1("key_1")[0]
	k.PlanID = ""
	e.put(k)
	im := e.importer()
	ofKey, ofUser := someDays(5, false), someDays(5, true)
	e.setCounters([]core.CounterID{keyCounter(k), userCounter(k)}, usedCounter(5, noon), usedCounter(6, noon))
	e.ok("SetDays", im.SetDays(e.ctx, keyCounter(k), ofKey))
	e.ok("SetDays", im.SetDays(e.ctx, userCounter(k), ofUser))
	e.allowed(request(k, noon))
	e.denied(limit(request(k, noon), core.Day, 0))
	e.allowed(cost(onDay(request(k, noon), 1), 3))
	e.denied(cost(limit(onDay(request(k, noon), 1), core.Day, 0), 4))
	ofKey[5].Allowed, ofKey[5].Denied = 6, 1
	ofKey = append(ofKey, core.CounterDay{Date: today + 1, Traffic: core.Traffic{Allowed: 3, Denied: 4}})
	ofUser[5].Traffic, ofUser[5].Shared = core.Traffic{Allowed: 6, Denied: 1}, core.Traffic{Allowed: 7, Denied: 1}
	ofUser = append(ofUser, core.CounterDay{Date: today + 1, Traffic: core.Traffic{Allowed: 3, Denied: 4}, Shared: core.Traffic{Allowed: 3, Denied: 4}})
	for range 2 {
		e.wantDays(daysOfKey(k), today-1, 6, 1, 6, 1, 3, 4)
		e.wantDays(daysOfUser(k), today-1, 6, 1, 6, 1, 3, 4)
		e.wantLatestDays(keyCounter(k), ofKey)
		e.wantLatestDays(userCounter(k), ofUser)
		e.reopen()
	}
}

// wantLatestDays is wantCounterDays without the first day, which may have expired.
func (e *env) wantLatestDays(id core.CounterID, want []core.CounterDay) {
	e.Helper()
	got, err := e.importer().CounterDays(e.ctx, id)
	e.ok("CounterDays", err)
	if len(got) == len(want) {
		got = got[1:]
	}
	e.same(fmt.Sprintf("days of %+v", id), want[1:], got)
}

func daysNotThere(e *env) {
	k := e.user1("key_1")[0]
	e.allowed(request(k, noon))
	im := e.importer()
	for id, want := range map[core.CounterID]error{
		{Account: k.AccountID, KeyID: "key_never"}: core.ErrKeyNotFound,
		{Account: k.AccountID, UserID: 9}:          core.ErrUserNotFound,
		{Account: "acct_missing", KeyID: "key_1"}:  core.ErrKeyNotFound,
		{Account: "acct_missing", UserID: 1}:       core.ErrUserNotFound,
		{Account: e.account(), KeyID: "key_1"}:     core.ErrKeyNotFound,
		{Account: e.account(), UserID: 1}:          core.ErrUserNotFound,
	} {
		e.isErr(fmt.Sprintf("SetDays of %+v", id), im.SetDays(e.ctx, id, someDays(1, false)), want)
		e.wantCounterDays(id, nil)
		e.wantDays(core.DaysFilter{Account: id.Account, KeyID: id.KeyID, UserID: id.UserID}, today, 0, 0)
	}
}
