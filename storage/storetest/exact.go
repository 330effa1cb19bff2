package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var exactCases = []testCase{
	{name: "exact/one key", run: exactOneKey,
		promise: "Consume is linearizable for each counter: the allowed requests fill the limit exactly"},
	{name: "exact/shared", run: exactShared,
		promise: "Consume is linearizable for the counter that several keys share: the allowed requests fill the limit exactly"},
	{name: "exact/mixed costs", run: exactMixedCosts,
		promise: "with concurrent requests of several costs, the sum of the allowed costs never exceeds the limit, and a request is denied only if it does not fit"},
	{name: "exact/just opened", run: exactJustOpened,
		promise: "the first concurrent requests after opening start from the stored usage"},
	{name: "exact/window ends", run: exactWindowEnds,
		promise: "if a window ends under load, the allowed requests fill the limit of each window exactly"},
	{name: "exact/seen at once", run: exactSeenAtOnce,
		promise: "Counters, History and PlanUsed include every Consume that has returned"},
	{name: "exact/limits", run: exactLimits,
		promise: "concurrent requests never pass any of several limits, each denied one did not fit, and all meters agree"},
	{name: "exact/own limits", run: exactOwn,
		promise: "of concurrent requests with five keys of one quota, one of them with a limit of its own, none passes a limit"},
	{name: "exact/rate", run: exactRate,
		promise: "concurrent requests at one time get as many tokens as the bucket has"},
	{name: "exact/adjustment", run: exactAdjustment,
		promise: "concurrent adjustments with one request id are made once"},
	{name: "exact/days", run: exactDays,
		promise: "each of many concurrent requests is in the days once"},
	{name: "exact/denials", run: exactDenials,
		promise: "the bounds of recorded denials are those of each key, also if the counter of the user decides"},
	{name: "exact/history", run: exactHistory,
		promise: "entries are in the order in which they were counted, without duplicates; every allowed request is included, and the sum of the costs is the usage"},
	{name: "exact/caller canceled", run: exactCallerGone,
		promise: "a step that has begun is finished even if ctx is canceled: each request is counted as a whole or not at all, in counter and history alike"},
}

// outcome is the result of concurrent requests.
type outcome struct {
	mu      sync.Mutex
	allowed int64            // the sum of their costs
	calls   int              // allowed requests
	denied  int              // denied requests
	usedBy  map[string]int64 // the usage after each allowed request, by endpoint
}

// hammer makes requests in concurrent callers, a number of times in each. Requests are told apart
// by their endpoints.
func (e *env) hammer(callers, times int, request func(caller, n int) core.Consumption) *outcome {
	e.Helper()
	o := &outcome{usedBy: map[string]int64{}}
	e.parallel(callers, func(i int) {
		for n := range times {
			c := endpoint(request(i, n), "/%d/%d", i, n)
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil {
				e.Errorf("Consume: %v", err)
				return
			}
			if v.Usage.Used > c.Limit {
				e.Errorf("Consume: got the usage %d, want at most %d", v.Usage.Used, c.Limit)
			}
			o.add(&c, v)
		}
	})
	return o
}

func (o *outcome) add(c *core.Consumption, v core.ConsumeResult) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !v.Allowed {
		o.denied++
		return
	}
	o.allowed += c.Cost
	o.calls++
	o.usedBy[c.Entry.Endpoint] = v.Usage.Used
}

// wantAllowed fails unless the sum of the allowed costs is want, in the counter, too, and every
// usage up to want was returned once.
func (e *env) wantAllowed(o *outcome, of core.CounterID, want int64) {
	e.Helper()
	if o.allowed != want {
		e.Errorf("allowed: got %d, want %d", o.allowed, want)
	}
	e.wantUsed(of, core.Month, noon, want)
	reached := map[int64]bool{}
	for at, used := range o.usedBy {
		if reached[used] {
			e.Errorf("the usage %d was returned twice, also to %s", used, at)
		}
		reached[used] = true
	}
}

func exactOneKey(e *env) {
	const callers, times, quota = 64, 30, 1000
	k := e.user1("key_1")[0]
	o := e.hammer(callers, times, func(int, int) core.Consumption { return limit(request(k, noon), core.Month, quota) })
	e.wantAllowed(o, keyCounter(k), quota)
	if o.denied != callers*times-quota {
		e.Errorf("denied: got %d, want %d", o.denied, callers*times-quota)
	}
	e.reopen()
	e.wantUsed(keyCounter(k), core.Month, noon, quota)
}

func exactShared(e *env) {
	const callers, times, quota = 64, 15, 500
	keys := e.sharing("key_1", "key_2", "key_3", "key_4", "key_5")
	o := e.hammer(callers, times, func(i, n int) core.Consumption {
		return limit(request(keys[(i+n)%len(keys)], noon), core.Month, quota)
	})
	e.wantAllowed(o, userCounter(keys[0]), quota)
	var sum int64
	for _, k := range keys {
		c := e.counter(keyCounter(k))
		sum += c.Usage(core.MeterRequests, core.Month, nil, noon).Used
	}
	if sum != quota {
		e.Errorf("sum over the counters of the keys: got %d, want %d", sum, quota)
	}
}

func exactMixedCosts(e *env) {
	const callers, times, quota = 64, 15, 2000
	k := e.user1("key_1")[0]
	o := e.hammer(callers, times, func(i, n int) core.Consumption {
		return limit(cost(request(k, noon), int64(1+(i*7+n)%9)), core.Month, quota)
	})
	// Requests of cost 1 were denied, so the quota is used up.
	e.wantAllowed(o, keyCounter(k), quota)
	if o.denied == 0 {
		e.Errorf("denied: got none, want some: %d were asked", callers*times)
	}
}

func exactJustOpened(e *env) {
	const callers, used, quota = 64, 20, 50
	keys := e.user1("key_1", "key_2", "key_3")
	for _, k := range keys {
		for range used {
			e.allowed(limit(request(k, noon), core.Month, quota))
		}
	}
	e.reopen()
	o := e.hammer(callers, 2*len(keys), func(_, n int) core.Consumption {
		return limit(request(keys[n%len(keys)], noon), core.Month, quota)
	})
	if want := int64(len(keys) * (quota - used)); o.allowed != want {
		e.Errorf("allowed after reopening: got %d, want %d", o.allowed, want)
	}
	for _, k := range keys {
		e.wantUsed(keyCounter(k), core.Month, noon, quota)
	}
}

func exactWindowEnds(e *env) {
	const callers, times, quota = 32, 20, 100
	k := e.user1("key_1")[0]
	end := core.Month.Window(noon).End
	var asked atomic.Int64
	o := e.hammer(callers, times, func(int, int) core.Consumption {
		c := limit(request(k, end.Add(-time.Second)), core.Month, quota)
		if asked.Add(1) > callers*times/2 {
			c.Entry.At = end
		}
		return c
	})
	// Late requests of the old window count in the new one.
	e.wantUsed(keyCounter(k), core.Month, end, quota)
	if o.allowed < quota || o.allowed > 2*quota {
		e.Errorf("allowed: got %d, want %d in the new window and at most as many in the old one", o.allowed, quota)
	}
	e.wantUsed(keyCounter(k), core.Year, end, o.allowed)
}

func exactSeenAtOnce(e *env) {
	const callers, times = 16, 15
	keys := append(e.user1("key_1"), e.sharing("key_1")...)
	e.parallel(callers, func(i int) {
		for range times {
			c := request(keys[i%2], noon)
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil || !v.Allowed {
				e.Errorf("Consume: got %t, %v, want allowed", v.Allowed, err)
				return
			}
			cs, err := e.Store.Counters(e.ctx, []core.CounterID{c.DecidingCounter()})
			if err != nil || len(cs) != 1 {
				e.Errorf("Counters: got %d, %v", len(cs), err)
				return
			}
			if got := cs[0].Usage(core.MeterRequests, core.Month, nil, noon).Used; got < v.Usage.Used {
				e.Errorf("usage after Consume had returned %d: got %d", v.Usage.Used, got)
			}
			_, total, err := e.Store.History(e.ctx, c.DecidingCounter(), time.Time{}, core.Page{Number: 1, Size: 1})
			if err != nil || int64(total) < v.Usage.Used {
				e.Errorf("history after Consume had returned the usage %d: got %d entries, %v", v.Usage.Used, total, err)
			}
			used, err := e.Store.PlanUsed(e.ctx, c.Account, "plan_1", core.Month, noon)
			if err != nil || i%2 == 0 && used < v.Usage.Used {
				e.Errorf("usage of the plan after Consume had returned the usage %d: got %d, %v", v.Usage.Used, used, err)
			}
		}
	})
}

func exactCallerGone(e *env) {
	const callers, times = 32, 10
	k := e.user1("key_1")[0]
	var counted, unsure atomic.Int64
	e.parallel(callers, func(i int) {
		for n := range times {
			c := request(k, noon)
			ctx, cancel := context.WithCancel(e.ctx)
			if n%2 == 0 {
				cancel() // before Consume
			} else {
				go cancel() // possibly during Consume
			}
			v, err := e.Store.Consume(ctx, &c)
			switch {
			case err == nil && v.Allowed:
				counted.Add(1)
			case errors.Is(err, core.ErrUnavailable):
				unsure.Add(1)
			case err == nil:
				e.Errorf("Consume: got denied, want allowed")
			}
			cancel()
		}
	})
	used := e.counter(keyCounter(k)).Requests[core.Month]
	if low, high := counted.Load(), counted.Load()+unsure.Load(); used < low || used > high {
		e.Errorf("usage: got %d, want from %d to %d", used, low, high)
	}
	if total := e.historyTotal(keyCounter(k)); int64(total) != used {
		e.Errorf("history: got %d entries, want as many as were counted, %d", total, used)
	}
	e.sameReopened(k.AccountID)
}
