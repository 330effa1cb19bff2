package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var historyCases = []testCase{
	{name: "history/read back", run: historyReadBack,
		promise: "strings and numbers of an entry come back as they went in, its time as the same instant in UTC"},
	{name: "history/order", run: historyOrder,
		promise: "History returns the entries newest first, in pages, each with Late, and their total"},
	{name: "history/since", run: historySince,
		promise: "History and its total leave out the entries at and before since"},
	{name: "history/of a user", run: historyOfUser,
		promise: "the history of a user has the requests with its keys, made while they were its keys"},
	{name: "history/clock steps back", run: historyClockBack,
		promise: "entries are in the order in which they were counted, whatever their times"},
	{name: "history/under load", run: historyUnderLoad,
		promise: "entries are in the order in which they were counted, without duplicates; every allowed request is included, and the sum of the costs is the usage"},
	{name: "history/kept", run: historyKept,
		promise: "an entry is kept for its retention"},
}

// wantHistory fails unless a history after since has exactly the requests with the endpoints,
// newest first.
func (e *env) wantHistory(of core.CounterID, since time.Time, endpoints ...string) {
	e.Helper()
	samePages(e, "history", endpoints, func(x core.Entry) string { return x.Endpoint }, e.entries(of, since))
	index, ok := e.Store.(core.HistoryIndex)
	if !ok {
		return
	}
	newest, err := index.NewestEntries(e.ctx, []core.CounterID{{Account: of.Account, UserID: 1 << 40}, of})
	e.ok("NewestEntries", err)
	list := all(e, e.entries(of, since))
	late := slices.ContainsFunc(list, func(x core.Entry) bool { return x.Late > 0 })
	for _, x := range list {
		n, err := index.CountFrom(e.ctx, of, since, x.At)
		e.ok("CountFrom", err)
		sure := slices.IndexFunc(append(list, core.Entry{}), func(y core.Entry) bool { return y.At.Before(x.At) })
		if n < 0 || n > sure || n < sure && !late && since.IsZero() {
			e.Errorf("CountFrom: got %d from %v on, %d entries have such a time in the history %+v", n, x.At, sure, list)
		}
		if len(newest) != 2 || !newest[0].IsZero() || newest[1].Before(x.At) {
			e.Errorf("NewestEntries: got %v, and the history of %+v has an entry of %v", newest, of, x.At)
		}
	}
}

// historyTotal returns the number of entries of a history.
func (e *env) historyTotal(of core.CounterID) int {
	e.Helper()
	_, total, err := e.Store.History(e.ctx, of, time.Time{}, core.Page{Number: 1, Size: 1})
	e.ok("History", err)
	return total
}

func historyReadBack(e *env) {
	k := e.user1("key_1")[0]
	full, bare := request(k, noon.In(time.FixedZone("somewhere", 3600))), request(k, noon)
	full.Entry.Endpoint, full.Entry.Method, full.Entry.IP = "/"+awkward+strings.Repeat("x", 1900), "PROPFIND", "2001:db8::1%eth0"
	full = cost(full, 77)
	bare.Entry.Endpoint, bare.Entry.Method, bare.Entry.IP = "", "", ""
	e.allowed(full)
	e.allowed(bare)
	want := []core.Entry{bare.Entry, full.Entry}
	for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
		got := all(e, e.entries(of, time.Time{}))
		e.same("history", want, got)
		for _, x := range got {
			e.utc(x.At)
		}
	}
	e.reopen()
	e.same("history after reopening", want, all(e, e.entries(keyCounter(k), time.Time{})))
}

func historyOrder(e *env) {
	k := e.user1("key_1")[0]
	e.wantHistory(keyCounter(k), time.Time{})
	e.wantHistory(core.CounterID{Account: k.AccountID, KeyID: "key_missing"}, time.Time{})
	var want []string
	more := func(n int) {
		e.Helper()
		for range n {
			c := endpoint(request(k, noon.Add(time.Duration(len(want)/7)*time.Second)), "/%d", len(want))
			e.allowed(c)
			want = slices.Insert(want, 0, c.Entry.Endpoint)
		}
		e.wantHistory(keyCounter(k), time.Time{}, want...)
		e.wantHistory(userCounter(k), time.Time{}, want...)
	}
	more(1)
	more(11)
	more(140)
	e.reopen()
	e.wantHistory(keyCounter(k), time.Time{}, want...)
	more(20)
}

func historySince(e *env) {
	k := e.user1("key_1")[0]
	var want []string
	for i := range 30 { // three with each time
		c := endpoint(request(k, noon.Add(time.Duration(i/3)*time.Second)), "/%d", i)
		e.allowed(c)
		want = slices.Insert(want, 0, c.Entry.Endpoint)
	}
	for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
		e.wantHistory(of, time.Time{}, want...)
		e.wantHistory(of, noon.AddDate(-1, 0, 0), want...)
		e.wantHistory(of, noon.Add(-time.Nanosecond), want...)
		e.wantHistory(of, noon, want[:27]...)
		e.wantHistory(of, noon.Add(time.Nanosecond), want[:27]...)
		e.wantHistory(of, noon.Add(4*time.Second-time.Nanosecond), want[:18]...)
		e.wantHistory(of, noon.Add(4*time.Second).In(time.FixedZone("somewhere", 3600)), want[:15]...)
		e.wantHistory(of, noon.Add(9*time.Second-time.Nanosecond), want[:3]...)
		e.wantHistory(of, noon.Add(9*time.Second))
		e.wantHistory(of, noon.AddDate(1, 0, 0))
	}
}

func historyOfUser(e *env) {
	keys := e.user1("key_1", "key_2")
	a, b := keys[0], keys[1]
	e.put(newUser(a.AccountID, "second user"))
	hit := func(k *core.Key, path string) { e.allowed(endpoint(request(k, noon), "%s", path)) }
	hit(a, "/1")
	hit(b, "/2")
	hit(a, "/3")
	before := userCounter(a)
	a.UserID = 2
	e.put(a)
	hit(a, "/4")
	hit(b, "/5")
	e.wantHistory(before, time.Time{}, "/5", "/3", "/2", "/1")
	e.wantHistory(userCounter(a), time.Time{}, "/4")
	e.wantHistory(keyCounter(a), time.Time{}, "/4", "/3", "/1")
	e.wantHistory(keyCounter(b), time.Time{}, "/5", "/2")
	a.UserID = 1
	e.put(a)
	hit(a, "/6")
	e.wantHistory(before, time.Time{}, "/6", "/5", "/3", "/2", "/1")
	var owners []int64
	for _, x := range all(e, e.entries(keyCounter(a), time.Time{})) {
		owners = append(owners, x.UserID)
	}
	e.same("whose key it was", []int64{1, 2, 1, 1}, owners)
}

func historyClockBack(e *env) {
	k := e.user1("key_1")[0]
	var want []string
	for i, offset := range []int{0, 60, 30, -3600, 90, 89} {
		c := endpoint(request(k, noon.Add(time.Duration(offset)*time.Second)), "/%d", i)
		e.allowed(c)
		want = slices.Insert(want, 0, c.Entry.Endpoint)
	}
	for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
		e.wantHistory(of, time.Time{}, want...)
		e.wantHistory(of, noon.AddDate(-1, 0, 0), want...)
		e.wantHistory(of, noon.AddDate(1, 0, 0))
	}
}

func historyUnderLoad(e *env) {
	const callers, times = 32, 15
	keys := e.user1("key_1", "key_2")
	shared, own := keys[0], keys[1]
	shared.PlanID = ""
	e.put(shared)
	o := e.hammer(callers, times, func(i, n int) core.Consumption {
		return cost(limit(request(keys[i%2], noon), core.Month, 10_000), int64(1+n%3))
	})
	if o.calls != callers*times {
		e.Errorf("allowed: got %d, want all %d", o.calls, callers*times)
	}
	for _, k := range keys {
		e.agrees(keyCounter(k), o, e.counter(keyCounter(k)).Requests[core.Month])
	}
	both := e.counter(keyCounter(shared)).Requests[core.Month] + e.counter(keyCounter(own)).Requests[core.Month]
	e.agrees(userCounter(own), o, both)
	e.wantUsed(userCounter(own), core.Month, noon, e.counter(keyCounter(shared)).Requests[core.Month])
	before := e.snapshot(own.AccountID)
	e.reopen()
	e.same("the account after reopening", before, e.snapshot(own.AccountID))
}

// agrees fails unless a history has each request once, in the order in which they were counted, and
// their costs add up to used. The returned usage gives the order of the requests on one counter.
func (e *env) agrees(of core.CounterID, o *outcome, used int64) {
	e.Helper()
	var sum int64
	seen, last := map[string]bool{}, map[string]int64{}
	for _, x := range all(e, e.entries(of, time.Time{})) {
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

func historyKept(e *env) {
	k := e.user1("key_1")[0]
	now := time.Now()
	for i, age := range []time.Duration{0, 20 * 24 * time.Hour, time.Hour} { // not sorted
		c := endpoint(request(k, now.Add(-age)), "/%d", i)
		c.Retention = age + time.Hour
		e.allowed(c)
	}
	e.wantHistory(keyCounter(k), time.Time{}, "/2", "/1", "/0")
	e.wantHistory(userCounter(k), time.Time{}, "/2", "/1", "/0")
	e.reopen()
	e.wantHistory(keyCounter(k), time.Time{}, "/2", "/1", "/0")
}

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
