package service_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// anchored returns anchors with one start, in force since 1970.
func anchored(start time.Time) core.Anchors {
	return core.Anchors{{From: time.Unix(0, 0), Start: start}}
}

// Windows of a month that begins on the 31st end on the last day of shorter months, and return to the 31st.
func TestAnchoredMonths(t *testing.T) {
	a := anchored(at("2023-01-31T08:30:00Z"))
	for now, want := range map[string][2]string{
		"2024-01-31T08:29:59Z": {"2023-12-31T08:30:00Z", "2024-01-31T08:30:00Z"},
		"2024-01-31T08:30:00Z": {"2024-01-31T08:30:00Z", "2024-02-29T08:30:00Z"},
		"2024-02-29T08:30:00Z": {"2024-02-29T08:30:00Z", "2024-03-31T08:30:00Z"},
		"2025-02-10T00:00:00Z": {"2025-01-31T08:30:00Z", "2025-02-28T08:30:00Z"},
		"2025-04-30T08:30:00Z": {"2025-04-30T08:30:00Z", "2025-05-31T08:30:00Z"},
		"2022-07-01T00:00:00Z": {"2022-06-30T08:30:00Z", "2022-07-31T08:30:00Z"},
	} {
		if w := a.Window(core.Month, at(now)); !w.Start.Equal(at(want[0])) || !w.End.Equal(at(want[1])) {
			t.Errorf("month of %s: got %v to %v, want %v", now, w.Start, w.End, want)
		}
	}
	leap := anchored(at("2024-02-29T00:00:00Z"))
	if w := leap.Window(core.Year, at("2027-02-28T00:00:00Z")); !w.Start.Equal(at("2027-02-28T00:00:00Z")) || !w.End.Equal(at("2028-02-29T00:00:00Z")) {
		t.Errorf("year from a leap day: got %v to %v", w.Start, w.End)
	}
}

// The laws of anchored windows: a window contains its instant, is the same for all of its instants, and its end begins
// the next one. It begins at the anchor's time of day, and on its weekday, day of the month, or anniversary.
func FuzzAnchoredWindow(f *testing.F) {
	f.Add(at("2023-01-31T23:59:59Z").Unix(), at("2024-02-29T12:00:00Z").Unix(), uint8(core.Month))
	f.Add(at("2024-02-29T00:00:00Z").Unix(), at("2023-02-28T00:00:00Z").Unix(), uint8(core.Year))
	f.Add(int64(-1), int64(0), uint8(core.Week))
	f.Fuzz(func(t *testing.T, start, sec int64, n uint8) {
		const first, last = -62135596800 + 800*86400, 253402300799 - 800*86400 // years 3 to 9997
		if start < first || start > last || sec < first || sec > last {
			t.Skip()
		}
		a, anchor, at := anchored(time.Unix(start, 0)), time.Unix(start, 0).UTC(), time.Unix(sec, 0)
		a[0].From = time.Unix(first, 0)
		p := core.PlanPeriods()[int(n)%4]
		w := a.Window(p, at)
		if !w.Contains(at) || w.Contains(w.End) || !w.Contains(w.Start) {
			t.Fatalf("%v of %v: [%v, %v)", p, at.UTC(), w.Start, w.End)
		}
		for _, inside := range []time.Time{w.Start, w.End.Add(-1)} {
			if got := a.Window(p, inside); got != w {
				t.Fatalf("%v of %v = %v, but of %v = %v", p, at, w, inside, got)
			}
		}
		if next := a.Window(p, w.End); next.Start != w.End {
			t.Fatalf("after [%v, %v) comes [%v, %v)", w.Start, w.End, next.Start, next.End)
		}
		if h, m, s := w.Start.Clock(); [3]int{h, m, s} != [3]int{anchor.Hour(), anchor.Minute(), anchor.Second()} {
			t.Fatalf("%v begins at %v, the anchor is %v", p, w.Start, anchor)
		}
		lastDay := w.Start.AddDate(0, 0, 1).Day() == 1
		switch ok := w.Start.Day() == anchor.Day() || w.Start.Day() < anchor.Day() && lastDay; {
		case p == core.Week && w.Start.Weekday() != anchor.Weekday(),
			p == core.Month && !ok, p == core.Year && (!ok || w.Start.Month() != anchor.Month()):
			t.Fatalf("%v begins at %v, the anchor is %v", p, w.Start, anchor)
		}
	})
}

// Moving the anchor grants no quota: usage restarts at 0 only when a window ends, and not before the end of the window that was open
// at the move.
func TestMovingTheAnchorGrantsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c core.Counter
		var anchors core.Anchors
		p := rapid.SampledFrom(core.PlanPeriods()).Draw(t, "period")
		const limit = 10
		now := at("2027-12-20T00:00:00Z")
		until := anchors.Window(p, now).End // usage restarts then
		end := until                        // of the window in which usage has begun: whatever the anchors, it does not restart before
		used := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(1, 300).Draw(t, "hours")) * time.Hour)
			if !now.Before(until) {
				until, used = anchors.Window(p, now).End, 0
				end = until
			}
			if rapid.Bool().Draw(t, "move") {
				start := time.Time{}
				if rapid.Bool().Draw(t, "own") {
					start = now.Add(time.Duration(rapid.Int64Range(-9000, 9000).Draw(t, "start")) * time.Hour)
				}
				anchors = append(anchors, core.Anchor{From: now, Start: start})
				until = anchors.Window(p, now).End
				if until.Before(end) {
					until = anchors.Window(p, end.Add(-time.Second)).End
				}
				continue
			}
			r := request(p, limit, rapid.Int64Range(1, 4).Draw(t, "cost"), now)
			r.Anchors = anchors
			v := consume(&c, r)
			if want := used+r.Cost <= limit; v.Allowed != want {
				t.Fatalf("%d used, a cost of %d: got %t, want %t", used, r.Cost, v.Allowed, want)
			}
			if v.Allowed {
				used += r.Cost
			}
			if v.Usage.Used != used || v.Usage.Window != anchors.Window(p, now) {
				t.Fatalf("got %+v, want %d in %+v", v.Usage, used, anchors.Window(p, now))
			}
		}
	})
}

// Moving the start each day gives a customer no more than the quota of the month. Anchors that are dropped change nothing.
func TestMovedEachDay(t *testing.T) {
	now := at("2026-03-01T12:00:00Z")
	svc := service.New(memstore.New(), service.Config{Clock: func() time.Time { return now }})
	c := newTenant(t, svc, "acme")
	_, secret := c.newKey("k")
	pl, _, err := svc.Plans(t.Context(), c.id, core.Page{Number: 1, Size: 1})
	c.ok(err)
	_, err = svc.UpdatePlan(t.Context(), c.id, pl[0].ID, core.PlanPatch{Limit: core.Some(int64(5)), Period: new("month")})
	c.ok(err)
	allowed := 0
	for range 30 {
		for range 6 {
			d, err := svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/x", Method: "GET", Cost: 1})
			c.ok(err)
			if d.Allowed() {
				allowed++
			}
		}
		now = now.Add(24 * time.Hour)
		_, err := svc.UpdateUser(t.Context(), c.id, 1, core.UserPatch{CustomStart: core.Some(now.Add(12 * time.Hour))})
		c.ok(err)
	}
	if allowed != 5 {
		t.Errorf("%d requests in March, want the quota of 5", allowed)
	}
}

// The anchors that a user keeps give the same windows as all that it has ever had.
func TestKeptAnchors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := at("2027-12-20T00:00:00Z")
		svc := service.New(memstore.New(), service.Config{Clock: func() time.Time { return now }})
		a, _, _, err := svc.CreateAccount(context.Background(), "acme")
		if err != nil {
			t.Fatal(err)
		}
		u, err := svc.CreateUser(context.Background(), a.ID, core.UserPatch{Name: new("u")})
		if err != nil {
			t.Fatal(err)
		}
		var all core.Anchors
		for range rapid.IntRange(1, 20).Draw(t, "moves") {
			now = now.Add(time.Duration(rapid.Int64Range(1, 9000).Draw(t, "hours")) * time.Hour)
			start := now.Add(time.Duration(rapid.Int64Range(-9000, 9000).Draw(t, "start")) * time.Hour)
			if u, err = svc.UpdateUser(context.Background(), a.ID, u.ID, core.UserPatch{CustomStart: core.Some(start)}); err != nil {
				t.Fatal(err)
			}
			if !start.Equal(all.Start()) {
				all = append(all, core.Anchor{From: now, Start: start})
			}
			later := now.Add(time.Duration(rapid.Int64Range(0, 20000).Draw(t, "later")) * time.Hour)
			if got, want := u.Anchors.Since(later), all.Since(later); got != want {
				t.Fatalf("%d of %d anchors are kept, and usage counts from %v instead of %v", len(u.Anchors), len(all), got, want)
			}
		}
	})
}

// A custom_start with a fraction of a second, as JavaScript writes times, is the same start each time it is given.
func TestSameAnchorAgain(t *testing.T) {
	now := at("2026-03-10T12:00:00Z")
	svc := service.New(memstore.New(), service.Config{Clock: func() time.Time { return now }})
	a, _, _, err := svc.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	p := core.UserPatch{Name: new("alice"), CustomStart: core.Some(at("2026-01-31T08:30:00.25Z"))}
	u, err := svc.CreateUser(t.Context(), a.ID, p)
	for range 2 * core.MaxAnchors {
		now = now.Add(time.Hour)
		if err == nil {
			u, err = svc.UpdateUser(t.Context(), a.ID, u.ID, p)
		}
	}
	if err != nil || len(u.Anchors) != 1 {
		t.Errorf("got %+v, %v, want one anchor", u, err)
	}
}
