package storetest

import (
	"sync"
	"sync/atomic"

	"github.com/limitkeeper/limitkeeper/core"
)

func exactLimits(e *env) {
	const callers, times = 64, 20
	k := e.sharing("key_1")[0]
	c := limit(request(k, noon), core.Month, 700)
	c.Further = []core.Limit{{Meter: core.MeterRequests, Max: 600, Period: core.Day}, {Meter: "tokens", Max: 2000, Period: core.Month},
		{Meter: "spend", Max: 5000, Period: core.Lifetime}}
	var mu sync.Mutex
	used := map[string]int64{}
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
				used[core.MeterRequests]++
				for _, c := range r.Costs {
					used[c.Meter] += c.Cost
				}
				mu.Unlock()
			}
		}
	})
	if used[core.MeterRequests] != 600 && used["tokens"] < 2000-7 {
		e.Errorf("got %v, want 600 requests or nearly 2000 tokens", used)
	}
	for _, id := range []core.CounterID{keyCounter(k), userCounter(k)} {
		c := e.counter(id)
		for meter, want := range used {
			for _, p := range core.Periods() {
				if got := c.Usage(meter, p, nil, noon).Used; got != want {
					e.Errorf("%s of %+v in the %v: got %d, want %d", meter, id, p, got, want)
				}
			}
		}
	}
}

func exactOwn(e *env) {
	const callers, times, own = 64, 20, 20
	const others = (callers - callers/5 - 1) * times // requests with the other keys
	const quota = others + 2*own                     // without its own limit, the first key gets twice as much
	keys := e.sharing("key_1", "key_2", "key_3", "key_4", "key_5")
	var passed [5]atomic.Int64
	e.parallel(callers, func(i int) {
		for n := range times {
			c := endpoint(limit(request(keys[i%5], noon), core.Month, quota), "/%d/%d", i, n)
			if i%5 == 0 {
				c.Own.Limits = []core.Limit{{Meter: core.MeterRequests, Max: own, Period: core.Day}}
			}
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil {
				e.Errorf("Consume: %v", err)
				return
			}
			if v.Allowed {
				passed[i%5].Add(1)
			}
		}
	})
	sum := int64(0)
	for i := range keys {
		sum += passed[i].Load()
		e.wantUsed(keyCounter(keys[i]), core.Day, noon, passed[i].Load())
	}
	e.same("requests of all keys", int64(others+own), sum)
	e.wantUsed(userCounter(keys[0]), core.Month, noon, others+own)
	if n := passed[0].Load(); n != own {
		e.Errorf("the limited key passed %d times, want %d", n, own)
	}
}

func exactRate(e *env) {
	const callers, times, burst = 64, 5, 100
	keys := e.sharing("key_1", "key_2")
	o := e.hammer(callers, times, func(i, _ int) core.Consumption {
		return atRate(limit(request(keys[i%2], noon), core.Month, core.Unlimited), 1, core.PerMinute, burst)
	})
	if o.calls != burst {
		e.Errorf("%d requests passed, want %d", o.calls, burst)
	}
	e.wantUsed(userCounter(keys[0]), core.Month, noon, burst)
}

func exactAdjustment(e *env) {
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
		if v := e.consume(c); v.FirstTerms == nil {
			e.Error("the adjustment was made again")
		}
		e.same("usage", int64(3), e.counter(c.DecidingCounter()).Requests[core.Lifetime])
	}
}

func exactDays(e *env) {
	const callers, times, quota = 16, 25, 300
	keys := e.sharing("key_1", "key_2")
	account := keys[0].AccountID
	e.hammer(callers, times, func(i, _ int) core.Consumption { return limit(request(keys[i%2], noon), core.Day, quota) })
	read := func(of core.DaysFilter) core.Traffic {
		of.Account = account
		days, err := e.Store.Days(e.ctx, of, today, today)
		e.ok("Days", err)
		return days[0].Traffic
	}
	want := core.Traffic{Allowed: quota, Denied: callers*times - quota}
	e.same("days of the user", want, read(core.DaysFilter{UserID: 1}))
	e.same("days of the account", want, read(core.DaysFilter{}))
	e.same("days of both keys", want, read(core.DaysFilter{KeyID: "key_1"}).Plus(read(core.DaysFilter{KeyID: "key_2"})))
	e.sameReopened(account)
}

func exactDenials(e *env) {
	const each = core.DeniedPerSecond + 3
	keys := e.sharing("key_1", "key_2")
	e.hammer(2*each, 1, func(i, _ int) core.Consumption { return limit(request(keys[i%2], noon), core.Month, 0) })
	for _, k := range keys {
		e.awaitHistory(keyCounter(k), core.DeniedPerSecond)
		e.same("counter of a key", core.Counter{DeniedOmitted: 3, LastRefused: noon.Unix()}, e.counter(keyCounter(k)))
	}
	e.awaitHistory(userCounter(keys[0]), 2*core.DeniedPerSecond)
	e.same("counter of the user", core.Counter{}, e.counter(userCounter(keys[0])))
}

func exactHistory(e *env) {
	const callers, times = 32, 15
	shared := e.sharing("key_1", "key_2")[0]
	own := newKey(shared.AccountID, "key_own", 1, "plan_1")
	e.put(own)
	keys := []*core.Key{shared, own}
	o := e.hammer(callers, times, func(i, n int) core.Consumption {
		return cost(limit(request(keys[i%2], noon), core.Month, 10_000), int64(1+n%3))
	})
	if o.calls != callers*times {
		e.Errorf("allowed: got %d, want all %d", o.calls, callers*times)
	}
	var both int64
	for _, k := range keys {
		used := e.counter(keyCounter(k)).Requests[core.Month]
		e.agrees(keyCounter(k), o, used)
		both += used
	}
	e.agrees(userCounter(own), o, both)
	e.wantUsed(userCounter(own), core.Month, noon, e.counter(keyCounter(shared)).Requests[core.Month])
	e.sameReopened(own.AccountID)
}

// agrees fails unless a history has each request once, in the order in which they were counted, and
// their costs add up to used. The returned usage gives the order of the requests on one counter.
func (e *env) agrees(of core.CounterID, o *outcome, used int64) {
	e.Helper()
	var sum int64
	seen, last := map[string]bool{}, map[string]int64{}
	for _, x := range all(e, e.entries(of)) {
		if seen[x.Endpoint] {
			e.Errorf("the request %s is in the history of %+v twice", x.Endpoint, of)
		}
		seen[x.Endpoint] = true
		at, ok := o.usedBy[x.Endpoint]
		if newer, any := last[x.KeyID]; !ok || any && at >= newer {
			e.Errorf("the request %s that led to the usage %d is after one that led to %d, or was not allowed", x.Endpoint, at, newer)
		}
		last[x.KeyID] = at
		sum += x.Cost
	}
	if sum != used {
		e.Errorf("sum of the costs in the history of %+v: got %d, want %d", of, sum, used)
	}
}
