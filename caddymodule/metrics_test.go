package caddymodule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// The metrics have labels for accounts, plans and outcomes, survive a reload, and never contain a secret, a
// key or a user.
func TestMetrics(t *testing.T) {
	s := newServer(t)
	site := caddytest.Both("respond ok")
	s.Start("store memory", site)
	ten := s.Tenant("default", 2)
	before := s.Scrape()
	for range 3 {
		s.Get("/", "X-API-Key: "+ten.Secret)
	}
	s.Get("/", "X-API-Key: lk_user_unknown")
	s.Get("/", "X-API-Key: nonsense")
	s.Get("/")
	s.Validate(ten.Owner, ten.Secret)
	s.Start("store memory\nkey_cache 7", site)
	after := s.Scrape()
	for labels, want := range map[string]int{
		`limitkeeper_decisions_total{account="default",outcome="allowed",plan="Größe M"}`: 2,
		`limitkeeper_decisions_total{account="default",outcome="denied",plan="Größe M"}`:  2,
		`limitkeeper_decisions_total{account="default",outcome="unknown",plan=""}`:        1,
		`limitkeeper_decisions_total{account="default",outcome="malformed",plan=""}`:      1,
		`limitkeeper_gateway_requests_total{account="default",outcome="allowed"}`:         2,
		`limitkeeper_gateway_requests_total{account="default",outcome="missing"}`:         1,
		`limitkeeper_gateway_decision_seconds_count`:                                      6,
	} {
		if got := caddytest.Sample(after, labels) - caddytest.Sample(before, labels); got != want {
			t.Errorf("%s grew by %d, want %d", labels, got, want)
		}
	}
	if caddytest.Sample(after, "limitkeeper_cached_keys") != 1 || caddytest.Sample(after, "limitkeeper_cache_hits_total") < 1 {
		t.Errorf("the metrics of the cache are missing in\n%s", after)
	}
	for what, secret := range map[string]string{"key": ten.Secret, "owner's key": ten.Owner, "key's id": ten.Key.ID, "user": "Ann", "account's id": ten.Account} {
		if strings.Contains(after, secret) {
			t.Errorf("the %s is in the metrics", what)
		}
	}
}

// series returns the values of the decisions by "account outcome plan".
func (m *metricSet) series(t *testing.T) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.decisions)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("got %d families (%v), want one", len(families), err)
	}
	got := map[string]float64{}
	for _, series := range families[0].Metric {
		var labels []string
		for _, l := range series.Label {
			labels = append(labels, l.GetValue())
		}
		got[strings.Join(labels, " ")] = series.Counter.GetValue()
	}
	return got
}

// The number of series is bounded for any number of plans.
func TestMetricsAreBounded(t *testing.T) {
	m := newMetrics()
	names := &accountNames{service: service.New(memstore.New(), service.Config{})}
	names.add(&core.Account{ID: "acct_1", Name: "one"})
	for i := range maxLabelSets + 500 {
		for range 2 {
			m.decided(names, &service.Decision{Account: "acct_1", Outcome: service.Allowed, Plan: &core.Plan{Name: fmt.Sprint(i)}})
		}
	}
	got := m.series(t)
	if len(got) != maxLabelSets+1 {
		t.Errorf("got %d series, want %d and one for the others", len(got), maxLabelSets)
	}
	if got["other allowed other"] != 1000 || got["one allowed 7"] != 2 {
		t.Errorf("got %v others and %v of a plan, want 1000 and 2", got["other allowed other"], got["one allowed 7"])
	}
}

// The name of an unknown account is read from the store.
func TestAccountNames(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	names := &accountNames{service: svc}
	a, _, _, err := svc.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{a.ID: "acme", "acct_unknown": "acct_unknown", "": ""} {
		if got := names.name(id); got != want {
			t.Errorf("%q: got %q, want %q", id, got, want)
		}
	}
}

// The metrics show the size of the event log and the bytes that are not checkpointed.
func TestMetricsOfTheEventLog(t *testing.T) {
	s := newServer(t)
	s.Start("store badger %dir/data", caddytest.Both("respond ok"))
	before := s.Scrape()
	ten := s.Tenant("default", 5)
	s.Get("/", "X-API-Key: "+ten.Secret)
	after := s.Scrape()
	for _, name := range []string{"limitkeeper_eventlog_bytes", "limitkeeper_eventlog_pending_bytes"} {
		if caddytest.Sample(after, name) <= caddytest.Sample(before, name) {
			t.Errorf("%s: got %d before and %d after a request, want more", name, caddytest.Sample(before, name), caddytest.Sample(after, name))
		}
	}
	for _, name := range []string{"limitkeeper_eventlog_checkpoints_total", "limitkeeper_eventlog_waits_total"} {
		if !strings.Contains(after, "\n"+name+" ") {
			t.Errorf("%s is missing in\n%s", name, after)
		}
	}
}

// The metrics show how many masters of Redis are away, and whether this node receives the changes of other nodes.
func TestMetricsOfRedis(t *testing.T) {
	redis := redistest.Start(t)
	s := newServer(t)
	s.Start("store redis "+redis.Addr(), caddytest.Both("respond ok"))
	await := func(masters, away, watching int) {
		t.Helper()
		var got string
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			got = s.Scrape()
			if caddytest.Sample(got, "limitkeeper_redis_masters") == masters && caddytest.Sample(got, "limitkeeper_redis_masters_away") == away &&
				caddytest.Sample(got, "limitkeeper_redis_watching") == watching {
				return
			}
		}
		t.Errorf("want %d masters, %d away, watching %d; got\n%s", masters, away, watching, got)
	}
	await(1, 0, 1)
	redis.Kill()
	await(1, 1, 0)
	redis.Restart()
	await(1, 0, 1)
}
