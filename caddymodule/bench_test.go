//go:build unix

package caddymodule

import (
	"context"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// benchGateway returns a gateway with a store that does not count, and a key.
func benchGateway(b *testing.B) (*Gateway, string) {
	l := &live{store: storetest.Uncounted(memstore.New())}
	l.service = service.New(l.store, service.Config{OnDecision: l.observe})
	l.names = &accountNames{service: l.service}
	app := &App{ready: make(chan struct{})}
	close(app.ready)
	app.live.Store(l)
	g := &Gateway{Account: DefaultAccount, Keys: []KeySource{defaultKeySources()[0].normal()}, OnStoreError: onStoreErrorDeny, app: app, log: zap.NewNop()}
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	must(g.provisionCost())
	g.vary, g.headers = varyOf(g.Keys), headerFamilies["all"]
	account, _, _, err := l.service.CreateAccount(b.Context(), DefaultAccount)
	must(err)
	plan, err := l.service.CreatePlan(b.Context(), account.ID, core.PlanPatch{Name: new("Pro"), Limit: core.Some(int64(1000)), Period: new("month")})
	must(err)
	user, err := l.service.CreateUser(b.Context(), account.ID, core.UserPatch{Name: new("ann")})
	must(err)
	_, secret, err := l.service.CreateKey(b.Context(), account.ID, core.KeyPatch{Name: new("k"), UserID: &user.ID, PlanID: core.Some(plan.ID)})
	must(err)
	return g, secret
}

// answering is a response writer that discards the answer.
type answering struct{ header http.Header }

func (a *answering) Header() http.Header         { return a.header }
func (a *answering) WriteHeader(int)             {}
func (a *answering) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkGateway measures the CPU time of a request with and without the gateway, for each
// value of the option headers.
func BenchmarkGateway(b *testing.B) {
	g, secret := benchGateway(b)
	upstream := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		for _, name := range []string{"hostport", "host", "port", "requests", "max_requests", "fails"} { // as reverse_proxy does
			repl.Set("http.reverse_proxy.upstream."+name, "")
		}
		h := w.Header()
		h["Content-Type"], h["Content-Length"], h["Date"] = []string{"text/plain"}, []string{"5"}, []string{"today"}
		w.WriteHeader(http.StatusOK)
		_, err := w.Write([]byte("hello"))
		return err
	})
	b.Run("without", func(b *testing.B) { benchServe(b, secret, upstream.ServeHTTP) })
	for _, headers := range []string{"all", "x-ratelimit", "ietf", "none"} {
		b.Run("with headers "+headers, func(b *testing.B) {
			g.headers = headerFamilies[headers]
			benchServe(b, secret, func(w http.ResponseWriter, r *http.Request) error { return g.ServeHTTP(w, r, upstream) })
		})
	}
}

func benchServe(b *testing.B, secret string, handle func(http.ResponseWriter, *http.Request) error) {
	srv := &caddyhttp.Server{}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := &answering{header: http.Header{}}
	b.ReportAllocs()
	before := cpuTime()
	for b.Loop() {
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://localhost/v1/items/42?page=2", nil)
		r.RequestURI, r.RemoteAddr = "/v1/items/42?page=2", "203.0.113.9:4711"
		r.Header["X-Api-Key"] = []string{secret}
		r.Header["User-Agent"] = []string{"bench"}
		clear(w.header)
		w.header["Server"] = []string{"Caddy"}
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, srv)
		if err := handle(w, r); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
