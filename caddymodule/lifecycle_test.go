package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// A config that fails because of another app changes nothing: it creates no account, does not reset the
// throttle and does not shrink the cache.
func TestRejectedConfigChangesNothing(t *testing.T) {
	s := newServer(t)
	site := caddytest.Both("respond ok")
	s.Start("store memory a\nservice_rate_limit 5/1h", site)
	ten := s.Tenant("default", 100)
	_, second, err := s.Service().CreateKey(t.Context(), ten.Account, core.KeyPatch{
		Name: new("phone"), UserID: &ten.User.ID, PlanID: core.Some(ten.Plan.ID)})
	s.Must(err)
	for _, key := range []string{ten.Secret, second, ten.Secret, second} {
		if got := s.Validate(ten.Owner, key); got.StatusCode != 200 {
			t.Fatalf("got %d, want 200", got.StatusCode)
		}
	}
	cached, tuned := s.Service().Stats().CachedKeys, caddytest.MemoryTuned.Load()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	s.Must(err)
	defer taken.Close()
	rejected := s.rejected("store memory a\nservice_rate_limit off\nkey_cache 1"+caddytest.AccountOption("never", secrets.NewOwnerSecret()), site) +
		"\nhttp://127.0.0.1:" + portOf(taken) + " {\nbind 127.0.0.1\nrespond ok\n}"
	for range 20 { // apps are started in random order
		if err := s.Load(rejected); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Fatalf("got %v, want that the address is in use", err)
		}
	}
	if s.Exists("never") {
		t.Errorf("an account of the rejected config was made")
	}
	if got := s.Service().Stats().CachedKeys; got != cached || cached != 2 {
		t.Errorf("got %d keys in memory, want the %d there were, and 2", got, cached)
	}
	if got := caddytest.MemoryTuned.Load(); got != tuned {
		t.Errorf("the store was tuned %d times by rejected configs", got-tuned)
	}
	if got := s.Validate(ten.Owner, ten.Secret); got.StatusCode != 200 {
		t.Errorf("got %d for the fifth request of 5/1h, want 200", got.StatusCode)
	}
	if got := s.Validate(ten.Owner, ten.Secret); got.StatusCode != 429 {
		t.Errorf("got %d for the sixth request of 5/1h, want 429: what was admitted is forgotten", got.StatusCode)
	}
}

// slowApp is an app that takes a while to start.
type slowApp struct{}

func (slowApp) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "limitkeeper_test_slow", New: func() caddy.Module { return slowApp{} }}
}

func (slowApp) Start() error { time.Sleep(100 * time.Millisecond); return nil }
func (slowApp) Stop() error  { return nil }

func init() { caddy.RegisterModule(slowApp{}) }

// The first request finds the accounts of the config, even while other apps are starting.
func TestFirstRequestFindsAccount(t *testing.T) {
	for i := range 6 { // apps are started in random order
		s, owner := newServer(t), secrets.NewOwnerSecret()
		b, err := caddytest.Adapt(s.Config(fmt.Sprintf("store memory first%d", i)+caddytest.AccountOption("default", owner), caddytest.Both("respond ok")))
		s.Must(err)
		var config map[string]any
		s.Must(json.Unmarshal(b, &config))
		config["apps"].(map[string]any)["limitkeeper_test_slow"] = struct{}{}
		b, err = json.Marshal(config)
		s.Must(err)
		loaded := make(chan error, 1)
		go func() { loaded <- caddy.Load(b, true) }()
		caddytest.Eventually(t, "an answer", func() bool {
			r, _ := http.NewRequest(http.MethodGet, s.URL(APIBase+"/plans"), nil)
			r.Header.Set("X-Forwarded-Proto", "https")
			r.Header.Set("Authorization", "Bearer "+owner)
			resp, err := caddytest.Client.Do(r)
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Errorf("got %d for the first request, want 200", resp.StatusCode)
			}
			return true
		})
		s.Must(<-loaded)
	}
}

// If one account cannot be created, the config is rejected and no account is created.
func TestAccountRejected(t *testing.T) {
	s := newServer(t)
	s.Start("store memory a", caddytest.Both("respond ok"))
	ten, fresh := s.Tenant("default", 1), secrets.NewOwnerSecret()
	for _, tc := range []struct{ name, accounts, want string }{
		{"a key of another account", caddytest.AccountOption("new", fresh) + caddytest.AccountOption("thief", ten.Owner), `account "thief"`},
		{"a key of another account for one that exists", caddytest.AccountOption("new", fresh) + caddytest.AccountOption("other", ten.Owner), `account "other"`},
		{"a key that is named twice", caddytest.AccountOption("new", fresh) + caddytest.AccountOption("newer", fresh), `account "newer"`},
		{"a name that none can have", caddytest.AccountOption("new", fresh) + caddytest.AccountOption(strings.Repeat("x", 256), secrets.NewOwnerSecret()), "255"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, _, err := s.Service().CreateAccount(t.Context(), "other"); err != nil && !errors.Is(err, core.ErrAccountExists) {
				t.Fatal(err)
			}
			err := s.Load(s.rejected("store memory a"+tc.accounts, caddytest.Both("respond ok")))
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "lk_") {
				t.Errorf("got %v, want an error with %q and without a key", err, tc.want)
			}
			if s.Exists("new") || s.Exists("thief") || s.Exists("newer") {
				t.Errorf("an account of the rejected config was made")
			}
		})
	}
}

// A revoked key in the config is logged and stays revoked. The server starts, and the other accounts are
// created.
func TestAccountRevoked(t *testing.T) {
	s := newServer(t)
	s.Start("store memory a", caddytest.Both("respond ok"))
	ten := s.Tenant("default", 1)
	k, err := s.Service().Authenticate(t.Context(), ten.Owner)
	s.Must(err)
	_, err = s.Service().RevokeOwnerKey(t.Context(), ten.Account, k.ID)
	s.Must(err)
	s.Start("store memory a"+caddytest.AccountOption("default", ten.Owner)+caddytest.AccountOption("next", secrets.NewOwnerSecret()), caddytest.Both("respond ok"))
	s.WaitLog("the configured owner's key is revoked", 1)
	if !s.Exists("next") {
		t.Errorf("the account after the one with the revoked key was not made")
	}
	if got := s.Validate(ten.Owner, ten.Secret); got.StatusCode != 401 {
		t.Errorf("got %d with the revoked key, want 401", got.StatusCode)
	}
}

// Placeholders in account names have the same value in the app and in the gateway. No owner's key is
// logged at any level.
func TestAccountNamePlaceholder(t *testing.T) {
	t.Setenv("LIMITKEEPER_TEST_NAME", " acme\n")
	s, owner := newServer(t), secrets.NewOwnerSecret()
	s.Start("store memory a"+caddytest.AccountOption("{env.LIMITKEEPER_TEST_NAME}", owner), caddytest.Both("respond ok"))
	if !s.Exists("acme") || s.Exists("{env.LIMITKEEPER_TEST_NAME}") {
		t.Errorf("the placeholder was not replaced")
	}
	s.WaitLog("invoking subscribed handler", 1)
	if strings.Contains(s.Logged(), owner) {
		t.Errorf("the owner's key is in the log")
	}
	for _, twice := range []string{"acme", "{env.LIMITKEEPER_TEST_NAME}"} {
		err := s.Load(s.rejected("store memory a"+caddytest.AccountOption(`"acme "`, owner)+caddytest.AccountOption(twice, secrets.NewOwnerSecret()), ""))
		if err == nil || !strings.Contains(err.Error(), "used twice") {
			t.Errorf("%s: got %v, want that it is used twice", twice, err)
		}
	}
}

// waiting is a gateway and an API with an app that has not started.
type waiting struct {
	app      *App
	handlers map[string]func(http.ResponseWriter, *http.Request) error
	answers  chan string
}

func newWaiting(t *testing.T, store string) *waiting {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	t.Cleanup(cancel)
	a := &App{StoreRaw: json.RawMessage(`{"module": "memory", "name": "` + store + `"}`)}
	if err := a.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	api, next := new(API), caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		t.Error("the request was passed on")
		return nil
	})
	api.serve(a, nil)
	g := &Gateway{Account: "default", Keys: defaultKeySources(), costs: []costOption{{meter: core.MeterRequests, n: 1}}, OnStoreError: onStoreErrorDeny, app: a, log: zap.NewNop()}
	handlers := map[string]func(http.ResponseWriter, *http.Request) error{}
	for name, h := range map[string]caddyhttp.MiddlewareHandler{"gateway": g, "API": api} {
		handlers[name] = func(w http.ResponseWriter, r *http.Request) error { return h.ServeHTTP(w, r, next) }
	}
	return &waiting{a, handlers, make(chan string, 2)}
}

// send sends a request to both handlers. Their answers arrive in q.answers.
func (q *waiting) send(t *testing.T, ctx context.Context) {
	for name, handle := range q.handlers {
		go func() {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "https://localhost/functions/v1/health", nil)
			r.Header.Set("X-API-Key", "lk_user_x")
			if err := handle(w, caddyhttp.PrepareRequest(r.WithContext(ctx), caddy.NewReplacer(), w, nil)); err != nil {
				t.Error(err)
			}
			q.answers <- name + " " + http.StatusText(w.Code)
		}()
	}
	synctest.Wait()
}

// got returns the answers that arrived before all goroutines blocked, at most two.
func (q *waiting) got() string {
	synctest.Wait()
	all := map[string]bool{}
	for len(q.answers) > 0 {
		all[<-q.answers] = true
	}
	var text []string
	for _, name := range []string{"API", "gateway"} {
		for a := range all {
			if strings.HasPrefix(a, name) {
				text = append(text, a)
			}
		}
	}
	return strings.Join(text, ", ")
}

// Requests that arrive before the store is open wait for it, at the start and after a reload with
// another store. They do not get 503 if the store opens in time.
func TestRequestsWaitForTheStore(t *testing.T) {
	const unavailable = "API Service Unavailable, gateway Service Unavailable"
	for name, tc := range map[string]struct {
		store string
		then  func(a *App, cancel func())
		want  string
	}{
		"it is opened":           {"wait", func(a *App, _ func()) { _ = a.Start() }, "API OK, gateway Unauthorized"},
		"it cannot be opened":    {"broken", func(a *App, _ func()) { _ = a.Start() }, unavailable},
		"the config is dropped":  {"wait", func(a *App, _ func()) { _ = a.Cleanup() }, unavailable},
		"the client hangs up":    {"wait", func(_ *App, cancel func()) { cancel() }, unavailable},
		"nothing happens so far": {"wait", func(*App, func()) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newWaiting(t, tc.store)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				q.send(t, ctx)
				if got := q.got(); got != "" {
					t.Errorf("before the app has started: got %q, want the requests to wait", got)
				}
				tc.then(q.app, cancel) // and at once: no time passes here
				if got := q.got(); got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
				if err := q.app.Cleanup(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A request waits for a limited time. Otherwise connections pile up while a store opens slowly.
func TestRequestsWaitNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newWaiting(t, "wait")
		q.send(t, t.Context())
		for range 2 {
			if got := <-q.answers; !strings.HasSuffix(got, "Service Unavailable") { // deadlock if the requests wait for ever
				t.Errorf("got %q, want 503", got)
			}
		}
	})
}
