package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/caddy/v2/modules/caddypki"
	"github.com/caddyserver/caddy/v2/modules/caddytls"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
)

// The names of the resources of the demo.
const (
	demoPlan  = "Demo"
	demoUser  = "Demo user"
	demoKey   = "Demo key"
	demoLimit = 3
)

// startEcho starts the upstream of the demo on a free port. It answers with the request as JSON.
func startEcho() (*upstream, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting the demo's upstream: %w", err)
	}
	go func() { _ = http.Serve(ln, http.HandlerFunc(echo)) }() // until the process ends
	return &upstream{dial: ln.Addr().String()}, nil
}

func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(map[string]any{"method": r.Method, "path": r.URL.RequestURI(), "headers": r.Header})
}

// startSummary is the information that the command protect prints after the start.
type startSummary struct {
	account   string
	ownerKey  string // "" unless it was just created
	demoKey   string // "" without a demo
	inventory string // what an earlier start left in the store, "" on the first start
	signIn    string // the path of a sign-in link
}

// setUp waits until HTTPS works, creates the account, and the demo if requested, and prints the
// summary.
func (p *protection) setUp(out io.Writer) error {
	service, err := runningService()
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := p.waitReady(); err != nil { // before creating a key that an error would hide
		return err
	}
	g, account, err := p.prepare(ctx, service)
	if err != nil {
		return err
	}
	if p.demo {
		if g.demoKey, err = makeDemo(ctx, service, account); err != nil {
			return fmt.Errorf("creating the demo's user, plan and key: %w", err)
		}
	}
	_, secret, _, err := service.NewSignInLink(ctx, g.account)
	if err != nil {
		return fmt.Errorf("creating the sign-in link of the dashboard: %w", err)
	}
	g.signIn = signInPath(secret)
	return p.print(out, g)
}

// prepare creates the account unless it exists.
func (p *protection) prepare(ctx context.Context, s *core.Service) (*startSummary, string, error) {
	g := &startSummary{account: caddymodule.DefaultAccount}
	a, err := s.AccountByName(ctx, caddymodule.DefaultAccount)
	if errors.Is(err, core.ErrAccountNotFound) {
		a, _, g.ownerKey, err = s.CreateAccount(ctx, caddymodule.DefaultAccount)
		if err != nil {
			return nil, "", err
		}
		return g, a.ID, nil
	}
	if err != nil {
		return nil, "", err
	}
	g.inventory, err = inventory(ctx, s, a.ID)
	return g, a.ID, err
}

// inventory counts the plans, users and keys of an account.
func inventory(ctx context.Context, s *core.Service, account string) (string, error) {
	one := core.Page{Number: 1, Size: 1}
	_, plans, err := s.Plans(ctx, account, one)
	if err != nil {
		return "", err
	}
	_, users, err := s.Users(ctx, account, core.UserFilter{}, one)
	if err != nil {
		return "", err
	}
	_, keys, err := s.Keys(ctx, account, core.KeyFilter{}, one)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("plans: %d, users: %d, keys: %d", plans, users, keys), nil
}

// makeDemo creates the plan and the user of the demo unless they exist, and a new key.
func makeDemo(ctx context.Context, s *core.Service, account string) (secret string, err error) {
	plan, err := demoPlanID(ctx, s, account)
	if err != nil {
		return "", err
	}
	user, err := demoUserID(ctx, s, account)
	if err != nil {
		return "", err
	}
	_, secret, err = s.CreateKey(ctx, account, core.KeyPatch{Name: new(demoKey), UserID: &user, PlanID: core.Some(plan)})
	return secret, err
}

func demoPlanID(ctx context.Context, s *core.Service, account string) (string, error) {
	plans, _, err := s.Plans(ctx, account, core.Page{Number: 1, Size: core.MaxPageSize})
	if err != nil {
		return "", err
	}
	for _, pl := range plans {
		if pl.Name == demoPlan && !pl.Inactive {
			return pl.ID, nil
		}
	}
	pl, err := s.CreatePlan(ctx, account, core.PlanPatch{
		Name: new(demoPlan), Limit: core.Some(int64(demoLimit)), Period: new(core.Day.String())})
	if err != nil {
		return "", err
	}
	return pl.ID, nil
}

func demoUserID(ctx context.Context, s *core.Service, account string) (int64, error) {
	users, _, err := s.Users(ctx, account, core.UserFilter{}, core.Page{Number: 1, Size: core.MaxPageSize})
	if err != nil {
		return 0, err
	}
	for _, u := range users {
		if u.Name == demoUser && !u.Disabled {
			return u.ID, nil
		}
	}
	u, err := s.CreateUser(ctx, account, core.UserPatch{Name: new(demoUser)})
	if err != nil {
		return 0, err
	}
	return u.ID, nil
}

// readyTimeout is the maximum wait for the first certificates.
const readyTimeout = 30 * time.Second

// waitReady waits until both servers answer over HTTPS. Caddy creates the certificates in the
// background.
func (p *protection) waitReady() (err error) {
	deadline := time.Now().Add(readyTimeout)
	for time.Now().Before(deadline) {
		if err = p.answers(); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("no HTTPS answer within %v: %w", readyTimeout, err)
}

// answers opens a TLS connection to each server. It trusts only the internal CA.
func (p *protection) answers() error {
	pem, err := os.ReadFile(p.caFile())
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	for _, a := range []endpointAddress{p.from, p.api} {
		host := a.host
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "localhost"
		}
		dial := host
		if a.listen() == ":"+a.port {
			dial = "localhost"
		}
		conn, err := tls.Dial("tcp", net.JoinHostPort(dial, a.port), &tls.Config{RootCAs: roots, ServerName: host})
		if err != nil {
			return err
		}
		_ = conn.Close()
	}
	return nil
}

// print prints the summary and commands to try.
func (p *protection) print(out io.Writer, g *startSummary) error {
	w := &lineWriter{w: out}
	w.line("Limitkeeper protects %s", p.to.dial)
	w.line("")
	w.line("  Gateway    %s", p.from.url())
	w.line("  REST API   %s%s", p.api.url(), caddymodule.APIBase)
	w.line("  Dashboard  %s%s", p.api.url(), g.signIn)
	w.line("  CA file    %s", p.caFile())
	w.line("  Data       %s", p.storeDir())
	w.line("  Account    %s", g.account)
	if g.ownerKey != "" {
		w.line("  Owner key  %s", g.ownerKey)
		w.line("")
		w.line("The owner's key opens the REST API. It is shown this once: keep it. The link to the")
		w.line("dashboard signs in once, within 10 minutes.")
	} else {
		w.line("")
		w.line("Found from an earlier start: %s.", g.inventory)
		w.line("Of keys only digests are kept, so they cannot be shown again. For another owner's key:")
		w.line("  limitkeeper account key create %s%s", g.account, p.adminFlag())
	}
	w.line("")
	if p.temporary {
		w.line("The data is in a temporary directory, which is removed when the demo ends. To keep it,")
		w.line("name a directory with --data.")
		w.line("")
	}
	intro, lines := p.tryLines(g)
	w.line("%s", intro)
	w.line("")
	for _, l := range lines {
		w.line("  %s", l)
	}
	w.line("")
	w.line("Press Ctrl-C to stop.")
	return w.err
}

func (p *protection) adminFlag() string {
	if p.admin == caddy.DefaultAdminListen {
		return ""
	}
	return " --address " + shellQuote(p.admin)
}

// tryLines returns commands for a shell, and a sentence that introduces them.
func (p *protection) tryLines(g *startSummary) (intro string, lines []string) {
	curl := "curl -sS --cacert " + shellQuote(p.caFile())
	api := func(path, body string) string {
		return fmt.Sprintf("%s -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' -d '%s' %s%s%s",
			curl, g.ownerKey, body, p.api.url(), caddymodule.APIBase, path)
	}
	switch {
	case g.demoKey != "":
		use := fmt.Sprintf("%s -H 'X-API-Key: %s' %s/hello", curl, g.demoKey, p.from.url())
		second := use
		if g.ownerKey != "" {
			second = api("/validate", fmt.Sprintf(`{"api_key":%q,"endpoint":"/hello","method":"GET"}`, g.demoKey))
		}
		last := fmt.Sprintf("%s -i -H 'X-API-Key: %s' %s/hello", curl, g.demoKey, p.from.url())
		return "Try it. The plan of this key has 3 requests a day: the last line is refused with 429.", []string{use, second, use, last}
	case g.ownerKey != "":
		return "Make a plan and a user; POST /keys with their ids makes a key.", []string{
			api("/plans", `{"name":"Starter","max_requests":1000,"request_period":"month"}`),
			api("/users", `{"name":"First customer"}`),
		}
	}
	return "Try it. Without a key it is refused with 401.", []string{fmt.Sprintf("%s -i %s/", curl, p.from.url())}
}

// lineWriter writes lines and remembers the first error.
type lineWriter struct {
	w   io.Writer
	err error
}

func (w *lineWriter) line(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format+"\n", args...)
	}
}

// protectGrace is the maximum time for requests in progress when the process stops.
const protectGrace = 10 * time.Second

// config returns the Caddy config of the command protect.
func (p *protection) config() *caddy.Config {
	cfg := &caddy.Config{
		Admin: &caddy.AdminConfig{Listen: p.admin, Config: &caddy.ConfigSettings{Persist: new(bool)}},
		Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{
			caddy.DefaultLoggerName: {
				BaseLog: caddy.BaseLog{Level: "WARN", EncoderRaw: json.RawMessage(`{"format": "limitkeeper"}`)},
				// it warns that the CA is not installed, which is intended
				Exclude: []string{"pki.ca.local"},
			},
		}},
		AppsRaw: caddy.ModuleMap{
			appName: caddyconfig.JSON(&caddymodule.App{StoreRaw: caddyconfig.JSONModuleObject(
				&caddymodule.BadgerStore{Dir: p.storeDir()}, "module", "badger", nil)}, nil),
			"http": caddyconfig.JSON(p.httpApp(), nil),
			"tls":  caddyconfig.JSON(p.tlsApp(), nil),
			"pki":  caddyconfig.JSON(caddypki.PKI{CAs: map[string]*caddypki.CA{"local": {InstallTrust: &p.trust}}}, nil),
		},
	}
	if p.data != "" {
		cfg.StorageRaw = caddyconfig.JSON(map[string]string{"module": "file_system", "root": p.data}, nil)
	}
	return cfg
}

func (p *protection) httpApp() *caddyhttp.App {
	return &caddyhttp.App{
		GracePeriod: caddy.Duration(protectGrace),
		Servers: map[string]*caddyhttp.Server{
			"gateway": p.server(p.from, handlerJSON(new(caddymodule.Gateway)), handlerJSON(p.proxy())),
			"api":     p.apiServer(),
		},
	}
}

// apiServer returns the server of the REST API and the dashboard. "/" redirects to the dashboard.
func (p *protection) apiServer() *caddyhttp.Server {
	s := p.server(p.api, handlerJSON(new(caddymodule.API)), handlerJSON(&caddyhttp.StaticResponse{StatusCode: "404"}))
	root := caddyhttp.Route{
		MatcherSetsRaw: caddyhttp.RawMatcherSets{{"path": caddyconfig.JSON(caddyhttp.MatchPath{"/"}, nil)}},
		HandlersRaw: []json.RawMessage{handlerJSON(&caddyhttp.StaticResponse{
			StatusCode: "302", Headers: http.Header{"Location": {dashboard.Base}}})},
		Terminal: true,
	}
	s.Routes = append(caddyhttp.RouteList{root}, s.Routes...)
	return s
}

// handlerJSON returns the JSON of a handler in a route.
func handlerJSON(h caddy.Module) json.RawMessage {
	return caddyconfig.JSONModuleObject(h, "handler", h.CaddyModule().ID.Name(), nil)
}

// server returns an HTTPS server that runs the handlers on every request.
func (p *protection) server(at endpointAddress, handlers ...json.RawMessage) *caddyhttp.Server {
	return &caddyhttp.Server{
		Listen:    []string{at.listen()},
		Protocols: []string{"h1", "h2"},
		Routes:    caddyhttp.RouteList{{HandlersRaw: handlers}},
		AutoHTTPS: &caddyhttp.AutoHTTPSConfig{Disabled: true},
		// clients without SNI, or with an unknown host name, get the certificate of localhost
		TLSConnPolicies: caddytls.ConnectionPolicies{{DefaultSNI: "localhost", FallbackSNI: "localhost"}},
	}
}

func (p *protection) proxy() *reverseproxy.Handler {
	h := &reverseproxy.Handler{Upstreams: reverseproxy.UpstreamPool{{Dial: p.to.dial}}}
	if p.to.tls {
		h.TransportRaw = caddyconfig.JSONModuleObject(
			reverseproxy.HTTPTransport{TLS: new(reverseproxy.TLSConfig)}, "protocol", "http", nil)
		h.Headers = &headers.Handler{Request: &headers.HeaderOps{
			Set: map[string][]string{"Host": {"{http.reverse_proxy.upstream.hostport}"}}}}
	}
	return h
}

// tlsApp returns the TLS app with certificates of the internal CA.
func (p *protection) tlsApp() *caddytls.TLS {
	names := p.certNames()
	return &caddytls.TLS{
		CertificatesRaw: caddy.ModuleMap{"automate": caddyconfig.JSON(names, nil)},
		Automation: &caddytls.AutomationConfig{Policies: []*caddytls.AutomationPolicy{{
			SubjectsRaw: names,
			IssuersRaw:  []json.RawMessage{json.RawMessage(`{"module": "internal"}`)},
		}}},
	}
}

// certNames returns the names of the certificates: localhost, 127.0.0.1, ::1, and the hosts in --from
// and --api.
func (p *protection) certNames() []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	for _, host := range []string{p.from.host, p.api.host} {
		ip := net.ParseIP(host)
		if host != "" && (ip == nil || !ip.IsUnspecified()) && !slices.Contains(names, host) {
			names = append(names, host)
		}
	}
	return names
}
