package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// healthSite is the directive of a site with a plain port for the probes of load balancers, as docs/api.md shows it.
const healthSite = "limitkeeper_api /functions/v1/health*\nrespond 404"

// A site with a plain port has the health and nothing else: the rest of the REST API and the dashboard are not there, also
// for a client behind a trusted proxy that says that it uses HTTPS.
func TestHealthOnPlainPort(t *testing.T) {
	s, owner := newServer(t), secrets.NewOwnerSecret()
	s.Start("store memory a"+caddytest.AccountOption("acme", owner), healthSite)
	for path, want := range map[string]int{
		"/functions/v1/health": 200, "/functions/v1/health/ready": 200, "/functions/v1/health/live": 200,
		"/functions/v1/plans": 404, "/functions/v1/openapi.yaml": 404, "/functions/v1/validate": 404, "/dashboard/": 404, "/": 404,
	} {
		for _, headers := range [][]string{nil, {"X-Forwarded-Proto: https", "Authorization: Bearer " + owner}} {
			got := s.Get(path, headers...)
			if got.StatusCode != want {
				t.Errorf("%s with %d headers: got %d, want %d", path, len(headers), got.StatusCode, want)
			}
			if want == 200 && got.Text != `{"status":"ok"}`+"\n" {
				t.Errorf("%s: got %s", path, got.Text)
			}
		}
	}
}

// While Caddy waits for shutdown_delay, /health/ready answers 503, so that load balancers send no new requests. The process
// is live, and requests are served.
func TestReadyWhileStopping(t *testing.T) {
	s := newServer(t)
	s.Start("store memory a\n}\nshutdown_delay 2s\nevents {", healthSite)
	status := func(path string) int { return s.Get("/functions/v1/health" + path).StatusCode }
	if got := status("/ready"); got != 200 {
		t.Fatalf("got %d before the stop, want 200", got)
	}
	stopped := make(chan error)
	go func() { stopped <- caddy.Stop() }()
	caddytest.Eventually(t, "the refusal", func() bool { return status("/ready") == 503 })
	for _, path := range []string{"", "/live"} {
		if got := status(path); got != 200 {
			t.Errorf("health%s while stopping: got %d, want 200", path, got)
		}
	}
	s.Must(<-stopped)
	if strings.Contains(s.Logged(), "store unavailable") {
		t.Error("the log says that the store is unavailable")
	}
}

// Before the config has started, the checks of load balancers are answered at once: the process is live, and not ready. Otherwise
// an orchestrator restarts a process whose store opens slowly.
func TestProbesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newWaiting(t, "wait")
		api := new(API)
		api.serve(q.app, nil)
		next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
		begun := time.Now()
		for path, want := range map[string]int{"/live": 200, "/ready": 503} {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://localhost/functions/v1/health"+path, nil)
			r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
			if err := api.ServeHTTP(w, r, next); err != nil || w.Code != want {
				t.Errorf("%s: got %d, %v, want %d", path, w.Code, err, want)
			}
		}
		if !time.Now().Equal(begun) { // in the time of the bubble, which passes only while goroutines wait
			t.Error("a check waited for the config")
		}
	})
}
