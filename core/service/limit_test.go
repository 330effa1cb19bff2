package service_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A request is allowed when every limit has room for it, and one limit decides.
func TestDecidingLimit(t *testing.T) {
	now := at("2026-03-05T10:00:30Z")
	tokens := func(max int64, p core.Period) core.Limit { return core.Limit{Meter: "tokens", Max: max, Period: p} }
	requests := func(max int64, p core.Period) core.Limit {
		return core.Limit{Meter: core.MeterRequests, Max: max, Period: p}
	}
	tests := []struct {
		name      string
		primary   int64 // of a day
		further   []core.Limit
		used      [2]int64 // requests, tokens
		cost      [2]int64
		allowed   bool
		deciding  int
		wantUsed  int64
		wantOther []int64 // of all limits, when there are further ones
	}{
		{"the primary limit", 5, []core.Limit{tokens(100, core.Month)}, [2]int64{1, 10}, [2]int64{1, 20}, true, 0, 2, []int64{2, 30}},
		{"no primary limit", core.Unlimited, []core.Limit{tokens(100, core.Month)}, [2]int64{7, 10}, [2]int64{1, 20}, true, 1, 30, []int64{0, 30}},
		{"no limit", core.Unlimited, nil, [2]int64{7, 0}, [2]int64{1, 0}, true, 0, 8, nil},
		{"tokens are used up", 5, []core.Limit{tokens(100, core.Month)}, [2]int64{1, 90}, [2]int64{1, 20}, false, 1, 90, []int64{1, 90}},
		{"a request without tokens passes", 5, []core.Limit{tokens(100, core.Month)}, [2]int64{1, 100}, [2]int64{1, 0}, true, 0, 2, []int64{2, 100}},
		{"tokens without a request pass", 5, []core.Limit{tokens(100, core.Month)}, [2]int64{5, 90}, [2]int64{0, 10}, true, 0, 5, []int64{5, 100}},
		{"the limit that resets last", 1, []core.Limit{tokens(100, core.Month), requests(1, core.Minute)}, [2]int64{1, 100}, [2]int64{1, 1}, false, 1, 100, []int64{1, 100, 1}},
		{"a lifetime resets last", 1, []core.Limit{requests(1, core.Lifetime), tokens(100, core.Year)}, [2]int64{1, 100}, [2]int64{1, 1}, false, 1, 1, []int64{1, 1, 100}},
		{"a look sees the limit that is used up", 5, []core.Limit{tokens(100, core.Month)}, [2]int64{1, 100}, [2]int64{}, false, 1, 100, []int64{1, 100}},
		{"a look", 5, []core.Limit{tokens(100, core.Month)}, [2]int64{1, 99}, [2]int64{}, true, 0, 1, []int64{1, 99}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c core.Counter
			c.Add(withTokens(request(core.Day, core.Unlimited, tt.used[0], now), tt.used[1]).Charge())
			r := withTokens(request(core.Day, tt.primary, tt.cost[0], now), tt.cost[1])
			r.Further = tt.further
			before := c.Clone()
			v := consume(&c, r)
			if v.Allowed != tt.allowed || v.Deciding != tt.deciding || v.Usage.Used != tt.wantUsed {
				t.Errorf("got %t by limit %d with %d used, want %t by %d with %d", v.Allowed, v.Deciding, v.Usage.Used, tt.allowed, tt.deciding, tt.wantUsed)
			}
			var used []int64
			for _, u := range v.Limits {
				used = append(used, u.Used)
			}
			if !reflect.DeepEqual(used, tt.wantOther) {
				t.Errorf("usage of the limits: got %v, want %v", used, tt.wantOther)
			}
			if !v.Allowed && !sameCounter(c, before) {
				t.Errorf("a refused request changed the counter from %+v to %+v", before, c)
			}
		})
	}
}

// consume decides and counts a request on one counter.
func consume(c *core.Counter, r *core.Consumption) core.ConsumeResult {
	v := c.Decide(r, c, new(core.Buckets), core.OpenHolds{})
	if v.Allowed && r.Counts() {
		c.Add(r.Charge())
	}
	return v
}

// withTokens adds a cost of tokens to a request.
func withTokens(r *core.Consumption, cost int64) *core.Consumption {
	if cost > 0 {
		r.Costs = []core.MeterCost{{Meter: "tokens", Cost: cost}}
	}
	return r
}

// For any limits, anchors, costs and steps of the clock: the usage never passes a limit, a refused request changes
// nothing and did not fit, and an allowed one is counted on every meter.
func TestLimitLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		meters := []string{core.MeterRequests, "tokens", "spend"}
		var c core.Counter
		terms := core.Terms{Period: rapid.SampledFrom(core.PlanPeriods()).Draw(t, "period"), Limit: rapid.SampledFrom([]int64{core.Unlimited, 9, 20}).Draw(t, "primary")}
		for range rapid.IntRange(0, 4).Draw(t, "limits") {
			terms.Further = append(terms.Further, core.Limit{Meter: rapid.SampledFrom(meters).Draw(t, "meter"),
				Max: rapid.Int64Range(1, 30).Draw(t, "max"), Period: rapid.SampledFrom(core.Periods()).Draw(t, "of")})
		}
		now, anchors := at("2027-12-20T00:00:00Z"), core.Anchors(nil)
		counted := map[string]int64{} // by meter, period and start of the window, while no anchor moves
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			now = now.Add(time.Duration(rapid.Int64Range(-40, 200).Draw(t, "ahead")) * rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(t, "unit"))
			r := &core.Consumption{Terms: terms, Anchors: anchors, Cost: rapid.Int64Range(0, 4).Draw(t, "cost"), Entry: core.Entry{At: now}}
			for _, m := range meters[1:] {
				if cost := rapid.Int64Range(0, 9).Draw(t, m); cost > 0 {
					r.Costs = append(r.Costs, core.MeterCost{Meter: m, Cost: cost})
				}
			}
			before := c.Clone()
			v := consume(&c, r)
			refused := false
			for i := range 1 + len(terms.Further) {
				l := terms.LimitAt(i)
				was, is := before.Usage(l.Meter, l.Period, anchors, now), c.Usage(l.Meter, l.Period, anchors, now)
				cost := map[string]int64{core.MeterRequests: r.Cost}
				for _, m := range r.Costs {
					cost[m.Meter] = m.Cost
				}
				if is.Used > l.Max {
					t.Fatalf("%+v: %d are used", l, is.Used)
				}
				if v.Allowed && is.Used != was.Used+cost[l.Meter] {
					t.Fatalf("%+v: %d and a cost of %d are %d", l, was.Used, cost[l.Meter], is.Used)
				}
				refused = refused || cost[l.Meter] > l.Max-was.Used || !r.Counts() && was.Used >= l.Max
				key := fmt.Sprint(l.Meter, l.Period, is.Window.Start)
				if v.Allowed {
					counted[key] = is.Used
				} else if counted[key] > is.Used {
					t.Fatalf("%+v: %d were used before, %d now", l, counted[key], is.Used)
				}
			}
			if v.Allowed == refused {
				t.Fatalf("got %t, want %t: %+v", v.Allowed, !refused, v)
			}
			if !v.Allowed && !sameCounter(c, before) {
				t.Fatalf("a refused request changed %+v to %+v", before, c)
			}
		}
	})
}

// For any rate and times: in each span at most burst + rate × span requests pass. A denied request passes after the wait, and not
// a millisecond before. After a change to a slower rate, the wait is at most that for one token.
func TestRateLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &core.Rate{Requests: rapid.Int64Range(1, 5).Draw(t, "requests"), Burst: rapid.Int64Range(1, 6).Draw(t, "burst"),
			Per: rapid.SampledFrom([]core.RatePer{core.PerSecond, core.PerMinute}).Draw(t, "per")}
		per := int64(time.Second)
		if r.Per == core.PerMinute {
			per *= 60
		}
		now := at("2026-03-02T12:00:00Z")
		var b core.Bucket
		var passed []time.Time
		for range rapid.IntRange(1, 60).Draw(t, "times") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 3*per/int64(time.Millisecond)/r.Requests).Draw(t, "ahead")) * time.Millisecond / 2).Truncate(time.Millisecond)
			wait := b.Wait(r, now)
			if wait == 0 {
				b.Take(r, now)
				passed = append(passed, now)
			} else if b.Wait(r, now.Add(wait)) != 0 || b.Wait(r, now.Add(wait-time.Millisecond)) == 0 {
				t.Fatalf("%+v: the wait of %v is wrong", b, wait)
			}
			for i := range passed {
				n, span := int64(len(passed)-i), now.Sub(passed[i])
				if n > r.Burst && (n-r.Burst)*per > int64(span)*r.Requests {
					t.Fatalf("%d requests passed in %v at %+v", n, span, r)
				}
			}
		}
		full := b
		if slow := (&core.Rate{Requests: 1, Per: core.PerMinute, Burst: 1}); full.Wait(slow, now) > time.Minute {
			t.Fatalf("a smaller rate waits %v, want at most a minute for its token", full.Wait(slow, now))
		}
		if full.Wait(r, now.Add(-6*time.Minute)) != 0 {
			t.Fatal("a bucket of a clock that was 6 minutes ahead is not full")
		}
	})
}

// Rates at their bounds do not overflow.
func TestRateBounds(t *testing.T) {
	now := at("2026-03-02T12:00:00Z")
	for _, per := range []core.RatePer{core.PerSecond, core.PerMinute} {
		r := &core.Rate{Requests: core.MaxRate, Per: per, Burst: core.MaxRate}
		b := core.Bucket{At: now.UnixMilli(), Taken: r.Capacity() - core.Token}
		if b.Wait(r, now) != 0 {
			t.Errorf("per %s: the last token is missing", per)
		}
		b.Take(r, now)
		if got := b.Wait(r, now); got != time.Millisecond {
			t.Errorf("per %s: got a wait of %v, want 1ms", per, got)
		}
		slow := &core.Rate{Requests: 1, Per: per, Burst: 1}
		for _, later := range []time.Time{now.AddDate(1000, 0, 0), now.Add(time.Minute)} {
			if b.Wait(slow, later) != 0 {
				t.Errorf("per %s: no token after %v", per, later.Sub(now))
			}
		}
	}
}

// Counters keep the meters that no plan names any more, so the plans of an account name at most 64 different ones, 16 at a time.
func TestMetersOfAnAccount(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	a, _, _, err := svc.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	p := core.PlanPatch{Name: new("plan"), Limit: core.Null[int64]()}
	named := func(from, to int) core.PlanPatch {
		var limits []core.Limit
		for n := from; n < to; n++ {
			limits = append(limits, core.Limit{Meter: fmt.Sprint("m", n), Max: 1, Period: core.Month})
		}
		p.Limits = core.Some(limits)
		return p
	}
	pl, err := svc.CreatePlan(t.Context(), a.ID, named(0, 16))
	for n := 16; n < 64 && err == nil; n += 16 {
		_, err = svc.UpdatePlan(t.Context(), a.ID, pl.ID, named(n, n+16))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := svc.UpdatePlan(t.Context(), a.ID, pl.ID, named(63, 65)); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("the 65th meter: got %v, want a validation error", err)
	}
	if _, err := svc.UpdatePlan(t.Context(), a.ID, pl.ID, named(0, 16)); err != nil {
		t.Errorf("earlier meters: got %v", err)
	}
}

// 100,000 requests pass a plan without a limit, and the usage counts each.
func TestUnlimitedPlan(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	a, _, _, err := svc.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	pl, err := svc.CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("enterprise"), Limit: core.Null[int64]()})
	if err != nil {
		t.Fatal(err)
	}
	u, err := svc.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("user"), PlanID: core.Some(pl.ID)})
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := svc.CreateKey(t.Context(), a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
	if err != nil {
		t.Fatal(err)
	}
	for n := int64(1); n <= 100_000; n++ {
		d, err := svc.Validate(t.Context(), a.ID, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
		if err != nil || !d.Allowed() || d.Usage.Used != n {
			t.Fatalf("request %d: got %+v, %v, want it allowed and counted", n, d, err)
		}
	}
}
