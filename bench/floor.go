package main

import (
	"context"
	"fmt"
	"strings"
)

// floor is Caddy that answers with what ours has answered once.
type floor struct {
	process *process
	addr    string
	host    string
	tls     bool
	body    string
}

// startFloor starts it with an answer of ours, header and body, over TLS or without.
func (l *lab) startFloor(ctx context.Context, o *ours, tls bool) (*floor, error) {
	a, err := o.validateTarget(o.api, true).ask()
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	f := &floor{addr: addr, host: addr, tls: tls, body: a.body}
	site := "http://" + addr
	if tls {
		f.host = "localhost:" + port(addr)
		site = f.host
	}
	p, err := l.startCaddy("caddy-respond-"+port(addr), fmt.Sprintf(plainConfig, site, respond(a)))
	if err != nil {
		return nil, err
	}
	f.process = p
	return f, p.ready(ctx, func() error { _, err := f.target(o, o.secrets[:1]).ask(); return err })
}

// target returns the floor as what is asked for decisions on keys, as ours is.
func (f *floor) target(o *ours, keys []string) *target {
	t := &target{addr: f.addr, tls: f.tls, want: f.body, whole: true}
	for _, k := range keys {
		t.requests = append(t.requests, o.validate(f.host, k))
	}
	return t
}

// http1 returns the subject of the floor over HTTP/1.1.
func (f *floor) http1(l *lab, o *ours) (*subject, error) {
	t := f.target(o, l.madeUpKeys())
	w, err := newWrk(l, "wrk-respond-"+port(f.addr), t)
	if err != nil {
		return nil, err
	}
	return &subject{name: respondFloor, run: w.run, probe: t.probe, cpu: cpuOf([]int{f.process.pid()})}, nil
}

// respond returns the directives that give an answer, header and body.
func respond(a answer) string {
	var b strings.Builder
	for _, name := range headerNames(a.header) {
		fmt.Fprintf(&b, "header %s `%s`\n\t", name, a.header.Get(name))
	}
	fmt.Fprintf(&b, "respond `%s`", a.body)
	return b.String()
}
