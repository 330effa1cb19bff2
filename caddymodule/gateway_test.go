package caddymodule

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// Refusals have the status, the body and the headers of the wire contract (its last section). A
// refused request never reaches the upstream.
func TestGatewayRefusals(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper\n"+up.proxy())
	ten, ctx, svc := s.Tenant("default", 1), context.Background(), s.Service()
	foreign := s.Tenant("other", 10)
	newKey := func(p core.KeyPatch) string {
		p.Name, p.UserID, p.PlanID = new("k"), &ten.User.ID, core.Some(ten.Plan.ID)
		_, secret, err := svc.CreateKey(ctx, ten.Account, p)
		s.Must(err)
		return secret
	}
	inactive := newKey(core.KeyPatch{Status: new("inactive")})
	expiring := newKey(core.KeyPatch{ExpiresAt: core.Some(time.Now().Add(time.Second))})
	caddytest.Eventually(t, "the key to expire", func() bool {
		d, err := svc.Validate(ctx, ten.Account, service.Request{Secret: expiring, Cost: 0})
		s.Must(err)
		return d.Outcome == service.Expired
	})

	for _, tc := range []struct {
		name, key string
		status    int
		code      string
		reason    string // "" for none
		message   string
		challenge string
	}{
		{"no key", "", 401, "UNAUTHORIZED", "", "API key is required", `Bearer realm="gateway"`},
		{"malformed", "nonsense", 401, "INVALID_API_KEY", "malformed", "Invalid API key", `Bearer realm="gateway", error="invalid_token"`},
		{"unknown", "lk_user_unknown", 401, "API_KEY_NOT_FOUND", "unknown", "API key not found", `Bearer realm="gateway", error="invalid_token"`},
		{"of another account", foreign.Secret, 401, "API_KEY_NOT_FOUND", "unknown", "API key not found", `Bearer realm="gateway", error="invalid_token"`},
		{"owner's key", ten.Owner, 401, "INVALID_API_KEY", "malformed", "Invalid API key: this is an owner's key, for the REST API; the gateway takes the keys of users", `Bearer realm="gateway", error="invalid_token"`},
		{"expired", expiring, 401, "INVALID_API_KEY", "expired", "API key has expired", `Bearer realm="gateway", error="invalid_token"`},
		{"inactive", inactive, 403, "API_KEY_DISABLED", "disabled", "API key is disabled", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var headers []string
			if tc.key != "" {
				headers = []string{"X-API-Key: " + tc.key}
			}
			got := s.Get("/", headers...)
			if got.StatusCode != tc.status {
				t.Errorf("got status %d, want %d", got.StatusCode, tc.status)
			}
			want := map[string]any{"success": false, "error": tc.message, "code": tc.code}
			if tc.reason != "" {
				want["reason"] = tc.reason
			}
			if diff := cmp.Diff(want, decoded(t, got.Text)); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			host := got.Request.URL.Host // the realm of the default account
			if c := got.Header.Get("WWW-Authenticate"); c != strings.Replace(tc.challenge, "gateway", host, 1) {
				t.Errorf("got challenge %q, want %q for %s", c, tc.challenge, host)
			}
			if c := got.Header.Get("Cache-Control"); c != "no-store" {
				t.Errorf("got Cache-Control %q, want no-store", c)
			}
		})
	}
	if n := up.count.Load(); n != 0 {
		t.Errorf("%d refused requests reached the upstream", n)
	}

	t.Run("over the quota", func(t *testing.T) {
		if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 || got.Text != "hello" {
			t.Fatalf("got %d %q, want 200 hello", got.StatusCode, got.Text)
		}
		got := s.Get("/", "X-API-Key: "+ten.Secret)
		if got.StatusCode != 429 {
			t.Errorf("got status %d, want 429", got.StatusCode)
		}
		body := decoded(t, got.Text)
		details, _ := body["details"].(map[string]any)
		if body["success"] != false || body["error"] != "Rate limit exceeded" || body["code"] != nil || body["reason"] != "quota" ||
			details["period_end"] != details["reset_time"] || details["period_start"] == nil ||
			details["current_usage"] != 1.0 || details["remaining"] != 0.0 || details["limit"] != 1.0 {
			t.Errorf("got body %s", got.Text)
		}
		reset, _ := strconv.ParseInt(got.Header.Get("X-RateLimit-Reset"), 10, 64)
		retry, _ := strconv.ParseInt(got.Header.Get("Retry-After"), 10, 64)
		if until := time.Until(time.Unix(reset, 0)).Seconds(); retry < 1 || float64(retry) < until || float64(retry) > until+60 {
			t.Errorf("got Retry-After %d with %f seconds to the reset", retry, until)
		}
		if n := up.count.Load(); n != 1 {
			t.Errorf("%d requests reached the upstream, want 1", n)
		}
	})
}

// Allowed answers have the rate limit headers. RateLimit members of the upstream are kept and joined.
func TestGatewayHeaders(t *testing.T) {
	s := newServer(t)
	up := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("RateLimit", `"burst";r=1;t=2`)
		w.Header().Add("RateLimit-Policy", `"burst";q=5;w=60`)
		w.Header().Set("X-RateLimit-Limit", "5")
		w.WriteHeader(http.StatusTeapot)
	})
	s.Start("store memory", "limitkeeper\n"+up.proxy())
	ten := s.Tenant("default", 10)
	got := s.Get("/", "Authorization: Bearer "+ten.Secret)
	if got.StatusCode != http.StatusTeapot {
		t.Errorf("got status %d, want that of the upstream", got.StatusCode)
	}
	for name, want := range map[string]string{
		"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "9", "X-RateLimit-Plan": "Gr%C3%B6%C3%9Fe M",
	} {
		if v := got.Header.Values(name); len(v) != 1 || v[0] != want {
			t.Errorf("got %s %q, want %q", name, v, want)
		}
	}
	if v := got.Header.Get("RateLimit"); !strings.HasPrefix(v, `"burst";r=1;t=2, "year";r=9;t=`) {
		t.Errorf("got RateLimit %q", v)
	}
	if v := got.Header.Get("RateLimit-Policy"); !strings.HasPrefix(v, `"burst";q=5;w=60, "year";q=10;w=`) {
		t.Errorf("got RateLimit-Policy %q", v)
	}
}

// The answer has the rate limit headers even if the next handler writes nothing or fails, because the
// request was counted.
func TestGatewayHeadersWithoutAnswer(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper\nhandle /fails {\nerror 502\n}")
	ten := s.Tenant("default", 10)
	for path, want := range map[string]int{"/": 200, "/fails": 502} {
		got := s.Get(path, "X-API-Key: "+ten.Secret)
		if got.StatusCode != want || got.Header.Get("X-RateLimit-Limit") != "10" {
			t.Errorf("%s: got %d with %v, want %d with X-RateLimit-Limit 10", path, got.StatusCode, got.Header, want)
		}
	}
}

// The decision is in the placeholders of the next handlers and in the access log.
func TestGatewayPlaceholders(t *testing.T) {
	const names = "account user_id user_name key_id key_name plan_id plan_name outcome repeated limit used remaining reset"
	var b strings.Builder
	for n := range strings.FieldsSeq(names) {
		b.WriteString("{http.limitkeeper." + n + "}|")
	}
	s := newServer(t)
	s.Start("store memory", "limitkeeper {\nerrors\n}\nrespond \""+b.String()+"{http.auth.user.id}\"\n"+
		"handle_errors {\nrespond \""+b.String()+"{http.error.status_code} {http.error.message}\"\n}")
	ten := s.Tenant("default", 1)
	reset := core.Year.Window(time.Now()).End.Format(time.RFC3339)
	common := []string{"default", "1", "Ann", ten.Key.ID, "laptop", ten.Plan.ID, "Größe M"}
	for _, tc := range []struct {
		name, key string
		want      []string
	}{
		{"allowed", ten.Secret, append(common[:7:7], "allowed", "false", "1", "1", "0", reset, "1")},
		{"denied", ten.Secret, append(common[:7:7], "denied", "false", "1", "1", "0", reset, "429 Rate limit exceeded")},
		{"unknown", "lk_user_x", []string{"default", "", "", "", "", "", "", "unknown", "", "", "", "", "", "401 API key not found"}},
		{"missing", "", []string{"default", "", "", "", "", "", "", "missing", "", "", "", "", "", "401 API key is required"}},
	} {
		got := s.Get("/", "X-API-Key: "+tc.key)
		if want := strings.Join(tc.want, "|"); got.Text != want {
			t.Errorf("%s: got  %s\nwant %s", tc.name, got.Text, want)
		}
	}
	s.WaitLog(`"user_id":"1"`, 2)
}

// With the option errors, error routes answer refusals, with the headers of the refusal.
func TestGatewayHandleErrors(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper {\nerrors\n}\nrespond ok\nhandle_errors 429 {\nrespond \"slow down\" 420\n}")
	ten := s.Tenant("default", 1)
	s.Get("/", "X-API-Key: "+ten.Secret)
	got := s.Get("/", "X-API-Key: "+ten.Secret)
	if got.StatusCode != 420 || got.Text != "slow down" || got.Header.Get("Retry-After") == "" || got.Header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("got %d %q with %v, want 420, slow down, Retry-After and X-RateLimit-Remaining 0", got.StatusCode, got.Text, got.Header)
	}
	if got := s.Get("/"); got.StatusCode != 401 || got.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("got %d with %v, want 401 with a challenge", got.StatusCode, got.Header)
	}
}

// Error routes get the original request without the key, because they may forward it to an upstream.
func TestGatewayErrorRoutesHaveNoKey(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\nerrors\nkey query api_key\nkey header X-API-Key\n}\nrewrite /old* /new\nerror 502\nhandle_errors {\n"+up.proxy()+"\n}")
	ten := s.Tenant("default", 2)
	for _, tc := range []struct{ path, want string }{
		{"/a?api_key=" + ten.Secret + "&b", "/a?b"},
		{"/old?b&api_key=" + ten.Secret, "/old?b"},
		{"/a?api_key=" + ten.Secret, "/a"}, // over the quota
		{"/a?api_key=lk_user_unknown", "/a"},
	} {
		s.Get(tc.path)
		if got := up.last.Load().RequestURI; got != tc.want {
			t.Errorf("%.12s: the upstream of the error route got %s, want %s", tc.path, got, tc.want)
		}
	}
	s.Get("/a", "X-API-Key: "+ten.Secret)
	if got := up.last.Load().Header.Get("X-API-Key"); got != "" {
		t.Errorf("the upstream of the error route got the key")
	}
}

// With observe the gateway counts, sets headers and refuses nothing. A credential without the form of a
// key may belong to the upstream and stays in the request.
func TestGatewayObserve(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\nobserve\n}\nheader Outcome {http.limitkeeper.outcome}\n"+up.proxy())
	ten := s.Tenant("default", 1)
	for _, tc := range []struct{ key, outcome, remaining, forwarded string }{
		{ten.Secret, "allowed", "0", ""},
		{ten.Secret, "denied", "0", ""},
		{"", "missing", "", ""},
		{"lk_user_unknown", "unknown", "", ""},
		{"some.jwt", "malformed", "", "Bearer some.jwt"},
	} {
		var headers []string
		if tc.key != "" {
			headers = []string{"Authorization: Bearer " + tc.key}
		}
		got := s.Get("/", headers...)
		if got.StatusCode != 200 || got.Header.Get("X-RateLimit-Remaining") != tc.remaining {
			t.Errorf("%s: got %d with remaining %q, want 200 with %q", tc.outcome, got.StatusCode, got.Header.Get("X-RateLimit-Remaining"), tc.remaining)
		}
		if f := up.last.Load().Header.Get("Authorization"); f != tc.forwarded {
			t.Errorf("%s: the upstream got Authorization %q, want %q", tc.outcome, f, tc.forwarded)
		}
	}
	caddytest.MemoryFails.Store(true)
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
		t.Errorf("without the store: got %d, want 200", got.StatusCode)
	}
	if n := s.used(ten); n != 1 {
		t.Errorf("counted %d, want 1", n)
	}
}

// While the store is unavailable no request is forwarded, unless on_store_error is allow.
func TestGatewayOnStoreError(t *testing.T) {
	for _, tc := range []struct {
		word   string
		status int
		count  int64
	}{{"", 503, 0}, {"on_store_error deny", 503, 0}, {"on_store_error allow", 200, 1}} {
		t.Run(tc.word, func(t *testing.T) {
			s, up := newServer(t), newRecorder(t, nil)
			s.Start("store memory", "limitkeeper {\n"+tc.word+"\n}\n"+up.proxy())
			ten := s.Tenant("default", 10)
			caddytest.MemoryFails.Store(true)
			got := s.Get("/", "X-API-Key: "+ten.Secret)
			if got.StatusCode != tc.status || up.count.Load() != tc.count {
				t.Errorf("got %d with %d at the upstream, want %d with %d", got.StatusCode, up.count.Load(), tc.status, tc.count)
			}
			if got.StatusCode == 503 && (got.Header.Get("Retry-After") == "" || decoded(t, got.Text)["code"] != "UNAVAILABLE") {
				t.Errorf("got %v %s, want Retry-After and UNAVAILABLE", got.Header, got.Text)
			}
			s.WaitLog("pulled the plug", 1)
			if got := s.Get("/"); got.StatusCode != 401 {
				t.Errorf("without a key: got %d, want 401", got.StatusCode)
			}
		})
	}
}

// When the directory of the store is deleted, a disabled key that the process remembers is still refused as disabled. A
// failure means that on_store_error allow lets a disabled key pass.
func TestDisabledWithoutDirectory(t *testing.T) {
	for word, lost := range map[string]int{"on_store_error deny": 503, "on_store_error allow": 200} {
		t.Run(word, func(t *testing.T) {
			s, up := newServer(t), newRecorder(t, nil)
			s.Start("store badger %dir/data", "limitkeeper {\n"+word+"\n}\n"+up.proxy())
			ten := s.Tenant("default", 10)
			disabled, secret, err := s.Service().CreateKey(t.Context(), ten.Account, core.KeyPatch{Name: new("off"), UserID: &ten.User.ID, PlanID: core.Some(ten.Plan.ID)})
			s.Must(err)
			_, err = s.Service().UpdateKey(t.Context(), ten.Account, disabled.ID, core.KeyPatch{Status: new(string(core.KeyInactive))})
			s.Must(err)
			status := func(secret string) int { return s.Get("/", "X-API-Key: "+secret).StatusCode }
			if got, of := status(ten.Secret), status(secret); got != 200 || of != 403 {
				t.Errorf("before the loss: got %d, and %d for the disabled key, want 200 and 403", got, of)
			}
			s.Must(os.RemoveAll(filepath.Join(s.Dir, "data")))
			caddytest.Eventually(t, "the store to fail", func() bool { return s.Service().Health(t.Context()) != nil })
			if got, of := status(ten.Secret), status(secret); got != lost || of != 403 {
				t.Errorf("after the loss: got %d, and %d for the disabled key, want %d and 403", got, of, lost)
			}
		})
	}
}

// The gateway and the API answer 503 until the store is open: no uncounted request is forwarded.
func TestNotReady(t *testing.T) {
	repl := caddy.NewReplacer()
	app := &App{ready: make(chan struct{})}
	close(app.ready) // the app has stopped waiting, but has no store
	g := &Gateway{Account: "default", Keys: defaultKeySources(), costs: []costOption{{meter: core.MeterRequests, n: 1}}, OnStoreError: onStoreErrorDeny, app: app, log: zap.NewNop()}
	passed := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		t.Error("the request was passed on")
		return nil
	})
	w, r := httptest.NewRecorder(), request("/", "X-Api-Key: lk_user_x")
	if err := g.ServeHTTP(w, caddyhttp.PrepareRequest(r, repl, w, nil), passed); err != nil {
		t.Error(err)
	}
	if w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("gateway: got %d with %v, want 503 with Retry-After", w.Code, w.Header())
	}

	api := new(API)
	api.serve(app, nil)
	w = httptest.NewRecorder()
	r = httptest.NewRequest(http.MethodGet, "https://localhost/functions/v1/health", nil)
	if err := api.ServeHTTP(w, caddyhttp.PrepareRequest(r, repl, w, nil), passed); err != nil {
		t.Error(err)
	}
	if w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("API: got %d with %v, want 503 with Retry-After", w.Code, w.Header())
	}
}

// If a request passes two gateways, the placeholders have the decision of the second one.
func TestGatewayTwice(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", `route {
		limitkeeper {
			account nobody
			key header X-Other
			observe
		}
		limitkeeper
		respond "{http.limitkeeper.account} {http.limitkeeper.outcome} {http.limitkeeper.used} {http.auth.user.id}"
	}`)
	ten := s.Tenant("default", 10)
	if got, want := s.Get("/", "X-API-Key: "+ten.Secret).Text, "default allowed 1 1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A request is charged on each meter, or on none: a refused request costs neither requests nor tokens. An empty placeholder
// costs nothing.
func TestGatewayCosts(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\ncost tokens {http.request.header.Tokens}\ncost calls 1\n}\n"+up.proxy())
	ten := s.Tenant("default", 10)
	_, err := s.Service().UpdatePlan(t.Context(), ten.Plan.AccountID, ten.Plan.ID, core.PlanPatch{Limits: core.Some([]core.Limit{
		{Meter: "tokens", Max: 100, Period: core.Month}, {Meter: "calls", Max: 3, Period: core.Lifetime}})})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		tokens string
		status int
		limits string // RateLimit without the seconds
	}{
		{"60", 200, `"year";r=9 "tokens-month";r=40 "calls-lifetime";r=2`},
		{"41", 429, `"year";r=9 "tokens-month";r=40 "calls-lifetime";r=2`},
		{"", 200, `"year";r=8 "tokens-month";r=40 "calls-lifetime";r=1`},
		{"-1", 400, ""},
		{"1000000001", 400, ""},
		{"40", 200, `"year";r=7 "tokens-month";r=0 "calls-lifetime";r=0`},
		{"", 429, `"year";r=7 "tokens-month";r=0 "calls-lifetime";r=0`},
	} {
		got := s.Get("/", "X-API-Key: "+ten.Secret, "Tokens: "+tc.tokens)
		limits := regexp.MustCompile(`;t=[0-9]+|,`).ReplaceAllString(got.Header.Get("RateLimit"), "")
		if got.StatusCode != tc.status || tc.limits != "" && limits != tc.limits {
			t.Errorf("tokens %q: got %d, %s, want %d, %s", tc.tokens, got.StatusCode, limits, tc.status, tc.limits)
		}
	}
	if n := up.count.Load(); n != 3 {
		t.Errorf("got %d requests at the upstream, want 3", n)
	}
}

// A cost on a meter that no plan names is not counted: the log warns of it, and a metric counts the requests.
func TestGatewayUnknownMeter(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\ncost token 5\n}\n"+up.proxy())
	ten := s.Tenant("default", 10)
	for range 2 {
		if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
			t.Errorf("got %d %s, want 200", got.StatusCode, got.Text)
		}
	}
	s.WaitLog(`"meter":"token"`, 2)
	if n := caddytest.Sample(s.Scrape(), `limitkeeper_unknown_meters_total{account="default",meter="token"}`); n < 2 {
		t.Errorf("the metric counts %d requests, want 2", n)
	}
}

// A placeholder of a cost that no handler sets is no price: the log warns of it once, and a metric counts the requests.
func TestGatewayUnknownPlaceholder(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "map {path} {price} {\n/known 3\n}\nlimitkeeper {\ncost {prise}\n}\n"+up.proxy())
	ten := s.Tenant("default", 10)
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 || got.Header.Get("X-RateLimit-Remaining") != "9" {
		t.Errorf("got %d %v, want a request that costs 1", got.StatusCode, got.Header)
	}
	s.WaitLog(`"placeholder":"prise"`, 1)
	if n := caddytest.Sample(s.Scrape(), `limitkeeper_unknown_placeholders_total{account="default",meter="requests"}`); n < 1 {
		t.Errorf("the metric counts %d requests, want 1", n)
	}
}

// The realm of a challenge is the account, as a quoted string.
func TestGatewayRealm(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper {\naccount `An \"API\"`\n}\nrespond ok")
	if got := s.Get("/").Header.Get("WWW-Authenticate"); got != `Bearer realm="An \"API\""` {
		t.Errorf("got the challenge %s", got)
	}
}

// The upstream learns texts, numbers and booleans of the metadata of the key, and else of its user, at once after a change.
func TestGatewayMetadata(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper\n"+up.proxy()+" {\nheader_up X-Seen \"{http.limitkeeper.metadata.tier}|{http.limitkeeper.metadata.region}|"+
		"{http.limitkeeper.metadata.beta}|{http.limitkeeper.metadata.list}|{http.limitkeeper.metadata.lines}|{http.limitkeeper.metadata.none}|{http.limitkeeper.key_name}\"\n}")
	ten := s.Tenant("default", 10)
	seen := func() string {
		t.Helper()
		if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
			t.Fatalf("got %d %s", got.StatusCode, got.Text)
		}
		return up.last.Load().Header.Get("X-Seen")
	}
	if got := seen(); got != "||||||"+ten.Key.Name {
		t.Errorf("without metadata: got %q", got)
	}
	_, err := s.Service().UpdateUser(t.Context(), ten.Account, ten.Key.UserID, core.UserPatch{Metadata: core.Some(json.RawMessage(`{"tier":"bronze","region":"eu"}`))})
	s.Must(err)
	_, err = s.Service().UpdateKey(t.Context(), ten.Account, ten.Key.ID, core.KeyPatch{Metadata: core.Some(json.RawMessage(`{"tier":7,"beta":true,"list":[1],"lines":"a\r\nX: y"}`))})
	s.Must(err)
	if got, want := seen(), "7|eu|true||||"+ten.Key.Name; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The cost can come from a placeholder. A request with an invalid cost is refused and not counted.
func TestGatewayCost(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\ncost {http.request.header.Cost}\n}\n"+up.proxy())
	ten := s.Tenant("default", 10)
	for _, tc := range []struct {
		cost       string
		status     int
		used, sent int64
	}{
		{"3", 200, 3, 1}, {"", 200, 4, 2}, {" 2 ", 200, 6, 3}, {"0", 200, 6, 4}, {"5", 429, 6, 4}, {"4", 200, 10, 5}, {"0", 429, 10, 5},
		{"-1", 400, 10, 5}, {"two", 400, 10, 5}, {"1000001", 400, 10, 5}, {strings.Repeat("9", 100), 400, 10, 5},
	} {
		got := s.Get("/", "X-API-Key: "+ten.Secret, "Cost: "+tc.cost)
		if got.StatusCode != tc.status || s.used(ten) != tc.used || up.count.Load() != tc.sent {
			t.Errorf("cost %q: got %d, used %d, %d sent; want %d, %d, %d", tc.cost,
				got.StatusCode, s.used(ten), up.count.Load(), tc.status, tc.used, tc.sent)
		}
		if tc.status == 400 && (decoded(t, got.Text)["code"] != "INVALID_REQUEST" || !strings.Contains(got.Text, `"field":"cost"`)) {
			t.Errorf("cost %q: got %s, want INVALID_REQUEST of cost", tc.cost, got.Text)
		}
	}
	if got := s.Get("/", "X-API-Key: lk_user_unknown", "Cost: two"); got.StatusCode != 401 {
		t.Errorf("a bad cost with an unknown key: got %d, want 401", got.StatusCode)
	}
	s.WaitLog("whole number from 0 to 1000000", 1)
}

// An account that is created later is served without a reload. Until then one log line says that it is
// missing.
func TestGatewayAccountComesLater(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper {\naccount acme\n}\nrespond ok")
	for range 3 {
		if got := s.Get("/", "X-API-Key: lk_user_x"); got.StatusCode != 401 {
			t.Errorf("got %d, want 401", got.StatusCode)
		}
	}
	if n := strings.Count(s.Logged(), "the account does not exist: every key"); n != 1 {
		t.Errorf("said %d times that the account does not exist, want once", n)
	}
	ten := s.Tenant("acme", 1)
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
		t.Errorf("got %d after the account was created, want 200", got.StatusCode)
	}
}

// The history has the original path before any rewrite, and the address of the client.
func TestGatewayHistory(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "rewrite * /elsewhere\nlimitkeeper\nrespond ok")
	ten := s.Tenant("default", 1)
	s.Send(http.MethodPut, "/a/b?c=d", "", "X-API-Key: "+ten.Secret, "X-Forwarded-For: 192.0.2.7")
	s.Get("/a/c", "X-API-Key: "+ten.Secret)
	var entries []core.Entry
	caddytest.Eventually(t, "two entries", func() (ok bool) {
		var n int
		var err error
		entries, n, err = s.Service().KeyHistory(context.Background(), ten.Account, ten.Key.ID, core.Page{Number: 1, Size: 10})
		s.Must(err)
		return n == 2
	})
	if e := entries[1]; e.Endpoint != "/a/b" || e.Method != "PUT" || e.IP != "192.0.2.7" || e.Denied {
		t.Errorf("got %+v, want PUT /a/b from 192.0.2.7, allowed", e)
	}
	if e := entries[0]; e.Endpoint != "/a/c" || !e.Denied {
		t.Errorf("got %+v, want /a/c, denied", e)
	}
}

// X-Forwarded-Proto counts only from a trusted proxy.
func TestSecure(t *testing.T) {
	for _, tc := range []struct {
		name    string
		tls     bool
		trusted bool
		proto   string
		want    bool
	}{
		{"plain", false, false, "", false},
		{"TLS", true, false, "", true},
		{"TLS, whatever a proxy says", true, true, "http", true},
		{"a stranger says so", false, false, "https", false},
		{"a trusted proxy says so", false, true, "HTTPS", true},
		{"a trusted proxy says no", false, true, "http", false},
		{"a trusted proxy says nothing", false, true, "", false},
		{"a chain of proxies: the client came over HTTPS", false, true, "https, http", true},
		{"a chain of proxies: the client did not", false, true, "http, https", false},
	} {
		r := request("/", "X-Forwarded-Proto: "+tc.proto)
		if tc.tls {
			r.TLS = new(tls.ConnectionState)
		}
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, nil)
		caddyhttp.SetVar(r.Context(), caddyhttp.TrustedProxyVarKey, tc.trusted)
		if got := secure(r); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

// A request over the rate of its plan is answered with 429, and with the seconds until the rate allows one. It is counted
// as such in the metrics, and the quota is as before.
func TestGatewayRate(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper\n"+up.proxy())
	ten := s.Tenant("default", 10)
	_, err := s.Service().UpdatePlan(t.Context(), ten.Account, ten.Plan.ID, core.PlanPatch{Rate: core.Some(core.Rate{Requests: 1, Per: core.PerMinute, Burst: 1})})
	s.Must(err)
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
		t.Fatalf("the first request: got %d %s", got.StatusCode, got.Text)
	}
	got := s.Get("/over", "X-API-Key: "+ten.Secret)
	body := decoded(t, got.Text)
	details, _ := body["details"].(map[string]any)
	after, _ := details["retry_after"].(float64)
	retry, _ := strconv.ParseFloat(got.Header.Get("Retry-After"), 64)
	if got.StatusCode != 429 || body["code"] != nil || body["reason"] != "rate" || body["error"] != "Too many requests" || after <= 0 || after > 60 || retry < after || retry > 60 ||
		got.Header.Get("X-RateLimit-Remaining") != "9" {
		t.Errorf("got %d %v %s", got.StatusCode, got.Header, got.Text)
	}
	if n := up.count.Load(); n != 1 {
		t.Errorf("%d requests reached the upstream, want 1", n)
	}
	_, err = s.Service().UpdateKey(t.Context(), ten.Account, ten.Key.ID, core.KeyPatch{Status: new("inactive")})
	s.Must(err)
	s.Get("/off", "X-API-Key: "+ten.Secret)
	list, _, err := s.Service().KeyHistory(t.Context(), ten.Account, ten.Key.ID, core.Page{Number: 1, Size: 9})
	s.Must(err)
	var reasons []string
	for _, e := range list {
		reasons = append(reasons, e.Endpoint+" "+string(e.Reason))
	}
	if want := []string{"/off disabled", "/over rate", "/ "}; !slices.Equal(reasons, want) {
		t.Errorf("got the history %q, want %q", reasons, want)
	}
	for _, outcome := range []string{"allowed", "rate", "disabled"} {
		if metric := `outcome="` + outcome + `"`; !strings.Contains(s.Scrape(), metric) {
			t.Errorf("no metric has %s", metric)
		}
	}
}
