package storetest

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

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
