package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// The Go program that is measured as ratelimit, and its version.
const (
	ratelimitModule  = "github.com/envoyproxy/ratelimit"
	ratelimitCommand = "/src/service_cmd"
	ratelimitVersion = "v1.4.1-0.20260122083618-3fb702589d36"
)

// ratelimitWindows are the windows in which Limitkeeper counts each request. ratelimit
// counts in those that it is asked for.
var ratelimitWindows = []string{"month", "day", "week", "year"}

// ratelimitRules returns its rules: a counter for each key and window, and limits that
// nobody exhausts.
func ratelimitRules() string {
	var b strings.Builder
	b.WriteString("domain: bench\ndescriptors:\n")
	for _, w := range ratelimitWindows {
		fmt.Fprintf(&b, "  - key: api_key_%[1]s\n    rate_limit:\n      unit: %[1]s\n      requests_per_unit: 4294967295\n", w)
	}
	return b.String()
}

// ratelimitBody returns the body of a request that counts for a key in windows.
func ratelimitBody(key string, windows []string) string {
	var list []string
	for _, w := range windows {
		list = append(list, fmt.Sprintf(`{"entries":[{"key":"api_key_%s","value":"%s"}]}`, w, key))
	}
	return `{"domain":"bench","descriptors":[` + strings.Join(list, ",") + `]}`
}

// buildRatelimit builds the program, once, and returns its path.
func (l *lab) buildRatelimit(ctx context.Context) (string, error) {
	dir, err := filepath.Abs(l.o.work)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(ratelimitCommand))
	if moduleVersion(path, ratelimitModule) != ratelimitVersion {
		l.say("building %s, once", ratelimitModule)
		if _, err := output(ctx, "", []string{"GOBIN=" + dir}, "go", "install", ratelimitModule+ratelimitCommand+"@"+ratelimitVersion); err != nil {
			return "", err
		}
	}
	l.machine.Programs["ratelimit"] = ratelimitVersion
	return path, nil
}

// startRatelimit starts Redis, which keeps nothing on disk, and ratelimit over it, and
// returns where ratelimit serves. It speaks to Redis over a socket and gathers its
// writes, as its manual advises for much load.
func (l *lab) startRatelimit(ctx context.Context) (addr string, both []*process, err error) {
	program, err := l.buildRatelimit(ctx)
	if err != nil {
		return "", nil, err
	}
	redis, err := l.startRedis(ctx, "redis")
	if err != nil {
		return "", nil, err
	}
	rules, err := l.file("rules/bench/config/bench.yaml", ratelimitRules())
	if err != nil {
		return "", nil, err
	}
	addrs, err := freeAddrs(3)
	if err != nil {
		return "", nil, err
	}
	env := []string{"HOST=127.0.0.1", "PORT=" + port(addrs[0]), "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port(addrs[1]),
		"DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port(addrs[2]), "USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=error",
		"RUNTIME_ROOT=" + filepath.Join(l.dir, "rules"), "RUNTIME_SUBDIRECTORY=" + filepath.Base(filepath.Dir(filepath.Dir(rules))),
		"RUNTIME_WATCH_ROOT=false", "REDIS_SOCKET_TYPE=unix", "REDIS_URL=" + redis.socket, "REDIS_PIPELINE_WINDOW=150us"}
	p, err := l.start("ratelimit", env, program)
	if err != nil {
		return "", nil, err
	}
	return addrs[0], []*process{p, redis.process}, p.ready(ctx, accepts(addrs[0]))
}

// ratelimitSubjects starts ratelimit, and returns its subjects: counting in the windows
// in which Limitkeeper counts, and in one.
func (l *lab) ratelimitSubjects(ctx context.Context) ([]*subject, error) {
	addr, both, err := l.startRatelimit(ctx)
	if err != nil {
		return nil, err
	}
	var list []*subject
	for _, m := range []struct {
		name    string
		windows []string
	}{{ratelimitOf + fourWindows, ratelimitWindows}, {ratelimitOf, ratelimitWindows[:1]}} {
		if !l.o.wants(m.name) {
			continue
		}
		t := &target{addr: addr, want: `{"overallCode":`}
		for _, k := range l.madeUpKeys() {
			t.requests = append(t.requests, post(addr, "/json", "", ratelimitBody(k, m.windows)))
		}
		w, err := ratelimitWrk(ctx, l, fmt.Sprint("wrk-ratelimit-", len(m.windows)), t, both[0])
		if err != nil {
			return nil, err
		}
		list = append(list, &subject{name: m.name, run: w.run, probe: t.probe, cpu: cpuOf(each(both, (*process).pid))})
	}
	return list, nil
}

// ratelimitWrk returns what loads a target of ratelimit, once it answers.
func ratelimitWrk(ctx context.Context, l *lab, name string, t *target, p *process) (*wrk, error) {
	// Its rules are read in the background.
	err := p.ready(ctx, func() error { _, err := t.ask(); return err })
	if err != nil {
		return nil, err
	}
	a, err := t.ask()
	if err != nil {
		return nil, err
	}
	// Whether there are spaces in its JSON depends on how it was built.
	if t.want = allowedBy.FindString(a.body); t.want == "" {
		return nil, errors.New("it does not allow the first request: " + a.body)
	}
	return newWrk(l, name, t)
}
