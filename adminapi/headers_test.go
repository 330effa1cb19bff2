package adminapi_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

func decision(name string, limit, used int64) *service.Decision {
	at := time.Date(2026, time.February, 14, 0, 0, 0, 0, time.UTC)
	return &service.Decision{
		Outcome: service.Allowed,
		Plan:    &core.Plan{Name: name, Limit: limit, Period: core.Month},
		LimitUsage: core.LimitUsage{Limit: core.Limit{Meter: core.MeterRequests, Max: limit, Period: core.Month}, Of: core.OfPlan,
			Usage: core.Usage{Window: core.Month.Window(at), Used: used}},
	}
}

var midFebruary = time.Date(2026, time.February, 14, 23, 59, 59, 1, time.UTC)

// The fields list every limit. A plan without a primary limit, and a lifetime, lack the numbers that they do not have.
func TestHeadersListLimits(t *testing.T) {
	usage := func(meter string, max int64, p core.Period, used int64) core.LimitUsage {
		return core.LimitUsage{Limit: core.Limit{Meter: meter, Max: max, Period: p}, Usage: core.Usage{Window: p.Window(midFebruary), Used: used}}
	}
	several := decision("Basic", 1000, 45)
	several.Limits = []core.LimitUsage{usage("requests", 1000, core.Month, 45), usage("requests", 5, core.Minute, 5), usage("tokens", 100, core.Month, 30), usage("spend", 7, core.Lifetime, 1)}
	lifetime, unlimited := decision("Basic", core.Unlimited, 45), decision("Basic", core.Unlimited, 45)
	lifetime.Limits = several.Limits[3:]
	lifetime.LimitUsage = lifetime.Limits[0]
	rated, over := decision("Basic", core.Unlimited, 45), decision("Basic", 1000, 45)
	rated.Plan.Rate = &core.Rate{Requests: 10, Per: core.PerSecond, Burst: 20}
	over.Plan.Rate, over.Outcome, over.RetryAfter = &core.Rate{Requests: 30, Per: core.PerMinute, Burst: 1}, service.OverRate, 1200*time.Millisecond
	for name, tt := range map[string]struct {
		d    *service.Decision
		want http.Header
	}{
		"several": {several, http.Header{
			"X-Ratelimit-Limit": {"1000"}, "X-Ratelimit-Remaining": {"955"}, "X-Ratelimit-Reset": {"1772323200"}, "X-Ratelimit-Plan": {"Basic"},
			"Ratelimit-Policy": {`"month";q=1000;w=2419200, "minute";q=5;w=60, "tokens-month";q=100;w=2419200;qu="limitkeeper-tokens", "spend-lifetime";q=7;qu="limitkeeper-spend"`},
			"Ratelimit":        {`"month";r=955;t=1209601, "minute";r=0;t=1, "tokens-month";r=70;t=1209601, "spend-lifetime";r=6`}}},
		"lifetime": {lifetime, http.Header{
			"X-Ratelimit-Limit": {"7"}, "X-Ratelimit-Remaining": {"6"}, "X-Ratelimit-Plan": {"Basic"},
			"Ratelimit-Policy": {`"spend-lifetime";q=7;qu="limitkeeper-spend"`}, "Ratelimit": {`"spend-lifetime";r=6`}}},
		"unlimited":              {unlimited, http.Header{"X-Ratelimit-Plan": {"Basic"}}},
		"unlimited, with a rate": {rated, http.Header{"X-Ratelimit-Plan": {"Basic"}, "Ratelimit-Policy": {`"rate";q=10;w=1`}}},
		"over the rate": {over, http.Header{
			"X-Ratelimit-Limit": {"1000"}, "X-Ratelimit-Remaining": {"955"}, "X-Ratelimit-Reset": {"1772323200"}, "X-Ratelimit-Plan": {"Basic"},
			"Ratelimit-Policy": {`"month";q=1000;w=2419200, "rate";q=30;w=60`},
			"Ratelimit":        {`"month";r=955;t=1209601, "rate";r=0;t=2`}}},
	} {
		h := http.Header{}
		(adminapi.XRateLimitHeaders | adminapi.IETFHeaders).Set(h, tt.d, midFebruary)
		if diff := cmp.Diff(tt.want, h); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// The headers have the usage of the decision, and X-RateLimit-* replace existing values.
func TestRateLimitHeaders(t *testing.T) {
	h := http.Header{"X-Ratelimit-Limit": {"7"}}
	(adminapi.XRateLimitHeaders | adminapi.IETFHeaders).Set(h, decision("Basic", 1000, 45), midFebruary)
	want := http.Header{
		"X-Ratelimit-Limit":     {"1000"},
		"X-Ratelimit-Remaining": {"955"},
		"X-Ratelimit-Reset":     {"1772323200"},
		"X-Ratelimit-Plan":      {"Basic"},
		"Ratelimit-Policy":      {`"month";q=1000;w=2419200`},
		"Ratelimit":             {`"month";r=955;t=1209601`}, // 14 days and a moment less than a second
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// RateLimit and RateLimit-Policy are lists: existing members stay.
func TestRateLimitHeadersJoins(t *testing.T) {
	h := http.Header{
		"Ratelimit":        {`"burst";r=1;t=1`, `"other";r=2;t=2`},
		"Ratelimit-Policy": {`"burst";q=10;w=1`},
	}
	(adminapi.XRateLimitHeaders | adminapi.IETFHeaders).Set(h, decision("Basic", 10, 3), midFebruary)
	for name, want := range map[string][]string{
		"Ratelimit":        {`"burst";r=1;t=1, "other";r=2;t=2, "month";r=7;t=1209601`},
		"Ratelimit-Policy": {`"burst";q=10;w=1, "month";q=10;w=2419200`},
	} {
		if diff := cmp.Diff(want, h[name]); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

// A number above the maximum of structured fields is clamped in RateLimit and RateLimit-Policy. X-RateLimit-*
// have the exact number.
func TestRateLimitHeadersLargest(t *testing.T) {
	h := http.Header{}
	(adminapi.XRateLimitHeaders | adminapi.IETFHeaders).Set(h, decision("Basic", core.MaxLimit, 1), midFebruary)
	for name, want := range map[string]string{
		"X-RateLimit-Limit":     "9007199254740991",
		"X-RateLimit-Remaining": "9007199254740990",
		"RateLimit-Policy":      `"month";q=999999999999999;w=2419200`,
		"RateLimit":             `"month";r=999999999999999;t=1209601`,
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// Usage above a lowered limit leaves 0, never a negative number.
func TestRateLimitHeadersOverused(t *testing.T) {
	h := http.Header{}
	(adminapi.XRateLimitHeaders | adminapi.IETFHeaders).Set(h, decision("Basic", 10, 30), midFebruary)
	if got := h.Get("X-RateLimit-Remaining"); got != "0" {
		t.Errorf("X-RateLimit-Remaining: got %q, want 0", got)
	}
}

// A decision without usage sets no headers.
func TestRateLimitHeadersWithoutUsage(t *testing.T) {
	h := http.Header{}
	(adminapi.XRateLimitHeaders | adminapi.IETFHeaders).Set(h, &service.Decision{Outcome: service.Unknown}, midFebruary)
	if len(h) != 0 {
		t.Errorf("got %v, want none", h)
	}
}

// Any plan name gives a valid header value that decodes to the name.
func FuzzPlanHeader(f *testing.F) {
	for _, name := range []string{"Basic", "Größe", "50% off", "a\r\nSet-Cookie: x", "\x00", " ", "\x7f\xff", "%41"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		h := http.Header{}
		(adminapi.XRateLimitHeaders | adminapi.IETFHeaders).Set(h, decision(name, 10, 3), midFebruary)
		got := h.Get("X-RateLimit-Plan")
		for i := range len(got) {
			if got[i] < ' ' || got[i] > '~' {
				t.Errorf("%q: byte %#x in %q", name, got[i], got)
			}
		}
		if back, err := url.PathUnescape(got); err != nil || back != name {
			t.Errorf("%q: decoded: got %q, %v", name, back, err)
		}
	})
}

// Retry-After of a denial is the time until the period resets.
func TestSetRetryAfter(t *testing.T) {
	march := time.Date(2026, time.March, 1, 0, 0, 0, 0, time.UTC)
	for want, now := range map[string]time.Time{"1209601": midFebruary, "2": march.Add(-1001 * time.Millisecond),
		"1": march.Add(time.Hour)} { // now is after the reset, by another clock
		h := http.Header{}
		adminapi.SetRetryAfter(h, decision("Basic", 10, 10), now)
		if got := h.Get("Retry-After"); got != want {
			t.Errorf("at %v: got %q, want %q", now, got, want)
		}
	}
}

// The gateway's answers have the body of a validation, with any status.
func TestWriteValidationAndRefusal(t *testing.T) {
	denied := decision("Basic", 10, 10)
	denied.Outcome = service.Denied
	for _, tc := range []struct {
		write  func(http.ResponseWriter)
		status int
		want   string
	}{
		{func(w http.ResponseWriter) { adminapi.WriteValidation(w, 429, denied, 0) }, 429,
			`{"success":false,"error":"Rate limit exceeded","reason":"quota","details":{"current_usage":10,"limit":10,"remaining":0,"reset_time":"2026-03-01T00:00:00Z","plan_name":"Basic","period_start":"2026-02-01T00:00:00Z","period_end":"2026-03-01T00:00:00Z","meter":"requests","period":"month","of":"plan"}}`},
		{func(w http.ResponseWriter) {
			adminapi.WriteValidation(w, 403, &service.Decision{Outcome: service.Disabled}, 0)
		}, 403,
			`{"success":false,"error":"API key is disabled","code":"API_KEY_DISABLED","reason":"disabled"}`},
		{func(w http.ResponseWriter) { adminapi.WriteRefusal(w, 503, core.ErrUnavailable) }, 503,
			`{"success":false,"error":"Service unavailable","code":"UNAVAILABLE"}`},
	} {
		w := httptest.NewRecorder()
		tc.write(w)
		if w.Code != tc.status || w.Body.String() != tc.want+"\n" {
			t.Errorf("got %d %s, want %d %s", w.Code, w.Body, tc.status, tc.want)
		}
		if got := w.Header().Get("Cache-Control") + w.Header().Get("Content-Type"); got != "no-storeapplication/json" {
			t.Errorf("headers: got %v", w.Header())
		}
	}
}
