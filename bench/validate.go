package main

import (
	"context"
	"fmt"
)

// Names of the subjects of the part validate.
const (
	staticRespond = "Caddy respond, same headers and body"
	validateName  = "Limitkeeper /validate, " // followed by its store
	ratelimitName = "envoyproxy/ratelimit with Redis"
)

// noUpstream stands where a configuration needs an upstream that gets no request.
const noUpstream = "127.0.0.1:1"

// runValidate measures POST /validate, beside a static answer and ratelimit.
func runValidate(ctx context.Context, h *harness) error {
	var all []*limitkeeper
	redis, err := h.onRedis(ctx, "redis-validate")
	if err != nil {
		return err
	}
	for _, store := range []storeConfig{onBadger("process"), onBadger("power"), redis} {
		l, err := h.startLimitkeeper(ctx, store, noUpstream)
		if err != nil {
			return err
		}
		all = append(all, l)
	}
	plain, err := h.validateSubjects(ctx, all, false)
	if err != nil {
		return err
	}
	ratelimit, err := h.ratelimitSubject(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", ratelimitName, err)
	}
	ratelimit.bases = []string{staticRespond}
	if err := h.measureGroup(ctx, "HTTP, 32 connections", append(plain, ratelimit), 32); err != nil {
		return err
	}
	secure, err := h.validateSubjects(ctx, all[:1], true)
	if err != nil {
		return err
	}
	return h.measureGroup(ctx, "HTTPS, 32 connections", secure, 32)
}

// validateSubjects returns the static answer, and /validate of each Limitkeeper.
func (h *harness) validateSubjects(ctx context.Context, all []*limitkeeper, tls bool) ([]*subject, error) {
	static, err := h.staticSubject(ctx, all[0], tls)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", staticRespond, err)
	}
	list := []*subject{static}
	for _, l := range all {
		addr := l.plainAPI
		if tls {
			addr = l.api
		}
		s, err := h.newSubject(validateName+l.store.title, l.validateTarget(addr, tls, l.keys), l.processes()...)
		if err != nil {
			return nil, err
		}
		s.bases, s.counted = []string{staticRespond}, l.counted
		list = append(list, s)
	}
	return list, nil
}

// staticSubject starts a Caddy that gives one answer of /validate to every request, with
// the same header fields and body.
func (h *harness) staticSubject(ctx context.Context, l *limitkeeper, tls bool) (*subject, error) {
	a, err := l.validateTarget(l.plainAPI, false, l.keys[:1]).fetch()
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	t := l.validateTarget(addr, tls, h.fakeKeys())
	t.want, t.whole = a.body, true
	site := "http://" + addr
	if tls {
		site = "localhost:" + port(addr)
	}
	p, err := h.startCaddy("caddy-respond-"+port(addr), fmt.Sprintf(siteConfig, site, staticAnswer(a)))
	if err != nil {
		return nil, err
	}
	if err := p.ready(ctx, func() error { _, err := t.fetch(); return err }); err != nil {
		return nil, err
	}
	return h.newSubject(staticRespond, t, p)
}

// validateTarget returns the requests for decisions on keys, to an address.
func (l *limitkeeper) validateTarget(addr string, tls bool, keys []string) *target {
	t := &target{addr: addr, tls: tls, want: `{"success":true,"details":{"current_usage":`}
	host := addr
	if tls {
		host = "localhost:" + port(addr)
	}
	fields := "Authorization: Bearer " + l.ownerKey + "\r\nX-Forwarded-Proto: https\r\n"
	for _, k := range keys {
		t.requests = append(t.requests, post(host, "/functions/v1/validate", fields, fmt.Sprintf(`{"api_key":"%s","endpoint":"/v1/items","method":"GET"}`, k)))
	}
	return t
}
