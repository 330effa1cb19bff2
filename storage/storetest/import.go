package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var importCases = []testCase{
	{name: "import/many", run: importMany, imports: true,
		promise: "SetHistory and AppendHistory accept MaxImport entries, and keep their order"},
	{name: "import/at once", run: importAtOnce, imports: true,
		promise: "with concurrent calls each appended entry is in its history once, after the earlier ones of its caller"},
	{name: "import/many counters", run: importManyCounters, imports: true,
		promise: "SetCounters accepts MaxImport counters with any usage in each period, and all are durable when it returns"},
	{name: "import/counters while counting", run: importCountersBesideCounting, imports: true,
		promise: "a concurrent Consume happens before SetCounters, and is overwritten, or after it, and counts on top"},
	{name: "import/days of an unused counter", run: importDaysUnused, imports: true,
		promise: "days that were set stay on the next day, also if the counter has no usage on its day"},
	{name: "import/hold of a removed day", run: importRemovesDayOfHold, imports: true,
		promise: "a settlement changes the day of its hold, and later requests add to that day, also if an import has removed the day in between"},
}

func importMany(e *env) {
	im, k := e.Store.(core.Importer), e.user1("key_1")[0]
	var given []core.Entry
	for n := range 3 * core.MaxImport {
		given = append(given, entry(k, n))
	}
	for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
		e.ok("SetHistory", im.SetHistory(e.ctx, of, given[:core.MaxImport], forever))
		e.ok("AppendHistory", im.AppendHistory(e.ctx, of, given[core.MaxImport:2*core.MaxImport], forever))
		e.ok("AppendHistory", im.AppendHistory(e.ctx, of, given[2*core.MaxImport:], forever))
	}
	want := reversed(given)
	for range 2 {
		e.same("history of the key", want, all(e, e.entries(keyCounter(k))))
		e.same("history of the user", want, all(e, e.entries(userCounter(k))))
		e.reopen()
	}
}

// reversed returns a reversed copy.
func reversed[T any](list []T) []T {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

func importAtOnce(e *env) {
	const callers, rounds, each = 8, 10, 50
	im, k := e.Store.(core.Importer), e.user1("key_1")[0]
	histories := []core.CounterID{keyCounter(k), userCounter(k)}
	e.parallel(2*callers, func(i int) {
		for round := range rounds {
			var entries []core.Entry
			for n := range each {
				entries = append(entries, endpoint(core.Consumption{Entry: entry(k, round*each+n)}, "/%d/%d", i/2, round*each+n).Entry)
			}
			if err := im.AppendHistory(e.ctx, histories[i%2], entries, forever); err != nil {
				e.Errorf("AppendHistory: %v", err)
			}
		}
	})
	e.reopen()
	for _, of := range histories {
		next := make([]int, callers)
		for _, x := range slices.Backward(all(e, e.entries(of))) {
			var caller, n int
			if _, err := fmt.Sscanf(x.Endpoint, "/%d/%d", &caller, &n); err != nil || n != next[caller] {
				e.Fatalf("history of %+v: got the entry %s, want number %d of the caller", of, x.Endpoint, next[caller])
			}
			next[caller]++
		}
		e.same("number of entries of each caller", slices.Repeat([]int{rounds * each}, callers), next)
	}
}

// windowed returns a counter with a different usage in each period, and a time that is not the last use.
func windowed(n int64, denied int64) (c core.Counter) {
	c.At, c.Today = noon.AddDate(0, 1, 3).Unix(), n+7
	for p := range c.Requests {
		c.Requests[p] = n + int64(p)
	}
	c.LastUsedAt, c.DeniedOmitted = noon.Add(time.Duration(n)), denied
	return c
}

func importManyCounters(e *env) {
	account := e.account()
	_, keys := Fill(e, e.Store, account, core.MaxImport+200)
	var ids []core.CounterID
	var want []core.Counter
	for i, k := range keys {
		ids, want = append(ids, keyCounter(k)), append(want, windowed(int64(i), int64(i%3)))
	}
	im := e.Store.(core.Importer)
	e.ok("SetCounters", im.SetCounters(e.ctx, ids[:core.MaxImport], want[:core.MaxImport]))
	e.ok("SetCounters", im.SetCounters(e.ctx, ids[core.MaxImport:], want[core.MaxImport:]))
	for range 2 {
		for from := 0; from < len(ids); from += 500 {
			to := min(from+500, len(ids))
			got, err := e.Store.Counters(e.ctx, ids[from:to])
			e.ok("Counters", err)
			e.same("counters", want[from:to], got)
		}
		e.reopen()
	}
}

func importCountersBesideCounting(e *env) {
	const callers, times, high = 8, 50, 1_000_000
	k := e.user1("key_1")[0]
	im := e.Store.(core.Importer)
	var calls atomic.Int64
	half, set := make(chan struct{}), make(chan struct{})
	e.parallel(callers+1, func(i int) {
		if i == callers {
			<-half
			if err := im.SetCounters(e.ctx, []core.CounterID{keyCounter(k)}, []core.Counter{usedCounter(high, noon)}); err != nil {
				e.Errorf("SetCounters: %v", err)
			}
			close(set)
			return
		}
		for n := 0; n < times || !closed(set); n++ {
			if calls.Add(1) == callers*times/2 {
				close(half)
			}
			c := limit(endpoint(request(k, noon), "/%d/%d", i, n), core.Month, 2*high)
			if v, err := e.Store.Consume(e.ctx, &c); err != nil || !v.Allowed {
				e.Errorf("Consume: got %t, %v, want allowed", v.Allowed, err)
			}
		}
	})
	requests := e.counter(keyCounter(k)).Requests
	for p, used := range requests {
		if used < high || used > high+calls.Load() || used != requests[0] {
			e.Errorf("usage in the %v: got %d, want the same in each period, %d and up to %d more", core.Period(p), used, high, calls.Load())
		}
	}
	if got := e.historyTotal(keyCounter(k)); int64(got) != calls.Load() {
		e.Errorf("history: got %d entries, want %d", got, calls.Load())
	}
	e.sameReopened(k.AccountID)
}

// closed reports whether a channel is closed.
func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func importDaysUnused(e *env) {
	im, k := e.Store.(core.Importer), e.user1("key_1")[0]
	e.ok("SetCounters", im.SetCounters(e.ctx, []core.CounterID{keyCounter(k)}, []core.Counter{{At: noon.Unix()}}))
	e.ok("SetDays", im.SetDays(e.ctx, keyCounter(k), []core.CounterDay{{Date: today, Traffic: core.Traffic{Allowed: 2}}}))
	e.allowed(onDay(request(k, noon), 1))
	days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: k.AccountID, KeyID: k.ID}, today, today+1)
	e.ok("Days", err)
	e.same("days", []core.DayTotals{{Date: today, Traffic: core.Traffic{Allowed: 2}}, {Date: today + 1, Traffic: core.Traffic{Allowed: 1}}}, days)
}

func importRemovesDayOfHold(e *env) {
	for _, held := range []struct{ settled, want int64 }{{0, 5}, {1, 5}, {5, 8}} { // a hold of 2
		im, k := e.Store.(core.Importer), e.user1("key_1")[0]
		c := holding(cost(request(k, noon), 2))
		c.Shared = true
		h := e.hold(c)
		e.ok("SetDays", im.SetDays(e.ctx, userCounter(k), []core.CounterDay{{Date: today - 2, Traffic: core.Traffic{Allowed: 3}}}))
		_, err := e.settle(k.AccountID, h, held.settled, 0, noon)
		e.ok("Settle", err)
		e.reopen()
		shared := request(k, noon.Add(1))
		shared.Shared = true
		e.allowed(cost(shared, 5))
		e.allowed(onDay(request(k, noon), 1)) // ends the day
		for range 3 {
			days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: k.AccountID, UserID: k.UserID}, today-2, today)
			e.ok("Days", err)
			e.same("allowed", []int64{3, 0, held.want}, []int64{days[0].Allowed, days[1].Allowed, days[2].Allowed})
			e.reopen()
		}
	}
}
