package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var limitCases = []testCase{
	{name: "limits/decide", run: limitsDecide,
		promise: "a request passes when every limit has room for its cost; the result names the limit that decided and the usage of each"},
	{name: "limits/all or nothing", run: limitsAllOrNothing,
		promise: "a request is counted on all meters of its counters or on none, also after reopening"},
	{name: "limits/exact", run: limitsExact,
		promise: "concurrent requests never pass any of several limits, each denied one did not fit, and all meters agree"},
	{name: "limits/side by side", run: limitsSideBySide,
		promise: "every period of a meter is counted from its first request on, also without a limit, and windows end one by one"},
	{name: "limits/repeated", run: limitsRepeated,
		promise: "a repeated request gets the limits and the usages of its first answer"},
	{name: "limits/history", run: limitsHistory,
		promise: "an entry has the costs of all meters"},
	{name: "limits/unlimited", run: limitsUnlimited,
		promise: "without a primary limit requests pass and are counted, and the first of the other limits decides"},
	{name: "rate/bucket", run: rateBucket,
		promise: "requests pass while the bucket of the deciding counter has a token; denied ones return the time until the next one"},
	{name: "rate/denied", run: rateDenied,
		promise: "a request that a limit denies takes no token, and one that the rate denies is counted nowhere and is in the history"},
	{name: "rate/exact", run: rateExact,
		promise: "concurrent requests at one time get as many tokens as the bucket has"},
	{name: "adjust/rule", run: adjustRule,
		promise: "an adjustment changes the open windows of the deciding counter, as Counter.Adjust does, also after reopening; it takes no token"},
	{name: "adjust/history", run: adjustHistory,
		promise: "an adjustment is in the history of its key and of its user, and is no traffic"},
	{name: "adjust/repeated", run: adjustRepeated,
		promise: "adjustments with one request id are made once, also concurrently and after reopening"},
	{name: "adjust/missing", run: adjustMissing,
		promise: "the adjustment of a missing key or user is ErrKeyNotFound or ErrUserNotFound"},
	{name: "import/meters", run: limitsImported, imports: true,
		promise: "SetCounters replaces all meters of a counter"},
	{name: "anchors/windows", run: anchorsWindows,
		promise: "the windows of a user with an anchor begin with it, for its keys and for itself, also after reopening"},
	{name: "anchors/moved", run: anchorsMoved,
		promise: "a new anchor carries the usage of the open window along"},
}

// further returns the request under more limits, each written as in "tokens 100 month".
func further(c core.Consumption, limits ...string) core.Consumption {
	c.Further = nil
	for _, text := range limits {
		var l core.Limit
		var period string
		if _, err := fmt.Sscan(text, &l.Meter, &l.Max, &period); err != nil {
			panic(err)
		}
		l.Period, _ = core.ParsePeriod(period)
		c.Further = append(c.Further, l)
	}
	return c
}

// tokens returns the request with a cost of tokens.
func tokens(c core.Consumption, n int64) core.Consumption {
	c.Costs = nil
	if n > 0 {
		c.Costs = []core.MeterCost{{Meter: "tokens", Cost: n}}
	}
	c.Entry.Costs = c.Costs
	return c
}

// wantMeter fails unless a counter has the usage of a meter in each period.
func (e *env) wantMeter(id core.CounterID, meter string, at time.Time, want int64) {
	e.Helper()
	c := e.counter(id)
	for _, p := range core.Periods() {
		if got := c.Usage(meter, p, nil, at).Used; got != want {
			e.Errorf("%s of %+v in the %v: got %d, want %d", meter, id, p, got, want)
		}
	}
}

// agree makes requests, and compares the results with the results of a counter in memory.
func (e *env) agree(requests ...core.Consumption) {
	e.Helper()
	var model core.Counter
	var bucket core.Bucket
	for i, c := range requests {
		want := model.Consume(&c, &bucket)
		e.same(fmt.Sprintf("result %d", i), want, e.consume(c))
		e.same(fmt.Sprintf("counter after %d", i), model.Saved(), e.counter(c.DecidingCounter()))
	}
}

func limitsDecide(e *env) {
	for _, plan := range []string{"plan_1", ""} {
		k := e.user1("key_1")[0]
		k.PlanID = plan
		e.put(k)
		c := further(limit(request(k, noon), core.Day, 4), "requests 2 minute", "tokens 100 month", "requests 6 lifetime")
		later := c
		later.Entry.At = noon.Add(time.Minute)
		tomorrow := c
		tomorrow.Entry.At = noon.AddDate(0, 0, 1)
		e.agree(c, tokens(c, 60), c, tokens(cost(c, 0), 40), cost(later, 0), tokens(later, 1), later, cost(later, 2), later, later,
			tomorrow, tokens(tomorrow, 1), tomorrow, tomorrow, further(tomorrow), further(tomorrow, "spend 1 hour"), c)
	}
}

func limitsAllOrNothing(e *env) {
	k := e.user1("key_1")[0]
	k.PlanID = ""
	e.put(k)
	c := further(request(k, noon), "tokens 100 month", "tokens 70 day")
	e.allowed(tokens(c, 60))
	for _, refused := range []core.Consumption{tokens(c, 11), tokens(cost(c, 0), 11), tokens(limit(c, core.Month, 1), 1)} {
		e.denied(refused)
	}
	e.allowed(tokens(cost(c, 0), 10))
	for _, when := range []string{"at once", "after reopening"} {
		for _, id := range []core.CounterID{keyCounter(k), userCounter(k)} {
			e.wantMeter(id, core.MeterRequests, noon, 1)
			e.wantMeter(id, "tokens", noon, 70)
		}
		if when == "at once" {
			e.reopen()
		}
	}
}

func limitsExact(e *env) {
	const callers, times = 64, 20
	k := e.user1("key_1")[0]
	k.PlanID = ""
	e.put(k)
	c := further(limit(request(k, noon), core.Month, 700), "requests 600 day", "tokens 2000 month", "spend 5000 lifetime")
	var mu sync.Mutex
	var requests, used, spent int64
	e.parallel(callers, func(i int) {
		for n := range times {
			r := endpoint(tokens(c, int64(i+n)%8), "/%d/%d", i, n)
			r.Costs = append([]core.MeterCost{{Meter: "spend", Cost: 1}}, r.Costs...)
			r.Entry.Costs = r.Costs
			v, err := e.Store.Consume(e.ctx, &r)
			if err != nil {
				e.Errorf("Consume: %v", err)
				return
			}
			for j, u := range v.Limits {
				if l := r.LimitAt(j); u.Used > l.Max {
					e.Errorf("%d of %+v are used", u.Used, l)
				}
			}
			if v.Allowed {
				mu.Lock()
				requests, spent, used = requests+1, spent+1, used+int64(i+n)%8
				mu.Unlock()
			}
		}
	})
	if requests != 600 && used < 2000-7 {
		e.Errorf("got %d requests and %d tokens, want 600 requests or nearly 2000 tokens", requests, used)
	}
	for _, id := range []core.CounterID{keyCounter(k), userCounter(k)} {
		e.wantMeter(id, core.MeterRequests, noon, requests)
		e.wantMeter(id, "tokens", noon, used)
		e.wantMeter(id, "spend", noon, spent)
	}
}

func limitsSideBySide(e *env) {
	k := e.user1("key_1")[0]
	var model core.Counter
	for i, after := range []time.Duration{0, time.Second, time.Minute, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 31 * 24 * time.Hour, 366 * 24 * time.Hour} {
		c := tokens(limit(request(k, noon.Add(after)), core.Year, 1000), int64(1)<<i)
		e.allowed(c)
		model.Add(c.Charge())
		e.same(fmt.Sprintf("counter after %v", after), model, e.counter(keyCounter(k)))
		if i == 4 {
			e.reopen()
		}
	}
	last := request(k, noon.AddDate(2, 0, 0))
	e.denied(further(last, "requests 8 lifetime"))
	e.allowed(further(last, "requests 9 lifetime"))
	e.denied(tokens(further(last, "tokens 256 lifetime"), 2))
	e.allowed(tokens(further(last, "tokens 257 lifetime"), 2))
}

func limitsRepeated(e *env) {
	k := e.user1("key_1")[0]
	c := further(tokens(withRequestID(request(k, noon), "id"), 7), "tokens 100 lifetime", "requests 5 minute")
	c.Period, c.Limit = core.Month, core.Unlimited
	first := e.consume(c)
	if !first.Allowed || first.Deciding != 1 || len(first.Limits) != 3 {
		e.Fatalf("Consume: got %+v, want allowed by the limit of tokens", first)
	}
	first.FirstTerms = &c.Terms
	again := limit(tokens(c, 1), core.Day, 0)
	again.Further, again.Entry.At = nil, noon.Add(time.Hour)
	e.same("the repeated request", first, e.consume(again))
	e.reopen()
	e.same("the repeated request after reopening", first, e.consume(again))
	e.wantMeter(keyCounter(k), "tokens", noon, 7)
}

func limitsHistory(e *env) {
	k := e.user1("key_1")[0]
	first := tokens(endpoint(request(k, noon), "/first"), core.MaxMeterCost)
	first.Costs = append([]core.MeterCost{{Meter: "spend", Cost: 1}}, first.Costs...)
	first.Entry.Costs = first.Costs
	second := endpoint(request(k, noon.Add(time.Second)), "/second")
	third := further(tokens(endpoint(request(k, noon.Add(2*time.Second)), "/third"), 1), "tokens 1 year")
	e.allowed(first)
	e.allowed(second)
	e.denied(third)
	third.Entry.Denied, third.Entry.Reason = true, core.ReasonQuota
	want := []core.Entry{third.Entry, second.Entry, first.Entry}
	e.awaitHistory(keyCounter(k), 3)
	e.awaitHistory(userCounter(k), 3)
	for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
		e.same(fmt.Sprintf("history of %+v", of), want, all(e, e.entries(of, time.Time{})))
	}
	e.reopen()
	e.same("history after reopening", want[1:], all(e, e.entries(keyCounter(k), time.Time{}))[1:])
}

func limitsUnlimited(e *env) {
	k := e.user1("key_1")[0]
	c := limit(request(k, noon), core.Day, core.Unlimited)
	e.agree(c, cost(c, core.MaxCost), cost(c, 0), further(c, "requests 1000002 month"), further(c, "requests 1000002 month"), c)
}

func limitsImported(e *env) {
	keys := e.user1("key_1", "key_2")
	var full core.Counter
	for i, at := range []time.Time{noon, noon.AddDate(0, 1, 0)} {
		c := tokens(cost(request(keys[0], at), int64(5+i)), int64(50+10*i))
		full.Add(c.Charge())
	}
	e.allowed(tokens(request(keys[1], noon), 3))
	e.setCounters([]core.CounterID{keyCounter(keys[0]), keyCounter(keys[1])}, full, usedCounter(2, noon))
	for _, when := range []string{"at once", "after reopening"} {
		e.same("counter with meters "+when, full, e.counter(keyCounter(keys[0])))
		e.same("counter without meters "+when, usedCounter(2, noon), e.counter(keyCounter(keys[1])))
		if when == "at once" {
			e.reopen()
		}
	}
	next := tokens(request(keys[0], noon.AddDate(0, 1, 0)), 1)
	e.denied(further(next, "tokens 60 month"))
	e.allowed(further(next, "tokens 111 lifetime"))
}

// atRate returns the request under a rate.
func atRate(c core.Consumption, requests int64, per core.RatePer, burst int64) core.Consumption {
	c.Rate = &core.Rate{Requests: requests, Per: per, Burst: burst}
	return c
}

// after returns the request some time later.
func after(c core.Consumption, d time.Duration) core.Consumption {
	c.Entry.At = c.Entry.At.Add(d)
	return c
}

func rateBucket(e *env) {
	for _, plan := range []string{"plan_1", ""} {
		k := e.user1("key_1")[0]
		k.PlanID = plan
		e.put(k)
		c := limit(request(k, noon), core.Month, core.Unlimited)
		two, minute := atRate(c, 2, core.PerSecond, 3), atRate(c, 7, core.PerMinute, 1)
		e.agree(two, cost(two, 0), tokens(cost(two, 0), 4), two, two, cost(two, 0), // empty
			after(two, 499*time.Millisecond), after(two, 500*time.Millisecond), after(two, 501*time.Millisecond), after(two, 2*time.Second), // 3 again
			after(two, 2*time.Second), after(two, 1900*time.Millisecond), after(two, 2*time.Second), after(two, 2*time.Second),
			after(minute, 2*time.Second), after(minute, 10571*time.Millisecond), after(minute, 10572*time.Millisecond), after(minute, 10572*time.Millisecond), // another plan
			after(c, 11*time.Second), atRate(after(c, 11*time.Second), core.MaxRate, core.PerMinute, core.MaxRate),
			atRate(after(c, 11*time.Second), core.MaxRate, core.PerSecond, core.MaxRate), after(two, 12*time.Second),
			after(two, time.Hour), after(two, time.Hour), after(two, time.Hour), after(two, time.Hour),
			after(two, 56*time.Minute), after(two, 54*time.Minute), after(two, time.Hour)) // a clock that steps back
	}
}

func rateDenied(e *env) {
	k := e.user1("key_1")[0]
	c := atRate(limit(request(k, noon), core.Day, 3), 1, core.PerMinute, 2)
	e.allowed(c)
	for range 3 {
		e.denied(cost(c, 3))
		e.denied(further(tokens(c, 2), "tokens 1 lifetime"))
	}
	e.allowed(c)
	over := endpoint(tokens(cost(c, 0), 1), "/over")
	v := e.consume(over)
	if v.Reason != core.ReasonRate || v.RetryAfter != time.Minute {
		e.Errorf("got the reason %q and %v, want %q and a minute", v.Reason, v.RetryAfter, core.ReasonRate)
	}
	e.wantMeter(keyCounter(k), core.MeterRequests, noon, 2)
	e.wantMeter(keyCounter(k), "tokens", noon, 0)
	e.awaitHistory(keyCounter(k), 9)
	over.Entry.Denied, over.Entry.Reason = true, core.ReasonRate
	e.same("the newest entry", over.Entry, all(e, e.entries(keyCounter(k), time.Time{}))[0])
	e.reopen()
	e.same("the newest entry after reopening", over.Entry, all(e, e.entries(keyCounter(k), time.Time{}))[0])
	if v := e.consume(after(endpoint(cost(c, 2), "/quota"), time.Hour)); v.Reason != core.ReasonQuota {
		e.Errorf("got the reason %q, want %q", v.Reason, core.ReasonQuota)
	}
}

func rateExact(e *env) {
	const callers, times, burst = 64, 5, 100
	keys := e.user1("key_1", "key_2")
	for i := range keys {
		keys[i].PlanID = ""
		e.put(keys[i])
	}
	var passed atomic.Int64
	e.parallel(callers, func(i int) {
		for n := range times {
			c := endpoint(atRate(limit(request(keys[i%2], noon), core.Month, core.Unlimited), 1, core.PerMinute, burst), "/%d/%d", i, n)
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil {
				e.Errorf("Consume: %v", err)
			}
			if v.Allowed {
				passed.Add(1)
			}
		}
	})
	if passed.Load() != burst {
		e.Errorf("%d requests passed, want %d", passed.Load(), burst)
	}
	e.wantMeter(userCounter(keys[0]), core.MeterRequests, noon, burst)
}

// adjusted turns a request into an adjustment: it adds the value, or with a period it sets the usage of that period to the value.
func adjusted(c core.Consumption, meter string, value int64, period ...core.Period) core.Consumption {
	c.Adjustment = &core.Adjustment{Meter: meter, Value: value, Reason: "a goodwill grant"}
	if len(period) > 0 {
		c.Adjustment.Set, c.Adjustment.Period = true, period[0]
	}
	c.Terms, c.Cost, c.Costs = core.Terms{Rate: &core.Rate{Requests: 1, Per: core.PerMinute, Burst: 1}}, 0, nil // no rate applies to it
	c.Entry.Cost, c.Entry.Costs, c.Entry.Endpoint, c.Entry.Method = 0, nil, "", ""
	return c
}

// ofUser returns the adjustment of the counter of the user, without a key.
func ofUser(c core.Consumption) core.Consumption {
	c.KeyID, c.KeySeq, c.Shared, c.Entry.KeyID = "", 0, true, ""
	return c
}

func adjustRule(e *env) {
	for _, plan := range []string{"plan_1", ""} {
		k := e.user1("key_1")[0]
		k.PlanID = plan
		e.put(k)
		c := limit(request(k, noon), core.Month, core.Unlimited)
		tomorrow := after(c, 24*time.Hour)
		requests := []core.Consumption{adjusted(c, core.MeterRequests, 7), tokens(c, 5), adjusted(c, core.MeterRequests, -3),
			adjusted(c, "tokens", -9), adjusted(c, "spend", 1), adjusted(after(c, -time.Hour), "tokens", 100), tokens(c, 1),
			adjusted(tomorrow, core.MeterRequests, 2, core.Week), adjusted(tomorrow, "tokens", 0, core.Lifetime), tomorrow,
			adjusted(tomorrow, core.MeterRequests, core.MaxLimit), adjusted(tomorrow, core.MeterRequests, core.MaxLimit), cost(tomorrow, 0),
			adjusted(tomorrow, core.MeterRequests, -core.MaxLimit), tomorrow, anchored(adjusted(after(c, 40*24*time.Hour), core.MeterRequests, 3), map[int]time.Time{0: noon}),
			atRate(after(c, 40*24*time.Hour), 1, core.PerMinute, 1)}
		if plan == "" {
			requests = append(requests, ofUser(adjusted(tomorrow, core.MeterRequests, 11)))
		}
		e.agree(requests...)
		if plan == "" {
			e.same("usage of the key", int64(5), e.counter(keyCounter(k)).Requests[core.Lifetime])
		}
		id := requests[0].DecidingCounter()
		before := e.counter(id)
		e.reopen()
		e.same("counter after reopening", before, e.counter(id))
	}
}

func adjustHistory(e *env) {
	k := e.user1("key_1")[0]
	c := limit(request(k, noon), core.Month, 2)
	e.allowed(cost(c, 2))
	e.denied(after(c, time.Second))
	e.awaitHistory(keyCounter(k), 2)
	grant, set := adjusted(after(c, time.Second), core.MeterRequests, -1), adjusted(after(c, 2*time.Second), "tokens", 0, core.Lifetime)
	grant.Entry.IP = "203.0.113.9"
	user := ofUser(adjusted(after(c, 3*time.Second), "spend", core.MaxLimit))
	for _, a := range []core.Consumption{grant, set, user} {
		e.allowed(a)
	}
	e.allowed(after(c, 4*time.Second))
	for _, a := range []*core.Consumption{&grant, &set, &user} {
		a.Entry.Adjustment = a.Adjustment
	}
	for _, when := range []string{"at once", "after reopening"} {
		e.same("history of the key "+when, []core.Entry{set.Entry, grant.Entry}, all(e, e.entries(keyCounter(k), time.Time{}))[1:3])
		e.same("history of the user "+when, []core.Entry{user.Entry, set.Entry, grant.Entry}, all(e, e.entries(userCounter(k), time.Time{}))[1:4])
		e.wantMeter(keyCounter(k), core.MeterRequests, noon, 2)
		if when == "at once" {
			e.reopen()
		}
	}
	days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: k.AccountID, KeyID: k.ID}, core.DateOf(noon), core.DateOf(noon))
	if err != nil || days[0].Allowed != 3 || days[0].Denied != 1 {
		e.Errorf("Days: got %+v, %v, want 3 allowed and 1 denied", days, err)
	}
}

func adjustRepeated(e *env) {
	k := e.user1("key_1")[0]
	for _, c := range []core.Consumption{adjusted(request(k, noon), core.MeterRequests, 3), ofUser(adjusted(request(k, noon), core.MeterRequests, 3))} {
		c.RequestID = "an id"
		var first atomic.Int64
		e.parallel(16, func(int) {
			again := c
			v, err := e.Store.Consume(e.ctx, &again)
			if err != nil || !v.Allowed {
				e.Errorf("Consume: got %+v, %v, want allowed", v, err)
			}
			if v.FirstTerms == nil {
				first.Add(1)
			}
		})
		if first.Load() != 1 {
			e.Errorf("%d adjustments were the first, want 1", first.Load())
		}
		e.reopen()
		if v := e.consume(after(c, core.RequestIDRetention-time.Second)); v.FirstTerms == nil {
			e.Error("the adjustment was made again")
		}
		e.same("usage", int64(3), e.counter(c.DecidingCounter()).Requests[core.Lifetime])
		c.RequestID = "another id"
		e.allowed(c)
		e.same("usage with another id", int64(6), e.counter(c.DecidingCounter()).Requests[core.Lifetime])
	}
}

func adjustMissing(e *env) {
	k := e.user1("key_1")[0]
	c := adjusted(request(k, noon), core.MeterRequests, 3)
	c.KeyID, c.KeySeq = "key_missing", 0
	_, err := e.Store.Consume(e.ctx, &c)
	e.isErr("adjusting a missing key", err, core.ErrKeyNotFound)
	for _, account := range []string{c.Account, "acct_missing"} {
		user := ofUser(adjusted(request(k, noon), core.MeterRequests, 3))
		user.Account, user.UserID = account, 77
		_, err = e.Store.Consume(e.ctx, &user)
		e.isErr("adjusting a missing user", err, core.ErrUserNotFound)
	}
}

// anchored returns the request of a user with anchors: each the start, in force after some days.
func anchored(c core.Consumption, starts map[int]time.Time) core.Consumption {
	c.Anchors = nil
	for day := range 400 {
		if start, ok := starts[day]; ok {
			c.Anchors = append(c.Anchors, core.Anchor{From: noon.AddDate(0, 0, day).Truncate(time.Second), Start: start})
		}
	}
	return c
}

func anchorsWindows(e *env) {
	start := time.Date(2026, time.January, 31, 8, 30, 0, 0, time.UTC)
	for _, plan := range []string{"plan_1", ""} {
		k := e.user1("key_1")[0]
		k.PlanID = plan
		e.put(k)
		var requests []core.Consumption
		for _, p := range core.PlanPeriods() {
			for _, at := range []time.Time{noon, time.Date(2026, time.March, 31, 8, 29, 59, 0, time.UTC), time.Date(2026, time.March, 31, 8, 30, 0, 0, time.UTC)} {
				c := request(k, at.AddDate(int(p), 0, 0))
				requests = append(requests, anchored(limit(c, p, 2), map[int]time.Time{0: start}), anchored(limit(c, p, 2), map[int]time.Time{0: start}))
			}
		}
		e.agree(requests...)
		before := e.counter(requests[0].DecidingCounter())
		e.reopen()
		e.same("counter after reopening", before, e.counter(requests[0].DecidingCounter()))
	}
}

func anchorsMoved(e *env) {
	k := e.user1("key_1")[0]
	c := limit(request(k, noon), core.Month, 3)
	e.allowed(cost(c, 3))
	moved := c
	moved.Entry.At = noon.AddDate(0, 0, 5)
	moved = anchored(moved, map[int]time.Time{4: noon.AddDate(0, 0, 4)})
	window := core.Window{Start: noon.AddDate(0, 0, 4).Truncate(time.Second), End: noon.AddDate(0, 1, 4).Truncate(time.Second)}
	e.same("usage after the move", core.Usage{Window: window, Used: 3}, e.denied(moved))
	again := moved
	again.Entry.At = noon.AddDate(0, 0, 30) // in April, before the new window ends
	e.denied(again)
	again.Entry.At = window.End
	e.allowed(cost(again, 3))
	e.denied(again)
}
