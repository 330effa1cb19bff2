package storetest

import (
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var counterCases = []testCase{
	{name: "counter/many", run: counterMany,
		promise: "each of thousands of counters is exact, however long it was unused, and PlanUsed includes each"},
	{name: "counter/denials of a day", run: deniedDay,
		promise: "at most DeniedPerDay denied requests of one key are recorded on one day, also after reopening or a step of the clock; the others are counted in DeniedOmitted"},
	{name: "counter/refusing limit", run: refusingLimit,
		promise: "the entry of a denied request says which limit refused, whose it is and how much of it was used, also when the limit has reset"},
	{name: "counter/retention", run: historyKept,
		promise: "an entry is kept for its retention"},
}

const today = core.Date(20524) // the day of noon

// counterMany uses thousands of counters in turn, so that a store with a cache has to evict some.
func counterMany(e *env) {
	const n, callers = 3000, 64
	pl, keys := Fill(e, e.Store, e.account(), n)
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
	if total := e.historyTotal(ids[n-1]); total < 2 {
		e.Errorf("history of %s: got %d entries, want at least the 2 allowed requests", keys[n-1].ID, total)
	}
	used, err := e.Store.PlanUsed(e.ctx, pl.AccountID, pl.ID, core.Month, noon)
	e.ok("PlanUsed", err)
	if used != 2*n {
		e.Errorf("usage of the plan: got %d, want %d", used, 2*n)
	}
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
	e.same("counter after one too many", core.Counter{DeniedOmitted: 1, LastRefused: later.Unix()}, e.counter(keyCounter(k)))
	e.reopen()
	denied(later.Add(time.Second))
	denied(noon.AddDate(0, 0, -1))
	e.same("counter after reopening, and after the clock has stepped back", core.Counter{DeniedOmitted: 3, LastRefused: noon.AddDate(0, 0, -1).Unix()}, e.counter(keyCounter(k)))
	denied(noon.AddDate(0, 0, 1))
	e.same("counter on the next day", core.Counter{DeniedOmitted: 3, LastRefused: noon.AddDate(0, 0, 1).Unix()}, e.counter(keyCounter(k)))
	e.awaitHistory(keyCounter(k), core.DeniedPerDay+1)
	e.awaitHistory(userCounter(k), core.DeniedPerDay+1)
}

// refusingLimit uses up a limit of a minute, and reads the history ten minutes later, after the limit has reset.
func refusingLimit(e *env) {
	k := e.user1("key_1")[0]
	minute := func(of core.Origin, most int64, id string) core.Consumption {
		c := withRequestID(request(k, noon), id)
		l := core.Limit{Meter: core.MeterRequests, Max: most, Period: core.Minute}
		switch of {
		case core.OfKey:
			c.Own.Limits = []core.Limit{{Meter: core.MeterRequests, Max: 1000, Period: core.Hour}, l}
		case core.OfUser:
			c.Further, c.OfUser = []core.Limit{l}, 1<<1
		default:
			c.Further = []core.Limit{l}
		}
		return c
	}
	for i := range int64(60) {
		e.allowed(minute(core.OfPlan, 60, fmt.Sprint("allowed ", i)))
	}
	var want []core.Entry
	for _, of := range []core.Origin{core.OfPlan, core.OfUser, core.OfKey} {
		c := minute(of, 60, "refused by the "+string(of))
		e.denied(c)
		c.Entry.Denied, c.Entry.Reason, c.Entry.RequestID = true, core.ReasonQuota, c.RequestID
		c.Entry.Limit = &core.RefusingLimit{Of: of, Meter: core.MeterRequests, Period: core.Minute, Max: 60, Used: 60}
		want = append([]core.Entry{c.Entry}, want...)
	}
	c := tokens(request(k, noon), 5) // of two limits without room, the limit that resets last decides
	c.Further = []core.Limit{{Meter: "tokens", Max: 1, Period: core.Lifetime}, {Meter: "tokens", Max: 4, Period: core.Minute}}
	e.denied(c)
	c.Entry.Denied, c.Entry.Reason = true, core.ReasonQuota
	c.Entry.Limit = &core.RefusingLimit{Of: core.OfPlan, Meter: "tokens", Period: core.Lifetime, Max: 1}
	want = append([]core.Entry{c.Entry}, want...)
	c = withRequestID(request(k, noon), "refused by the plan") // the same id again, of a disabled key: denied requests are no first requests
	c.Refused = core.ReasonDisabled
	e.denied(c)
	c.Entry.Denied, c.Entry.Reason, c.Entry.RequestID = true, core.ReasonDisabled, c.RequestID
	want = append([]core.Entry{c.Entry}, want...)

	c = minute(core.OfPlan, 60, "ten minutes later")
	c.Entry.At = noon.Add(10 * time.Minute)
	e.allowed(c)
	for range 2 {
		e.awaitHistory(keyCounter(k), 60+len(want)+1)
		for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
			got := all(e, e.entries(of))
			e.same("the refused requests", want, got[1:1+len(want)])
			e.same("the request ids", "allowed 59", got[1+len(want)].RequestID)
			e.same("the last refusal", noon.Unix(), e.counter(keyCounter(k)).LastRefused)
		}
		e.reopen()
	}
}

func historyKept(e *env) {
	keys := e.user1("key_1", "key_2")
	var want []core.Entry
	for _, age := range []time.Duration{20 * 24 * time.Hour, time.Hour} {
		c := request(keys[0], time.Now().Round(0).UTC().Add(-age))
		c.Retention = age + time.Hour
		e.allowed(c)
		want = append([]core.Entry{c.Entry}, want...)
	}
	im, ok := e.Store.(core.Importer)
	if ok {
		e.ok("AppendHistory", im.AppendHistory(e.ctx, keyCounter(keys[1]), []core.Entry{want[1], want[0]}, 21*24*time.Hour))
	}
	for range 2 {
		e.same("history of the key", want, all(e, e.entries(keyCounter(keys[0]))))
		e.same("history of the user", want, all(e, e.entries(userCounter(keys[0]))))
		if ok {
			e.same("imported history", want, all(e, e.entries(keyCounter(keys[1]))))
		}
		e.reopen()
	}
}
