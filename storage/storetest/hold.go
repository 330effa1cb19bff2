package storetest

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var holdCases = []testCase{
	{name: "hold/at once", run: holdAtOnce,
		promise: "of concurrent settlements and releases of one hold one counts, and all get its result"},
	{name: "hold/concurrency", run: holdConcurrency,
		promise: "of concurrent requests with a hold no more are open than the concurrency of the plan and of the key allow"},
	{name: "hold/bound", run: holdBound,
		promise: "a counter has at most MaxOpenHolds open holds: the next request is ErrTooManyHolds and counts nothing"},
	{name: "hold/last month", run: holdLastMonth,
		promise: "a hold that is settled in the next month changes the days and the lifetime of the last month, and nothing in this one"},
	{name: "hold/adjusted", run: holdAdjusted,
		promise: "what an adjustment has given back, the settlement of a hold does not give back again: the use of the user is that of its counters"},
	{name: "hold/reopened", run: holdReopened,
		promise: "a hold is open after reopening as before, and a settled one is remembered"},
	{name: "hold/other account", run: holdOfOther,
		promise: "a hold of another account, of a deleted key or with an unknown id is missing, and cannot be settled"},
	{name: "hold/extended", run: holdExtended,
		promise: "an extended hold is open until its new end, and an ended hold cannot be extended"},
	{name: "hold/clock behind", run: holdClockBehind,
		promise: "a hold of a clock that is behind the counter lasts its whole time from the time of the counter, and has the largest cost"},
	{name: "hold/expired", run: holdsExpire,
		promise: "ExpireHolds gives back what the expired holds with ReleaseHeld have counted, and ends the others"},
	{name: "hold/oldest", run: holdsOldest,
		promise: "OldestHolds has the time of the oldest open hold of each user of the account, also after reopening, until the hold ends"},
}

// holding returns the request with a new hold of a minute.
func holding(c core.Consumption) core.Consumption {
	c.Hold = &core.NewHold{ID: core.NewHoldID(c.UserID), ExpiresAt: c.Entry.At.Truncate(time.Millisecond).Add(time.Minute)}
	return c
}

// hold opens a hold, and fails unless it is open.
func (e *env) hold(c core.Consumption) *core.Hold {
	e.Helper()
	e.allowed(c)
	h, err := e.Store.Hold(e.ctx, c.Account, c.Hold.ID)
	e.ok("Hold", err)
	want := c.OpenHold()
	want.PricedAt = want.PricedAt.UTC()
	e.same("the open hold", want, h)
	return h
}

// settle settles a hold with final costs, at a time.
func (e *env) settle(account string, h *core.Hold, requests, nTokens int64, at time.Time) (*core.Hold, error) {
	var costs []core.MeterCost
	if nTokens > 0 {
		costs = []core.MeterCost{{Meter: "tokens", Cost: nTokens}}
	}
	after, _, err := e.Store.Settle(e.ctx, h.Settle(account, core.HoldSettled, requests, costs, at, forever))
	return after, err
}

// release gives a hold back, at a time.
func (e *env) release(account string, h *core.Hold, at time.Time) (*core.Hold, error) {
	after, _, err := e.Store.Settle(e.ctx, h.Settle(account, core.HoldReleased, 0, nil, at, forever))
	return after, err
}

// wantTokens fails unless a counter has the usage of tokens in its lifetime.
func (e *env) wantTokens(of core.CounterID, want int64) {
	e.Helper()
	c := e.counter(of)
	if got := c.Usage("tokens", core.Lifetime, nil, noon).Used; got != want {
		e.Errorf("tokens of %+v: got %d, want %d", of, got, want)
	}
}

func holdAtOnce(e *env) {
	const callers = 16
	for _, keys := range [][]*core.Key{e.user1("key_1", "key_2", "key_3"), e.sharing("key_1", "key_2", "key_3")} {
		sum := int64(0)
		for n, k := range keys {
			h := e.hold(holding(tokens(request(k, noon), 100)))
			results := make([]*core.Hold, callers)
			e.parallel(callers, func(i int) {
				var err error
				if (i+n)%4 == 0 {
					results[i], err = e.release(k.AccountID, h, noon)
				} else {
					results[i], err = e.settle(k.AccountID, h, 1, int64(1+i), noon)
				}
				if err != nil {
					e.Errorf("Settle: %v", err)
				}
			})
			if e.Failed() {
				return
			}
			used := int64(0)
			for _, m := range results[0].SettledCosts {
				used = m.Cost
			}
			sum += used
			for _, r := range results {
				e.same("the result of each settlement", results[0], r)
			}
			e.wantTokens(keyCounter(k), used)
			e.awaitHistory(keyCounter(k), 2)
		}
		if keys[0].PlanID == "" {
			e.wantTokens(userCounter(keys[0]), sum)
		}
	}
}

func holdConcurrency(e *env) {
	const callers, plan, own = 24, 5, 2
	keys := e.sharing("key_1", "key_2", "key_3", "key_4")
	var open atomic.Int64
	perKey := make([]atomic.Int64, len(keys))
	e.parallel(callers, func(i int) {
		for range 12 {
			k := i % len(keys)
			c := holding(limit(request(keys[k], noon), core.Month, core.MaxLimit))
			c.Concurrency, c.Own.Concurrency = plan, own
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil {
				e.Errorf("Consume: %v", err)
				return
			}
			if !v.Allowed {
				if v.Reason != core.ReasonConcurrency || v.RefusedBy != core.OfPlan && v.RefusedBy != core.OfKey {
					e.Errorf("Consume: got refused for %q by %q, want concurrency by the plan or the key", v.Reason, v.RefusedBy)
				}
				continue
			}
			if n := open.Add(1); n > plan {
				e.Errorf("got %d open holds, want at most %d", n, plan)
			}
			if n := perKey[k].Add(1); n > own {
				e.Errorf("got %d open holds of a key, want at most %d", n, own)
			}
			perKey[k].Add(-1)
			open.Add(-1)
			if _, err := e.release(c.Account, c.OpenHold(), noon); err != nil {
				e.Errorf("Settle: %v", err)
			}
		}
	})
	for range own + 1 { // the last one is too many
		c := holding(request(keys[1], noon))
		c.Own.Concurrency = own
		v := e.consume(c)
		if open.Add(1); v.Allowed != (open.Load() <= own) || !v.Allowed && v.RefusedBy != core.OfKey {
			e.Errorf("hold %d of a key: got allowed: %t, refused by %q", open.Load(), v.Allowed, v.RefusedBy)
		}
	}
	c := holding(request(keys[0], noon))
	c.Concurrency = plan
	for range plan - own {
		c.Hold.ID = core.NewHoldID(c.UserID)
		e.allowed(c)
	}
	c.Hold.ID = core.NewHoldID(c.UserID)
	v := e.consume(c)
	e.same("the holds beyond the concurrency", core.ReasonConcurrency, v.Reason)
	c.Hold = nil
	e.allowed(c) // takes no hold
}

func holdBound(e *env) {
	k := e.user1("key_1")[0]
	e.parallel(20, func(i int) {
		for range core.MaxOpenHolds / 20 {
			c := holding(limit(request(k, noon), core.Month, core.MaxLimit))
			if _, err := e.mustAllow(&c); err != nil {
				e.Errorf("Consume: %v", err)
			}
		}
	})
	c := holding(limit(request(k, noon), core.Month, core.MaxLimit))
	_, err := e.Store.Consume(e.ctx, &c)
	e.isErr("one hold more", err, core.ErrTooManyHolds)
	e.wantUsed(keyCounter(k), core.Month, noon, core.MaxOpenHolds)
	c.Entry.At = c.Entry.At.Add(time.Minute) // the others have expired
	c.Hold.ExpiresAt = c.Hold.ExpiresAt.Add(time.Minute)
	e.allowed(c)
}

func holdLastMonth(e *env) {
	last := time.Date(2026, 3, 31, 23, 59, 59, 0, time.UTC)
	next := last.Add(2 * time.Second)
	for _, keys := range [][]*core.Key{e.user1("key_1", "key_2"), e.sharing("key_1", "key_2")} {
		k, counter := keys[0], keyCounter(keys[0])
		h := e.hold(holding(cost(tokens(request(k, last), 100), 5)))
		e.allowed(request(k, next))
		for range 2 { // the second one is a repetition
			got, err := e.settle(k.AccountID, h, 3, 130, next)
			e.ok("Settle", err)
			e.same("the overrun", []core.MeterCost{{Meter: "tokens", Cost: 30}}, got.Overrun())
		}
		ids := []core.CounterID{counter}
		if k.PlanID == "" {
			ids = append(ids, userCounter(k))
		}
		for _, id := range ids {
			e.wantUsed(id, core.Month, next, 1)
			e.wantUsed(id, core.Year, next, 4)
			e.wantUsed(id, core.Lifetime, next, 4)
			e.wantTokens(id, 130)
			c := e.counter(id)
			e.same("tokens this month", int64(0), c.Usage("tokens", core.Month, nil, next).Used)
			e.same("tokens this year", int64(130), c.Usage("tokens", core.Year, nil, next).Used)
		}
		check := func(when string) {
			e.Helper()
			for _, of := range []core.DaysFilter{{Account: k.AccountID, KeyID: k.ID}, {Account: k.AccountID, UserID: k.UserID}, {Account: k.AccountID}} {
				days, err := e.Store.Days(e.ctx, of, core.DateOf(last), core.DateOf(next))
				e.ok("Days", err)
				e.same("days "+when, []core.DayTotals{{Date: core.DateOf(last), Traffic: core.Traffic{Allowed: 3}, Meters: []core.MeterTotals{
					{Meter: core.MeterCount, MeterTraffic: core.MeterTraffic{Allowed: 2}}, {Meter: "tokens", MeterTraffic: core.MeterTraffic{Allowed: 130}}}}, {Date: core.DateOf(next), Traffic: core.Traffic{Allowed: 1}}}, days)
				first, second := core.HourOf(last), core.HourOf(next)
				want := core.NewDays(first, second)
				want[0].AddMeter(core.MeterCount, core.MeterTraffic{Allowed: 2})
				want[0].AddMeter("tokens", core.MeterTraffic{Allowed: 130})
				want[0].AddMeter(core.MeterRequests, core.MeterTraffic{Allowed: 3})
				want[second-first].AddMeter(core.MeterRequests, core.MeterTraffic{Allowed: 1})
				hours, err := e.Store.Days(e.ctx, of, first, second)
				e.ok("Days", err)
				e.same("hours "+when, want, hours)
			}
		}
		check("after the settlement")
		e.reopen()
		check("after reopening")
		c := holding(cost(request(k, next.Add(23*time.Hour)), 4))
		c.Hold.ExpiresAt = next.AddDate(0, 0, 10)
		later := e.hold(c)
		e.allowed(request(keys[1], next.AddDate(0, 0, 3)))
		e.allowed(request(k, next.AddDate(0, 0, 3)))
		if k.PlanID == "" {
			e.reopen()
		}
		_, err := e.settle(k.AccountID, later, 1, 0, next.Add(23*time.Hour)) // the clock of the settlement is behind the counters
		e.ok("Settle", err)
		days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: k.AccountID, UserID: k.UserID}, core.DateOf(next), core.DateOf(next))
		e.ok("Days", err)
		e.same("the day of the second hold", int64(2), days[0].Allowed)
	}
}

func holdReopened(e *env) {
	k := e.user1("key_1")[0]
	var open []*core.Hold
	for range 20 {
		open = append(open, e.hold(holding(tokens(request(k, noon), 10))))
	}
	for i, h := range open[:5] {
		_, err := e.settle(k.AccountID, h, 1, int64(i), noon)
		e.ok("Settle", err)
	}
	e.reopen()
	for i, h := range open {
		got, err := e.Store.Hold(e.ctx, k.AccountID, h.ID)
		e.ok("Hold", err)
		if i < 5 {
			e.same("status of a settled hold", core.HoldSettled, got.Status)
			again, err := e.settle(k.AccountID, h, 9, 9, noon)
			e.ok("Settle again", err)
			e.same("the settlement again", got, again)
			continue
		}
		e.same("an open hold", h, got)
		_, err = e.settle(k.AccountID, h, 1, 1, noon)
		e.ok("Settle", err)
	}
	e.wantTokens(keyCounter(k), 0+1+2+3+4+15)
	e.wantUsed(keyCounter(k), core.Month, noon, 20)
	e.reopen()
	e.wantTokens(keyCounter(k), 0+1+2+3+4+15)
	c := holding(request(k, noon))
	c.Concurrency = 1
	e.allowed(c) // no other hold is open
}

func holdOfOther(e *env) {
	k, other := e.user1("key_1")[0], e.user1("key_1")[0]
	h := e.hold(holding(tokens(request(k, noon), 10)))
	_, err := e.Store.Hold(e.ctx, other.AccountID, h.ID)
	e.isErr("Hold of another account", err, core.ErrHoldNotFound)
	_, err = e.settle(other.AccountID, h, 1, 5, noon)
	e.isErr("Settle of another account", err, core.ErrHoldNotFound)
	for _, id := range []string{"hold_1_missing", "hold_", "", "hold_1_", "hold_0_" + h.ID[7:], "HOLD_1_" + h.ID[7:], h.ID + "x", "hold_01_" + h.ID[7:]} {
		if _, err := e.Store.Hold(e.ctx, k.AccountID, id); !errors.Is(err, core.ErrHoldNotFound) {
			e.Errorf("Hold %q: got error %v, want %v", id, err, core.ErrHoldNotFound)
		}
	}
	e.wantTokens(keyCounter(k), 10)
	e.update(k.AccountID, func(tx core.Tx) error { return tx.DeleteKey(k.ID) })
	_, err = e.settle(k.AccountID, h, 1, 5, noon)
	e.isErr("Settle of a deleted key", err, core.ErrKeyNotFound)
}

func holdExtended(e *env) {
	k := e.user1("key_1")[0]
	h, whole := e.hold(holding(tokens(request(k, noon), 10))), noon.Truncate(time.Millisecond)
	e.ok("ExtendHold", e.Store.ExtendHold(e.ctx, k.AccountID, h.ID, noon.Add(30*time.Second), whole.Add(time.Hour)))
	e.allowed(request(k, noon.Add(2*time.Minute)))
	got, err := e.Store.Hold(e.ctx, k.AccountID, h.ID)
	e.ok("Hold", err)
	h.ExpiresAt = whole.Add(time.Hour)
	e.same("the extended hold", h, got)
	e.ok("ExtendHold to an earlier end", e.Store.ExtendHold(e.ctx, k.AccountID, h.ID, noon.Add(30*time.Second), whole.Add(time.Minute)))
	got, err = e.Store.Hold(e.ctx, k.AccountID, h.ID)
	e.ok("Hold", err)
	e.same("the hold after an extension to an earlier end", h, got)
	e.isErr("ExtendHold after the end", e.Store.ExtendHold(e.ctx, k.AccountID, h.ID, whole.Add(time.Hour), noon.Add(2*time.Hour)), core.ErrHoldExpired)
	_, err = e.settle(k.AccountID, h, 1, 4, noon.Add(59*time.Minute))
	e.ok("Settle", err)
	e.wantTokens(keyCounter(k), 4)
	e.isErr("ExtendHold of a settled hold", e.Store.ExtendHold(e.ctx, k.AccountID, h.ID, noon, whole.Add(time.Hour)), core.ErrHoldExpired)
	e.isErr("ExtendHold of an unknown hold", e.Store.ExtendHold(e.ctx, k.AccountID, core.NewHoldID(1), noon, whole.Add(time.Hour)), core.ErrHoldNotFound)
}

func holdClockBehind(e *env) {
	for _, keys := range [][]*core.Key{e.user1("key_1", "key_2"), e.sharing("key_1", "key_2")} {
		k := keys[0]
		e.allowed(request(k, noon.Add(time.Hour)))
		c := holding(tokens(request(k, noon), core.MaxPricedCost))
		e.allowed(c)
		h, err := e.Store.Hold(e.ctx, k.AccountID, c.Hold.ID)
		e.ok("Hold", err)
		e.same("how long the hold lasts", time.Minute, h.ExpiresAt.Sub(h.At).Round(time.Second))
		_, err = e.settle(k.AccountID, h, 1, core.MaxPricedCost-1, noon.Add(2*time.Minute))
		e.ok("Settle", err)
		e.wantTokens(keyCounter(k), core.MaxPricedCost-1)
	}
}

func holdsExpire(e *env) {
	keys := e.sharing("key_1", "key_2")
	k := keys[0]
	kept := e.hold(holding(tokens(request(k, noon), 10)))
	given := holding(tokens(request(keys[1], noon), 100))
	given.Hold.OnExpiry = core.ReleaseHeld
	e.hold(given)
	e.ok("ExpireHolds", e.Store.ExpireHolds(e.ctx, k.AccountID, given.Hold.ExpiresAt.Add(-time.Nanosecond), forever))
	e.wantTokens(userCounter(k), 110)
	e.ok("ExpireHolds", e.Store.ExpireHolds(e.ctx, k.AccountID, noon.Add(time.Minute), forever))
	e.wantTokens(userCounter(k), 10)
	e.wantTokens(keyCounter(keys[1]), 0)
	e.wantUsed(userCounter(k), core.Month, noon, 1)
	for _, id := range []string{kept.ID, given.Hold.ID} {
		h, err := e.Store.Hold(e.ctx, k.AccountID, id)
		e.ok("Hold", err)
		e.same("status", core.HoldExpired, h.Status)
		_, err = e.settle(k.AccountID, h, 1, 5, noon.Add(time.Minute))
		e.isErr("Settle of an expired hold", err, core.ErrHoldExpired)
		_, err = e.release(k.AccountID, h, noon.Add(time.Minute))
		e.isErr("release of an expired hold", err, core.ErrHoldExpired)
	}
	e.awaitHistory(userCounter(k), 3)
	e.wantTokens(userCounter(k), 10)
}
