package caddymodule

import (
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

func init() { caddy.RegisterModule(new(API)) }

// API serves the REST API below /functions/v1 and the dashboard below /dashboard/. Requests for
// other paths go to the next handler.
//
// It answers over HTTPS only, except `GET /functions/v1/health` and the paths below it. A proxy in front that terminates
// TLS must be in `trusted_proxies` and send `X-Forwarded-Proto: https`.
type API struct {
	// Whether to serve the dashboard. Default: true.
	Dashboard *bool `json:"dashboard,omitempty"`

	// One placeholder with the email that an authentication handler in front has authenticated, such as `{http.auth.user.email}`. The person with
	// this email signs in to the dashboard without a password. No client may choose the value. Default: each sign-in needs a password or a link.
	People string `json:"people,omitempty"`

	app       *App
	server    *adminapi.Server
	dashboard *dashboard.Server // nil when the dashboard is off
}

// CaddyModule implements [caddy.Module].
func (*API) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.limitkeeper_api", New: func() caddy.Module { return new(API) }}
}

// Provision implements [caddy.Provisioner].
func (a *API) Provision(ctx caddy.Context) error {
	mod, err := ctx.App(appName)
	if err != nil {
		return err
	}
	if l := mod.(*App).checkRoutes(ctx); l.err != nil {
		return l.err
	}
	if _, err := checkLogs(ctx, nil, false); err != nil {
		return err
	}
	if err := checkPeople(a.People); err != nil {
		return err
	}
	a.serve(mod.(*App), ctx.Slogger())
	return nil
}

// authenticated matches the placeholders that authentication in front of the API can set. A client, or the operator's environment, sets all others.
var authenticated = regexp.MustCompile(`^\{http\.(auth|request\.header|request\.tls\.client|vars)\.[^{}]+\}$`)

// checkPeople returns an error unless people is empty or one placeholder that authentication can set: with more around it, all clients without an
// email would be one person.
func checkPeople(people string) error {
	switch {
	case people == "" || authenticated.MatchString(people):
		return nil
	case !onePlaceholder.MatchString(people):
		return fmt.Errorf("people: want one placeholder and nothing else, such as {http.auth.user.email}, got %q", secrets.MaskSecrets(people))
	}
	return fmt.Errorf("people: no authentication sets %s: want a placeholder of http.auth, http.request.tls.client, http.vars, or of http.request.header behind forward_auth, such as {http.auth.user.email}", secrets.MaskSecrets(people))
}

// email returns the email that the server has authenticated for a request, "" for none.
func (a *API) email(r *http.Request) string {
	if a.People == "" {
		return ""
	}
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return ""
	}
	return strings.TrimSpace(repl.ReplaceAll(a.People, ""))
}

// serve creates the servers of the REST API and the dashboard.
func (a *API) serve(app *App, log *slog.Logger) {
	a.app = app
	service := func() *service.Service {
		s, _ := app.service()
		return s
	}
	a.server = adminapi.New(adminapi.Config{Service: service, Clock: app.clock, Secure: secure, Stopping: stopping, ClientIP: clientIP, Logger: log,
		OnDecision: metrics.validated, OnSettled: app.settled, TestWebhook: app.testWebhook, OnFault: metrics.failed})
	if a.Dashboard == nil || *a.Dashboard {
		account := ""
		if len(app.Accounts) == 1 {
			account = app.Accounts[0].Name
		}
		a.dashboard = dashboard.New(dashboard.Config{Service: service, Secure: secure, ClientIP: clientIP, Email: a.email, Account: account, TestWebhook: app.testWebhook, Logger: log})
	}
}

// APIBase is the prefix of the paths of the REST API.
const APIBase = "/functions/v1"

// probeBase is the prefix of the paths that answer at once, also before the config has started.
const probeBase = APIBase + "/health/"

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	handler := a.handler(r.URL.Path)
	if handler == nil {
		return next.ServeHTTP(w, r)
	}
	a.app.warnOfSpoofing(r)
	if !strings.HasPrefix(r.URL.Path, APIBase+"/health") {
		a.app.warnOfPlainHTTP(r)
	}
	if !strings.HasPrefix(r.URL.Path, probeBase) {
		_, _ = a.app.await(r.Context()) // the handler itself answers 503 while the store is not open
	}
	handler.ServeHTTP(w, r)
	return nil
}

// handler returns the handler for a path, nil for the next handler of the route.
func (a *API) handler(path string) http.Handler {
	switch {
	case path == APIBase || strings.HasPrefix(path, APIBase+"/"):
		return a.server
	case a.dashboard != nil && path == strings.TrimSuffix(dashboard.Base, "/"):
		return http.RedirectHandler(dashboard.Base, http.StatusPermanentRedirect)
	case a.dashboard != nil && strings.HasPrefix(path, dashboard.Base):
		return a.dashboard
	}
	return nil
}

// secure reports whether the client used HTTPS: over this connection, or according to a trusted
// proxy. A chain of proxies may send a list of schemes; the first one is the client's.
func secure(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	proto, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Proto"), ",")
	return fromTrustedProxy(r) && strings.EqualFold(strings.TrimSpace(proto), "https")
}

// stopping reports whether the server of a request is about to stop: Caddy waits for its option shutdown_delay.
func stopping(r *http.Request) bool {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return false
	}
	is, _ := repl.Get("http.shutting_down")
	return is == true
}

// Interface guard.
var _ caddy.Provisioner = (*API)(nil)
