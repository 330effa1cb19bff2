package adminapi_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The answer has each day in the range, with its allowed and denied requests.
func TestDailyUsage(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(2), a.user("Example Customer")
	key, secret := a.key(user, plan)
	for range 3 {
		a.validate(secret)
	}
	a.clock.Pass(48 * time.Hour)
	a.validate(secret)
	for _, path := range []string{"/keys/" + key, "/plans/" + plan, "/users/" + user} {
		path = prefix + path + "/usage/daily"
		d := a.do("GET", path, nil).want(200).data()
		if got := fmt.Sprintf("%v %v %v %v %d", d["from"], d["to"], d["allowed"], d["denied"], len(d["days"].([]any))); got != "2026-02-15 2026-03-16 2 2 30" {
			t.Errorf("%s: got %s", path, got)
		}
		d = a.do("GET", path+"?from=2026-03-13&to=2026-03-16", nil).want(200).data()
		var days []string
		for _, day := range d["days"].([]any) {
			day := day.(map[string]any)
			days = append(days, fmt.Sprint(day["date"], " ", day["allowed"], " ", day["denied"]))
		}
		if got, want := strings.Join(days, ", "), "2026-03-13 0 0, 2026-03-14 2 1, 2026-03-15 0 0, 2026-03-16 0 1"; got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
		a.do("GET", path+"?to=2026-03-13", nil).want(200)
		a.do("GET", path+"?from=2025-02-10", nil).want(200) // 400 days
	}
}

// The answer has each hour in the range. A day stands for its hours.
func TestHourlyUsage(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(2), a.user("Example Customer")
	key, secret := a.key(user, plan)
	for range 3 {
		a.validate(secret)
	}
	a.clock.Pass(2 * time.Hour)
	a.validate(secret)
	for _, path := range []string{"/keys/" + key, "/plans/" + plan, "/users/" + user} {
		path = prefix + path + "/usage/hourly"
		hours := func(query string) string {
			d := a.do("GET", path+query, nil).want(200).data()
			text := fmt.Sprintf("%v to %v: %v %v of %d", d["from"], d["to"], d["requests_allowed"], d["requests_denied"], len(d["hours"].([]any)))
			for _, hour := range d["hours"].([]any) {
				hour := hour.(map[string]any)
				if n := fmt.Sprintf("%v %v", hour["allowed"], hour["denied"]); n != "0 0" {
					text += fmt.Sprintf(", %v %s", hour["hour"], n)
				}
			}
			return text
		}
		now := a.clock.Wall().UTC().Truncate(time.Hour)
		at := func(ago int) string { return now.Add(time.Duration(-ago) * time.Hour).Format(time.RFC3339) }
		used := ", " + at(2) + " 2 1, " + at(0) + " 0 1"
		for query, want := range map[string]string{
			"":                                at(23) + " to " + at(0) + ": 2 2 of 24" + used,
			"?from=" + at(2) + "&to=" + at(1): at(2) + " to " + at(1) + ": 2 1 of 2, " + at(2) + " 2 1",
			"?from=" + now.Format(time.DateOnly) + "&to=" + now.Format(time.DateOnly): now.Format(time.DateOnly) + "T00:00:00Z to " +
				now.Format(time.DateOnly) + "T23:00:00Z: 2 2 of 24" + used,
			"?from=" + at(167): at(167) + " to " + at(0) + ": 2 2 of 168" + used,
		} {
			if got := hours(query); got != want {
				t.Errorf("%s%s: got %s, want %s", path, query, got, want)
			}
		}
		for query, field := range map[string]string{"?from=" + at(168): "from", "?to=2026-03-14T09:30:00Z": "to", "?from=9": "from", "?from=" + at(-1): "to"} {
			a.bad("GET", path+query, nil).wantField(core.CodeValidation, field)
		}
	}
}

// An invalid range is refused, and the error names the parameter.
func TestDailyUsageRefusals(t *testing.T) {
	a := newAPI(t)
	path := prefix + "/plans/" + a.plan(2) + "/usage/daily"
	for query, field := range map[string]string{
		"from=2026-03-17":                  "to",
		"from=2026-03-02&to=2026-03-01":    "to",
		"from=2025-02-07":                  "from",
		"from=0000-01-01&to=9999-12-31":    "from",
		"from=2026-02-30":                  "from",
		"from=yesterday":                   "from",
		"from=":                            "from",
		"to=2026-3-1":                      "to",
		"to=2026-03-01T00:00:00Z":          "to",
		"to=2026-03-01&to=2026-03-02":      "to",
		"meter=token":                      "meter",
		"to=" + strings.Repeat("2", 10000): "to",
	} {
		a.bad("GET", path+"?"+query, nil).wantField(core.CodeValidation, field)
	}
}
