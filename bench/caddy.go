package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
)

// idleUpstreamConnections is the number of idle connections that every proxy may keep to
// the upstream. It exceeds the number of clients, so that no proxy dials under load.
const idleUpstreamConnections = 512

// reverseProxy returns the Caddyfile directive that proxies to an upstream.
func reverseProxy(upstream string) string {
	return fmt.Sprintf("reverse_proxy %s {\n\t\ttransport http {\n\t\t\tkeepalive_idle_conns_per_host %d\n\t\t}\n\t}", upstream, idleUpstreamConnections)
}

// forwardAuth returns the directives that ask a second server about each request, and
// then proxy.
func forwardAuth(auth, upstream string) string {
	return fmt.Sprintf("forward_auth %s {\n\t\turi /verify\n\t\ttransport http {\n\t\t\tkeepalive_idle_conns_per_host %d\n\t\t}\n\t}\n\t%s",
		auth, idleUpstreamConnections, reverseProxy(upstream))
}

// staticHeaders returns the directive that sets header fields to fixed values. One
// directive with all fields is the cheapest way that Caddy has.
func staticHeaders(h http.Header) string {
	var b strings.Builder
	b.WriteString("header {\n")
	for _, name := range fieldNames(h) {
		fmt.Fprintf(&b, "\t\t%s `%s`\n", name, strings.Join(h[name], ", "))
	}
	b.WriteString("\t}")
	return b.String()
}

// staticAnswer returns the directives that give the header and the body of an answer.
func staticAnswer(a answer) string {
	return staticHeaders(a.header) + "\n\trespond `" + a.body + "`"
}

// fieldNames returns the names of header fields in order, without the fields that every
// server sets.
func fieldNames(h http.Header) []string {
	var names []string
	for name := range h {
		if !slices.Contains([]string{"Content-Length", "Date", "Server", "Alt-Svc", "Connection", "Via"}, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// addedFields returns the fields of an answer that the upstream's answer lacks.
func addedFields(answer, upstream http.Header) http.Header {
	added := http.Header{}
	for _, name := range fieldNames(answer) {
		if _, found := upstream[name]; !found {
			added[name] = answer[name]
		}
	}
	return added
}

// siteConfig is the Caddyfile of a Caddy without our directives. Its parameters are the
// address of the site and the directives of the site.
//
//go:embed site.Caddyfile
var siteConfig string

// startCaddy starts the limitkeeper binary with a Caddyfile. Caddy keeps its data in a
// directory with the name of the process.
func (h *harness) startCaddy(name, config string, env ...string) (*process, error) {
	path, err := h.file(filepath.Join(name, "Caddyfile"), config)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	env = append(env, "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	return h.start(name, env, h.program("limitkeeper"), "run", "--config", path, "--adapter", "caddyfile")
}

// startCaddySite starts Caddy with one site over HTTP, and returns its address.
func (h *harness) startCaddySite(ctx context.Context, name, directives string) (*process, string, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, "", err
	}
	p, err := h.startCaddy(name, fmt.Sprintf(siteConfig, "http://"+addr, directives))
	if err != nil {
		return nil, "", err
	}
	return p, addr, p.ready(ctx, accepts("tcp", addr))
}
