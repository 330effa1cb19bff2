package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/webhook"
)

// Of concurrent requests on a quota of L, exactly L are allowed: through /validate, through the gateway,
// and through both at once.
func TestExact(t *testing.T) {
	for name, ways := range map[string][]bool{"validate": {true}, "gateway": {false}, "both": {true, false}} {
		t.Run(name, func(t *testing.T) {
			s, up := newServer(t), newRecorder(t, nil)
			s.Start("store badger %dir/data\nservice_rate_limit off", caddytest.Both(up.proxy()))
			ten := s.Tenant("default", 1000)
			load := s.attack(ten, 1200, ways, s.URL(""))
			load.wait()
			load.check(1000)
			if !ways[0] && up.count.Load() != 1000 {
				t.Errorf("%d requests reached the upstream, want 1000", up.count.Load())
			}
		})
	}
}

// The same during eight reloads: no request fails, and no request is forwarded without being counted.
//
// The clients use HTTP/2, whose servers report the unread requests when they close. Go's HTTP/1.1 server drops
// a request that it reads during its shutdown.
func TestExactOverReloads(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	port, tls := freeport.Take(t), s.tls()
	start := func(i int) {
		t.Helper()
		options := fmt.Sprintf("store badger %%dir/data {\ndurability %s\n}\nservice_rate_limit off\nkey_cache %d",
			[]string{"process", "power"}[i%2], 1+i*100)
		s.Must(s.Load(s.Config(options, "respond nothing") +
			"\nhttps://127.0.0.1:" + port + " {\n" + tls + "\n" + caddytest.Both(up.proxy()) + "\n}"))
	}
	start(0)
	ten := s.Tenant("default", 1000)
	const requests, reloads = 3000, 8
	load := s.attack(ten, requests, []bool{true, false}, "https://127.0.0.1:"+port)
	for i := range int64(reloads) {
		load.reach((i + 1) * requests / (reloads + 2))
		start(int(i) + 1)
	}
	load.wait()
	load.check(1000)
}

// attack is a load of 64 concurrent callers.
type attack struct {
	s        *server
	client   *http.Client
	base     string // of the addresses
	ten      *caddytest.Tenant
	sent     atomic.Int64
	allowed  atomic.Int64
	mu       sync.Mutex
	wrong    []string
	wg       sync.WaitGroup
	progress chan int64
}

// attack starts to send n requests in the ways: true for /validate, false for the
// gateway.
func (s *server) attack(ten *caddytest.Tenant, n int64, ways []bool, base string) *attack {
	a := &attack{s: s, client: caddytest.Client, ten: ten, base: base, progress: make(chan int64, n)}
	if strings.HasPrefix(base, "https:") {
		a.client = http2Client()
		s.T.Cleanup(a.client.CloseIdleConnections)
	}
	for i := range 64 {
		a.wg.Go(func() {
			for {
				id := a.sent.Add(1)
				if id > n {
					return
				}
				a.one(ways[(int(id)+i)%len(ways)])
				a.progress <- id
			}
		})
	}
	return a
}

func (a *attack) one(validate bool) {
	method, path, body := http.MethodGet, "/", ""
	if validate {
		method, path, body = http.MethodPost, APIBase+"/validate", fmt.Sprintf(`{"api_key":%q,"endpoint":"/x","method":"GET"}`, a.ten.Secret)
	}
	r, _ := http.NewRequest(method, a.base+path, strings.NewReader(body))
	r.Header.Set("X-Forwarded-Proto", "https")
	if validate {
		r.Header.Set("Authorization", "Bearer "+a.ten.Owner)
	} else {
		r.Header.Set("X-API-Key", a.ten.Secret)
	}
	resp, err := a.client.Do(r)
	if err != nil {
		a.fail(err.Error())
		return
	}
	defer resp.Body.Close()
	var v struct{ Success *bool }
	decode := json.NewDecoder(resp.Body).Decode
	switch {
	case validate && resp.StatusCode == 200 && decode(&v) == nil && v.Success != nil:
		if *v.Success {
			a.allowed.Add(1)
		}
	case !validate && resp.StatusCode == 200:
		a.allowed.Add(1)
	case validate || resp.StatusCode != 429:
		a.fail(fmt.Sprintf("validate %v: got %s", validate, resp.Status))
	}
}

func (a *attack) fail(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wrong = append(a.wrong, what)
}

// reach waits until n requests have been answered.
func (a *attack) reach(n int64) {
	for id := range a.progress {
		if id >= n {
			return
		}
	}
}

func (a *attack) wait() { a.wg.Wait() }

// check fails unless exactly n requests were allowed and counted.
func (a *attack) check(n int64) {
	a.s.T.Helper()
	if len(a.wrong) > 0 {
		kinds := map[string]int{}
		for _, w := range a.wrong {
			kinds[w]++
		}
		a.s.T.Errorf("%d requests failed: %v", len(a.wrong), kinds)
	}
	if got := a.allowed.Load(); got != n {
		a.s.T.Errorf("%d requests passed, want %d", got, n)
	}
	if got := a.s.used(a.ten); got != n {
		a.s.T.Errorf("%d requests are counted, want %d", got, n)
	}
}

// refs returns how many configs hold the store in memory with the name.
func refs(name string) int {
	n, _ := stores.References("memory " + name)
	return n
}

// A rejected config leaves the running server unchanged, whatever step rejects it: the store stays open,
// with one reference and its settings.
func TestRejectedConfig(t *testing.T) {
	s := newServer(t)
	site := caddytest.Both("respond ok")
	s.Start("store memory a\nservice_rate_limit 5/1h", site)
	ten := s.Tenant("default", 100)
	works := func(t *testing.T) {
		t.Helper()
		if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
			t.Errorf("got %d from the running server, want 200", got.StatusCode)
		}
		if n := refs("a"); n != 1 {
			t.Errorf("the store is held %d times, want once", n)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	s.Must(err)
	defer taken.Close()

	for _, tc := range []struct{ name, text, want string }{
		{"an unknown word", s.rejected("store memory a", "limitkeeper {\nfrob\n}"), `unknown word "frob"`},
		{"a fault of the gateway", s.rejected("store memory a", "limitkeeper {\naccount {env.NOT_SET_ANYWHERE}\n}"), "account"},
		{"a fault of the app", s.rejected("store memory a\naccount x {\nkey nonsense\n}", site), "owner's key"},
		{"a fault of another module", s.rejected("store memory a\nservice_rate_limit 7/1h", site+"\nfile_server {\nprecompressed nope\n}"), "nope"},
		{"a store that cannot be opened", s.rejected("store memory broken", site), "the store is broken"},
		{"a port that is taken", s.rejected("store memory a\nservice_rate_limit off", site) +
			"\nhttp://127.0.0.1:" + portOf(taken) + " {\nbind 127.0.0.1\nrespond ok\n}", "in use"},
		{"another store, and a port that is taken", s.rejected("store memory b", site) +
			"\nhttp://127.0.0.1:" + portOf(taken) + " {\nbind 127.0.0.1\nrespond ok\n}", "in use"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range 3 { // apps are started in random order
				err := s.Load(tc.text)
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("got %v, want an error with %q", err, tc.want)
				}
				works(t)
			}
		})
	}
	if refs("b") != 0 || refs("broken") != 0 {
		t.Errorf("a store of a rejected config is still held")
	}
	for range 5 {
		if got := s.Validate(ten.Owner, ten.Secret); got.StatusCode != 200 {
			t.Errorf("got %d, want 200", got.StatusCode)
		}
	}
	if got := s.Validate(ten.Owner, ten.Secret); got.StatusCode != 429 {
		t.Errorf("got %d for the sixth request of 5/1h, want 429: a rejected config has changed the rate", got.StatusCode)
	}
}

func portOf(ln net.Listener) string {
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	return port
}

// A reload applies changed settings to the open store. A reload with another store opens that store and
// closes the old one.
func TestReloadTunables(t *testing.T) {
	s := newServer(t)
	site := caddytest.Both("respond ok")
	s.Start("store memory a\nservice_rate_limit 1/1h", site)
	ten, first := s.Tenant("default", 100), s.Service()
	if got := s.Validate(ten.Owner, ten.Secret); got.StatusCode != 200 {
		t.Errorf("got %d, want 200", got.StatusCode)
	}
	if got := s.Validate(ten.Owner, ten.Secret); got.StatusCode != 429 {
		t.Errorf("got %d, want 429", got.StatusCode)
	}
	tuned := caddytest.MemoryTuned.Load()
	s.Start("store memory a\nservice_rate_limit off", site)
	for range 3 {
		if got := s.Validate(ten.Owner, ten.Secret); got.StatusCode != 200 {
			t.Errorf("got %d without a rate, want 200", got.StatusCode)
		}
	}
	if s.Service() != first || refs("a") != 1 {
		t.Errorf("the store was opened anew, or is held %d times", refs("a"))
	}
	if n := caddytest.MemoryTuned.Load() - tuned; n != 1 {
		t.Errorf("the store was tuned %d times, want once", n)
	}
	s.Start("store memory b", site)
	if s.Service() == first || refs("a") != 0 || refs("b") != 1 {
		t.Errorf("a is held %d times and b %d, want 0 and 1", refs("a"), refs("b"))
	}
	if _, err := first.AccountByName(context.Background(), "default"); core.ErrorCode(err) != core.CodeUnavailable {
		t.Errorf("got %v from the old store, want UNAVAILABLE: it is closed", err)
	}
}

// The latest tuning that is not withdrawn applies, in any order of calls.
func TestTunings(t *testing.T) {
	var log []string
	l := &live{service: service.New(memstore.New(), service.Config{}), events: newEventQueue(), sender: webhook.NewSender("test", 0)}
	a, b, c := &tuning{store: tuner{"a", &log}}, &tuning{store: tuner{"b", &log}}, &tuning{store: tuner{"c", &log}}
	l.apply(a)
	l.apply(b)
	l.withdraw(a) // a reload: nothing changes
	l.apply(c)
	l.withdraw(c) // a rejected config: b is back
	l.withdraw(c) // once is enough
	l.withdraw(b) // the end: nothing to go back to
	if got, want := strings.Join(log, ""), "abcb"; got != want {
		t.Errorf("tuned %s, want %s", got, want)
	}
}

type tuner struct {
	name string
	log  *[]string
}

func (u tuner) Open(*slog.Logger, service.Tunables, *core.Clock) (core.Store, error) { return nil, nil }

func (u tuner) PoolKey() string                   { return u.name }
func (u tuner) Tune(core.Store, service.Tunables) { *u.log = append(*u.log, u.name) }

// Validating a config does not open the store, so it works beside a running server.
func TestValidateOpensNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	b, err := caddytest.Adapt("{\nlog {\nformat limitkeeper\n}\nlimitkeeper {\nstore badger " + dir + "\n}\n}\n:8080 {\nlimitkeeper\n}")
	if err != nil {
		t.Fatal(err)
	}
	var cfg caddy.Config
	if err := json.Unmarshal(b, &cfg); err != nil {
		t.Fatal(err)
	}
	if err := caddy.Validate(&cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("got %v, want the directory not to be made", err)
	}
}

// Configured accounts exist once the config runs, with their key, after any number of reloads.
func TestConfiguredAccounts(t *testing.T) {
	owner := secrets.NewOwnerSecret()
	t.Setenv("LIMITKEEPER_TEST_KEY", owner+"\n")
	s := newServer(t)
	for range 2 {
		s.Start("store memory\naccount acme {\nkey {env.LIMITKEEPER_TEST_KEY}\n}", "limitkeeper_api")
		got := s.Get("/functions/v1/keys", "Authorization: Bearer "+owner, "X-Forwarded-Proto: https")
		if got.StatusCode != 200 {
			t.Errorf("got %d %s, want 200", got.StatusCode, got.Text)
		}
	}
	if got := s.Get("/functions/v1/keys", "Authorization: Bearer "+owner); got.StatusCode != 400 {
		t.Errorf("over plain HTTP: got %d, want 400", got.StatusCode)
	}
	if got := s.Get("/functions/v1/health"); got.StatusCode != 200 {
		t.Errorf("health over plain HTTP: got %d, want 200", got.StatusCode)
	}
	if got := s.Get("/elsewhere"); got.Text != "" || got.StatusCode != 200 {
		t.Errorf("outside the API: got %d %q, want what is behind it", got.StatusCode, got.Text)
	}
}
