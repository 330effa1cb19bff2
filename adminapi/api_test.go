package adminapi_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// began is the time at the start of every test: a Saturday in the middle of a month.
var began = time.Date(2026, time.March, 14, 9, 26, 53, 589e6, time.UTC)

// api is the API over HTTPS on an empty memstore, as seen by one account. Every
// exchange is held against openapi.yaml.
type api struct {
	t        testing.TB
	contract *contract
	clock    *clocktest.Clock
	svc      *service.Service
	handler  http.Handler
	server   *httptest.Server
	owner    string // the account's key

	mu      sync.Mutex
	secrets []string // values of keys, each answered once
}

// newAPI starts the API with one account and without the service's own bound.
func newAPI(t testing.TB, configure ...func(*adminapi.Config)) *api {
	t.Helper()
	return newAPIOver(t, memstore.New(), configure...)
}

func newAPIOver(t testing.TB, store core.Store, configure ...func(*adminapi.Config)) *api {
	t.Helper()
	a := &api{t: t, contract: theContract(t), clock: clocktest.New(began)}
	a.svc = service.New(store, service.Config{Clock: a.clock.Wall})
	a.svc.Tune(service.Tunables{})
	c := config(a.svc)
	for _, f := range configure {
		f(&c)
	}
	a.handler = adminapi.New(c)
	a.server = httptest.NewTLSServer(a.handler)
	t.Cleanup(a.server.Close)
	a.server.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	a.owner = a.account("acme")
	return a
}

// config returns the configuration of an API without a log, at the ends of its connections.
func config(svc *service.Service) adminapi.Config {
	return adminapi.Config{
		Service:  func() *service.Service { return svc },
		Clock:    func() core.ClockState { return core.ClockState{} },
		Secure:   func(r *http.Request) bool { return r.TLS != nil },
		Stopping: func(*http.Request) bool { return false },
		ClientIP: func(r *http.Request) string { host, _, _ := strings.Cut(r.RemoteAddr, ":"); return host },
		TestWebhook: func(ctx context.Context, account, id string) (*core.Attempt, error) {
			w, err := svc.Webhook(ctx, account, id)
			if err != nil {
				return nil, err
			}
			e := svc.NewTestEvent(w.ID)
			a := &core.Attempt{Webhook: w.ID, EventID: e.ID, Type: e.Type, At: e.At, Attempt: 1, Status: http.StatusNoContent, Millis: 12}
			return a, svc.LogAttempt(ctx, account, a)
		},
		OnDecision: func(time.Duration) {}, OnSettled: func(*service.Settled, *service.Decision) {},
		OnFault: func(error) {},
		Logger:  slog.New(slog.DiscardHandler),
	}
}

// account makes an account and returns its owner's key.
func (a *api) account(name string) string {
	a.t.Helper()
	_, _, secret, err := a.svc.CreateAccount(context.Background(), name)
	if err != nil {
		a.t.Fatalf("account %s: %v", name, err)
	}
	return secret
}

// as returns the same API as seen by another account.
func (a *api) as(owner string) *api {
	return &api{t: a.t, contract: a.contract, clock: a.clock, svc: a.svc, handler: a.handler, server: a.server, owner: owner}
}

// in returns the same API reporting to another test.
func (a *api) in(t testing.TB) *api {
	b := a.as(a.owner)
	b.t = t
	return b
}

// option changes a request before it is sent.
type option func(*http.Request)

// with sets a header, or takes it away.
func with(name, value string) option {
	return func(r *http.Request) {
		if value == "" {
			r.Header.Del(name)
			return
		}
		r.Header.Set(name, value)
	}
}

// do sends a request that the contract allows. A body is a string sent as it is, or
// a value sent as JSON.
func (a *api) do(method, path string, body any, opts ...option) *result {
	a.t.Helper()
	e := a.exchange(method, path, body, opts...)
	if err := a.contract.checkRequest(e); err != nil {
		a.t.Errorf("%v\nthe request is not in the contract: %v", e, err)
	}
	return a.check(e)
}

// bad sends a request that the contract does not allow; only the answer is held
// against it.
func (a *api) bad(method, path string, body any, opts ...option) *result {
	a.t.Helper()
	return a.check(a.exchange(method, path, body, opts...))
}

func (a *api) exchange(method, path string, body any, opts ...option) *exchange {
	a.t.Helper()
	r := a.newRequest(method, path, body, opts...)
	sent, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(sent))
	if len(sent) == 0 {
		r.Body = http.NoBody
	}
	resp, err := a.server.Client().Do(r)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return &exchange{r, sent, resp.StatusCode, resp.Header, got}
}

func (a *api) newRequest(method, path string, body any, opts ...option) *http.Request {
	a.t.Helper()
	text, isText := body.(string)
	if !isText && body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			a.t.Fatal(err)
		}
		text = string(b)
	}
	r, err := http.NewRequest(method, a.server.URL+path, strings.NewReader(text))
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	r.Header.Set("Authorization", "Bearer "+a.owner)
	if text != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, o := range opts {
		o(r)
	}
	return r
}

var secretPattern = regexp.MustCompile(`(?:lk_user_|wire_live_)[A-Za-z0-9]{32}|lk_[A-Za-z0-9]{29}`)

// check holds an answer against the contract and against what every answer promises.
func (a *api) check(e *exchange) *result {
	a.t.Helper()
	if err := a.contract.checkAnswer(e); err != nil {
		a.t.Errorf("%v\nthe answer is not in the contract: %v", e, err)
	}
	res := &result{t: a.t, exchange: e}
	_, hasUsage := res.at("details")["current_usage"]
	if got := e.header.Get("X-RateLimit-Plan") != ""; got != hasUsage {
		a.t.Errorf("%v\nrate limit headers: got %v, want %v", e, got, hasUsage)
	}
	a.checkSecrets(e)
	return res
}

// checkSecrets fails if an answer has a secret, except a new secret in the one answer that shows it.
func (a *api) checkSecrets(e *exchange) {
	a.t.Helper()
	if strings.HasSuffix(e.request.URL.Path, "/openapi.yaml") {
		return
	}
	found := secretPattern.FindAllString(string(e.body), -1)
	shows := e.request.Method == http.MethodPost && e.status < 300 && !strings.HasSuffix(e.request.URL.Path, "/validate")
	if len(found) > 1 || len(found) == 1 && !shows {
		a.t.Errorf("%v\nthe answer has a secret", e)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.secrets {
		if bytes.Contains(e.body, []byte(s)) {
			a.t.Errorf("%v\nthe answer has a secret that was shown before", e)
		}
	}
	a.secrets = append(a.secrets, found...)
}

// result is an answer that was held against the contract.
type result struct {
	t testing.TB
	*exchange
}

// want fails unless the answer has the status.
func (r *result) want(status int) *result {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("%v\ngot %d, want %d", r.exchange, r.status, status)
	}
	return r
}

// wantCode fails unless the answer has the status and the code.
func (r *result) wantCode(status int, code core.Code) *result {
	r.t.Helper()
	r.want(status)
	if got := r.at()["code"]; got != string(code) {
		r.t.Fatalf("%v\ngot the code %v, want %s", r.exchange, got, code)
	}
	return r
}

// wantField fails unless the answer has the code and names the field.
func (r *result) wantField(code core.Code, field string) *result {
	r.t.Helper()
	r.wantCode(http.StatusBadRequest, code)
	if got := r.at("details")["field"]; got != field {
		r.t.Fatalf("%v\ngot the field %v, want %s", r.exchange, got, field)
	}
	return r
}

// at returns the object at a path of members, empty when there is none.
func (r *result) at(path ...string) map[string]any {
	var v any
	d := json.NewDecoder(bytes.NewReader(r.body))
	d.UseNumber()
	_ = d.Decode(&v)
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	m, _ := v.(map[string]any)
	return m
}

// data returns the member data, an object.
func (r *result) data() map[string]any { return r.at("data") }

// items returns the member data, an array of objects.
func (r *result) items() []map[string]any {
	r.t.Helper()
	var v struct{ Data []map[string]any }
	if err := json.Unmarshal(r.body, &v); err != nil {
		r.t.Fatalf("%v\nno list: %v", r.exchange, err)
	}
	return v.Data
}

// str returns a member of data, which is a string.
func (r *result) str(name string) string {
	r.t.Helper()
	s, ok := r.data()[name].(string)
	if !ok {
		r.t.Fatalf("%v\ndata.%s is no string", r.exchange, name)
	}
	return s
}

// object is a JSON object to send.
type object = map[string]any

const prefix = "/functions/v1"

// plan makes a plan of so many requests a month and returns its id.
func (a *api) plan(limit int64) string {
	a.t.Helper()
	return a.do("POST", prefix+"/plans", object{"name": "Basic", "max_requests": limit, "request_period": "month"}).
		want(http.StatusCreated).str("id")
}

// user makes a user and returns its user_id.
func (a *api) user(name string) string {
	a.t.Helper()
	return a.do("POST", prefix+"/users", object{"name": name}).want(http.StatusCreated).data()["user_id"].(json.Number).String()
}

// key makes a key and returns its id and value. Without a plan it draws on the
// user's.
func (a *api) key(user, plan string) (id, secret string) {
	a.t.Helper()
	body := object{"name": "Production", "user_id": json.Number(user)}
	if plan != "" {
		body["plan_id"] = plan
	}
	r := a.do("POST", prefix+"/keys", body).want(http.StatusCreated)
	return r.str("id"), r.str("api_key")
}

// validate calls /validate for a key.
func (a *api) validate(secret string) *result {
	a.t.Helper()
	return a.do("POST", prefix+"/validate", object{"api_key": secret, "endpoint": "/v1/reports", "method": "GET"}).want(http.StatusOK)
}

// record gives a request to the handler itself, as if it had come over TLS, and
// holds the answer against the contract.
func (a *api) record(r *http.Request) *result {
	a.t.Helper()
	sent, err := io.ReadAll(r.Body)
	if err == nil {
		r.Body = io.NopCloser(bytes.NewReader(sent))
	}
	r.TLS = &tls.ConnectionState{HandshakeComplete: true}
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	return a.check(&exchange{r, sent, w.Code, w.Result().Header, w.Body.Bytes()})
}
