package caddymodule

import (
	"context"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxLabelSets is how many combinations of account, plan and outcome are shown
// each on its own. Accounts and plans are made through the API, so their number is
// not the operator's: what comes later is counted under "other".
const maxLabelSets = 1000

// other stands for the accounts and plans that are not shown on their own.
const other = "other"

// metrics are the figures of this process. They are made once and registered again
// with every config, so that a reload does not set them back. No label ever holds
// a key or a user.
var metrics = newMetrics()

type metricSet struct {
	decisions *prometheus.CounterVec
	requests  *prometheus.CounterVec
	latency   prometheus.Histogram

	mu   sync.RWMutex
	seen map[decisionLabels]prometheus.Counter
}

// decisionLabels are the labels of a decision.
type decisionLabels struct{ account, plan, outcome string }

func newMetrics() *metricSet {
	const namespace = "limitkeeper"
	return &metricSet{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "decisions_total",
			Help: "Decisions on requests of end users, by the gateway and by /validate.",
		}, []string{"account", "plan", "outcome"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: "gateway", Name: "requests_total",
			Help: "Requests that reached a gateway. The outcomes beside those of a decision: missing (no key), unavailable (no store), error.",
		}, []string{"account", "outcome"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: "gateway", Name: "decision_seconds",
			Help:    "How long the gateway took to decide on a request.",
			Buckets: []float64{.00001, .000025, .0001, .00025, .001, .0025, .01, .1, 1},
		}),
		seen: map[decisionLabels]prometheus.Counter{},
	}
}

// register registers the metrics, and the figures of the app's service, in the
// registry of a config.
func (m *metricSet) register(ctx caddy.Context, a *App) {
	registry := ctx.GetMetricsRegistry()
	if registry == nil {
		return // a context without a config, as tests have it
	}
	for _, c := range []prometheus.Collector{m.decisions, m.requests, m.latency, &serviceStats{app: a}} {
		if err := registry.Register(c); err != nil {
			ctx.Logger().Warn("metrics are not available: " + err.Error())
		}
	}
}

// gateway counts a request that a gateway has decided on since start.
func (m *metricSet) gateway(v *verdict, start time.Time) {
	m.requests.WithLabelValues(v.account, v.outcome).Inc()
	m.latency.Observe(time.Since(start).Seconds())
}

// decided counts a decision.
func (m *metricSet) decided(names *accountNames, d *core.Decision) {
	l := decisionLabels{account: d.Account, outcome: string(d.Outcome)}
	if d.Plan != nil {
		l.plan = d.Plan.Name
	}
	m.mu.RLock()
	c, ok := m.seen[l]
	m.mu.RUnlock()
	if !ok {
		c = m.counter(names, l)
	}
	c.Inc()
}

// counter returns the counter of labels that were not seen before.
func (m *metricSet) counter(names *accountNames, l decisionLabels) prometheus.Counter {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.seen) >= maxLabelSets {
		return m.decisions.WithLabelValues(other, other, l.outcome)
	}
	c := m.decisions.WithLabelValues(names.name(l.account), l.plan, l.outcome)
	m.seen[l] = c
	return c
}

// accountNames knows the names of accounts, which never change, by their ids.
type accountNames struct {
	service *core.Service
	mu      sync.Mutex
	byID    map[string]string
}

func newAccountNames(s *core.Service) *accountNames {
	return &accountNames{service: s, byID: map[string]string{}}
}

// learn remembers the name of an account.
func (n *accountNames) learn(a *core.Account) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byID[a.ID] = a.Name
}

// name returns the name of the account with the id. It asks the store for those
// that it has not met; an account that cannot be found is shown as its id.
func (n *accountNames) name(id string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name, ok := n.byID[id]; ok || id == "" {
		return name
	}
	for p := (core.Page{Number: 1, Size: 1000}); ; p.Number++ {
		accounts, _, err := n.service.Accounts(context.Background(), p)
		for _, a := range accounts {
			n.byID[a.ID] = a.Name
		}
		if name, ok := n.byID[id]; ok {
			return name
		}
		if err != nil || len(accounts) < p.Size {
			return id
		}
	}
}

// serviceStats shows the figures of the app's service.
type serviceStats struct{ app *App }

var (
	cacheHits = prometheus.NewDesc("limitkeeper_cache_hits_total",
		"Look-ups of keys, users and plans that were answered from memory.", nil, nil)
	cacheMisses = prometheus.NewDesc("limitkeeper_cache_misses_total",
		"Look-ups of keys, users and plans that asked the store.", nil, nil)
	cachedKeys = prometheus.NewDesc("limitkeeper_cached_keys", "Keys in memory.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (*serviceStats) Describe(ch chan<- *prometheus.Desc) {
	ch <- cacheHits
	ch <- cacheMisses
	ch <- cachedKeys
}

// Collect implements [prometheus.Collector]. Until the store is open there is
// nothing to show.
func (s *serviceStats) Collect(ch chan<- prometheus.Metric) {
	service, err := s.app.service()
	if err != nil {
		return
	}
	st := service.Stats()
	ch <- prometheus.MustNewConstMetric(cacheHits, prometheus.CounterValue, float64(st.CacheHits))
	ch <- prometheus.MustNewConstMetric(cacheMisses, prometheus.CounterValue, float64(st.CacheMisses))
	ch <- prometheus.MustNewConstMetric(cachedKeys, prometheus.GaugeValue, float64(st.CachedKeys))
}
