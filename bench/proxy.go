package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Names of the subjects of the part proxy.
const (
	plainCaddy   = "plain Caddy"
	sameHeaders  = "Caddy, same headers"
	gatewayName  = "Limitkeeper gateway, " // followed by its store
	forwardCaddy = "Caddy forward_auth"
	nginxLimit   = "nginx limit_req"
)

// proxyConnections are the numbers of connections of the part proxy.
var proxyConnections = []int{32, 128}

// runProxy measures the gateway in front of an upstream, beside other proxies.
func runProxy(ctx context.Context, h *harness) error {
	defer h.stopAll()
	subjects, err := h.proxySubjects(ctx)
	if err != nil {
		return err
	}
	r := h.newReport("proxy", "Requests through a proxy to the same upstream, over HTTP/1.1", "Caddy", "nginx", "Redis", "wrk")
	for _, c := range proxyConnections {
		if err := h.measureGroup(ctx, r, fmt.Sprintf("%d connections", c), subjects, c); err != nil {
			return err
		}
	}
	return h.finish(os.Stdout, r)
}

// proxySubjects starts the upstream and the proxies. "Caddy, same headers" sends the
// header fields that the first gateway adds to the answers of the upstream.
func (h *harness) proxySubjects(ctx context.Context) ([]*subject, error) {
	upstream, _, err := h.startUpstream(ctx, "upstream")
	if err != nil {
		return nil, err
	}
	var list []*subject
	add := func(s *subject, err error, bases ...string) error {
		if err == nil {
			s.bases = bases
			list = append(list, s)
		}
		return err
	}
	p, addr, err := h.startCaddySite(ctx, "caddy-plain", reverseProxy(upstream))
	if err != nil {
		return nil, err
	}
	s, err := h.proxySubject(plainCaddy, addr, h.fakeKeys(), p)
	if err := add(s, err); err != nil {
		return nil, err
	}
	redis, err := h.onRedis(ctx, "redis-gateway")
	if err != nil {
		return nil, err
	}
	for i, store := range []storeConfig{onBadger("process"), withoutHeaders(onBadger("process")), onBadger("power"), redis} {
		l, err := h.startLimitkeeper(ctx, store, upstream)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			s, err := h.sameHeadersSubject(ctx, l, upstream)
			if err := add(s, err, plainCaddy); err != nil {
				return nil, err
			}
		}
		bases := []string{plainCaddy, sameHeaders}
		if store.headers == "none" { // it sends fewer fields
			bases = bases[:1]
		}
		s, err := h.proxySubject(gatewayName+store.title, l.gateway, l.keys, l.processes()...)
		if err := add(s, err, bases...); err != nil {
			return nil, err
		}
		s.counted = l.counted
	}
	s, err = h.forwardAuthSubject(ctx, upstream)
	if err := add(s, err, plainCaddy); err != nil {
		return nil, err
	}
	p, addr, err = h.startNginx(ctx, upstream)
	if err != nil {
		return nil, err
	}
	s, err = h.proxySubject(nginxLimit, addr, h.fakeKeys(), p)
	return list, add(s, err, plainCaddy)
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
	p, addr, err := h.startCaddySite(ctx, "caddy-same-headers", staticHeaders(added)+"\n\t"+reverseProxy(upstream))
	if err != nil {
		return nil, err
	}
	return h.proxySubject(sameHeaders, addr, h.fakeKeys(), p)
}

// forwardAuthSubject starts a Caddy that asks a second server about each request. The CPU
// time includes that of the second server.
func (h *harness) forwardAuthSubject(ctx context.Context, upstream string) (*subject, error) {
	authAddr, auth, err := h.startUpstream(ctx, "auth")
	if err != nil {
		return nil, err
	}
	p, addr, err := h.startCaddySite(ctx, "caddy-forward-auth", forwardAuth(authAddr, upstream))
	if err != nil {
		return nil, err
	}
	return h.proxySubject(forwardCaddy, addr, h.fakeKeys(), p, auth)
}

// proxySubject returns the subject of the proxy at an address.
func (h *harness) proxySubject(name, addr string, keys []string, processes ...*process) (*subject, error) {
	t := proxyTarget(addr, keys)
	w, err := newWrk(h, "wrk-"+port(addr), t)
	if err != nil {
		return nil, err
	}
	return &subject{name: name, run: w.run, probe: t.probe, cpu: cpuOf(processes)}, nil
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
const nginxConfig = `daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
error_log stderr error;
events {
	worker_connections 4096;
}
http {
	access_log off;
	keepalive_requests 1000000000;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	limit_req_zone $http_x_api_key zone=keys:32m rate=1000000r/s;
	upstream behind {
		server %[3]s;
		keepalive %[4]d;
		keepalive_requests 1000000000;
	}
	server {
		listen %[2]s;
		location / {
			limit_req zone=keys burst=1000000 nodelay;
			limit_req_status 429;
			proxy_pass http://behind;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`

// startNginx starts nginx in front of an upstream, and returns its address.
func (h *harness) startNginx(ctx context.Context, upstream string) (*process, string, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(h.dir, "nginx")
	path, err := h.file("nginx/nginx.conf", fmt.Sprintf(nginxConfig, dir, addr, upstream, idleUpstreamConnections))
	if err != nil {
		return nil, "", err
	}
	p, err := h.start("nginx", nil, "nginx", "-p", dir, "-c", path, "-e", "stderr")
	if err != nil {
		return nil, "", err
	}
	return p, addr, p.ready(ctx, accepts("tcp", addr))
}
