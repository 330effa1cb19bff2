package storetest

import (
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

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
		c.Costs, c.Entry.Costs, c.Free = nil, nil, false
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

// limit returns the request under another limit of a period.
func limit(c core.Consumption, p core.Period, n int64) core.Consumption {
	c.Period, c.Limit = p, n
	return c
}

// under returns the request under the terms of another plan.
func under(c core.Consumption, plan string, p core.Period, n int64) core.Consumption {
	c.Terms = core.Terms{PlanID: plan, PlanName: "name of " + plan, Period: p, Limit: n}
	return c
}

// atRate returns the request under a rate.
func atRate(c core.Consumption, requests int64, per core.RatePer, burst int64) core.Consumption {
	c.Rate = &core.Rate{Requests: requests, Per: per, Burst: burst}
	return c
}

// endpoint returns the request with another endpoint.
func endpoint(c core.Consumption, format string, args ...any) core.Consumption {
	c.Entry.Endpoint = fmt.Sprintf(format, args...)
	return c
}

// withRequestID returns the request with an id.
func withRequestID(c core.Consumption, id string) core.Consumption {
	c.RequestID = id
	return c
}

// onDay returns the request a number of days later.
func onDay(c core.Consumption, days int) core.Consumption {
	c.Entry.At = c.Entry.At.AddDate(0, 0, days)
	return c
}

// adjusted turns a request into an adjustment that adds the value.
func adjusted(c core.Consumption, meter string, value int64) core.Consumption {
	c.Adjustment = &core.Adjustment{Meter: meter, Value: value, Reason: "a goodwill grant"}
	c.Terms, c.Cost, c.Costs = core.Terms{Rate: &core.Rate{Requests: 1, Per: core.PerMinute, Burst: 1}}, 0, nil // no rate applies to it
	c.Entry.Cost, c.Entry.Costs, c.Entry.Endpoint, c.Entry.Method = 0, nil, "", ""
	return c
}

// ofUser returns the request or adjustment without its key.
func ofUser(c core.Consumption) core.Consumption {
	c.KeyID, c.KeySeq, c.Shared, c.Entry.KeyID = "", 0, true, ""
	return c
}

// charge returns the charge of a request.
func charge(cost int64, at time.Time) *core.Charge {
	return (&core.Consumption{Cost: cost, Entry: core.Entry{At: at}}).Charge()
}

// usedCounter returns a counter whose whole usage is in the windows of at.
func usedCounter(used int64, at time.Time) core.Counter {
	var c core.Counter
	c.Add(charge(used, at))
	return c
}

func keyCounter(k *core.Key) core.CounterID {
	return core.CounterID{Account: k.AccountID, KeyID: k.ID}
}

func userCounter(k *core.Key) core.CounterID {
	return core.CounterID{Account: k.AccountID, UserID: k.UserID}
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

// historyTotal returns the number of entries of a history.
func (e *env) historyTotal(of core.CounterID) int {
	e.Helper()
	_, total, err := e.Store.History(e.ctx, of, time.Time{}, core.Page{Number: 1, Size: 1})
	e.ok("History", err)
	return total
}

// awaitHistory waits until a history has n entries.
func (e *env) awaitHistory(of core.CounterID, n int) {
	e.Helper()
	got := -1
	if !within(waitTimeout, func() bool { got = e.historyTotal(of); return got >= n }) || got != n {
		e.Errorf("history of %+v: got %d entries, want %d", of, got, n)
	}
}

// user1 creates an account with one user, and its keys on plan_1.
func (e *env) user1(keys ...string) []*core.Key {
	e.Helper()
	account := e.account()
	e.put(newUser(account, "user"))
	var ks []*core.Key
	for _, id := range keys {
		ks = append(ks, newKey(account, id, 1, "plan_1"))
	}
	putAll(e, e.Store, ks...)
	return ks
}

// sharing creates an account with one user, and its keys without a plan of their own.
func (e *env) sharing(keys ...string) []*core.Key {
	e.Helper()
	ks := e.user1(keys...)
	for _, k := range ks {
		k.PlanID = ""
	}
	putAll(e, e.Store, ks...)
	return ks
}
