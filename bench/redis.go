package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
)

// The names of what the part redis measures.
const (
	gatewayKept   = "Limitkeeper, " // and where it keeps what it counts
	onRedisCalled = "on Redis"
	onLogCalled   = "on Redis, appendonly"
	storeAlone    = "redisstore"
	benchOf       = "redis-benchmark" // and its settings
)

// runRedis measures what decisions on Redis cost: the store alone, in front of an
// upstream, and asked for.
func runRedis(ctx context.Context, l *lab) error {
	r := l.newReport("redis", "Decisions on Redis, on loopback", "Caddy", "ratelimit", "Redis", "wrk", "h2load")
	for _, part := range []func(context.Context, *lab, *report) error{redisAlone, redisGateway, redisValidate, redisApart} {
		err := part(ctx, l, r)
		l.stopAll()
		if err != nil {
			return err
		}
	}
	switch {
	case l.o.profile != "":
		return nil
	case len(r.Groups) == 0:
		return fmt.Errorf("-only %v leaves nothing to measure", l.o.only)
	}
	return r.write(os.Stdout, l.o.out)
}

// redisGateway measures the gateway on Redis beside the same one on disk.
func redisGateway(ctx context.Context, l *lab, r *report) error {
	if !l.wantsAny(gatewayKept+onBadger("process").called, gatewayKept+onRedisCalled, gatewayKept+onLogCalled) {
		return nil
	}
	group, err := l.redisGatewaySubjects(ctx)
	if err != nil {
		return err
	}
	connections := l.o.connections
	if len(connections) == 0 {
		connections = []int{32, 128}
	}
	for _, c := range connections {
		if l.o.profile != "" {
			if err := l.profile(ctx, group.subjects, c); err != nil {
				return err
			}
			continue
		}
		if err := l.measureGroups(ctx, r, []subjects{group}, c); err != nil {
			return err
		}
	}
	return nil
}

// measureGroups measures groups, and adds them to a report.
func (l *lab) measureGroups(ctx context.Context, r *report, groups []subjects, connections int) error {
	for _, g := range l.wanted(groups) {
		all, err := l.measure(ctx, g.subjects, connections)
		if err != nil {
			return err
		}
		r.add(fmt.Sprintf("%s, %d connections", g.name, connections), all)
	}
	return nil
}

// redisGatewaySubjects starts the gateways, those that are wanted.
func (l *lab) redisGatewaySubjects(ctx context.Context) (g subjects, err error) {
	g.name = "the gateway"
	upstream, _, err := l.startUpstream(ctx, "upstream")
	if err != nil {
		return g, err
	}
	for _, m := range []struct {
		called string
		kept   func() (kept, error)
	}{
		{onBadger("process").called, func() (kept, error) { return onBadger("process"), nil }},
		{onRedisCalled, func() (kept, error) { return l.overTCP(ctx, onRedisCalled, "redis-gateway") }},
		{onLogCalled, func() (kept, error) {
			return l.overTCP(ctx, onLogCalled, "redis-log", "--appendonly", "yes", "--appendfsync", "everysec")
		}},
	} {
		if !l.o.wants(gatewayKept + m.called) {
			continue
		}
		k, err := m.kept()
		if err != nil {
			return g, err
		}
		s, err := l.gatewaySubject(ctx, gatewayKept+m.called, k, upstream)
		if err != nil {
			return g, fmt.Errorf("%s: %w", gatewayKept+m.called, err)
		}
		s.adds = len(g.subjects) > 0
		g.subjects = append(g.subjects, s)
	}
	return g, nil
}

// overTCP starts a server, and returns a store on it.
func (l *lab) overTCP(ctx context.Context, called, name string, options ...string) (kept, error) {
	s, err := l.startRedis(ctx, name, options...)
	if err != nil {
		return kept{}, err
	}
	return onRedis(called, s, s.addr), nil
}

// redisValidate measures decisions that are asked for, beside ratelimit with Redis, and
// over HTTP/2 beside ours on disk.
func redisValidate(ctx context.Context, l *lab, r *report) error {
	return l.measureAsked(ctx, r, []string{ratelimitOf, ratelimitOf + fourWindows, validateOf + onRedisCalled + overTLS, validateOf + onBadger("process").called},
		func() ([]subjects, error) {
			redis, err := l.startOursOnSocket(ctx)
			if err != nil {
				return nil, err
			}
			beside, err := l.besideRatelimit(ctx, redis)
			if err != nil {
				return nil, err
			}
			disk, err := l.startOurs(ctx, onBadger("process"), nowhere)
			if err != nil {
				return nil, err
			}
			two := make([]*subject, 2)
			for i, o := range []*ours{disk, redis} {
				if two[i], err = l.oursHTTP2(o); err != nil {
					return nil, err
				}
			}
			two[1].adds = true
			return []subjects{{"HTTP/1.1", beside}, {"HTTP/2", two}}, nil
		})
}

// redisApart measures decisions that are asked for beside ratelimit while wrk takes
// nothing from the programs that it loads: they have one core, and it has another.
func redisApart(ctx context.Context, l *lab, r *report) error {
	if runtime.NumCPU() <= coreOfLoad {
		l.say("there is no second core for wrk")
		return nil
	}
	l.apart = true
	defer func() { l.apart = false }()
	return l.measureAsked(ctx, r, []string{ratelimitOf, ratelimitOf + fourWindows}, func() ([]subjects, error) {
		redis, err := l.startOursOnSocket(ctx)
		if err != nil {
			return nil, err
		}
		beside, err := l.besideRatelimit(ctx, redis)
		return []subjects{{"HTTP/1.1, on one core, wrk on another", beside}}, err
	})
}

// measureAsked starts groups of programs and measures decisions that they are asked for,
// when one with one of the names is wanted.
func (l *lab) measureAsked(ctx context.Context, r *report, names []string, start func() ([]subjects, error)) error {
	if l.o.profile != "" || !l.wantsAny(names...) {
		return nil
	}
	groups, err := start()
	if err != nil {
		return err
	}
	connections := l.o.connections
	if len(connections) == 0 {
		connections = []int{32}
	}
	for _, c := range connections {
		if err := l.measureGroups(ctx, r, groups, c); err != nil {
			return err
		}
	}
	return nil
}

// startOursOnSocket starts ours with a Redis to which it speaks over a socket, as
// ratelimit does to its own.
func (l *lab) startOursOnSocket(ctx context.Context) (*ours, error) {
	server, err := l.startRedis(ctx, "redis-validate")
	if err != nil {
		return nil, err
	}
	return l.startOurs(ctx, onRedis(onRedisCalled, server, server.path), nowhere)
}
