package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

func init() { caddy.RegisterModule(new(memoryModule)) }

// memoryModule is the module limitkeeper.store.memory: a store in memory that can be made to fail.
type memoryModule struct {
	Name string `json:"name,omitempty"`
}

// memoryFails makes every store in memory fail.
var memoryFails atomic.Bool

// memoryTuned counts the calls of Tune.
var memoryTuned atomic.Int32

func (*memoryModule) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "limitkeeper.store.memory", New: func() caddy.Module { return new(memoryModule) }}
}

func (m *memoryModule) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&m.Name)
	return nil
}

func (m *memoryModule) PoolKey() string { return "memory " + m.Name }

func (m *memoryModule) Open(*slog.Logger, core.Tunables, *core.Clock) (core.Store, error) {
	if m.Name == "broken" {
		return nil, errors.New("the store is broken")
	}
	return &flakyStore{Store: memstore.New()}, nil
}

func (m *memoryModule) Tune(core.Store, core.Tunables) { memoryTuned.Add(1) }

type flakyStore struct{ core.Store }

func (s *flakyStore) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if memoryFails.Load() {
		return core.ConsumeResult{}, core.Unavailable(errors.New("pulled the plug"))
	}
	return s.Store.Consume(ctx, c)
}

// server is Caddy in this process. Only one can run at a time.
type server struct {
	t     *testing.T
	dir   string
	port  string // of the site
	admin string // address of the admin endpoint
	log   string // file of all logs
}

// newServer returns a server that has not been given a config yet.
func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), port: freePort(t), admin: "localhost:" + freePort(t)}
	s.log = filepath.Join(s.dir, "caddy.log")
	t.Cleanup(func() {
		memoryFails.Store(false)
		if err := caddy.Stop(); err != nil {
			t.Errorf("stopping: %v", err)
		}
		stores.Range(func(key, _ any) bool {
			t.Errorf("the store %v is still open after the server has stopped", key)
			return true
		})
		if t.Failed() {
			b, _ := os.ReadFile(s.log)
			t.Logf("the log:\n%s", b)
		}
	})
	return s
}

// freePort returns an unused port below the ephemeral range, so that no outgoing connection takes it before
// the server listens.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(10_000 + rand.IntN(22_000))
		if ln, err := net.Listen("tcp", ":"+port); err == nil {
			ln.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// config returns a Caddyfile: the options of the app, and one site with the
// directives. %dir and %admin are replaced by the directory and the admin address.
func (s *server) config(options, site string) string {
	text := `{
		admin %admin
		persist_config off
		auto_https disable_redirects
		skip_install_trust
		storage file_system %dir/caddy
		log {
			output file %dir/caddy.log
			level DEBUG
		}
		servers {
			trusted_proxies static private_ranges
		}
		metrics
		limitkeeper {
			` + options + `
		}
	}
	http://localhost:` + s.port + `, http://127.0.0.1:` + s.port + ` {
		log
		` + site + `
	}`
	return strings.NewReplacer("%dir", s.dir, "%admin", s.admin).Replace(text)
}

// rejected returns the text of a config that Caddy must reject, with the site at a port of its own: a config
// that fails while it starts may have accepted, and closed, a connection to a port that it shares with the running one.
func (s *server) rejected(options, site string) string {
	s.t.Helper()
	own := *s
	own.port = freePort(s.t)
	return own.config(options, site)
}

// load loads a Caddyfile and returns the error of it.
func (s *server) load(text string) error {
	s.t.Helper()
	b, err := adapt(text)
	if err != nil {
		return err
	}
	return caddy.Load(b, true)
}

// start loads a config that must work, with the site at a port of its own: a config that
// is stopped may take a connection to its port for a moment after the load.
func (s *server) start(options, site string) {
	s.t.Helper()
	s.port = freePort(s.t)
	if err := s.load(s.config(options, site)); err != nil {
		s.t.Fatal(err)
	}
	client.CloseIdleConnections()
}

// url returns the address of a path of the site.
func (s *server) url(path string) string { return "http://127.0.0.1:" + s.port + path }

// service returns the running service.
func (s *server) service() *core.Service {
	s.t.Helper()
	svc, err := runningService()
	if err != nil {
		s.t.Fatal(err)
	}
	return svc
}

// logged returns everything that was logged.
func (s *server) logged() string {
	s.t.Helper()
	b, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// waitLog waits until the log holds the text n times: entries about a request are
// written after its answer.
func (s *server) waitLog(text string, n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d times %q in the log", n, text), func() bool {
		return strings.Count(s.logged(), text) >= n
	})
}

// reply is an answer with its body read.
type reply struct {
	*http.Response
	body string
}

// get sends a GET with header lines like "Name: value".
func (s *server) get(path string, headers ...string) reply {
	s.t.Helper()
	return s.send(http.MethodGet, path, "", headers...)
}

func (s *server) send(method, path, body string, headers ...string) reply {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url(path), strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return s.do(r)
}

func (s *server) do(r *http.Request) reply {
	s.t.Helper()
	resp, err := client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{resp, string(b)}
}

// client never follows redirects and keeps enough connections for the loads of the
// tests.
var client = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 128},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// validate asks the API to decide, as behind a proxy that terminates TLS.
func (s *server) validate(owner, key string) reply {
	s.t.Helper()
	body := fmt.Sprintf(`{"api_key":%q,"endpoint":"/x","method":"GET"}`, key)
	return s.send(http.MethodPost, apiBase+"/validate", body, "Authorization: Bearer "+owner, "X-Forwarded-Proto: https")
}

// tenant is an account with a plan, a user and a key.
type tenant struct {
	account, owner string
	plan           *core.Plan
	user           *core.User
	key            *core.Key
	secret         string
}

// tenant makes an account called name with a quota a year.
func (s *server) tenant(name string, quota int64) *tenant {
	s.t.Helper()
	ctx, svc, t := context.Background(), s.service(), &tenant{}
	a, _, owner, err := svc.CreateAccount(ctx, name)
	s.must(err)
	t.account, t.owner = a.ID, owner
	t.plan, err = svc.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("Größe M"), Limit: &quota, Period: new("year")})
	s.must(err)
	t.user, err = svc.CreateUser(ctx, a.ID, core.UserPatch{Name: new("Ann")})
	s.must(err)
	t.key, t.secret, err = svc.CreateKey(ctx, a.ID, core.KeyPatch{
		Name: new("laptop"), UserID: &t.user.ID, PlanID: core.Some(t.plan.ID)})
	s.must(err)
	return t
}

func (s *server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// used returns what the key of a tenant has used.
func (s *server) used(t *tenant) int64 {
	s.t.Helper()
	u, err := s.service().KeyUsage(context.Background(), t.account, t.key.ID)
	s.must(err)
	return u.Used
}

// recorder is an upstream that remembers the requests that reached it.
type recorder struct {
	*httptest.Server
	count atomic.Int64
	last  atomic.Pointer[http.Request]
}

// newRecorder starts an upstream that answers with answer, or "hello" if that is
// nil.
func newRecorder(t *testing.T, answer http.HandlerFunc) *recorder {
	t.Helper()
	rec := &recorder{}
	rec.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec.count.Add(1)
		rec.last.Store(r)
		if answer != nil {
			answer(w, r)
			return
		}
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(rec.Close)
	return rec
}

// proxy returns the directive that hands requests to the upstream.
func (rec *recorder) proxy() string { return "reverse_proxy " + rec.Listener.Addr().String() }

// decoded returns a body of JSON.
func decoded(t *testing.T, body string) (v map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewBufferString(body))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return v
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
