package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
)

// The names of what the part validate measures.
const (
	respondFloor = "Caddy respond, the same answer"
	validateOf   = "Limitkeeper /validate, " // and where it keeps what it counts
	validatePath = "/functions/v1/validate"
	nowhere      = "127.0.0.1:1" // an upstream that nothing is sent to
	overTLS      = ", over TLS"
	ratelimitOf  = "envoyproxy/ratelimit with Redis"
	fourWindows  = ", four windows"
)

// allowedBy finds the beginning of an answer of ratelimit that allows.
var allowedBy = regexp.MustCompile(`^\{"overallCode": ?"OK"`)

// runValidate measures what it costs to ask for a decision.
func runValidate(ctx context.Context, l *lab) error {
	defer l.stopAll()
	groups, err := l.validateGroups(ctx)
	if err != nil {
		return err
	}
	connections := l.o.connections
	if len(connections) == 0 {
		connections = []int{32}
	}
	r := l.newReport("validate", "Decisions that are asked for, on loopback",
		"Caddy", "ratelimit", "Redis", "wrk", "h2load")
	for _, c := range connections {
		for _, g := range groups {
			all, err := l.measure(ctx, g.subjects, c)
			if err != nil {
				return err
			}
			r.add(fmt.Sprintf("%s, %d connections", g.name, c), all)
		}
	}
	return r.write(os.Stdout, l.o.out)
}

// subjects that are measured in turn, over the same protocol.
type subjects struct {
	name     string
	subjects []*subject
}

// validateGroups starts what is to be measured.
func (l *lab) validateGroups(ctx context.Context) ([]subjects, error) {
	var all []*ours
	for _, durability := range []string{"process", "power"} {
		o, err := l.startOurs(ctx, onBadger(durability), nowhere)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	floor, err := l.startFloor(ctx, all[0], true)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", respondFloor, err)
	}
	groups := []subjects{{name: "HTTP/1.1 over TLS"}, {name: "HTTP/2"}, {name: "HTTP/1.1"}}
	groups[0].subjects, err = l.overHTTP1(floor, all)
	if err != nil {
		return nil, err
	}
	if groups[1].subjects, err = l.overHTTP2(floor, all); err != nil {
		return nil, err
	}
	groups[2].subjects, err = l.besideRatelimit(ctx, all[0])
	return l.wanted(groups), err
}

// wanted returns the groups with the subjects that are to be measured. The first of a
// group is what the ratios of the others are to.
func (l *lab) wanted(groups []subjects) []subjects {
	for i := range groups {
		groups[i].subjects = slices.DeleteFunc(groups[i].subjects, func(s *subject) bool { return !l.o.wants(s.name) })
		for _, s := range groups[i].subjects {
			s.base = groups[i].subjects[0].name
		}
	}
	return slices.DeleteFunc(groups, func(g subjects) bool { return len(g.subjects) == 0 })
}

// validateBody returns the body of a request for a decision.
func validateBody(key string) string {
	return fmt.Sprintf(`{"api_key":"%s","endpoint":"/v1/items","method":"GET"}`, key)
}

// validate returns a complete request for a decision on a key.
func (o *ours) validate(host, key string) string {
	return post(host, validatePath, "Authorization: Bearer "+o.owner+"\r\nX-Forwarded-Proto: https\r\n", validateBody(key))
}

// validateTarget returns the target of ours on an address of the REST API.
func (o *ours) validateTarget(addr string, tls bool) *target {
	t := &target{addr: addr, tls: tls, want: `{"success":true,"details":{"current_usage":`}
	host := addr
	if tls {
		host = "localhost:" + port(addr)
	}
	for _, k := range o.secrets {
		t.requests = append(t.requests, o.validate(host, k))
	}
	return t
}

// http1 returns the subject of ours over HTTP/1.1.
func (l *lab) http1(name string, o *ours, addr string, tls bool) (*subject, error) {
	t := o.validateTarget(addr, tls)
	w, err := newWrk(l, "wrk-"+port(addr), t)
	if err != nil {
		return nil, err
	}
	return &subject{name: name, run: w.run, probe: t.probe, cpu: o.cpu(), counted: o.counted}, nil
}

// overHTTP1 returns the floor and ours over TLS.
func (l *lab) overHTTP1(f *floor, all []*ours) ([]*subject, error) {
	s, err := f.http1(l, all[0])
	if err != nil {
		return nil, err
	}
	list := []*subject{s}
	for _, o := range all {
		s, err := l.http1(validateOf+o.kept.called, o, o.api, true)
		if err != nil {
			return nil, err
		}
		s.adds = true
		list = append(list, s)
	}
	return list, nil
}

// overHTTP2 returns the same over HTTP/2.
func (l *lab) overHTTP2(f *floor, all []*ours) ([]*subject, error) {
	s, err := l.http2(respondFloor, f.target(all[0], all[0].secrets[:1]), all[0])
	if err != nil {
		return nil, err
	}
	s.cpu = cpuOf([]int{f.process.pid()})
	list := []*subject{s}
	for _, o := range all {
		if s, err = l.oursHTTP2(o); err != nil {
			return nil, err
		}
		s.adds = true
		list = append(list, s)
	}
	return list, nil
}

// oursHTTP2 returns the subject of ours over HTTP/2.
func (l *lab) oursHTTP2(o *ours) (*subject, error) {
	s, err := l.http2(validateOf+o.kept.called, o.validateTarget(o.api, true), o)
	if err == nil {
		s.cpu, s.counted = o.cpu(), o.counted
	}
	return s, err
}

// http2 returns the subject of a target over HTTP/2, which is asked with the first key
// of ours. Whose processor time counts is to be filled in.
func (l *lab) http2(name string, t *target, o *ours) (*subject, error) {
	h, err := newH2load(l, "h2load-"+port(t.addr), t, validatePath, validateBody(o.secrets[0]),
		"content-type: application/json", "authorization: Bearer "+o.owner)
	if err != nil {
		return nil, err
	}
	return &subject{name: name, run: h.run, streams: streams,
		probe: func() (int64, error) { a, err := t.ask(); return int64(len(a.body)), err }}, nil
}

// besideRatelimit returns ratelimit, the floor, and ours over HTTP/1.1 without TLS as
// ratelimit has it, and with.
func (l *lab) besideRatelimit(ctx context.Context, o *ours) ([]*subject, error) {
	var list []*subject
	if l.wantsAny(ratelimitOf, ratelimitOf+fourWindows) {
		var err error
		if list, err = l.ratelimitSubjects(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", ratelimitOf, err)
		}
	}
	if l.o.wants(respondFloor) {
		f, err := l.startFloor(ctx, o, false)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", respondFloor, err)
		}
		s, err := f.http1(l, o)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	plain, err := l.http1(validateOf+o.kept.called, o, o.plainAPI, false)
	if err != nil {
		return nil, err
	}
	secure, err := l.http1(validateOf+o.kept.called+overTLS, o, o.api, true)
	return append(list, plain, secure), err
}
