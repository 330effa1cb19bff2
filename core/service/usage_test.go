package service_test

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// Promise 1: a counter admits a request as a whole or not at all, and never above the limit.
func TestCounterConsume(t *testing.T) {
	now := at("2026-03-05T12:00:00Z")
	tests := []struct {
		name              string
		used, limit, cost int64
		want              bool
		wantUsed          int64
	}{
		{"first", 0, 1, 1, true, 1},
		{"last", 9, 10, 1, true, 10},
		{"one too many", 10, 10, 1, false, 10},
		{"over a lowered limit", 10, 5, 1, false, 10},
		{"a cost that just fits", 6, 10, 4, true, 10},
		{"a cost that does not fit is denied whole", 7, 10, 4, false, 7},
		{"a look below the limit", 9, 10, 0, true, 9},
		{"a look at the limit", 10, 10, 0, false, 10},
		{"the largest limit", core.MaxLimit - 1, core.MaxLimit, 1, true, core.MaxLimit},
		{"beyond the largest limit", core.MaxLimit, core.MaxLimit, core.MaxCost, false, core.MaxLimit},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c core.Counter
			if tt.used > 0 {
				c.Add(request(core.Day, core.Unlimited, tt.used, now).Charge())
			}
			before, r := c.Clone(), request(core.Day, tt.limit, tt.cost, now.Add(time.Second))
			decided := c.Decide(r, &c, new(core.Buckets), core.OpenHolds{})
			if !sameCounter(c, before) {
				t.Errorf("Decide changed the counter from %+v to %+v", before, c)
			}
			v := consume(&c, r)
			if !reflect.DeepEqual(decided, v) {
				t.Errorf("Decide = %+v, want %+v as Consume", decided, v)
			}
			if v.Allowed != tt.want || v.Usage.Used != tt.wantUsed {
				t.Errorf("Consume = %d, %v, want %d, %v", v.Usage.Used, v.Allowed, tt.wantUsed, tt.want)
			}
			if (!tt.want || tt.cost == 0) && !sameCounter(c, before) {
				t.Errorf("the counter changed from %+v to %+v", before, c)
			}
		})
	}
}

// request returns a request under one limit of requests.
func request(p core.Period, limit, cost int64, at time.Time) *core.Consumption {
	return &core.Consumption{Terms: core.Terms{Period: p, Limit: limit}, Cost: cost, Entry: core.Entry{At: at, Cost: cost}}
}

// sameCounter reports whether two counters have the same usage.
func sameCounter(a, b core.Counter) bool { return a.Same(&b) }

// For any requests and any steps of the clock: usage never exceeds the limit, counts are never
// lost, and no window opens twice.
func TestCounterLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c core.Counter
		p := rapid.SampledFrom(core.Periods()).Draw(t, "period")
		limit := rapid.Int64Range(1, 20).Draw(t, "limit")
		now := at("2027-12-20T00:00:00Z")
		counted := map[int64]int64{} // by start of the window
		latest := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			now = now.Add(time.Duration(rapid.Int64Range(-40, 200).Draw(t, "ahead")) * rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(t, "unit"))
			cost := rapid.Int64Range(0, 8).Draw(t, "cost")
			v := consume(&c, request(p, limit, cost, now))
			u, ok := v.Usage, v.Allowed
			start := u.Window.Start.Unix()
			if start < latest {
				t.Fatalf("the window of %v was opened again", u.Window.Start)
			}
			if ok {
				counted[start] += cost
			}
			if cost > 0 && ok {
				latest = max(latest, start)
			}
			if u.Used != counted[start] || u.Used > limit {
				t.Fatalf("used %d, counted %d, limit %d", u.Used, counted[start], limit)
			}
			if !ok && cost > 0 && u.Used+cost <= limit {
				t.Fatalf("denied a cost of %d with %d of %d used", cost, u.Used, limit)
			}
			if got := c.Usage(core.MeterRequests, p, nil, now); got != u {
				t.Fatalf("Usage = %+v after Consume = %+v", got, u)
			}
		}
	})
}

// A plan may change its period: a counter keeps the usage of every period.
func TestCounterKeepsEveryPeriod(t *testing.T) {
	var c core.Counter
	for _, day := range []string{"2026-01-15T10:00:00Z", "2026-03-02T10:00:00Z", "2026-03-04T10:00:00Z", "2026-03-05T10:00:00Z"} {
		c.Add(request(core.Day, core.Unlimited, 1, at(day)).Charge())
	}
	now := at("2026-03-05T11:00:00Z")
	for p, want := range map[core.Period]int64{core.Day: 1, core.Week: 3, core.Month: 3, core.Year: 4,
		core.Minute: 0, core.Hour: 0, core.Lifetime: 4} {
		if got := c.Usage(core.MeterRequests, p, nil, now).Used; got != want {
			t.Errorf("usage of the %v = %d, want %d", p, got, want)
		}
	}
	if got := c.Usage(core.MeterRequests, core.Day, nil, at("2026-03-06T00:00:00Z")).Used; got != 0 {
		t.Errorf("usage of the next day = %d, want 0", got)
	}
	if want := at("2026-03-05T10:00:00Z"); !c.LastUsedAt.Equal(want) {
		t.Errorf("LastUsedAt = %v, want %v", c.LastUsedAt, want)
	}
}

func TestCounterDenyIsThinned(t *testing.T) {
	var c core.Counter
	now := at("2026-03-05T10:00:00Z")
	recorded := 0
	for i := range 100 {
		if c.Deny(now.Add(time.Duration(i) * time.Millisecond)) {
			recorded++
		}
	}
	if recorded != core.DeniedPerSecond || c.DeniedOmitted != 90 {
		t.Errorf("recorded %d, omitted %d, want 10 and 90", recorded, c.DeniedOmitted)
	}
	if !c.Deny(now.Add(time.Second)) {
		t.Error("the first of the next second is not recorded")
	}
}

// A key over its quota cannot fill the disk: the number of recorded denials in a day is bounded.
// The bound holds for a restored counter and after steps of the clock.
func TestCounterDenyHasABoundForADay(t *testing.T) {
	var c core.Counter
	day := at("2026-03-05T00:00:00Z")
	recorded := func(from time.Time, n int) (count int) {
		for i := range n {
			if c.Deny(from.Add(time.Duration(i/core.DeniedPerSecond) * time.Second)) {
				count++
			}
		}
		return count
	}
	if got := recorded(day, core.DeniedPerDay/2); got != core.DeniedPerDay/2 {
		t.Errorf("half of a day's bound: %d are recorded, want all", got)
	}
	var restored core.Counter
	restored.AddDenied(c.DeniedOn())
	c = restored
	if got := recorded(day.Add(23*time.Hour), core.DeniedPerDay); got != core.DeniedPerDay/2 || c.DeniedOmitted != core.DeniedPerDay/2 {
		t.Errorf("restored: %d are recorded, %d omitted, want half of them each", got, c.DeniedOmitted)
	}
	if got := recorded(day.Add(-time.Hour), 100); got != 0 {
		t.Errorf("%d are recorded on the day before, want none", got)
	}
	if got := recorded(day.Add(24*time.Hour), 100); got != 100 {
		t.Errorf("%d are recorded on the next day, want 100", got)
	}
}

func TestPercentage(t *testing.T) {
	for _, tt := range []struct {
		used, limit int64
		want        float64
	}{{0, 0, 0}, {1, 3, 33.33}, {2, 3, 66.67}, {45, 1000, 4.5}, {10, 5, 200}} {
		if got := core.Percentage(tt.used, tt.limit); got != tt.want {
			t.Errorf("Percentage(%d, %d) = %v, want %v", tt.used, tt.limit, got, tt.want)
		}
	}
}

// Usage and its sums stop at the largest number that each reader of JSON knows exactly.
func TestUsageStopsAtMaxLimit(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	c := newTenant(t, svc, "acme")
	pl, err := svc.CreatePlan(t.Context(), c.id, core.PlanPatch{Name: new("all"), Limit: core.Null[int64]()})
	c.ok(err)
	u, err := svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("u"), PlanID: core.Some(pl.ID)})
	c.ok(err)
	for range 2 {
		k, secret, err := svc.CreateKey(t.Context(), c.id, core.KeyPatch{Name: new("k"), UserID: &u.ID, PlanID: core.Some(pl.ID)})
		c.ok(err)
		_, _, err = svc.AdjustKey(t.Context(), c.id, k.ID, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: "requests", Value: core.MaxLimit - 1, Reason: "test"}})
		c.ok(err)
		for range 3 {
			d, err := svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/x", Method: "GET", Cost: core.MaxCost})
			c.ok(err)
			if !d.Allowed() || d.Usage.Used != core.MaxLimit {
				t.Errorf("got %s with %d used, want allowed with %d", d.Outcome, d.Usage.Used, int64(core.MaxLimit))
			}
		}
	}
	totals, err := svc.PlanUsage(t.Context(), c.id, pl.ID)
	c.ok(err)
	usage, err := svc.UserUsage(t.Context(), c.id, u.ID)
	c.ok(err)
	if totals.Used != core.MaxLimit || usage.Used != core.MaxLimit || usage.Limit != core.Unlimited {
		t.Errorf("the sums are %d of the plan, and %d of %d of the user", totals.Used, usage.Used, usage.Limit)
	}
}
