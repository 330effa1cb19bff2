package caddymodule

import (
	"net/http"

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

// fromTrustedProxy reports whether a request comes from one of the trusted_proxies.
func fromTrustedProxy(r *http.Request) bool {
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	return trusted
}

// warnOfSpoofing logs the first request that shows that clients can spoof their address, once for each server.
// Without `trusted_proxies_strict` Caddy takes the leftmost address in X-Forwarded-For, and most proxies append to
// the addresses that a client sends.
func (a *App) warnOfSpoofing(r *http.Request) {
	if !fromTrustedProxy(r) {
		return
	}
	srv, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || srv.TrustedProxiesStrict > 0 {
		return
	}
	type spoofing struct{ srv *caddyhttp.Server }
	if _, warned := a.warned.LoadOrStore(spoofing{srv}, true); warned {
		return
	}
	a.log.Warn("clients can spoof their address in the history, for the allowed_ips of keys and in the sign-in limits: "+
		"add trusted_proxies_strict to trusted_proxies, unless every trusted proxy replaces the header",
		zap.String("server", srv.Name()), zap.Strings("client_ip_headers", srv.ClientIPHeaders))
}

// warnOfPlainHTTP logs the first request to the REST API or the dashboard over plain HTTP, once for each server that cannot
// get other requests.
func (a *App) warnOfPlainHTTP(r *http.Request) {
	if r.TLS != nil || fromTrustedProxy(r) {
		return
	}
	srv, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || !plainHTTP(srv) {
		return
	}
	type plain struct{ srv *caddyhttp.Server }
	if _, warned := a.warned.LoadOrStore(plain{srv}, true); warned {
		return
	}
	a.log.Warn("the REST API and the dashboard answer over HTTPS only, and this server has no TLS: use an address with https, "+
		"or name the proxy that ends TLS in trusted_proxies", zap.Strings("listen", srv.Listen))
}

// plainHTTP reports whether a server gets requests over plain HTTP only.
func plainHTTP(srv *caddyhttp.Server) bool {
	if len(srv.TLSConnPolicies) > 0 {
		return false
	}
	if h := srv.AutoHTTPS; h != nil && (h.Disabled || len(h.Skip) > 0) {
		return true
	}
	for _, listen := range srv.Listen {
		address, err := caddy.ParseNetworkAddress(listen)
		if err != nil || address.StartPort != caddyhttp.DefaultHTTPPort {
			return false
		}
	}
	return len(srv.Listen) > 0
}
