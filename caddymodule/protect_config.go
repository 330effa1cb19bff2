package caddymodule

import (
	"encoding/json"
	"net"
	"net/http"
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
)

// protectGrace is the maximum time for requests in progress when the process stops.
const protectGrace = 10 * time.Second

// config returns the Caddy config of the command protect.
func (p *protection) config() *caddy.Config {
	cfg := &caddy.Config{
		Admin: &caddy.AdminConfig{Listen: p.admin, Config: &caddy.ConfigSettings{Persist: new(bool)}},
		Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{
			caddy.DefaultLoggerName: {
				BaseLog: caddy.BaseLog{Level: "WARN"},
				// it warns that the CA is not installed, which is intended
				Exclude: []string{"pki.ca.local"},
			},
		}},
		AppsRaw: caddy.ModuleMap{
			appName: caddyconfig.JSON(&App{StoreRaw: caddyconfig.JSONModuleObject(
				&BadgerStore{Dir: p.storeDir()}, "module", "badger", nil)}, nil),
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
			"gateway": p.server(p.from, handlerJSON(new(Gateway), "limitkeeper"), handlerJSON(p.proxy(), "reverse_proxy")),
			"api":     p.apiServer(),
		},
	}
}

// apiServer returns the server of the REST API and the dashboard. "/" redirects to the dashboard.
func (p *protection) apiServer() *caddyhttp.Server {
	s := p.server(p.api, handlerJSON(new(API), apiDirective), handlerJSON(&caddyhttp.StaticResponse{StatusCode: "404"}, "static_response"))
	root := caddyhttp.Route{
		MatcherSetsRaw: caddyhttp.RawMatcherSets{{"path": caddyconfig.JSON(caddyhttp.MatchPath{"/"}, nil)}},
		HandlersRaw: []json.RawMessage{handlerJSON(&caddyhttp.StaticResponse{
			StatusCode: "302", Headers: http.Header{"Location": {dashboard.Base}}}, "static_response")},
		Terminal: true,
	}
	s.Routes = append(caddyhttp.RouteList{root}, s.Routes...)
	return s
}

// handlerJSON returns the JSON of a handler in a route.
func handlerJSON(h any, name string) json.RawMessage {
	return caddyconfig.JSONModuleObject(h, "handler", name, nil)
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
