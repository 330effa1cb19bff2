package caddymodule

import (
	"net/http"
	"reflect"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// clientIP returns the address of the client according to Caddy. Behind trusted proxies that is
// the address in the header of the proxies.
func clientIP(r *http.Request) string {
	ip, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	return ip
}

// warnOfSpoofing logs once for each server of the config that lets clients spoof their
// address. Without `trusted_proxies_strict` Caddy takes the leftmost address in
// X-Forwarded-For, and most proxies append to the addresses that a client sends.
func (a *App) warnOfSpoofing(ctx caddy.Context) {
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || srv.TrustedProxiesStrict > 0 || !trustsProxies(srv) {
		return
	}
	if _, warned := a.warned.LoadOrStore(srv, true); warned {
		return
	}
	a.log.Warn("clients can spoof their address in the history and in the sign-in limits: "+
		"add trusted_proxies_strict to trusted_proxies, unless every trusted proxy replaces the header",
		zap.String("server", srv.Name()), zap.Strings("client_ip_headers", srv.ClientIPHeaders))
}

// trustsProxies reports whether a server takes client addresses from proxy headers. Caddy clears
// TrustedProxiesRaw before it provisions handlers, so trustsProxies reads the loaded module.
func trustsProxies(srv *caddyhttp.Server) bool {
	f := reflect.ValueOf(srv).Elem().FieldByName("trustedProxies")
	return srv.TrustedProxiesUnix || f.IsValid() && !f.IsZero()
}
