package adminapi_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// faulty is a store that fails on demand.
type faulty struct {
	core.Store
	fail func() error
}

func (f *faulty) Plans(ctx context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	if f.fail != nil {
		return nil, 0, f.fail()
	}
	return f.Store.Plans(ctx, account, p)
}

func (f *faulty) KeyByDigest(ctx context.Context, d secrets.Digest) (*core.Key, error) {
	if f.fail != nil {
		return nil, f.fail()
	}
	return f.Store.KeyByDigest(ctx, d)
}

func (f *faulty) AccountByName(ctx context.Context, name string) (*core.Account, error) {
	if f.fail != nil {
		return nil, f.fail()
	}
	return f.Store.AccountByName(ctx, name)
}

// logged is a log that many goroutines write.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// newFaulty returns an API whose store fails as told, and its log.
func newFaulty(t *testing.T) (*api, *faulty, *logged) {
	store, log := &faulty{Store: memstore.New()}, &logged{}
	a := newAPIOver(t, store, func(c *adminapi.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	return a, store, log
}

// holdFault fails unless the cause is in the log with the request id of the answer, without a secret, and not
// in the answer.
func holdFault(t *testing.T, r *result, log *logged, cause string) {
	t.Helper()
	if strings.Contains(string(r.body), cause) {
		t.Errorf("%v\nthe answer tells the cause", r.exchange)
	}
	text := log.String()
	for _, want := range []string{cause, r.header.Get("X-Request-Id")} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q: %s", want, text)
		}
	}
	if strings.Contains(text, "lk_user_secret") {
		t.Errorf("the log has a secret: %s", text)
	}
}

// An unknown error is answered with 500 and without its cause.
func TestInternalError(t *testing.T) {
	a, store, log := newFaulty(t)
	store.fail = func() error { return errors.New("disk on fire near lk_user_secretsecret") }
	holdFault(t, a.do("GET", prefix+"/plans", nil).wantCode(500, core.CodeInternal), log, "disk on fire")

	r := a.do("POST", prefix+"/validate", object{"api_key": "lk_user_x", "endpoint": "/", "method": "GET"}).wantCode(500, core.CodeInternal)
	if r.at()["success"] != false {
		t.Errorf("got %v, want success false", r)
	}
}

// An error with a code of core that has no status in the contract is answered with 500.
func TestUntoldCode(t *testing.T) {
	a, store, log := newFaulty(t)
	store.fail = func() error { return &core.Error{Code: core.CodeAPIKeyDisabled, Message: "stray"} }
	holdFault(t, a.do("GET", prefix+"/plans", nil).wantCode(500, core.CodeInternal), log, "stray")
}

// An unavailable store is answered with 503 and Retry-After. The log has the cause of each answer, but not of an answer to GET
// /health and /health/ready: anyone can send them without limit.
func TestUnavailable(t *testing.T) {
	a, store, log := newFaulty(t)
	store.fail = func() error { return core.Unavailable(errors.New("connection refused")) }
	for _, path := range []string{"/health", "/health/ready", "/plans"} {
		r := a.do("GET", prefix+path, nil).wantCode(503, core.CodeUnavailable)
		if got := r.header.Get("Retry-After"); got != "1" {
			t.Errorf("%s: Retry-After: got %q, want 1", path, got)
		}
		if path == "/plans" {
			holdFault(t, r, log, "connection refused")
		} else if log.String() != "" || strings.Contains(string(r.body), "refused") {
			t.Errorf("%s: got the answer %s and the log %s, want no cause", path, r.body, log)
		}
	}
	store.fail = nil
	a.do("GET", prefix+"/health", nil).want(200)
}

// full is a store whose disk is full: it refuses Plans and can be read otherwise.
type full struct{ *faulty }

func (full) Health(context.Context) error {
	return core.Logged(&core.Error{Code: core.CodeUnavailable, Message: "The disk of the store is full"})
}

// A state of the store that it logs itself, such as a full disk, is not logged with each refusal, and
// /health names the state. A failure means that the log fills a full disk further.
func TestLoggedState(t *testing.T) {
	store, log := &faulty{Store: memstore.New()}, &logged{}
	a := newAPIOver(t, full{store}, func(c *adminapi.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	store.fail = func() error { return core.Unavailable(core.Logged(errors.New("the disk is full"))) }
	a.do("GET", prefix+"/plans", nil).wantCode(503, core.CodeUnavailable)
	r := a.do("GET", prefix+"/health", nil).wantCode(503, core.CodeUnavailable)
	if !strings.Contains(string(r.body), "The disk of the store is full") {
		t.Errorf("health: got %s", r.body)
	}
	if text := log.String(); text != "" {
		t.Errorf("got log %s, want none", text)
	}
}

// Until the store is open, all operations except GET /openapi.yaml and /health/live answer 503.
func TestNotReady(t *testing.T) {
	var svc *service.Service
	a := newAPI(t, func(c *adminapi.Config) {
		ready := c.Service
		c.Service = func() *service.Service {
			if svc == nil {
				return nil
			}
			return ready()
		}
	})
	for op, o := range operations(t) {
		method, path := splitOp(op)
		r := a.bad(method, path, nil)
		if o.OperationID == "openapi" || o.OperationID == "healthLive" {
			r.want(200)
			continue
		}
		r.wantCode(503, core.CodeUnavailable)
	}
	a.do("GET", prefix+"/users", nil, with("Authorization", "")).want(401)
	svc = a.svc
	a.do("GET", prefix+"/users", nil).want(200)
}

// splitOp returns method and path of an operation, with an invalid id.
func splitOp(op string) (method, path string) {
	method, path, _ = strings.Cut(op, " ")
	return method, strings.Replace(path, "{id}", "1", 1)
}

// A panic is answered with 500, and the next request is served.
func TestPanic(t *testing.T) {
	a, store, log := newFaulty(t)
	store.fail = func() error { panic("impossible state of lk_user_secretsecret") }
	r := a.do("GET", prefix+"/plans", nil).wantCode(500, core.CodeInternal)
	holdFault(t, r, log, "impossible state")
	if !strings.Contains(log.String(), "plans.go") {
		t.Errorf("the log does not say where it was: %s", log)
	}
	store.fail = nil
	a.do("GET", prefix+"/plans", nil).want(200)
}

// A panic with http.ErrAbortHandler closes the connection.
func TestAbort(t *testing.T) {
	a, store, log := newFaulty(t)
	store.fail = func() error { panic(http.ErrAbortHandler) }
	resp, err := a.server.Client().Do(a.newRequest("GET", prefix+"/plans", nil))
	if err == nil {
		resp.Body.Close()
		t.Errorf("got %d, want no answer", resp.StatusCode)
	}
	if log.String() != "" {
		t.Errorf("logged: %s", log)
	}
}

// An error that the client caused by disconnecting gets 503 and is not logged. Any other unknown error gets 500 and is
// logged, also after the client has disconnected. A failure means that the log hides a fault of the store.
func TestClientDisconnects(t *testing.T) {
	a, store, log := newFaulty(t)
	ctx, cancel := context.WithCancel(t.Context())
	broken := func() error { return errors.New("the store is broken") }
	unavailable := func() error { return core.Unavailable(errors.New("connection refused")) }
	for _, tc := range []struct {
		name   string
		fail   func() error
		status int
		logged string // "" for nothing
	}{
		{"the store fails", broken, 500, "the store is broken"},
		{"the store reports a cancellation of its own", func() error { return context.Canceled }, 500, "context canceled"},
		{"the client disconnects", func() error { cancel(); return ctx.Err() }, 503, ""},
		{"the client disconnects from a store that is unavailable", func() error { return core.Unavailable(ctx.Err()) }, 503, ""},
		{"the store fails after the client disconnected", broken, 500, "the store is broken"},
		{"the store is unavailable after the client disconnected", unavailable, 503, "connection refused"},
	} {
		store.fail = tc.fail
		before := len(log.String())
		w := a.record(a.newRequest("GET", prefix+"/plans", nil).WithContext(ctx))
		logged := log.String()[before:]
		if w.status != tc.status || (logged != "") != (tc.logged != "") || !strings.Contains(logged, tc.logged) {
			t.Errorf("%s: got %d and the log %q, want %d and %q", tc.name, w.status, logged, tc.status, tc.logged)
		}
	}
}
