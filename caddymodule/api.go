package caddymodule

import (
	"log/slog"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/core"
)

func init() { caddy.RegisterModule(new(API)) }

// API serves the REST API below /functions/v1 and the dashboard below /dashboard/, and
// hands every other path to the handlers behind it.
//
// It answers over HTTPS only, except `GET /functions/v1/health`. Behind a proxy that terminates TLS, and that the
// server trusts (`trusted_proxies`), its `X-Forwarded-Proto: https` counts.
type API struct {
	// Whether the dashboard is served, too. Default: true.
	Dashboard *bool `json:"dashboard,omitempty"`

	app       *App
	server    *adminapi.Server
	dashboard *dashboard.Server // nil when it is off
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
	if err := redactLogs(ctx, nil); err != nil {
		return err
	}
	a.serve(mod.(*App), ctx.Slogger())
	a.app.warnOfSpoofing(ctx)
	return nil
}

// serve makes the server over the app's service.
func (a *API) serve(app *App, log *slog.Logger) {
	a.app = app
	service := func() *core.Service {
		s, _ := app.service()
		return s
	}
	a.server = adminapi.New(adminapi.Config{Service: service, Clock: app.clock, Secure: secure, ClientIP: clientIP, Logger: log})
	if a.Dashboard == nil || *a.Dashboard {
		a.dashboard = dashboard.New(dashboard.Config{Service: service, Secure: secure, ClientIP: clientIP, Logger: log})
	}
}

// apiBase is what the paths of the API begin with.
const apiBase = "/functions/v1"

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	handler := a.handler(r.URL.Path)
	if handler == nil {
		return next.ServeHTTP(w, r)
	}
	_, _ = a.app.await(r.Context()) // the handler answers for a store that does not open
	handler.ServeHTTP(w, r)
	return nil
}

// handler returns who answers for a path, nil for the handlers behind.
func (a *API) handler(path string) http.Handler {
	switch {
	case path == apiBase || strings.HasPrefix(path, apiBase+"/"):
		return a.server
	case a.dashboard != nil && path == strings.TrimSuffix(dashboard.Base, "/"):
		return http.RedirectHandler(dashboard.Base, http.StatusPermanentRedirect)
	case a.dashboard != nil && strings.HasPrefix(path, dashboard.Base):
		return a.dashboard
	}
	return nil
}

// secure reports whether a request came over HTTPS, or a trusted proxy says that
// it did. A chain of proxies may have made a list of the schemes: the first is the
// client's.
func secure(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	proto, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Proto"), ",")
	return trusted && strings.EqualFold(strings.TrimSpace(proto), "https")
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*API)(nil)
	_ caddyhttp.MiddlewareHandler = (*API)(nil)
)
