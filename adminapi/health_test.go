package adminapi_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// The health says when the clock has jumped, and at which time requests count meanwhile. Without
// a jump it is as the specification shows it.
func TestHealthOfClock(t *testing.T) {
	var state core.ClockState
	a := newAPI(t, func(c *adminapi.Config) { c.Clock = func() core.ClockState { return state } })
	for _, held := range []bool{false, true} {
		state = core.ClockState{Held: held, Wall: began.AddDate(1, 0, 0), Used: began}
		want := `{"status":"ok"}`
		if held {
			want = `{"status":"ok","clock":{"used":"2026-03-14T09:26:53.589Z","ahead_seconds":31536000}}`
		}
		if got := string(a.do("GET", prefix+"/health", nil).want(200).body); got != want+"\n" {
			t.Errorf("held %t: got %s, want %s", held, got, want)
		}
	}
}

// secretive is a store with a reason for the owner, and with a cause that nobody may see.
type secretive struct{ core.Store }

func (secretive) Health(context.Context) error {
	return fmt.Errorf("%w: cannot open /srv/acme at 10.0.0.7:6379", &core.Error{Code: core.CodeUnavailable, Message: "The disk of the store is full"})
}

// Over plain HTTP the health is one of two fixed answers, without a reason and without the clock, and so are the answers for
// load balancers. Over HTTPS GET /health says why. A failure means that anyone on the way reads the state of the service.
func TestHealthOverPlainHTTP(t *testing.T) {
	secure, stopping := false, false
	state := core.ClockState{Held: true, Wall: began.AddDate(1, 0, 0), Used: began}
	config := func(c *adminapi.Config) {
		c.Secure = func(*http.Request) bool { return secure }
		c.Stopping = func(*http.Request) bool { return stopping }
		c.Clock = func() core.ClockState { return state }
	}
	const (
		ok          = `{"status":"ok"}`
		unavailable = `{"error":"Service unavailable","code":"UNAVAILABLE"}`
	)
	for _, tc := range []struct {
		store                            core.Store
		secure, stopping                 bool
		health, live, ready, description string
	}{
		{memstore.New(), false, false, ok, ok, ok, "available"},
		{memstore.New(), false, true, ok, ok, unavailable, "about to stop"},
		{secretive{memstore.New()}, false, false, unavailable, ok, unavailable, "unavailable"},
		{secretive{memstore.New()}, true, false, `{"error":"The disk of the store is full","code":"UNAVAILABLE"}`, ok,
			`{"error":"The disk of the store is full","code":"UNAVAILABLE"}`, "unavailable, over HTTPS"},
	} {
		t.Run(tc.description, func(t *testing.T) {
			secure, stopping = true, false // the test server creates its account over HTTPS
			a := newAPIOver(t, tc.store, config)
			secure, stopping = tc.secure, tc.stopping
			for path, want := range map[string]string{"/health": tc.health, "/health/live": tc.live, "/health/ready": tc.ready} {
				status := map[bool]int{true: 200, false: 503}[want == ok]
				r := a.do("GET", prefix+path, nil, with("Authorization", "")).want(status)
				if string(r.body) != want+"\n" {
					t.Errorf("%s: got %s, want %s", path, r.body, want)
				}
			}
		})
	}
}
