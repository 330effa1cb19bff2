package storetest

import (
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var windowCases = []testCase{
	{name: "window/side by side", run: windowSideBySide,
		promise: "a counter holds the windows of every period side by side"},
	{name: "window/change of period", run: windowChangeOfPeriod,
		promise: "a plan may change its period and the usage is kept"},
	{name: "window/boundary", run: windowBoundary,
		promise: "a window is half open: a request in its last nanosecond counts in it, a request at its end in the next one"},
	{name: "window/clock steps back", run: windowClockBack,
		promise: "if the clock steps back over a boundary, the later window stays in force and no earlier one is opened again"},
	{name: "window/clock steps back across reopening", run: windowClockBackReopened,
		promise: "the later window stays in force also after reopening"},
}

func windowSideBySide(e *env) {
	k := e.user1("key_1")[0]
	times := []time.Time{ // starts of a year, month, week and day
		time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC), // a Friday
		time.Date(2027, time.January, 31, 0, 0, 0, 0, time.UTC),
		time.Date(2027, time.February, 1, 0, 0, 0, 0, time.UTC), // a Monday
		time.Date(2027, time.February, 7, 0, 0, 0, 0, time.UTC),
		time.Date(2027, time.February, 8, 23, 59, 59, 999999999, time.UTC),
		time.Date(2027, time.February, 9, 1, 0, 0, 0, time.UTC),
	}
	var want core.Counter
	for i, at := range times {
		c := cost(request(k, at), int64(1)<<i)
		c.Period = core.PlanPeriods()[i%4]
		want.Add(c.Charge())
		e.same(fmt.Sprintf("Consume in the %v of %v", c.Period, at), want.Usage(core.MeterRequests, c.Period, nil, at), e.allowed(c))
		e.same(fmt.Sprintf("counter at %v", at), want, e.counter(keyCounter(k)))
	}
	e.reopen()
	e.same("counter after reopening", want, e.counter(keyCounter(k)))
	last := times[len(times)-1]
	for p, used := range map[core.Period]int64{core.Minute: 32, core.Hour: 32, core.Day: 32, core.Week: 16 + 32, core.Month: 60, core.Year: 63, core.Lifetime: 63} {
		e.wantUsed(keyCounter(k), p, last, used)
	}
}

func windowChangeOfPeriod(e *env) {
	k := e.user1("key_1")[0]
	early := noon.AddDate(0, 0, -1)
	for range 3 {
		e.allowed(limit(request(k, early), core.Day, 3))
	}
	e.denied(limit(request(k, early), core.Day, 3))
	for i, p := range []core.Period{core.Month, core.Week, core.Year} {
		want := core.Usage{Window: p.Window(noon), Used: int64(4 + i)}
		e.same(fmt.Sprintf("usage of the %v", p), want, e.allowed(limit(request(k, noon), p, 1000)))
		e.same(fmt.Sprintf("usage of the %v at the limit", p), want, e.denied(limit(request(k, noon), p, want.Used)))
	}
	e.denied(limit(request(k, noon), core.Day, 3))
	e.allowed(limit(request(k, noon), core.Day, 4))
}

func windowBoundary(e *env) {
	boundaries := map[core.Period]time.Time{
		core.Day:   time.Date(2028, time.February, 29, 0, 0, 0, 0, time.UTC),
		core.Week:  time.Date(2027, time.January, 4, 0, 0, 0, 0, time.UTC), // ISO week 1, after week 53
		core.Month: time.Date(2028, time.March, 1, 0, 0, 0, 0, time.UTC),   // after a leap day
		core.Year:  time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC),
	}
	for p, end := range boundaries {
		k := e.user1("key_1")[0]
		last := end.Add(-time.Nanosecond)
		old, next := p.Window(last), p.Window(end)
		e.same(fmt.Sprintf("the first of a %v", p), core.Usage{Window: old, Used: 1}, e.allowed(limit(request(k, old.Start), p, 2)))
		e.same(fmt.Sprintf("the last of a %v", p), core.Usage{Window: old, Used: 2}, e.allowed(limit(request(k, last), p, 2)))
		e.same(fmt.Sprintf("one too many in a %v", p), core.Usage{Window: old, Used: 2}, e.denied(limit(request(k, last), p, 2)))
		look := cost(limit(request(k, end), p, 2), 0)
		e.same(fmt.Sprintf("a look at the next %v", p), core.Usage{Window: next}, e.allowed(look))
		abroad := end.In(time.FixedZone("somewhere", -5*3600)) // still the day before
		e.same(fmt.Sprintf("the first of the next %v", p), core.Usage{Window: next, Used: 1}, e.allowed(limit(request(k, abroad), p, 2)))
		e.wantUsed(keyCounter(k), p, end, 1)
	}
}

func windowClockBack(e *env) {
	for _, p := range core.PlanPeriods() {
		k := e.user1("key_1")[0]
		// clockBack uses up a window and the next one. The clock steps back in between.
		e.clockBack(k, p, func() {})
	}
}

func windowClockBackReopened(e *env) {
	k := e.user1("key_1")[0]
	e.clockBack(k, core.Month, e.reopen)
}

// clockBack uses up a window and then the next one, with the clock stepping back in
// between.
func (e *env) clockBack(k *core.Key, p core.Period, between func()) {
	e.Helper()
	before := p.Window(noon).End.Add(-time.Second)
	after := before.Add(2 * time.Second)
	next := p.Window(after)
	at := func(t time.Time) core.Consumption { return limit(request(k, t), p, 2) }
	e.allowed(at(before))
	e.allowed(at(before))
	e.denied(at(before))
	e.same("the first after the boundary", core.Usage{Window: next, Used: 1}, e.allowed(at(after)))
	between()
	e.same("a look after the clock stepped back", core.Usage{Window: next, Used: 1}, e.allowed(cost(at(before), 0)))
	e.same("counted after the clock stepped back", core.Usage{Window: next, Used: 2}, e.allowed(at(before)))
	between()
	e.same("one too many after the clock stepped back", core.Usage{Window: next, Used: 2}, e.denied(at(before.AddDate(-2, 0, 0))))
	e.same("one too many after the boundary", core.Usage{Window: next, Used: 2}, e.denied(at(after)))
	e.wantUsed(keyCounter(k), p, before, 2)
	e.wantUsed(keyCounter(k), p, after, 2)
}
