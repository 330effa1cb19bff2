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
	body    string
}

// startFloor starts it with an answer of ours, header and body.
func (l *lab) startFloor(ctx context.Context, o *ours) (*floor, error) {
	a, err := o.validateTarget(o.api, true).ask()
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p, err := l.startCaddy("caddy-respond", fmt.Sprintf(plainConfig, "localhost:"+port(addr), respond(a)))
	if err != nil {
		return nil, err
	}
	f := &floor{process: p, addr: addr, body: a.body}
	return f, p.ready(ctx, func() error { _, err := f.target(o, o.secrets[:1]).ask(); return err })
}

// target returns the floor as what is asked for decisions on keys, as ours is.
func (f *floor) target(o *ours, keys []string) *target {
	t := &target{addr: f.addr, tls: true, want: f.body, whole: true}
	for _, k := range keys {
		t.requests = append(t.requests, o.validate("localhost:"+port(f.addr), k))
	}
	return t
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
