package command

import (
	"bytes"
	"cmp"
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
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// demoFile has the resources of the demo. Each start makes a key of its own: the value of an earlier one is not kept.
const demoFile = `
plans: [{name: Demo, max_requests: 3, request_period: day}]
users: [{external_id: demo, name: Demo user, keys: [{name: Demo key of %s, plan: Demo}]}]
`

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
	ownerKey  string // "" unless it was just created
	demoKey   string // "" without a demo
	inventory string // what an earlier start left in the store, "" on the first start
	signIn    string // the path of a sign-in link
}

// setUp waits until HTTPS works, creates the account unless it exists, and the demo if requested, and prints the
// summary.
func (p *protection) setUp(out io.Writer) error {
	running, err := caddymodule.RunningStore()
	if err != nil {
		return err
	}
	service := running.Service
	ctx := core.WithActor(context.Background(), core.Actor{Kind: core.ActorCommand, ID: "protect"})
	if err := p.waitReady(); err != nil { // before creating a key that an error would hide
		return err
	}
	var g startSummary
	a, err := service.AccountByName(ctx, caddymodule.DefaultAccount)
	if err == nil {
		g.inventory, err = inventory(ctx, service, a.ID)
	} else if errors.Is(err, core.ErrAccountNotFound) {
		a, _, g.ownerKey, err = service.CreateAccount(ctx, caddymodule.DefaultAccount)
	}
	if err != nil {
		return err
	}
	if p.demo {
		if g.demoKey, err = makeDemo(ctx, service); err != nil {
			return fmt.Errorf("creating the demo's user, plan and key: %w", err)
		}
	}
	_, secret, _, err := service.SignIn.NewLink(ctx, a.Name)
	if err != nil {
		return fmt.Errorf("creating the sign-in link of the dashboard: %w", err)
	}
	g.signIn = signInPath(secret)
	return p.print(out, &g)
}

// inventory counts the plans, users and keys of an account.
func inventory(ctx context.Context, s *service.Service, account string) (string, error) {
	one := core.Page{Number: 1, Size: 1}
	_, plans, errPlans := s.Plans(ctx, account, one)
	_, users, errUsers := s.Users(ctx, account, core.UserFilter{}, one)
	_, keys, errKeys := s.Keys(ctx, account, core.KeyFilter{}, one)
	return fmt.Sprintf("plans: %d, users: %d, keys: %d", plans, users, keys), cmp.Or(errPlans, errUsers, errKeys)
}

// makeDemo creates the plan and the user of the demo unless they exist, and a new key.
func makeDemo(ctx context.Context, s *service.Service) (secret string, err error) {
	data := fmt.Sprintf(demoFile, time.Now().Format("2006-01-02 15.04.05.000000"))
	r, err := applyData(ctx, s, []byte(data), apply.Options{Account: caddymodule.DefaultAccount})
	if err != nil {
		return "", err
	}
	return r.Accounts[0].Keys[0].APIKey, nil
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
		host := localHost(a.host)
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
	var b bytes.Buffer
	fmt.Fprintf(&b, `Limitkeeper protects %s

  Gateway    %s
  REST API   %s%s
  Dashboard  %s%s
  CA file    %s
  Data       %s
  Account    %s
`, p.to.dial, p.from.url(), p.api.url(), caddymodule.APIBase, p.api.url(), g.signIn, p.caFile(), p.storeDir(), caddymodule.DefaultAccount)
	if g.ownerKey != "" {
		fmt.Fprintf(&b, `  Owner key  %s

The owner's key opens the REST API. It is shown this once: keep it. The link to the
dashboard signs in once, within 10 minutes.
`, g.ownerKey)
	} else {
		fmt.Fprintf(&b, `
Found from an earlier start: %s.
Of keys only digests are kept, so they cannot be shown again. For another owner's key:
  limitkeeper account key create %s%s
`, g.inventory, caddymodule.DefaultAccount, p.adminFlag())
	}
	if p.temporary {
		b.WriteString(`
The data is in a temporary directory, which is removed when the demo ends. To keep it,
name a directory with --data.
`)
	}
	intro, lines := p.tryLines(g)
	fmt.Fprintf(&b, "\n%s\n\n  %s\n\nPress Ctrl-C to stop.\n", intro, strings.Join(lines, "\n  "))
	_, err := out.Write(b.Bytes())
	return err
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

// protectGrace is the maximum time for requests in progress when the process stops.
const protectGrace = 10 * time.Second

// object is an object in a config of Caddy.
type object = map[string]any

// config returns the Caddy config of the command protect. "/" of the API server redirects to the dashboard.
func (p *protection) config() []byte {
	toDashboard := object{
		"match":    []object{{"path": []string{"/"}}},
		"handle":   []object{{"handler": "static_response", "status_code": "302", "headers": http.Header{"Location": {dashboard.Base}}}},
		"terminal": true,
	}
	config := object{
		"admin":   object{"listen": p.admin, "config": object{"persist": false}},
		"storage": object{"module": "file_system", "root": p.data},
		"logging": object{"logs": object{caddy.DefaultLoggerName: object{
			"level":   "WARN",
			"encoder": object{"format": "limitkeeper"},
			"exclude": []string{"pki.ca.local"}, // it warns that the CA is not installed, which is intended
		}}},
		"apps": object{
			appName: object{"store": object{"module": "badger", "dir": p.storeDir()}},
			"http": object{
				"grace_period": protectGrace,
				"servers": object{
					"gateway": httpsServer(p.from, handle(object{"handler": appName}, p.proxy())),
					"api":     httpsServer(p.api, toDashboard, handle(object{"handler": "limitkeeper_api"}, object{"handler": "static_response", "status_code": "404"})),
				},
			},
			"tls": object{ // with certificates of the internal CA
				"certificates": object{"automate": p.certNames()},
				"automation":   object{"policies": []object{{"subjects": p.certNames(), "issuers": []object{{"module": "internal"}}}}},
			},
			"pki": object{"certificate_authorities": object{"local": object{"install_trust": p.trust}}},
		},
	}
	return caddyconfig.JSON(config, nil)
}

// httpsServer returns an HTTPS server with routes.
func httpsServer(at endpointAddress, routes ...object) object {
	return object{
		"listen":          []string{at.listen()},
		"protocols":       []string{"h1", "h2"},
		"routes":          routes,
		"automatic_https": object{"disable": true},
		// clients without SNI, or with an unknown host name, get the certificate of localhost
		"tls_connection_policies": []object{{"default_sni": "localhost", "fallback_sni": "localhost"}},
	}
}

// handle returns a route that runs handlers on every request.
func handle(handlers ...object) object { return object{"handle": handlers} }

func (p *protection) proxy() object {
	h := object{"handler": "reverse_proxy", "upstreams": []object{{"dial": p.to.dial}}}
	if p.to.tls {
		h["transport"] = object{"protocol": "http", "tls": object{}}
		h["headers"] = object{"request": object{"set": http.Header{"Host": {"{http.reverse_proxy.upstream.hostport}"}}}}
	}
	return h
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
