package core_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t
}

// Promise 1: a window that is wrong counts a request in another period.
func TestPeriodWindow(t *testing.T) {
	tests := []struct {
		name       string
		period     core.Period
		at         string
		start, end string
	}{
		{"day", core.Day, "2026-03-05T12:30:00Z", "2026-03-05T00:00:00Z", "2026-03-06T00:00:00Z"},
		{"day at its first instant", core.Day, "2026-03-05T00:00:00Z", "2026-03-05T00:00:00Z", "2026-03-06T00:00:00Z"},
		{"day at its last instant", core.Day, "2026-03-05T23:59:59.999999999Z", "2026-03-05T00:00:00Z", "2026-03-06T00:00:00Z"},
		{"day seen from another zone", core.Day, "2026-03-05T23:30:00-05:00", "2026-03-06T00:00:00Z", "2026-03-07T00:00:00Z"},
		{"leap day", core.Day, "2028-02-29T10:00:00Z", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"week on a Monday", core.Week, "2026-03-02T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"},
		{"week on a Sunday", core.Week, "2026-03-08T23:59:59Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"},
		{"ISO week 53 over new year", core.Week, "2027-01-02T00:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"},
		{"ISO week 1 that begins in December", core.Week, "2025-12-30T00:00:00Z", "2025-12-29T00:00:00Z", "2026-01-05T00:00:00Z"},
		{"month of 28 days", core.Month, "2026-02-28T23:59:59Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"month of 29 days", core.Month, "2028-02-29T23:59:59Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"December", core.Month, "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"year", core.Year, "2026-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"leap year", core.Year, "2028-07-01T00:00:00Z", "2028-01-01T00:00:00Z", "2029-01-01T00:00:00Z"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := tt.period.Window(at(tt.at))
			if !w.Start.Equal(at(tt.start)) || !w.End.Equal(at(tt.end)) {
				t.Errorf("Window(%s) = [%v, %v), want [%s, %s)", tt.at, w.Start, w.End, tt.start, tt.end)
			}
			if got, want := w.Seconds(), int64(at(tt.end).Sub(at(tt.start)).Seconds()); got != want {
				t.Errorf("Seconds() = %d, want %d", got, want)
			}
		})
	}
}

// The laws of the calendar: a window contains its instant, is the same for all of
// its instants, and its end begins the next one.
func FuzzPeriodWindow(f *testing.F) {
	for _, s := range []string{"1970-01-01T00:00:00Z", "2000-02-29T23:59:59Z", "2100-02-28T23:59:59Z", "2026-12-31T23:59:59Z", "0001-01-01T00:00:00Z"} {
		f.Add(at(s).Unix(), int64(999_999_999), uint8(core.Week))
	}
	f.Fuzz(func(t *testing.T, sec, nsec int64, n uint8) {
		const first, last = -62135596800, 253402300799 // the years 1 to 9999
		if sec < first || sec > last || nsec < 0 || nsec > 999_999_999 {
			t.Skip()
		}
		p, at := core.PlanPeriods()[int(n)%4], time.Unix(sec, nsec)
		w := p.Window(at)
		if !w.Contains(at) {
			t.Fatalf("%v of %v = [%v, %v) does not contain it", p, at.UTC(), w.Start, w.End)
		}
		if w.Contains(w.End) || !w.Contains(w.Start) || !w.Contains(w.End.Add(-1)) {
			t.Fatalf("[%v, %v) is not half open", w.Start, w.End)
		}
		for _, inside := range []time.Time{w.Start, w.End.Add(-1)} {
			if got := p.Window(inside); got != w {
				t.Fatalf("%v of %v = %v, but of %v = %v", p, at, w, inside, got)
			}
		}
		if next := p.Window(w.End); next.Start != w.End {
			t.Fatalf("after [%v, %v) comes [%v, %v)", w.Start, w.End, next.Start, next.End)
		}
		if before := p.Window(w.Start.Add(-1)); before.End != w.Start {
			t.Fatalf("before [%v, %v) comes [%v, %v)", w.Start, w.End, before.Start, before.End)
		}
		checkShape(t, p, w)
	})
}

// checkShape compares a window with an independent computation.
func checkShape(t *testing.T, p core.Period, w core.Window) {
	t.Helper()
	days := int(w.End.Sub(w.Start) / (24 * time.Hour))
	ok := w.Start.Equal(w.Start.UTC().Truncate(24 * time.Hour))
	switch p {
	case core.Day:
		ok = ok && days == 1
	case core.Week:
		year, week := w.Start.ISOWeek()
		lastYear, lastWeek := w.End.Add(-1).ISOWeek()
		ok = ok && days == 7 && w.Start.Weekday() == time.Monday && year == lastYear && week == lastWeek
	case core.Month:
		ok = ok && w.Start.Day() == 1 && days >= 28 && days <= 31
	case core.Year:
		ok = ok && w.Start.YearDay() == 1 && w.End.Add(-1).YearDay() == days
	}
	if !ok {
		t.Fatalf("[%v, %v) is no %v", w.Start, w.End, p)
	}
}

func TestPeriodText(t *testing.T) {
	for _, p := range core.Periods() {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back core.Period
		if err := json.Unmarshal(text, &back); err != nil || back != p {
			t.Errorf("%s reads back as %v, %v", text, back, err)
		}
	}
	for _, name := range []string{"", "Day", "second", "days"} {
		if p, err := core.ParsePeriod(name); err == nil {
			t.Errorf("ParsePeriod(%q) = %v, want an error", name, p)
		}
	}
	if _, err := core.Period(9).MarshalText(); err == nil {
		t.Error("Period(9).MarshalText() succeeds, want an error")
	}
}
