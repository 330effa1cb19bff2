package adminapi

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// appendValidation gives the same bytes as json.Marshal.
func FuzzValidate(f *testing.F) {
	f.Add("Basic", int64(1000), int64(45), uint8(5), int64(1_772_323_200))
	f.Add(`<"a\\b">&`+"\u2028\x00\n\xff\x7fé", int64(1), int64(-5), uint8(4), int64(0))
	f.Add("", int64(0), int64(1<<62), uint8(1), int64(253_402_300_799))
	f.Add("Rate", int64(10), int64(9), uint8(6), int64(1_772_323_200))
	outcomes := []service.Outcome{service.Malformed, service.Unknown, service.Expired, service.Disabled, service.Denied, service.Allowed, service.OverRate}
	f.Fuzz(func(t *testing.T, plan string, most, used int64, outcome uint8, end int64) {
		d := &service.Decision{Outcome: outcomes[int(outcome)%len(outcomes)]}
		type usage struct {
			CurrentUsage int64       `json:"current_usage"`
			Limit        *int64      `json:"limit"`
			Remaining    *int64      `json:"remaining"`
			ResetTime    *time.Time  `json:"reset_time"`
			PlanName     string      `json:"plan_name"`
			PeriodStart  time.Time   `json:"period_start"`
			PeriodEnd    *time.Time  `json:"period_end"`
			Meter        string      `json:"meter"`
			Period       core.Period `json:"period"`
			Of           core.Origin `json:"of"`
			Overage      *int64      `json:"overage,omitempty"`
			RetryAfter   float64     `json:"retry_after,omitempty"`
			Limits       []limit     `json:"limits,omitempty"`
		}
		want := object{{"success", d.Allowed()}}
		if e := d.Refusal(); e != nil {
			want = want.andError(e)
		}
		if d.Outcome == service.Denied || d.Outcome == service.Allowed || d.Outcome == service.OverRate {
			at := time.Unix(((end%200_000_000_000)+200_000_000_000)%200_000_000_000, 0)
			period := core.Periods()[uint64(used)%uint64(len(core.Periods()))]
			if most < 0 {
				most = core.Unlimited
			}
			d.Plan = &core.Plan{Name: plan, Limit: most}
			d.Limit = core.Limit{Meter: "requests", Max: most, Period: period, OnExceed: core.OnExceed(used%3 == 0)}
			d.Of = core.OfPlan
			d.Usage = core.Usage{Window: period.Window(at), Used: used}
			end := orNull(d.Usage.Window.End)
			of := usage{used, nil, nil, end, plan, d.Usage.Window.Start, end, "requests", period, d.Of, d.Overage(), 0, nil}
			if d.Outcome == service.OverRate {
				d.RetryAfter = time.Duration(1+uint64(used)%60_000_000) * time.Millisecond
				of.RetryAfter = d.RetryAfter.Seconds()
			}
			if most != core.Unlimited {
				of.Limit, of.Remaining = &most, new(d.Remaining())
				d.Limits = []core.LimitUsage{{Limit: d.Limit, Usage: d.Usage}, {Limit: core.Limit{Meter: "tokens", Max: 1, Period: core.Lifetime}}}
				of.Limits = viewLimits(d.Limits)
			}
			want = append(want, field{"details", of})
		}
		text, err := want.append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(appendValidation(nil, d)); got != string(text) {
			t.Errorf("got  %s\nwant %s", got, text)
		}
	})
}

// Answers share no memory: a handler that modifies header values in place does not change another answer.
func TestHeadersAreNotShared(t *testing.T) {
	d := &service.Decision{Outcome: service.Allowed, Plan: &core.Plan{Name: "Basic", Limit: 10, Period: core.Month},
		LimitUsage: core.LimitUsage{Limit: core.Limit{Meter: "requests", Max: 10, Period: core.Month},
			Usage: core.Usage{Window: core.Month.Window(time.Unix(1_772_000_000, 0)), Used: 1}}}
	answer := func() http.Header {
		w := httptest.NewRecorder()
		WriteValidation(w, http.StatusOK, d, XRateLimitHeaders|IETFHeaders)
		return w.Header()
	}
	first := answer()
	for name, values := range first {
		values[0] = "changed"
		first[name] = append(values, "more")
	}
	for name, values := range answer() {
		if len(values) != 1 || slices.Contains(values, "changed") || strings.Contains(values[0], "more") {
			t.Errorf("%s: %q", name, values)
		}
	}
	for name, values := range first { // nor in another field
		if values[0] != "changed" || values[1] != "more" {
			t.Errorf("%s: %q", name, values)
		}
	}
}
