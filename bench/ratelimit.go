package main

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"regexp"
)

// ratelimitRules is the configuration of ratelimit: one counter for each key and month,
// with a limit far above the load.
//
//go:embed ratelimit.yaml
var ratelimitRules string

// ratelimitBody returns the body of a request that counts for a key.
func ratelimitBody(key string) string {
	return `{"domain":"bench","descriptors":[{"entries":[{"key":"api_key","value":"` + key + `"}]}]}`
}

// ratelimitAllowed matches the beginning of an answer of ratelimit that allows. Its JSON
// has a space after the colon or none, from build to build.
var ratelimitAllowed = regexp.MustCompile(`^\{"overallCode": ?"OK"`)

// ratelimitSubject starts ratelimit over Redis. Redis is on a Unix socket and writes
// nothing to disk. ratelimit gathers its writes for 150 µs, as its manual advises, and
// keeps no statistics. The CPU time is that of both programs.
func (h *harness) ratelimitSubject(ctx context.Context) (*subject, error) {
	redis, socket, err := h.startRedis(ctx, "redis-ratelimit")
	if err != nil {
		return nil, err
	}
	if _, err := h.file("rules/bench/config/bench.yaml", ratelimitRules); err != nil {
		return nil, err
	}
	addrs, err := freeAddrs(3)
	if err != nil {
		return nil, err
	}
	env := []string{"HOST=127.0.0.1", "PORT=" + port(addrs[0]), "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port(addrs[1]),
		"DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port(addrs[2]), "USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=error",
		"RUNTIME_ROOT=" + filepath.Join(h.dir, "rules"), "RUNTIME_SUBDIRECTORY=bench",
		"RUNTIME_WATCH_ROOT=false", "REDIS_SOCKET_TYPE=unix", "REDIS_URL=" + socket, "REDIS_PIPELINE_WINDOW=150us"}
	p, err := h.start("ratelimit", env, h.program("service_cmd"))
	if err != nil {
		return nil, err
	}
	t := &target{addr: addrs[0], want: `{"overallCode":`}
	for _, k := range h.fakeKeys() {
		t.requests = append(t.requests, post(addrs[0], "/json", "", ratelimitBody(k)))
	}
	// ratelimit reads its rules in the background and refuses requests until then.
	err = p.ready(ctx, func() error {
		a, err := t.fetch()
		if err != nil {
			return err
		}
		if t.want = ratelimitAllowed.FindString(a.body); t.want == "" {
			t.want = `{"overallCode":`
			return fmt.Errorf("it does not allow the first request: %s", a.body)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h.newSubject(ratelimitName, t, p, redis)
}
