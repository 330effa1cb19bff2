package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// upstreamIdle is how many idle connections to the upstream a proxy may keep, for
// every proxy the same: more than there are clients, so that none dials under load.
const upstreamIdle = 512

// reverseProxy returns the directive of a Caddyfile for an upstream.
func reverseProxy(upstream string) string {
	return fmt.Sprintf("reverse_proxy %s {\n\t\ttransport http {\n\t\t\tkeepalive_idle_conns_per_host %d\n\t\t}\n\t}", upstream, upstreamIdle)
}

// plainConfig is the Caddyfile of Caddy without our directives: its address and what
// the site does.
const plainConfig = `{
	admin off
	persist_config off
	auto_https disable_redirects
	skip_install_trust
	default_bind 127.0.0.1
}

%s {
	%s
}
`

// forwardAuth returns the directives that ask another server about every request, and
// then proxy.
func forwardAuth(auth, upstream string) string {
	return fmt.Sprintf("forward_auth %s {\n\t\turi /verify\n\t\ttransport http {\n\t\t\tkeepalive_idle_conns_per_host %d\n\t\t}\n\t}\n\t%s",
		auth, upstreamIdle, reverseProxy(upstream))
}

// startCaddy starts our program with a Caddyfile. It keeps what it keeps in the
// directory of the lab.
func (l *lab) startCaddy(name, config string, env ...string) (*process, error) {
	path, err := l.file(filepath.Join(name, "Caddyfile"), config)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	env = append(env, "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	return l.start(name, env, l.limit, "run", "--config", path, "--adapter", "caddyfile")
}

// startPlain starts Caddy with what one site over HTTP does, and returns its address.
func (l *lab) startPlain(ctx context.Context, name, directives string) (*process, string, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, "", err
	}
	p, err := l.startCaddy(name, fmt.Sprintf(plainConfig, "http://"+addr, directives))
	if err != nil {
		return nil, "", err
	}
	return p, addr, p.ready(ctx, accepts(addr))
}
