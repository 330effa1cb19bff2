package adminapi_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// In any 60 seconds exactly 1000 requests of an owner's key are served. Retry-After of the 1001st is exact to the
// second.
func TestThrottle(t *testing.T) {
	a := newAPI(t)
	a.svc.Tune(service.DefaultTunables())
	send := func(want int) *result { return a.do("GET", prefix+"/plans", nil).want(want) }
	for range 500 {
		send(200)
	}
	a.clock.Pass(29500 * time.Millisecond)
	for range 500 {
		send(200)
	}
	for range 3 { // refused ones do not count: they do not put the next one off
		r := send(429)
		if got := r.header.Get("Retry-After"); got != "31" {
			t.Errorf("Retry-After: got %s, want 31, half a second rounded up", got)
		}
		if got := r.wantCode(429, core.CodeRateLimitExceeded).at()["error"]; got != "Too many requests to this API" {
			t.Errorf("got the error %v: a customer's refusal says Rate limit exceeded", got)
		}
	}
	if r := a.bad("POST", prefix+"/validate", "{}").wantCode(429, core.CodeRateLimitExceeded); r.at()["success"] != false {
		t.Errorf("got %v, want success false", r)
	}

	a.clock.Pass(30500*time.Millisecond - 1)
	if got := send(429).header.Get("Retry-After"); got != "1" {
		t.Errorf("Retry-After: got %s, want 1, never 0", got)
	}
	a.clock.Pass(1)
	for range 500 {
		send(200)
	}
	send(429)
}

// Other owner's keys, of the same account too, have a bound of their own. Requests
// without a valid key and those to the public endpoints do not count.
func TestThrottleIsPerKey(t *testing.T) {
	a := newAPI(t)
	a.svc.Tune(service.Tunables{ThrottleLimit: 2, ThrottleWindow: time.Minute})
	ctx := context.Background()
	acct, err := a.svc.AccountByName(ctx, "acme")
	if err != nil {
		t.Fatal(err)
	}
	_, second, err := a.svc.CreateOwnerKey(ctx, acct.ID, core.OwnerKeySpec{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		a.do("GET", prefix+"/health", nil).want(200)
		a.do("GET", prefix+"/openapi.yaml", nil).want(200)
		a.do("GET", prefix+"/users", nil, with("Authorization", "Bearer x")).want(401)
		a.bad("GET", prefix+"/nothing", nil).want(404)
		a.bad("PATCH", prefix+"/users", nil).want(405)
	}
	for _, owner := range []string{a.owner, second, a.account("other")} {
		b := a.as(owner)
		b.do("GET", prefix+"/users", nil).want(200)
		b.do("GET", prefix+"/users", nil).want(200)
		b.do("GET", prefix+"/users", nil).want(429)
	}
}

// The log says which owner's key is refused, how often, and which option to change: once a
// minute, however many requests there are, and without the key.
func TestThrottleLog(t *testing.T) {
	log := &logged{}
	a := newAPI(t, func(c *adminapi.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	a.svc.Tune(service.Tunables{ThrottleLimit: 1, ThrottleWindow: time.Second})
	acct, err := a.svc.AccountByName(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	keys, _, err := a.svc.OwnerKeys(t.Context(), acct.ID, core.Page{Number: 1, Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(b *api, n int) {
		t.Helper()
		b.do("GET", prefix+"/plans", nil).want(200)
		for range n {
			b.do("GET", prefix+"/plans", nil).want(429)
		}
	}
	refuse(a, 50)
	refuse(a.as(a.account("other")), 2)
	a.clock.Pass(59 * time.Second)
	refuse(a, 3)
	a.clock.Pass(2 * time.Second)
	refuse(a, 5)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("got %d lines, want 3:\n%s", len(lines), log)
	}
	for i, want := range []string{" refused=1", "account=other", " refused=53"} { // the first 1, then the other 49, 3 and 1
		for _, w := range []string{"level=WARN", "service_rate_limit", want} {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d lacks %q: %s", i+1, w, lines[i])
			}
		}
	}
	for _, want := range []string{"account=acme", keys[0].ID, keys[0].Hint} {
		if !strings.Contains(lines[2], want) {
			t.Errorf("the line lacks %q: %s", want, lines[2])
		}
	}
	if strings.Contains(log.String(), a.owner) {
		t.Errorf("the log has the owner's key: %s", log)
	}
}

// For any arrival times, a request is served exactly if fewer than the limit were served in the window before
// it. A client that waits for Retry-After is served.
func TestThrottleAgainstModel(t *testing.T) {
	const limit, window = 5, 10 * time.Second
	a := newAPI(t)
	a.svc.Tune(service.Tunables{ThrottleLimit: limit, ThrottleWindow: window})
	rnd := rand.New(rand.NewPCG(1, 2))
	var served []time.Time
	send := func() *result {
		r := a.do("GET", prefix+"/plans", nil)
		in := 0
		for _, at := range served {
			if a.clock.Wall().Sub(at) < window {
				in++
			}
		}
		want := http.StatusOK
		if in >= limit {
			want = http.StatusTooManyRequests
		} else {
			served = append(served, a.clock.Wall())
		}
		return r.want(want)
	}
	for range 300 {
		a.clock.Pass(time.Duration(rnd.Int64N(int64(3 * time.Second))))
		r := send()
		if r.status == http.StatusOK || rnd.IntN(4) > 0 {
			continue
		}
		wait, err := strconv.Atoi(r.header.Get("Retry-After"))
		if err != nil {
			t.Fatal(err)
		}
		a.clock.Pass(time.Duration(wait) * time.Second)
		if r := send(); r.status != http.StatusOK {
			t.Errorf("refused after the %d s that it was told to wait", wait)
		}
	}
}
