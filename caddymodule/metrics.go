package caddymodule

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/limitkeeper/limitkeeper/core"
)

// The bounds of what is shown on its own: so many accounts, and so many combinations
// of plan and outcome of each. Accounts and plans are made through the API, so their
// number is not the operator's: what comes later is counted under "other". The bound
// of plans is each account's own, so that none can use up another's.
const (
	maxAccounts  = 1000
	maxLabelSets = 100
)

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
	sets map[string]int // how many of seen an account has
}

// decisionLabels are the labels of a decision.
type decisionLabels struct{ account, plan, outcome string }

func newMetrics() *metricSet {
	const namespace = "limitkeeper"
	return &metricSet{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "decisions_total",
			Help: "Decisions on requests of end users, by the gateway and by /validate. Outcome repeated: allowed by the answer to an earlier request with the same id.",
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
		sets: map[string]int{},
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

// gateway counts a request that took a gateway so long to decide on.
func (m *metricSet) gateway(c *gatewayCounters, v *requestState, took time.Duration) {
	c.of(m, v.account, v.outcome).Inc()
	m.latency.Observe(took.Seconds())
}

// gatewayCounters are the counters of one gateway by outcome, those that it has met.
type gatewayCounters struct {
	met atomic.Pointer[map[string]prometheus.Counter]
}

// of returns the counter of an outcome. Looking it up among those of all gateways takes
// longer than all else that is done here.
func (c *gatewayCounters) of(m *metricSet, account, outcome string) prometheus.Counter {
	met := c.met.Load()
	if met != nil {
		if n, ok := (*met)[outcome]; ok {
			return n
		}
	}
	more := map[string]prometheus.Counter{outcome: m.requests.WithLabelValues(account, outcome)}
	if met != nil {
		maps.Copy(more, *met)
	}
	c.met.Store(&more) // one that is met at the same moment is only met again
	return more[outcome]
}

// decided counts a decision.
func (m *metricSet) decided(names *accountNames, d *core.Decision) {
	l := decisionLabels{account: d.Account, outcome: string(d.Outcome)}
	if d.Repeated {
		l.outcome = outcomeRepeated
	}
	if d.Plan != nil {
		l.plan = d.Plan.Name
	}
	m.mu.RLock()
	c, ok := m.seen[l]
	full := !ok && m.fullLocked(l.account)
	m.mu.RUnlock()
	switch {
	case ok:
	case full:
		c = m.others(l)
	default:
		c = m.counter(l, names.name(l.account))
	}
	c.Inc()
}

// fullLocked reports whether nothing more of the account is shown on its own.
func (m *metricSet) fullLocked(account string) bool {
	n, ok := m.sets[account]
	return n >= maxLabelSets || !ok && len(m.sets) >= maxAccounts
}

// others returns the counter of those that are not shown on their own.
func (m *metricSet) others(l decisionLabels) prometheus.Counter {
	return m.decisions.WithLabelValues(other, other, l.outcome)
}

// counter returns the counter of labels that were not seen before, of the account
// with the name. The caller has looked that up, because it may take as long as the
// store does: every decision waits for the lock that is held here.
func (m *metricSet) counter(l decisionLabels, name string) prometheus.Counter {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.seen[l]; ok { // since decided looked
		return c
	}
	if m.fullLocked(l.account) {
		return m.others(l)
	}
	c := m.decisions.WithLabelValues(name, l.plan, l.outcome)
	m.seen[l] = c
	m.sets[l.account]++
	return c
}

// accountNames knows the names of accounts, which never change, by their ids.
type accountNames struct {
	service *core.Service
	asking  sync.Mutex // held while the store is asked, so that one does it for all

	mu   sync.Mutex // never held while the store is asked
	byID map[string]string
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
	if name, ok := n.known(id); ok || id == "" {
		return name
	}
	n.asking.Lock()
	defer n.asking.Unlock()
	if name, ok := n.known(id); ok { // since another asked
		return name
	}
	for p := (core.Page{Number: 1, Size: 1000}); ; p.Number++ {
		accounts, _, err := n.service.Accounts(context.Background(), p)
		for _, a := range accounts {
			n.learn(a)
		}
		if name, ok := n.known(id); ok {
			return name
		}
		if err != nil || len(accounts) < p.Size {
			return id
		}
	}
}

// known returns the name of an account that was met before.
func (n *accountNames) known(id string) (name string, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok = n.byID[id]
	return name, ok
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
	describeClock(ch)
	describeBadger(ch)
	describeRedis(ch)
}

// Collect implements [prometheus.Collector]. Until the store is open there is
// nothing to show.
func (s *serviceStats) Collect(ch chan<- prometheus.Metric) {
	l := s.app.live.Load()
	if l == nil {
		return
	}
	collectClock(l.clock, ch)
	collectBadger(l.store, ch)
	collectRedis(l.store, ch)
	st := l.service.Stats()
	ch <- prometheus.MustNewConstMetric(cacheHits, prometheus.CounterValue, float64(st.CacheHits))
	ch <- prometheus.MustNewConstMetric(cacheMisses, prometheus.CounterValue, float64(st.CacheMisses))
	ch <- prometheus.MustNewConstMetric(cachedKeys, prometheus.GaugeValue, float64(st.CachedKeys))
}
