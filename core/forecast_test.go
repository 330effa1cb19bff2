package core

import (
	"testing"
	"time"
)

func TestExhaustsAt(t *testing.T) {
	at := func(text string) time.Time {
		v, err := time.Parse("2006-01-02 15:04:05", text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	now := at("2026-10-21 12:00:00")
	week := func(allowed ...int64) (days []DayTotals) {
		for i, n := range allowed {
			days = append(days, DayTotals{Date: PaceFrom(now) + Date(i), Traffic: Traffic{Allowed: n, Denied: 99},
				Meters: []MeterTotals{{"tokens", MeterTraffic{Allowed: 10 * n, Adjusted: 5000}}}})
		}
		return days
	}
	month, lifetime := Anchors(nil).Window(Month, now), Anchors(nil).Window(Lifetime, now)
	for name, c := range map[string]struct {
		meter     string
		max, used int64
		window    Window
		days      []DayTotals
		want      string // "" for never
	}{
		"6.5 days at 20 a day": {MeterRequests, 400, 300, month, week(20, 20, 20, 20, 20, 20, 10), "2026-10-26 12:00:00"},
		"another meter":        {"tokens", 4000, 3000, month, week(20, 20, 20, 20, 20, 20, 10), "2026-10-26 12:00:00"},
		"not before the reset": {MeterRequests, 600, 300, month, week(20, 20, 20, 20, 20, 20, 10), ""},
		"an unused week":       {MeterRequests, 400, 300, month, nil, ""},
		"a released week":      {MeterRequests, 400, 300, month, week(-5), ""},
		"used up":              {MeterRequests, 300, 300, month, nil, "2026-10-21 12:00:00"},
		"beyond the limit":     {MeterRequests, 300, 420, month, nil, "2026-10-21 12:00:00"},
		"no limit":             {MeterRequests, Unlimited, 420, month, week(20), ""},
		"a lifetime":           {MeterRequests, 1000, 300, lifetime, week(0, 0, 65), "2026-12-30 12:00:00"},
		"in 1,000 years":       {MeterRequests, 1_000_000, 300, lifetime, week(1), ""},
		"the day so far":       {MeterRequests, 100, 60, Anchors(nil).Window(Day, now), week(20, 20, 20), "2026-10-21 20:00:00"},
		"the week so far":      {MeterRequests, 100, 50, Window{at("2026-10-16 12:00:00"), at("2026-10-30 12:00:00")}, nil, "2026-10-26 12:00:00"},
		"a window that begins": {MeterRequests, 100, 1, Anchors(nil).Window(Minute, now), nil, ""},
		"rounded up":           {MeterRequests, 10, 7, Window{now.Add(-10 * time.Second), now.Add(time.Minute)}, nil, "2026-10-21 12:00:05"},
	} {
		u := LimitUsage{Limit: Limit{Meter: c.meter, Max: c.max}, Usage: Usage{c.window, c.used}}
		var want time.Time
		if c.want != "" {
			want = at(c.want)
		}
		if got := u.ExhaustsAt(c.days, now.Add(300*time.Millisecond)); !got.Equal(want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
