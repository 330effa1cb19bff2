package main

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
)

// The Go program that is measured as ratelimit, and its version.
const (
	ratelimitModule  = "github.com/envoyproxy/ratelimit"
	ratelimitCommand = "/src/service_cmd"
	ratelimitVersion = "v1.4.1-0.20260122083618-3fb702589d36"
)

// ratelimitRules is the configuration of ratelimit: one counter for each key and month,
// with a limit far above the load.
const ratelimitRules = `domain: bench
descriptors:
  - key: api_key
    rate_limit:
      unit: month
      requests_per_unit: 4294967295
`

// ratelimitBody returns the body of a request that counts for a key.
func ratelimitBody(key string) string {
	return `{"domain":"bench","descriptors":[{"entries":[{"key":"api_key","value":"` + key + `"}]}]}`
}

// ratelimitAllowed matches the beginning of an answer of ratelimit that allows. Its JSON
// has a space after the colon or none, from build to build.
var ratelimitAllowed = regexp.MustCompile(`^\{"overallCode": ?"OK"`)

// buildRatelimit builds the program unless it is there, and returns its path.
func (h *harness) buildRatelimit(ctx context.Context) (string, error) {
	dir, err := filepath.Abs(h.o.work)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(ratelimitCommand))
	if moduleVersion(path, ratelimitModule) != ratelimitVersion {
		h.logf("building %s for this and later runs", ratelimitModule)
		if _, err := output(ctx, []string{"GOBIN=" + dir}, "go", "install", ratelimitModule+ratelimitCommand+"@"+ratelimitVersion); err != nil {
			return "", err
		}
	}
	h.machine.Programs["ratelimit"] = ratelimitVersion
	return path, nil
}

// ratelimitSubject starts ratelimit over Redis. Redis is on a Unix socket and writes
// nothing to disk. ratelimit gathers its writes for 150 µs, as its manual advises, and
// keeps no statistics. The CPU time is that of both programs.
func (h *harness) ratelimitSubject(ctx context.Context) (*subject, error) {
	program, err := h.buildRatelimit(ctx)
	if err != nil {
		return nil, err
	}
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
	p, err := h.start("ratelimit", env, program)
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
	w, err := newWrk(h, "wrk-ratelimit", t)
	if err != nil {
		return nil, err
	}
	return &subject{name: ratelimitName, run: w.run, probe: t.probe, cpu: cpuOf([]*process{p, redis})}, nil
}
