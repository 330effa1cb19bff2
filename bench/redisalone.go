package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
)

// aloneCallers are how many decisions are under way at once.
var aloneCallers = []int{64, 256}

// redisAlone measures the store without HTTP beside redis-benchmark with the same script.
func redisAlone(ctx context.Context, l *lab, r *report) (err error) {
	if !l.o.wants(storeAlone) && !l.o.wants(benchOf) {
		return nil
	}
	server, err := l.startRedis(ctx, "redis-alone")
	if err != nil {
		return err
	}
	l.say("%s: making %d keys", storeAlone, aloneKeys)
	store, err := openRedisLoad(ctx, server.addr, aloneKeys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.store.Close()) }()
	if l.o.profile != "" {
		return l.profileAlone(ctx, store)
	}
	client, err := server.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	a := &alone{l: l, server: server, store: store, client: client}
	if a.ceiling, err = a.newCeiling(ctx); err != nil {
		return err
	}
	best, err := a.best(ctx)
	if err != nil {
		return err
	}
	for _, callers := range aloneCallers {
		group, err := a.subjects(ctx, callers, best)
		if err != nil {
			return err
		}
		for _, g := range l.wanted([]subjects{group}) {
			all, err := l.measure(ctx, g.subjects, callers)
			if err != nil {
				return err
			}
			r.add(g.name, all)
		}
	}
	return nil
}

// alone is the store that is measured without HTTP.
type alone struct {
	l       *lab
	server  *redisServer
	store   *redisLoad
	client  redisClient
	ceiling *ceiling
}

// newCeiling looks how the store asks for a decision on its last key, and has
// redis-benchmark ask likewise.
func (a *alone) newCeiling(ctx context.Context) (*ceiling, error) {
	last := len(a.store.keys) - 1
	call, err := a.server.watchCall(ctx, a.client, func() error { return a.store.decide(ctx, last) })
	if err != nil {
		return nil, err
	}
	return newCeiling(ctx, a.server.addr, a.client, call, strconv.FormatInt(a.store.keys[last].user, 10), len(a.store.keys))
}

// benchmark returns redis-benchmark with settings.
func (a *alone) benchmark(connections, pipeline int) *redisBenchmark {
	return &redisBenchmark{ceiling: a.ceiling, connections: connections, pipeline: pipeline, keys: len(a.store.keys)}
}

// best returns the settings with which redis-benchmark is the fastest.
func (a *alone) best(ctx context.Context) (best *redisBenchmark, err error) {
	for _, connections := range []int{1, 2, 8, 32} {
		for _, pipeline := range []int{16, 64, 256} {
			b := a.benchmark(connections, pipeline)
			for range 2 { // the first one finds out the rate
				if _, err := b.run(ctx, load{duration: a.l.o.warmup / 2}); err != nil {
					return nil, err
				}
			}
			a.l.say("%s %s: %.0f/s", benchOf, b.settings(), b.rate)
			if best == nil || b.rate > best.rate {
				best = b
			}
		}
	}
	return best, nil
}

// subjects returns the store with so many callers, redis-benchmark with as many requests
// under way on as many connections, and with its best settings.
func (a *alone) subjects(ctx context.Context, callers int, best *redisBenchmark) (g subjects, err error) {
	if _, err := a.store.run(ctx, load{connections: callers, duration: a.l.o.warmup}); err != nil {
		return g, err
	}
	connections, err := a.client.connectionsOf(ctx, "limitkeeper", "evalsha")
	if err != nil {
		return g, err
	}
	if connections == 0 {
		return g, errors.New("the store has no connection that a decision was asked for on")
	}
	same := a.benchmark(connections, max(1, callers/connections))
	g.name = fmt.Sprintf("the store alone, %s keys, %d callers", thousands(float64(len(a.store.keys))), callers)
	for _, s := range []*subject{
		{name: fmt.Sprintf("%s %s", benchOf, same.settings()), run: same.run, counted: a.ceiling.counted},
		{name: storeAlone, run: a.store.run, counted: a.store.counted},
		{name: fmt.Sprintf("%s %s, its best", benchOf, best.settings()), run: best.run, counted: a.ceiling.counted},
	} {
		s.cpu, s.probe = cpuOf([]int{a.server.process.pid()}), func() (int64, error) { return 0, nil }
		g.subjects = append(g.subjects, s)
	}
	return g, nil
}

// profileAlone writes profiles of the store without HTTP, under load.
func (l *lab) profileAlone(ctx context.Context, store *redisLoad) error {
	if err := os.MkdirAll(l.o.profile, 0o755); err != nil {
		return err
	}
	for _, callers := range aloneCallers {
		if _, err := store.run(ctx, load{connections: callers, duration: l.o.warmup}); err != nil {
			return err
		}
		path := filepath.Join(l.o.profile, fmt.Sprintf("%s-%d.pprof", storeAlone, callers))
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return errors.Join(err, f.Close())
		}
		s, err := store.run(ctx, load{connections: callers, duration: l.o.duration})
		pprof.StopCPUProfile()
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		l.say("%s with %d callers, %.0f/s: go tool pprof -top %s", storeAlone, callers, s.rate(), path)
	}
	return nil
}
