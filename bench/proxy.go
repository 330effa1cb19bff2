package main

import (
	"context"
	"fmt"
	"os"
	"slices"
)

// The names of what the part proxy measures.
const (
	plainCaddy  = "Caddy reverse_proxy"
	gatewayOf   = "Limitkeeper, durability " // and which
	authCaddy   = "Caddy forward_auth"
	nginxLimit  = "nginx limit_req"
	haproxyLimt = "HAProxy stick table"
)

// runProxy measures what it costs to limit requests in front of an upstream.
func runProxy(ctx context.Context, l *lab) error {
	defer l.stopAll()
	subjects, err := l.proxySubjects(ctx)
	if err != nil {
		return err
	}
	connections := l.o.connections
	if len(connections) == 0 {
		connections = []int{32, 128}
	}
	r := l.newReport("proxy", "Requests through a proxy to the same upstream, over HTTP/1.1 on loopback",
		"Caddy", "nginx", "HAProxy", "wrk")
	for _, c := range connections {
		if l.o.profile != "" {
			if err := l.profile(ctx, subjects, c); err != nil {
				return err
			}
			continue
		}
		all, err := l.measure(ctx, subjects, c)
		if err != nil {
			return err
		}
		r.add(fmt.Sprintf("%d connections", c), all)
	}
	if l.o.profile != "" {
		return nil
	}
	return r.write(os.Stdout, l.o.out)
}

// proxySubjects starts what is to be measured.
func (l *lab) proxySubjects(ctx context.Context) (all []*subject, err error) {
	upstream, _, err := l.startUpstream(ctx, "upstream")
	if err != nil {
		return nil, err
	}
	makers := []struct {
		name string
		make func(name string) (*subject, error)
	}{
		{plainCaddy, func(name string) (*subject, error) {
			p, addr, err := l.startPlain(ctx, "caddy-plain", reverseProxy(upstream))
			return l.proxySubject(name, addr, err, p)
		}},
		{gatewayOf + "process", func(name string) (*subject, error) { return l.gatewaySubject(ctx, name, onBadger("process"), upstream) }},
		{gatewayOf + "power", func(name string) (*subject, error) { return l.gatewaySubject(ctx, name, onBadger("power"), upstream) }},
		{authCaddy, func(name string) (*subject, error) {
			auth, a, err := l.startUpstream(ctx, "auth")
			if err != nil {
				return nil, err
			}
			p, addr, err := l.startPlain(ctx, "caddy-forward-auth", forwardAuth(auth, upstream))
			return l.proxySubject(name, addr, err, p, a)
		}},
		{nginxLimit, func(name string) (*subject, error) {
			p, addr, err := l.startNginx(ctx, upstream)
			return l.proxySubject(name, addr, err, p)
		}},
		{haproxyLimt, func(name string) (*subject, error) {
			p, addr, err := l.startHAProxy(ctx, upstream)
			return l.proxySubject(name, addr, err, p)
		}},
	}
	for _, m := range makers {
		if !l.o.wants(m.name) {
			continue
		}
		s, err := m.make(m.name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("-only %v leaves nothing to measure", l.o.only)
	}
	for _, s := range all {
		s.base = all[0].name
	}
	return all, nil
}

// proxySubject returns the subject of a proxy that runs on an address, given how
// starting it went.
func (l *lab) proxySubject(name, addr string, err error, processes ...*process) (*subject, error) {
	if err != nil {
		return nil, err
	}
	return l.keyed(name, addr, l.madeUpKeys(), processes...)
}

// gatewaySubject starts our gateway, and returns its subject.
func (l *lab) gatewaySubject(ctx context.Context, name string, k kept, upstream string) (*subject, error) {
	o, err := l.startOurs(ctx, k, upstream)
	if err != nil {
		return nil, err
	}
	s, err := l.keyed(name, o.gateway, o.secrets)
	if err == nil {
		s.cpu = o.cpu()
		s.counted, s.adds = o.counted, true
		if l.o.profile != "" {
			s.debug = o.debug
		}
	}
	return s, err
}

// keyed returns a subject that is sent requests with keys.
func (l *lab) keyed(name, addr string, keys []string, processes ...*process) (*subject, error) {
	t := &target{addr: addr, want: upstreamBody, whole: true}
	for i, k := range keys {
		t.requests = append(t.requests, get(addr, fmt.Sprintf("/v1/items?page=%d", i%100), k))
	}
	w, err := newWrk(l, fmt.Sprintf("wrk-%s", port(addr)), t)
	if err != nil {
		return nil, err
	}
	return &subject{name: name, run: w.run, probe: t.probe, cpu: cpuOf(each(processes, (*process).pid))}, nil
}

// madeUpKeys returns as many keys as ours has, of the same length.
func (l *lab) madeUpKeys() []string {
	keys := slices.Repeat([]string{""}, l.o.keys)
	for i := range keys {
		keys[i] = fmt.Sprintf("lk_user_%032d", i)
	}
	return keys
}

// startUpstream starts a server that answers every request with the same, and returns
// its address.
func (l *lab) startUpstream(ctx context.Context, name string) (string, *process, error) {
	addr, err := freeAddr()
	if err != nil {
		return "", nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	p, err := l.start(name, nil, self, upstreamCommand, addr)
	if err != nil {
		return "", nil, err
	}
	return addr, p, p.ready(ctx, accepts(addr))
}
