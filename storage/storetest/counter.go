package storetest

import (
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var counterCases = []testCase{
	{name: "counter/batch", run: counterBatch,
		promise: "Counters returns the counters with the ids, in the order of ids; an unknown id has the zero counter"},
	{name: "counter/many", run: counterMany,
		promise: "each of thousands of counters is exact, however long it was unused"},
}

func counterBatch(e *env) {
	keys := e.user1("key_1", "key_2", "key_3")
	for i, k := range keys {
		for range i + 1 {
			e.allowed(request(k, noon.Add(time.Duration(i)*time.Hour)))
		}
	}
	account := keys[0].AccountID
	id := func(key string) core.CounterID { return core.CounterID{Account: account, KeyID: key} }
	ids := []core.CounterID{id("key_3"), id("key_missing"), id("key_1"), {Account: account, UserID: 1},
		{Account: "acct_missing", KeyID: "key_1"}, id("key_2"), id("key_3"), {Account: account, UserID: 99}}
	want := []core.Counter{usedCounter(3, noon.Add(2*time.Hour)), {}, usedCounter(1, noon), {},
		{}, usedCounter(2, noon.Add(time.Hour)), usedCounter(3, noon.Add(2*time.Hour)), {}}
	got, err := e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	e.same("Counters", want, got)
	got, err = e.Store.Counters(e.ctx, nil)
	e.ok("Counters of no ids", err)
	e.same("Counters of no ids", []core.Counter{}, got)
	e.reopen()
	got, err = e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	e.same("Counters after reopening", want, got)
}

// counterMany uses thousands of counters in turn, so that a store with a cache has to evict some.
func counterMany(e *env) {
	const n, callers = 3000, 64
	_, keys := Fill(e, e.Store, e.account(), n)
	round := func(number int, max int64) {
		e.parallel(callers, func(i int) {
			for at := i; at < n; at += callers {
				c := limit(request(keys[at], noon), core.Month, max)
				v, err := e.Store.Consume(e.ctx, &c)
				if err != nil || v.Allowed != (int64(number) <= max) || v.Usage.Used != min(int64(number), max) {
					e.Errorf("request %d of %s: got %d, %t, %v, want %d of %d", number, c.KeyID, v.Usage.Used, v.Allowed, err, number, max)
					return
				}
			}
		})
	}
	round(1, 2)
	round(2, 2)
	round(3, 2)
	e.reopen()
	round(3, 2)
	var ids []core.CounterID
	for _, k := range keys {
		ids = append(ids, keyCounter(k))
	}
	got, err := e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	for i := range got {
		if used := got[i].Usage(core.MeterRequests, core.Month, nil, noon).Used; used != 2 {
			e.Errorf("usage of %s: got %d, want 2", keys[i].ID, used)
			break
		}
	}
	last := keys[n-1]
	if total := e.historyTotal(keyCounter(last)); total < 2 {
		e.Errorf("history of %s: got %d entries, want at least the 2 allowed requests", last.ID, total)
	}

}

var sharedCases = []testCase{
	{name: "shared/one quota", run: sharedOneQuota,
		promise: "if the counter of the user decides, all keys without a plan of their own share it, and each request counts on the counter of its key, too"},
	{name: "shared/own plan apart", run: sharedOwnPlanApart,
		promise: "a request that the counter of the key decides counts only there"},
	{name: "shared/change of plan", run: sharedChangeOfPlan,
		promise: "every request counts on the counter of its key, so that its usage is known under the next plan"},
}

func sharedOneQuota(e *env) {
	keys := e.user1("key_1", "key_2")
	for _, k := range keys {
		k.PlanID = ""
		e.put(k)
	}
	first, second := limit(request(keys[0], noon), core.Day, 5), limit(request(keys[1], noon), core.Day, 5)
	for i, c := range []core.Consumption{first, second, first, first} {
		want := core.Usage{Window: core.Day.Window(noon), Used: int64(i + 1)}
		e.same("Consume", want, e.allowed(c))
	}
	e.denied(cost(second, 2))
	e.allowed(second)
	e.denied(first)
	e.denied(second)
	e.wantUsed(userCounter(keys[0]), core.Day, noon, 5)
	e.wantUsed(keyCounter(keys[0]), core.Day, noon, 3)
	e.wantUsed(keyCounter(keys[1]), core.Day, noon, 2)
	tomorrow := first
	tomorrow.Entry.At = noon.AddDate(0, 0, 1)
	e.same("Consume on the next day", core.Usage{Window: core.Day.Window(tomorrow.Entry.At), Used: 1}, e.allowed(tomorrow))
	var want core.Counter
	want.Add(charge(5, noon))
	want.Add(charge(1, tomorrow.Entry.At))
	e.same("counter of the user", want, e.counter(userCounter(keys[0])))
	e.reopen()
	e.same("counter of the user after reopening", want, e.counter(userCounter(keys[0])))
}

func sharedOwnPlanApart(e *env) {
	keys := e.user1("key_shared", "key_own")
	shared, own := keys[0], keys[1]
	shared.PlanID = ""
	e.put(shared)
	e.allowed(limit(request(own, noon), core.Month, 1))
	e.denied(limit(request(own, noon), core.Month, 1))
	e.allowed(limit(request(shared, noon), core.Month, 2))
	e.allowed(limit(request(shared, noon), core.Month, 2))
	e.denied(limit(request(shared, noon), core.Month, 2))
	e.same("counter of the key with a plan", usedCounter(1, noon), e.counter(keyCounter(own)))
	e.same("counter of the key without", usedCounter(2, noon), e.counter(keyCounter(shared)))
	e.same("counter of the user", usedCounter(2, noon), e.counter(userCounter(own)))
}

func sharedChangeOfPlan(e *env) {
	k := e.user1("key_1")[0]
	k.PlanID = ""
	e.put(k)
	later := noon.Add(time.Second)
	e.allowed(request(k, noon))
	e.allowed(request(k, noon))
	k.PlanID = "plan_1"
	e.put(k)
	if got := e.allowed(request(k, later)).Used; got != 3 {
		e.Errorf("usage under a plan of its own: got %d, want 3", got)
	}
	e.denied(limit(request(k, later), core.Month, 3))
	k.PlanID = ""
	e.put(k)
	if got := e.allowed(request(k, later)).Used; got != 3 {
		e.Errorf("usage under the user's plan: got %d, want 3", got)
	}
	e.wantUsed(keyCounter(k), core.Month, noon, 4)
	e.wantUsed(userCounter(k), core.Month, noon, 3)
}

var windowCases = []testCase{
	{name: "window/side by side", run: windowSideBySide,
		promise: "a counter holds the windows of every period side by side"},
	{name: "window/change of period", run: windowChangeOfPeriod,
		promise: "a plan may change its period and the usage is kept"},
	{name: "window/boundary", run: windowBoundary,
		promise: "a window is half open: a request in its last nanosecond counts in it, a request at its end in the next one"},
	{name: "window/clock steps back", run: windowClockBack,
		promise: "if the clock steps back over a boundary, the later window stays in force and no earlier one is opened again"},
	{name: "window/clock steps back across reopening", run: windowClockBackReopened,
		promise: "the later window stays in force also after reopening"},
}

func windowSideBySide(e *env) {
	k := e.user1("key_1")[0]
	times := []time.Time{ // starts of a year, month, week and day
		time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC), // a Friday
		time.Date(2027, time.January, 31, 0, 0, 0, 0, time.UTC),
		time.Date(2027, time.February, 1, 0, 0, 0, 0, time.UTC), // a Monday
		time.Date(2027, time.February, 7, 0, 0, 0, 0, time.UTC),
		time.Date(2027, time.February, 8, 23, 59, 59, 999999999, time.UTC),
		time.Date(2027, time.February, 9, 1, 0, 0, 0, time.UTC),
	}
	var want core.Counter
	for i, at := range times {
		c := cost(request(k, at), int64(1)<<i)
		c.Period = core.PlanPeriods()[i%4]
		want.Add(c.Charge())
		e.same(fmt.Sprintf("Consume in the %v of %v", c.Period, at), want.Usage(core.MeterRequests, c.Period, nil, at), e.allowed(c))
		e.same(fmt.Sprintf("counter at %v", at), want, e.counter(keyCounter(k)))
	}
	e.reopen()
	e.same("counter after reopening", want, e.counter(keyCounter(k)))
	last := times[len(times)-1]
	for p, used := range map[core.Period]int64{core.Minute: 32, core.Hour: 32, core.Day: 32, core.Week: 16 + 32, core.Month: 60, core.Year: 63, core.Lifetime: 63} {
		e.wantUsed(keyCounter(k), p, last, used)
	}
}

func windowChangeOfPeriod(e *env) {
	k := e.user1("key_1")[0]
	early := noon.AddDate(0, 0, -1)
	for range 3 {
		e.allowed(limit(request(k, early), core.Day, 3))
	}
	e.denied(limit(request(k, early), core.Day, 3))
	for i, p := range []core.Period{core.Month, core.Week, core.Year} {
		want := core.Usage{Window: p.Window(noon), Used: int64(4 + i)}
		e.same(fmt.Sprintf("usage of the %v", p), want, e.allowed(limit(request(k, noon), p, 1000)))
		e.same(fmt.Sprintf("usage of the %v at the limit", p), want, e.denied(limit(request(k, noon), p, want.Used)))
	}
	e.denied(limit(request(k, noon), core.Day, 3))
	e.allowed(limit(request(k, noon), core.Day, 4))
}

func windowBoundary(e *env) {
	boundaries := map[core.Period]time.Time{
		core.Day:   time.Date(2028, time.February, 29, 0, 0, 0, 0, time.UTC),
		core.Week:  time.Date(2027, time.January, 4, 0, 0, 0, 0, time.UTC), // ISO week 1, after week 53
		core.Month: time.Date(2028, time.March, 1, 0, 0, 0, 0, time.UTC),   // after a leap day
		core.Year:  time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC),
	}
	for p, end := range boundaries {
		k := e.user1("key_1")[0]
		last := end.Add(-time.Nanosecond)
		old, next := p.Window(last), p.Window(end)
		e.same(fmt.Sprintf("the first of a %v", p), core.Usage{Window: old, Used: 1}, e.allowed(limit(request(k, old.Start), p, 2)))
		e.same(fmt.Sprintf("the last of a %v", p), core.Usage{Window: old, Used: 2}, e.allowed(limit(request(k, last), p, 2)))
		e.same(fmt.Sprintf("one too many in a %v", p), core.Usage{Window: old, Used: 2}, e.denied(limit(request(k, last), p, 2)))
		look := cost(limit(request(k, end), p, 2), 0)
		e.same(fmt.Sprintf("a look at the next %v", p), core.Usage{Window: next}, e.allowed(look))
		abroad := end.In(time.FixedZone("somewhere", -5*3600)) // still the day before
		e.same(fmt.Sprintf("the first of the next %v", p), core.Usage{Window: next, Used: 1}, e.allowed(limit(request(k, abroad), p, 2)))
		e.wantUsed(keyCounter(k), p, end, 1)
	}
}

func windowClockBack(e *env) {
	for _, p := range core.PlanPeriods() {
		k := e.user1("key_1")[0]
		// clockBack uses up a window and the next one. The clock steps back in between.
		e.clockBack(k, p, func() {})
	}
}

func windowClockBackReopened(e *env) {
	k := e.user1("key_1")[0]
	e.clockBack(k, core.Month, e.reopen)
}

// clockBack uses up a window and then the next one, with the clock stepping back in
// between.
func (e *env) clockBack(k *core.Key, p core.Period, between func()) {
	e.Helper()
	before := p.Window(noon).End.Add(-time.Second)
	after := before.Add(2 * time.Second)
	next := p.Window(after)
	at := func(t time.Time) core.Consumption { return limit(request(k, t), p, 2) }
	e.allowed(at(before))
	e.allowed(at(before))
	e.denied(at(before))
	e.same("the first after the boundary", core.Usage{Window: next, Used: 1}, e.allowed(at(after)))
	between()
	e.same("a look after the clock stepped back", core.Usage{Window: next, Used: 1}, e.allowed(cost(at(before), 0)))
	e.same("counted after the clock stepped back", core.Usage{Window: next, Used: 2}, e.allowed(at(before)))
	between()
	e.same("one too many after the clock stepped back", core.Usage{Window: next, Used: 2}, e.denied(at(before.AddDate(-2, 0, 0))))
	e.same("one too many after the boundary", core.Usage{Window: next, Used: 2}, e.denied(at(after)))
	e.wantUsed(keyCounter(k), p, before, 2)
	e.wantUsed(keyCounter(k), p, after, 2)
}
