package caddymodule

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// samples returns the values of all samples of Limitkeeper, by name and labels.
func (s *server) samples() map[string]float64 {
	s.T.Helper()
	values := map[string]float64{}
	for line := range strings.Lines(s.Scrape()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if value == "" {
			name, value, _ = strings.Cut(strings.TrimSpace(line), " ")
		} else {
			name += "}"
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil && strings.HasPrefix(name, namespace+"_") {
			values[name] = n
		}
	}
	return values
}

// families returns the names and types of all metrics of Limitkeeper in a scrape.
func families(scrape string) map[string]string {
	found := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (limitkeeper_\w+) (\w+)$`).FindAllStringSubmatch(scrape, -1) {
		found[m[1]] = m[2]
	}
	return found
}

// docs/api.md lists each metric of a real scrape on either store, and no other. When this fails, an operator alerts on a
// metric that does not exist, or does not find one that does.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, m := range regexp.MustCompile("`(limitkeeper_\\w+)").FindAllStringSubmatch(section, -1) {
		listed = append(listed, m[1])
	}
	s := newServer(t)
	for _, faulty := range []*prometheus.CounterVec{metrics.unknownMeters, metrics.unknownPlaceholders} {
		faulty.WithLabelValues("default", "tokens") // such a metric is missing until the first fault
	}
	for _, settled := range []*prometheus.CounterVec{metrics.settled, metrics.overrun} {
		settled.WithLabelValues("default", "Basic", "tokens") // until the first hold is settled
	}
	metrics.unknownUsage.WithLabelValues("default")
	scraped := map[string]string{}
	for _, store := range []string{"redis " + redistest.Start(t).Addr(), "badger %dir/data"} {
		s.Start("store "+store, caddytest.Both("respond ok"))
		ten := s.Tenant("default", 5)
		s.Get("/", "X-API-Key: "+ten.Secret)
		maps.Copy(scraped, families(s.Scrape()))
	}
	slices.Sort(listed)
	if got := slices.Sorted(maps.Keys(scraped)); !slices.Equal(got, listed) {
		t.Errorf("the metrics are\n%s\nand docs/api.md lists\n%s", strings.Join(got, "\n"), strings.Join(listed, "\n"))
	}
}

// A reload decreases no counter, whatever settings it changes. When this fails, every rate has a gap at each reload.
func TestReloadKeepsCounters(t *testing.T) {
	s := newServer(t)
	site := caddytest.Both("respond ok")
	s.Start("store badger %dir/data", site)
	ten := s.Tenant("default", 100)
	request := func() {
		s.Get("/", "X-API-Key: "+ten.Secret)
		s.Validate(ten.Owner, ten.Secret)
	}
	request()
	for i, options := range []string{"key_cache 7", "history_retention 1d", "service_rate_limit off"} {
		before, types := s.samples(), families(s.Scrape())
		s.Start("store badger %dir/data {\ndurability power\n}\n"+options, site)
		after := s.samples()
		checked := 0
		for name, n := range before {
			family, _, _ := strings.Cut(name, "{")
			kind := types[family]
			if base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(family, ""); kind == "" {
				kind = types[base]
			}
			if kind == "gauge" {
				continue
			}
			checked++
			if now, ok := after[name]; !ok || now < n {
				t.Errorf("reload %d: %s: got %v (exists: %t) after %v", i, name, now, ok, n)
			}
		}
		if checked < 50 {
			t.Errorf("reload %d: looked at %d counters, want all", i, checked)
		}
		request()
		const decided = `limitkeeper_decisions_total{account="default",outcome="allowed",plan="Größe M"}`
		if got := s.samples()[decided] - after[decided]; got != 2 {
			t.Errorf("reload %d: two decisions count as %v", i, got)
		}
	}
}

// Two sites, each with a gateway, count in the same series. When this fails, the second gateway of a config has no
// metrics, or Caddy refuses the config.
func TestTwoSitesShareMetrics(t *testing.T) {
	s := newServer(t)
	port := freeport.Take(t)
	s.Must(s.Load(s.Config("store memory", caddytest.Both("respond ok")) + "\nhttp://127.0.0.1:" + port + " {\n" + caddytest.Both("respond ok") + "\n}"))
	ten := s.Tenant("default", 100)
	before := s.samples()
	s.Get("/", "X-API-Key: "+ten.Secret)
	second := *s.Server
	second.Port = port
	for range 2 {
		second.Get("/", "X-API-Key: "+ten.Secret)
	}
	after := s.samples()
	for _, name := range []string{
		`limitkeeper_gateway_requests_total{account="default",outcome="allowed"}`,
		`limitkeeper_decisions_total{account="default",outcome="allowed",plan="Größe M"}`,
		`limitkeeper_gateway_decision_seconds_count`,
	} {
		if got := after[name] - before[name]; got != 3 {
			t.Errorf("%s: got %v for three requests at two sites", name, got)
		}
	}
	if log := s.Logged(); strings.Contains(log, "some metrics are missing") {
		t.Error("a metric was not registered")
	}
}

// A config with another store shows the figures of that store, and the counters of the process go on.
func TestMetricsOfTwoStores(t *testing.T) {
	s := newServer(t)
	site := caddytest.Both("respond ok")
	const requests = 40
	s.Start("store badger %dir/first", site)
	ten := s.Tenant("default", 1000)
	for range requests {
		s.Get("/", "X-API-Key: "+ten.Secret)
	}
	first := s.samples()
	s.Start("store badger %dir/second", site)
	second := s.samples()
	for _, name := range []string{"limitkeeper_eventlog_bytes", "limitkeeper_counter_cache_entries", "limitkeeper_cached_keys"} {
		if first[name] <= second[name] {
			t.Errorf("%s: got %v in the used store and %v in the empty one", name, first[name], second[name])
		}
	}
	for _, name := range []string{"limitkeeper_gateway_decision_seconds_count", "limitkeeper_eventlog_batch_events_sum",
		"limitkeeper_eventlog_write_seconds_count", "limitkeeper_checkpoint_seconds_count"} {
		if first[name] > second[name] {
			t.Errorf("%s: got %v after the change of the store, and %v before", name, second[name], first[name])
		}
	}
	s.Start("store badger %dir/first", site)
	if got := s.samples()["limitkeeper_eventlog_bytes"]; got < first["limitkeeper_eventlog_bytes"] {
		t.Errorf("the first store again: got %v bytes, want at least %v", got, first["limitkeeper_eventlog_bytes"])
	}
	if log := s.Logged(); strings.Contains(log, "some metrics are missing") {
		t.Error("a metric was not registered")
	}
}

// Requests change the metrics of group commits, syncs, the counter cache and the throttle. The loss of the directory changes the metrics of the
// state of the store.
func TestMetricsOfTheStore(t *testing.T) {
	s := newServer(t)
	s.Start("store badger %dir/data {\ndurability power\n}\nservice_rate_limit 3/1h", caddytest.Both("respond ok"))
	ten := s.Tenant("default", 100)
	_, another, err := s.Service().CreateOwnerKey(t.Context(), ten.Account, core.OwnerKeySpec{Name: "for later"})
	s.Must(err)
	before := s.samples()
	const requests = 20
	for range requests {
		s.Get("/", "X-API-Key: "+ten.Secret)
	}
	for range 5 { // two are refused by the throttle
		s.Validate(ten.Owner, ten.Secret)
	}
	after := s.samples()
	for name, want := range map[string]float64{
		"limitkeeper_validate_decision_seconds_count": 3,
		"limitkeeper_throttled_requests_total":        2,
		"limitkeeper_counter_cache_misses_total":      2, // of the key and of its user
		"limitkeeper_counter_cache_hits_total":        2 * (requests + 3),
	} {
		if got := after[name] - before[name]; got != want {
			t.Errorf("%s grew by %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"limitkeeper_eventlog_batch_events_sum", "limitkeeper_eventlog_write_seconds_count", "limitkeeper_eventlog_sync_seconds_count"} {
		if got := after[name] - before[name]; got < requests { // the requests are sequential, so no two share a group commit
			t.Errorf("%s grew by %v, want at least %d", name, got, requests)
		}
	}
	for _, name := range []string{"limitkeeper_eventlog_segments", "limitkeeper_eventlog_max_bytes", "limitkeeper_disk_free_bytes", "limitkeeper_disk_size_bytes",
		"limitkeeper_disk_min_free_bytes", "limitkeeper_counter_cache_entries", "limitkeeper_checkpoint_success_timestamp_seconds", "limitkeeper_store_up"} {
		if after[name] <= 0 {
			t.Errorf("%s: got %v, want more than 0", name, after[name])
		}
	}
	s.Must(os.Rename(filepath.Join(s.Dir, "data"), filepath.Join(s.Dir, "away")))
	caddytest.Eventually(t, "the fault of the store", func() bool { return s.samples()[`limitkeeper_store_fault{kind="damaged"}`] == 1 })
	s.Get("/", "X-API-Key: "+ten.Secret)
	s.Send("GET", APIBase+"/plans", "", "Authorization: Bearer "+another, "X-Forwarded-Proto: https")
	s.Send("GET", APIBase+"/health", "") // does not count
	gone := s.samples()
	if gone["limitkeeper_store_up"] != 0 || gone[`limitkeeper_store_fault{kind="full"}`] != 0 {
		t.Errorf("without its directory the store is up: %v, full: %v; want 0", gone["limitkeeper_store_up"], gone[`limitkeeper_store_fault{kind="full"}`])
	}
	const errors = `limitkeeper_store_errors_total{kind="damaged"}`
	if got := gone[errors] - after[errors]; got != 2 {
		t.Errorf("%s grew by %v for a request at the gateway and one to the REST API, want 2", errors, got)
	}
	s.Must(os.Rename(filepath.Join(s.Dir, "away"), filepath.Join(s.Dir, "data"))) // so that the store can be closed
}

// The metrics of Redis show calls and calls without an answer.
func TestMetricsOfRedisCalls(t *testing.T) {
	redis := redistest.Start(t)
	s := newServer(t)
	s.Start("store redis "+redis.Addr(), caddytest.Both("respond ok"))
	ten := s.Tenant("default", 100)
	before := s.samples()
	for range 10 {
		s.Get("/", "X-API-Key: "+ten.Secret)
	}
	after := s.samples()
	if got := after["limitkeeper_redis_call_seconds_count"] - before["limitkeeper_redis_call_seconds_count"]; got < 10 {
		t.Errorf("limitkeeper_redis_call_seconds_count grew by %v for 10 requests", got)
	}
	caddytest.Eventually(t, "a call without an answer", func() bool { // once the store knows that Redis is away, it makes no call
		redis.Pause()
		s.Get("/", "X-API-Key: "+ten.Secret)
		redis.Resume()
		return s.samples()["limitkeeper_redis_call_errors_total"] > after["limitkeeper_redis_call_errors_total"]
	})
	redis.Kill()
	caddytest.Eventually(t, "the store is unavailable", func() bool {
		s.Get("/", "X-API-Key: "+ten.Secret)
		now := s.samples()
		return now[`limitkeeper_store_errors_total{kind="unavailable"}`] > after[`limitkeeper_store_errors_total{kind="unavailable"}`] &&
			now[`limitkeeper_store_fault{kind="unavailable"}`] == 1 && now["limitkeeper_store_up"] == 0
	})
	redis.Restart()
}

// An error of a request is no fault of the store.
func TestFaultKind(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errManyIDs, ""},
		{errNotOpen, faultUnavailable},
		{fmt.Errorf("reading: %w", os.ErrPermission), faultUnavailable},
	} {
		if got := faultKind(tc.err); got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.err, got, tc.want)
		}
	}
}
