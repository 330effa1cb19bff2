package storetest

import (
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var usageCases = []testCase{
	{name: "usage/counted", run: usageCounted,
		promise: "Consume counts a request if it fits and returns the usage after the step; a denied request counts nowhere"},
	{name: "usage/cost", run: usageCost,
		promise: "a cost above the rest of the quota is denied as a whole"},
	{name: "usage/cost of 0", run: usageCostZero,
		promise: "a cost of 0 is allowed below the limit and writes nothing: no usage, no history, no last use"},
	{name: "usage/limit changed", run: usageLimitChanged,
		promise: "the limit of the request decides: below the usage it denies, above it allows, and the usage does not change"},
	{name: "usage/large numbers", run: usageLarge,
		promise: "usage is exact with the largest limit and the largest cost"},
	{name: "usage/last used", run: usageLastUsed,
		promise: "LastUsedAt is the time of the latest allowed request, as the same instant in UTC, and never goes back"},
}

// request returns a request with a key, of cost 1 at the time at, under a plan of 1000 a month: the
// plan of the key, or of its user if the key has none.
func request(k *core.Key, at time.Time) core.Consumption {
	return core.Consumption{
		Account: k.AccountID, KeyID: k.ID, KeySeq: k.Seq, UserID: k.UserID, Shared: k.PlanID == "",
		Terms: core.Terms{PlanID: "plan_1", PlanName: "name of plan_1", Period: core.Month, Limit: 1000}, Cost: 1, Retention: forever,
		Entry: core.Entry{At: at, KeyID: k.ID, UserID: k.UserID, Endpoint: "/", Method: "GET", IP: "192.0.2.1", Cost: 1},
	}
}

// cost returns the request with another cost. A request of cost 0 costs nothing on other meters either.
func cost(c core.Consumption, n int64) core.Consumption {
	c.Cost, c.Entry.Cost = n, n
	if n == 0 {
		c.Costs, c.Entry.Costs = nil, nil
	}
	return c
}

// limit returns the request under another limit of a period.
func limit(c core.Consumption, p core.Period, n int64) core.Consumption {
	c.Period, c.Limit = p, n
	return c
}

// endpoint returns the request with another endpoint.
func endpoint(c core.Consumption, format string, args ...any) core.Consumption {
	c.Entry.Endpoint = fmt.Sprintf(format, args...)
	return c
}

// consume counts a request, and fails if Consume returns an error.
func (e *env) consume(c core.Consumption) core.ConsumeResult {
	e.Helper()
	v, err := e.Store.Consume(e.ctx, &c)
	e.ok("Consume", err)
	return v
}

// allowed fails unless a request is allowed.
func (e *env) allowed(c core.Consumption) core.Usage {
	e.Helper()
	v := e.consume(c)
	if !v.Allowed {
		e.Fatalf("Consume of %d at the usage %d of %d: got denied, want allowed", c.Cost, v.Usage.Used, c.Limit)
	}
	return v.Usage
}

// denied fails unless a request is denied.
func (e *env) denied(c core.Consumption) core.Usage {
	e.Helper()
	v := e.consume(c)
	if v.Allowed {
		e.Fatalf("Consume of %d: got allowed with the usage %d of %d, want denied", c.Cost, v.Usage.Used, c.Limit)
	}
	return v.Usage
}

func keyCounter(k *core.Key) core.CounterID {
	return core.CounterID{Account: k.AccountID, KeyID: k.ID}
}

func userCounter(k *core.Key) core.CounterID {
	return core.CounterID{Account: k.AccountID, UserID: k.UserID}
}

// counter reads one counter.
func (e *env) counter(id core.CounterID) core.Counter {
	e.Helper()
	cs, err := e.Store.Counters(e.ctx, []core.CounterID{id})
	e.ok("Counters", err)
	if len(cs) != 1 {
		e.Fatalf("Counters of one id: got %d", len(cs))
	}
	return cs[0]
}

// wantUsed fails unless a counter has the usage in the period at the time at.
func (e *env) wantUsed(id core.CounterID, p core.Period, at time.Time, want int64) {
	e.Helper()
	c := e.counter(id)
	if got := c.Usage(core.MeterRequests, p, nil, at).Used; got != want {
		e.Errorf("usage of %+v in the %v of %v: got %d, want %d", id, p, at, got, want)
	}
}

// user1 creates an account with one user, and its keys on plan_1.
func (e *env) user1(keys ...string) []*core.Key {
	e.Helper()
	account := e.account()
	e.put(newUser(account, "user"))
	var ks []*core.Key
	for _, id := range keys {
		k := newKey(account, id, 1, "plan_1")
		e.put(k)
		ks = append(ks, k)
	}
	return ks
}

func usageCounted(e *env) {
	k := e.user1("key_1", "key_10")[0]
	c := limit(request(k, noon), core.Day, 3)
	for want := int64(1); want <= 3; want++ {
		e.same("Consume", core.Usage{Window: core.Day.Window(noon), Used: want}, e.allowed(c))
		e.wantUsed(keyCounter(k), core.Day, noon, want)
	}
	for range 3 {
		e.same("Consume at the limit", core.Usage{Window: core.Day.Window(noon), Used: 3}, e.denied(c))
		e.wantUsed(keyCounter(k), core.Day, noon, 3)
	}
	e.same("counter", usedCounter(3, noon), e.counter(keyCounter(k)))
	e.same("counter of the user", core.Counter{}, e.counter(userCounter(k)))
	e.same("counter of another key", core.Counter{}, e.counter(core.CounterID{Account: k.AccountID, KeyID: "key_10"}))
}

// usedCounter returns a counter whose whole usage is in the windows of at.
func usedCounter(used int64, at time.Time) core.Counter {
	var c core.Counter
	c.Add(charge(used, at))
	return c
}

// charge returns the charge of a request.
func charge(cost int64, at time.Time) *core.Charge {
	return (&core.Consumption{Cost: cost, Entry: core.Entry{At: at}}).Charge()
}

func usageCost(e *env) {
	k := e.user1("key_1")[0]
	c := limit(request(k, noon), core.Week, 10)
	steps := []struct {
		cost, used int64
		ok         bool
	}{
		{11, 0, false}, {4, 4, true}, {7, 4, false}, {core.MaxCost, 4, false}, {6, 10, true}, {1, 10, false}, {10, 10, false},
	}
	for _, s := range steps {
		v := e.consume(cost(c, s.cost))
		if v.Usage.Used != s.used || v.Allowed != s.ok {
			e.Errorf("Consume of %d: got %d, %t, want %d, %t", s.cost, v.Usage.Used, v.Allowed, s.used, s.ok)
		}
		e.wantUsed(keyCounter(k), core.Week, noon, s.used)
	}
}

func usageCostZero(e *env) {
	k := e.user1("key_1")[0]
	look := limit(cost(request(k, noon), 0), core.Month, 2)
	untouched := func() {
		e.Helper()
		e.same("counter that was only looked at", core.Counter{}, e.counter(keyCounter(k)))
		e.wantHistory(keyCounter(k), time.Time{})
		e.wantHistory(userCounter(k), time.Time{})
	}
	e.same("a look", core.Usage{Window: core.Month.Window(noon)}, e.allowed(look))
	untouched()
	look.Limit = 0
	e.denied(look)
	untouched()

	look.Limit = 2
	e.allowed(cost(look, 1))
	if got := e.allowed(look).Used; got != 1 {
		e.Errorf("a look below the limit: got the usage %d, want 1", got)
	}
	e.allowed(cost(look, 1))
	before := e.snapshot(k.AccountID)
	late := look
	late.Entry.At = noon.Add(time.Hour)
	for range 2 * core.DeniedPerSecond {
		if got := e.denied(late).Used; got != 2 {
			e.Errorf("a look at the limit: got the usage %d, want 2", got)
		}
	}
	e.same("the account after looks", before, e.snapshot(k.AccountID))
	e.reopen()
	e.same("the account after looks and reopening", before, e.snapshot(k.AccountID))
}

func usageLimitChanged(e *env) {
	k := e.user1("key_1")[0]
	c := request(k, noon)
	for range 5 {
		e.allowed(c)
	}
	if got := e.denied(limit(c, core.Month, 3)).Used; got != 5 {
		e.Errorf("usage under a limit of 3: got %d, want 5", got)
	}
	e.denied(limit(c, core.Month, 5))
	if got := e.allowed(limit(c, core.Month, 6)).Used; got != 6 {
		e.Errorf("usage under a limit of 6: got %d, want 6", got)
	}
	e.denied(limit(c, core.Month, 6))
	e.wantUsed(keyCounter(k), core.Month, noon, 6)
}

func usageLarge(e *env) {
	k := e.user1("key_1")[0]
	c := cost(limit(request(k, noon), core.Year, core.MaxLimit), core.MaxCost)
	for want := int64(core.MaxCost); want <= 5*core.MaxCost; want += core.MaxCost {
		if got := e.allowed(c).Used; got != want {
			e.Errorf("usage: got %d, want %d", got, want)
		}
	}
	c.Limit = 5*core.MaxCost + 1
	e.denied(cost(c, 2))
	e.allowed(cost(c, 1))
	e.denied(cost(c, 1))
	e.reopen()
	e.wantUsed(keyCounter(k), core.Year, noon, 5*core.MaxCost+1)
}

func usageLastUsed(e *env) {
	k := e.user1("key_1")[0]
	used := func(when string, want time.Time) {
		e.Helper()
		got := e.counter(keyCounter(k)).LastUsedAt
		if !got.Equal(want) {
			e.Errorf("%s: LastUsedAt: got %v, want %v", when, got, want)
		}
		if !want.IsZero() {
			e.utc(got)
		}
	}
	used("never used", time.Time{})
	e.allowed(request(k, noon.In(time.FixedZone("somewhere", 3600))))
	used("used at noon", noon)
	e.allowed(request(k, noon.Add(time.Nanosecond)))
	used("used a moment later", noon.Add(time.Nanosecond))
	e.allowed(request(k, noon.Add(-time.Hour)))
	used("used after the clock stepped back", noon.Add(time.Nanosecond))
	e.denied(limit(request(k, noon.Add(time.Hour)), core.Month, 1))
	used("denied later", noon.Add(time.Nanosecond))
	e.reopen()
	used("after reopening", noon.Add(time.Nanosecond))
}
