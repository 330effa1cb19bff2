package main

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"strings"
)

// Names of the subjects of the part proxy.
const (
	plainCaddy   = "plain Caddy"
	plainAgain   = "plain Caddy, again"
	sameHeaders  = "Caddy, same headers"
	gatewayName  = "Limitkeeper gateway, " // followed by its store
	forwardCaddy = "Caddy forward_auth"
	nginxLimit   = "nginx limit_req"
)

// runProxy measures the gateway in front of an upstream, beside other proxies.
func runProxy(ctx context.Context, h *harness) error {
	subjects, err := h.proxySubjects(ctx)
	if err != nil {
		return err
	}
	for _, c := range []int{32, 128} {
		if err := h.measureGroup(ctx, fmt.Sprintf("%d connections", c), subjects, c); err != nil {
			return err
		}
	}
	return nil
}

// proxySubjects starts the upstream and the proxies.
func (h *harness) proxySubjects(ctx context.Context) ([]*subject, error) {
	upstream, _, err := h.startUpstream(ctx, "upstream")
	if err != nil {
		return nil, err
	}
	auth, authProcess, err := h.startUpstream(ctx, "auth")
	if err != nil {
		return nil, err
	}
	redis, err := h.onRedis(ctx, "redis-gateway")
	if err != nil {
		return nil, err
	}
	var gateways []*limitkeeper
	for _, store := range []storeConfig{onBadger("process"), withoutHeaders(onBadger("process")), onBadger("power"), redis} {
		l, err := h.startLimitkeeper(ctx, store, upstream)
		if err != nil {
			return nil, err
		}
		gateways = append(gateways, l)
	}
	steps := []func() (*subject, error){
		func() (*subject, error) { return h.caddySubject(ctx, plainCaddy, reverseProxy(upstream)) },
		func() (*subject, error) { return h.caddySubject(ctx, plainAgain, reverseProxy(upstream)) },
		func() (*subject, error) { return h.sameHeadersSubject(ctx, gateways[0], upstream) },
	}
	for _, l := range gateways {
		steps = append(steps, func() (*subject, error) { return h.gatewaySubject(l) })
	}
	steps = append(steps,
		// The CPU time includes that of the second server.
		func() (*subject, error) {
			return h.caddySubject(ctx, forwardCaddy, forwardAuth(auth, upstream), authProcess)
		},
		func() (*subject, error) { return h.nginxSubject(ctx, upstream) })
	var list []*subject
	for _, step := range steps {
		s, err := step()
		if err != nil {
			return nil, err
		}
		if s.name != plainCaddy {
			s.bases = append([]string{plainCaddy}, s.bases...)
		}
		list = append(list, s)
	}
	return list, nil
}

// caddySubject starts a Caddy with one site. The CPU time includes that of other processes.
func (h *harness) caddySubject(ctx context.Context, name, directives string, others ...*process) (*subject, error) {
	p, addr, err := h.startCaddySite(ctx, strings.NewReplacer(" ", "-", ",", "").Replace(name), directives)
	if err != nil {
		return nil, err
	}
	return h.newSubject(name, proxyTarget(addr, h.fakeKeys()), append(others, p)...)
}

// sameHeadersSubject starts a Caddy that adds the header fields of a gateway's answer.
func (h *harness) sameHeadersSubject(ctx context.Context, l *limitkeeper, upstream string) (*subject, error) {
	fromGateway, err := proxyTarget(l.gateway, l.keys).fetch()
	if err != nil {
		return nil, err
	}
	fromUpstream, err := proxyTarget(upstream, h.fakeKeys()).fetch()
	if err != nil {
		return nil, err
	}
	added := addedFields(fromGateway.header, fromUpstream.header)
	h.logf("the gateway adds %d header fields: %v", len(added), fieldNames(added))
	return h.caddySubject(ctx, sameHeaders, staticHeaders(added)+"\n\t"+reverseProxy(upstream))
}

// gatewaySubject returns the subject of a gateway of Limitkeeper.
func (h *harness) gatewaySubject(l *limitkeeper) (*subject, error) {
	s, err := h.newSubject(gatewayName+l.store.title, proxyTarget(l.gateway, l.keys), l.processes()...)
	if err != nil {
		return nil, err
	}
	s.counted = l.counted
	if l.store.headers != "none" { // it sends as many fields
		s.bases = []string{sameHeaders}
	}
	return s, nil
}

// proxyTarget returns the requests to a proxy, with one API key each.
func proxyTarget(addr string, keys []string) *target {
	t := &target{addr: addr, want: upstreamBody, whole: true}
	for i, k := range keys {
		t.requests = append(t.requests, get(addr, fmt.Sprintf("/v1/items?page=%d", i%100), k))
	}
	return t
}

// fakeKeys returns as many keys as Limitkeeper has, of the same length, for programs that
// accept any key.
func (h *harness) fakeKeys() []string {
	keys := make([]string, h.o.keys)
	for i := range keys {
		keys[i] = fmt.Sprintf("lk_user_%032d", i)
	}
	return keys
}

// nginxConfig limits requests by key and proxies. The rate is far above the load: nginx
// counts every request and refuses none. Parameters: [1] a directory, [2] the address,
// [3] the upstream, [4] the number of idle connections to the upstream.
//
//go:embed nginx.conf
var nginxConfig string

// nginxSubject starts nginx in front of an upstream.
func (h *harness) nginxSubject(ctx context.Context, upstream string) (*subject, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(h.dir, "nginx")
	path, err := h.file("nginx/nginx.conf", fmt.Sprintf(nginxConfig, dir, addr, upstream, idleUpstreamConnections))
	if err != nil {
		return nil, err
	}
	p, err := h.start("nginx", nil, "nginx", "-p", dir, "-c", path, "-e", "stderr")
	if err != nil {
		return nil, err
	}
	if err := p.ready(ctx, accepts("tcp", addr)); err != nil {
		return nil, err
	}
	return h.newSubject(nginxLimit, proxyTarget(addr, h.fakeKeys()), p)
}
