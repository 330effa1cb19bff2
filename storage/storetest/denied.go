package storetest

import (
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var deniedCases = []testCase{
	{name: "denied/recorded", run: deniedRecorded,
		promise: "a denied request counts nowhere; its entry, marked Denied, is soon in the history of the key and of the user"},
	{name: "denied/thinned", run: deniedThinned,
		promise: "at most DeniedPerSecond denied requests of one key are recorded in one second, the others are counted in DeniedOmitted"},
	{name: "denied/a day", run: deniedDay,
		promise: "at most DeniedPerDay denied requests of one key are recorded on one day, also after reopening or a step of the clock; the others are counted in DeniedOmitted"},
	{name: "denied/each key for itself", run: deniedEachKey,
		promise: "the bounds of recorded denials are those of each key, also if the counter of the user decides"},
	{name: "denied/refused", run: deniedRefused,
		promise: "a refused request is denied whatever the counters say, and its entry has the reason of the refusal"},
	{name: "denied/closed", run: deniedClosed,
		promise: "Close finishes the writes that have begun: answered denials are in the history when the store is opened again"},
}

// awaitHistory waits until a history has n entries.
func (e *env) awaitHistory(of core.CounterID, n int) {
	e.Helper()
	got := -1
	e.eventually(fmt.Sprintf("the history of %+v has %d entries", of, n), func() bool {
		got = e.historyTotal(of)
		return got >= n
	})
	if got != n {
		e.Errorf("history of %+v: got %d entries, want %d", of, got, n)
	}
}

func deniedRecorded(e *env) {
	k := e.user1("key_1")[0]
	first := limit(endpoint(request(k, noon), "/first"), core.Month, 1)
	e.allowed(first)
	second := limit(cost(endpoint(request(k, noon.Add(time.Second)), "/second"), 5), core.Month, 1)
	e.denied(second)
	e.awaitHistory(keyCounter(k), 2)
	e.awaitHistory(userCounter(k), 2)
	third := limit(endpoint(request(k, noon.Add(2*time.Second)), "/third"), core.Month, 2)
	e.allowed(third)

	second.Entry.Denied, second.Entry.Reason = true, core.ReasonQuota
	want := []core.Entry{third.Entry, second.Entry, first.Entry}
	e.same("history of the key", want, all(e, e.entries(keyCounter(k), time.Time{})))
	e.same("history of the user", want, all(e, e.entries(userCounter(k), time.Time{})))
	e.wantHistory(keyCounter(k), noon, "/third", "/second")
	counter := usedCounter(1, noon)
	counter.Add(third.Charge())
	e.same("counter", counter, e.counter(keyCounter(k)))
	e.reopen()
	e.same("history after reopening", want, all(e, e.entries(keyCounter(k), time.Time{})))
}

func deniedRefused(e *env) {
	for _, plan := range []string{"plan_1", ""} {
		k := e.user1("key_1")[0]
		k.PlanID = plan
		e.put(k)
		var want []core.Entry
		for i, reason := range core.Reasons() {
			c := atRate(endpoint(request(k, noon.Add(time.Duration(i)*time.Second)), "/%s", reason), 1, core.PerMinute, 1)
			if c.Refused = reason; reason == core.ReasonQuota {
				c.Refused, c.Limit = "", 0
			} else if reason == core.ReasonRate {
				continue
			}
			if v := e.consume(c); v.Allowed || v.Reason != reason || v.Usage.Used != 0 {
				e.Errorf("Consume: got %+v, want denied because of %q", v, reason)
			}
			e.awaitHistory(keyCounter(k), len(want)+1)
			e.awaitHistory(userCounter(k), len(want)+1)
			c.Entry.Denied, c.Entry.Reason = true, reason
			want = append([]core.Entry{c.Entry}, want...)
		}
		look := cost(request(k, noon.Add(time.Minute)), 0)
		look.Refused = core.ReasonDisabled
		e.denied(look)
		for _, when := range []string{"at once", "after reopening"} {
			e.same("history of the key "+when, want, all(e, e.entries(keyCounter(k), time.Time{})))
			e.same("history of the user "+when, want, all(e, e.entries(userCounter(k), time.Time{})))
			e.same("counter "+when, core.Counter{}, e.counter(keyCounter(k)))
			if when == "at once" {
				e.reopen()
			}
		}
		e.allowed(atRate(request(k, noon.Add(time.Minute)), 1, core.PerMinute, 1))
	}
}

func deniedThinned(e *env) {
	k := e.user1("key_1")[0]
	second := func(n int) core.Consumption {
		return limit(request(k, noon.Add(time.Duration(n)*time.Second)), core.Month, 0)
	}
	for range core.DeniedPerSecond {
		e.denied(second(0))
	}
	e.awaitHistory(keyCounter(k), core.DeniedPerSecond)
	e.same("counter before any was left out", core.Counter{}, e.counter(keyCounter(k)))

	for range 7 {
		e.denied(second(0))
	}
	e.same("counter after 7 more", core.Counter{DeniedOmitted: 7}, e.counter(keyCounter(k)))
	for range core.DeniedPerSecond + 2 {
		e.denied(second(1))
	}
	e.same("counter after the next second", core.Counter{DeniedOmitted: 9}, e.counter(keyCounter(k)))
	e.same("counter of the user", core.Counter{}, e.counter(userCounter(k)))
	e.awaitHistory(keyCounter(k), 2*core.DeniedPerSecond)
	e.denied(second(2)) // all earlier entries are appended before this one
	e.awaitHistory(keyCounter(k), 2*core.DeniedPerSecond+1)
	e.awaitHistory(userCounter(k), 2*core.DeniedPerSecond+1)
	e.reopen()
	e.awaitHistory(keyCounter(k), 2*core.DeniedPerSecond+1)
	e.same("counter after reopening", core.Counter{DeniedOmitted: 9}, e.counter(keyCounter(k)))
	e.denied(second(3))
	e.awaitHistory(keyCounter(k), 2*core.DeniedPerSecond+2)
}

func deniedDay(e *env) {
	k := e.user1("key_1")[0]
	denied := func(at time.Time) {
		e.Helper()
		e.denied(limit(request(k, at), core.Month, 0))
	}
	for i := range core.DeniedPerDay {
		denied(noon.Add(time.Duration(i/core.DeniedPerSecond) * time.Second))
		if i == core.DeniedPerDay/2 {
			e.reopen()
		}
	}
	later := noon.Add(time.Hour)
	denied(later)
	e.same("counter after one too many", core.Counter{DeniedOmitted: 1}, e.counter(keyCounter(k)))
	e.reopen()
	denied(later.Add(time.Second))
	denied(noon.AddDate(0, 0, -1))
	e.same("counter after reopening, and after the clock has stepped back", core.Counter{DeniedOmitted: 3}, e.counter(keyCounter(k)))
	denied(noon.AddDate(0, 0, 1))
	e.same("counter on the next day", core.Counter{DeniedOmitted: 3}, e.counter(keyCounter(k)))
	e.awaitHistory(keyCounter(k), core.DeniedPerDay+1)
	e.awaitHistory(userCounter(k), core.DeniedPerDay+1)
}

func deniedEachKey(e *env) {
	keys := e.user1("key_1", "key_2")
	const each = core.DeniedPerSecond + 3
	for _, k := range keys {
		k.PlanID = ""
		e.put(k)
	}
	e.parallel(2*each, func(i int) {
		c := limit(request(keys[i%2], noon), core.Month, 0)
		if v, err := e.Store.Consume(e.ctx, &c); v.Allowed || err != nil {
			e.Errorf("Consume: got %t, %v, want denied", v.Allowed, err)
		}
	})
	for _, k := range keys {
		e.awaitHistory(keyCounter(k), core.DeniedPerSecond)
		e.same("counter of a key", core.Counter{DeniedOmitted: 3}, e.counter(keyCounter(k)))
	}
	e.awaitHistory(userCounter(keys[0]), 2*core.DeniedPerSecond)
	e.same("counter of the user", core.Counter{}, e.counter(userCounter(keys[0])))
}

func deniedClosed(e *env) {
	k := e.user1("key_1")[0]
	for i := range 20 * core.DeniedPerSecond {
		e.denied(limit(request(k, noon.Add(time.Duration(i/12)*time.Second)), core.Month, 0))
	}
	recorded, omitted := 0, int64(0)
	for left := 20 * core.DeniedPerSecond; left > 0; left -= 12 {
		recorded += min(left, core.DeniedPerSecond)
		omitted += int64(max(0, min(left, 12)-core.DeniedPerSecond))
	}
	e.reopen()
	for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
		if got := e.historyTotal(of); got != recorded {
			e.Errorf("history of %+v: got %d entries, want %d", of, got, recorded)
		}
	}
	e.same("counter", core.Counter{DeniedOmitted: omitted}, e.counter(keyCounter(k)))
}
