package caddymodule

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
)

// The bounds on the series of decisions. Tenants create accounts and plans through the API, so the number of label
// values is not under the operator's control. Decisions beyond a bound have the labels other.
const (
	// maxAccounts is the number of accounts with series of their own.
	maxAccounts = 1000
	// maxLabelSets is the number of series of one account, each a combination of plan and outcome. Each account has its
	// own bound, so one account cannot use up the series of another.
	maxLabelSets = 100
)

// other is the label of accounts and plans beyond the bounds.
const other = "other"

// metrics are the metrics of this process. They are created once and registered again with every config, so a reload
// does not reset them. No label contains a key or a user.
var metrics = newMetrics()

type metricSet struct {
	decisions *prometheus.CounterVec
	requests  *prometheus.CounterVec
	latency   prometheus.Histogram
	validate  prometheus.Histogram
	errors    *prometheus.CounterVec
	eventLog  eventLogMetrics
	redis     redisMetrics

	mu   sync.RWMutex
	seen map[decisionLabels]prometheus.Counter // the series of decisions that exist, except other
	sets map[string]int                        // number of series in seen, by account
}

// decisionLabels are the labels of a decision.
type decisionLabels struct{ account, plan, outcome string }

func newMetrics() *metricSet {
	m := &metricSet{
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
			Buckets: decisionBuckets,
		}),
		validate: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: "validate", Name: "decision_seconds",
			Help:    "How long POST /validate took to decide on a request, without reading its body and writing the answer.",
			Buckets: decisionBuckets,
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: "store", Name: "errors_total",
			Help: "Requests at gateways and to the REST API that failed because of a fault of the store, by the kind of the fault.",
		}, []string{"kind"}),
		eventLog: newEventLogMetrics(),
		redis:    newRedisMetrics(),
		seen:     map[decisionLabels]prometheus.Counter{},
		sets:     map[string]int{},
	}
	for _, kind := range faultKinds {
		m.errors.WithLabelValues(kind) // begins at 0, so that the first fault is an increase
	}
	return m
}

// namespace is the prefix of all metrics.
const namespace = "limitkeeper"

// decisionBuckets are the buckets of the time of a decision, in seconds.
var decisionBuckets = []float64{.00001, .000025, .0001, .00025, .001, .0025, .01, .1, 1}

// The kinds of faults of a store.
const (
	faultUnavailable = "unavailable" // the store does not answer, or any other fault
	faultFull        = "full"        // the disk is full
	faultDamaged     = "damaged"     // files are damaged or missing
	faultLost        = "lost"        // Redis has lost data
)

var faultKinds = []string{faultUnavailable, faultFull, faultDamaged, faultLost}

// faultKind returns the kind of the fault behind an error of the service, "" for an error of the request.
func faultKind(err error) string {
	switch {
	case err == nil:
		return ""
	case badgerstore.IsDamage(err):
		return faultDamaged
	case badgerstore.IsFull(err):
		return faultFull
	case errors.Is(err, redisstore.ErrLost):
		return faultLost
	}
	if code := core.ErrorCode(err); code != core.CodeUnavailable && code != core.CodeInternal {
		return ""
	}
	return faultUnavailable
}

// failed counts a request that failed, if the store is the cause.
func (m *metricSet) failed(err error) {
	if kind := faultKind(err); kind != "" {
		m.errors.WithLabelValues(kind).Inc()
	}
}

// validated observes the duration of a decision of POST /validate.
func (m *metricSet) validated(took time.Duration) { m.validate.Observe(took.Seconds()) }

// register registers the metrics of the process and of the app's service in the registry of a config.
func (m *metricSet) register(ctx caddy.Context, a *App) {
	registry := ctx.GetMetricsRegistry()
	if registry == nil {
		return // tests have a context without a config
	}
	for _, c := range []prometheus.Collector{m.decisions, m.requests, m.latency, m.validate, m.errors, eventsDropped, &serviceStats{app: a}} {
		if err := registry.Register(c); err != nil {
			ctx.Logger().Warn("some metrics are missing: " + err.Error())
		}
	}
}

// gateway counts a request at a gateway. took is the duration of the decision.
func (m *metricSet) gateway(c *gatewayCounters, v *requestState, took time.Duration) {
	c.of(m, v.account, v.outcome).Inc()
	m.latency.Observe(took.Seconds())
}

// gatewayCounters caches the counters of one gateway by outcome. The look-up of a counter in the metrics of all gateways
// takes longer than the rest of metricSet.gateway.
type gatewayCounters struct {
	byOutcome atomic.Pointer[map[string]prometheus.Counter]
}

// of returns the counter of an outcome.
func (c *gatewayCounters) of(m *metricSet, account, outcome string) prometheus.Counter {
	met := c.byOutcome.Load()
	if met != nil {
		if n, ok := (*met)[outcome]; ok {
			return n
		}
	}
	more := map[string]prometheus.Counter{outcome: m.requests.WithLabelValues(account, outcome)}
	if met != nil {
		maps.Copy(more, *met)
	}
	c.byOutcome.Store(&more) // a concurrent call may lose its counter here: the next call looks it up again
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

// fullLocked reports whether the account cannot have another series of its own.
func (m *metricSet) fullLocked(account string) bool {
	n, ok := m.sets[account]
	return n >= maxLabelSets || !ok && len(m.sets) >= maxAccounts
}

// others returns the counter for decisions beyond the bounds.
func (m *metricSet) others(l decisionLabels) prometheus.Counter {
	return m.decisions.WithLabelValues(other, other, l.outcome)
}

// counter returns the counter of new labels, and creates it. name is the name of the account. The caller looks up the name
// before the call, because the look-up may wait for the store, and every decision waits for the lock of counter.
func (m *metricSet) counter(l decisionLabels, name string) prometheus.Counter {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.seen[l]; ok { // another decision created it since the caller's look-up
		return c
	}
	if m.fullLocked(l.account) {
		return m.others(l)
	}
	c := m.decisions.WithLabelValues(name, core.MaskSecrets(l.plan), l.outcome)
	m.seen[l] = c
	m.sets[l.account]++
	return c
}

// accountNames caches the names of accounts by their ids, without secrets: customers choose the names. A name never changes.
type accountNames struct {
	service *core.Service
	reading sync.Mutex // held during a read of the store, so that only one goroutine reads

	mu   sync.Mutex // not held during a read of the store
	byID map[string]string
}

func newAccountNames(s *core.Service) *accountNames {
	return &accountNames{service: s, byID: map[string]string{}}
}

// add adds the name of an account.
func (n *accountNames) add(a *core.Account) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byID[a.ID] = core.MaskSecrets(a.Name)
}

// name returns the name of the account with an id. It reads unknown names from the store. An account that is not found has
// its id as name.
func (n *accountNames) name(id string) string {
	if name, ok := n.known(id); ok || id == "" {
		return name
	}
	n.reading.Lock()
	defer n.reading.Unlock()
	if name, ok := n.known(id); ok { // another goroutine has read the name meanwhile
		return name
	}
	for p := (core.Page{Number: 1, Size: 1000}); ; p.Number++ {
		accounts, _, err := n.service.Accounts(context.Background(), p)
		for _, a := range accounts {
			n.add(a)
		}
		if name, ok := n.known(id); ok {
			return name
		}
		if err != nil || len(accounts) < p.Size {
			return id
		}
	}
}

// known returns the name of an account, if it is in the cache.
func (n *accountNames) known(id string) (name string, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok = n.byID[id]
	return name, ok
}

// serviceStats collects the metrics of the app's service.
type serviceStats struct{ app *App }

var (
	cacheHits = prometheus.NewDesc("limitkeeper_cache_hits_total",
		"Look-ups of keys, users and plans that were answered from memory.", nil, nil)
	cacheMisses = prometheus.NewDesc("limitkeeper_cache_misses_total",
		"Look-ups of keys, users and plans that asked the store.", nil, nil)
	cacheEvictions = prometheus.NewDesc("limitkeeper_cache_evictions_total",
		"Keys, users and plans that were removed from memory to make room.", nil, nil)
	cachedKeys = prometheus.NewDesc("limitkeeper_cached_keys", "Keys in memory.", nil, nil)
	throttled  = prometheus.NewDesc("limitkeeper_throttled_requests_total",
		"Requests to the REST API that were refused by service_rate_limit.", nil, nil)
	storeUp = prometheus.NewDesc("limitkeeper_store_up",
		"1 while the store counts requests, else 0.", nil, nil)
	storeFault = prometheus.NewDesc("limitkeeper_store_fault",
		"1 for the kind of fault because of which the store refuses requests, else 0.", []string{"kind"}, nil)
)

// Describe implements [prometheus.Collector].
func (*serviceStats) Describe(ch chan<- *prometheus.Desc) {
	ch <- cacheHits
	ch <- cacheMisses
	for _, d := range []*prometheus.Desc{cacheEvictions, cachedKeys, throttled, storeUp, storeFault} {
		ch <- d
	}
	describeClock(ch)
	describeBadger(ch)
	describeRedis(ch)
}

// Collect implements [prometheus.Collector]. Before the store is open it collects only the state of the store.
func (s *serviceStats) Collect(ch chan<- prometheus.Metric) {
	l := s.app.live.Load()
	if l == nil {
		collectState(core.ErrUnavailable, ch)
		return
	}
	ctx, cancel := context.WithTimeout(s.app.ctx, healthTimeout)
	defer cancel()
	collectState(l.service.Health(ctx), ch)
	collectClock(l.clock, ch)
	collectBadger(l.store, ch)
	collectRedis(l.store, ch)
	st := l.service.Stats()
	ch <- prometheus.MustNewConstMetric(cacheHits, prometheus.CounterValue, float64(st.CacheHits))
	ch <- prometheus.MustNewConstMetric(cacheMisses, prometheus.CounterValue, float64(st.CacheMisses))
	ch <- prometheus.MustNewConstMetric(cacheEvictions, prometheus.CounterValue, float64(st.CacheEvictions))
	ch <- prometheus.MustNewConstMetric(cachedKeys, prometheus.GaugeValue, float64(st.CachedKeys))
	ch <- prometheus.MustNewConstMetric(throttled, prometheus.CounterValue, float64(st.Throttled))
}

// healthTimeout is the longest time for which a scrape waits for the state of the store. On Redis, the timeout of the store applies.
const healthTimeout = 2 * time.Second

// collectState collects the state of the store. fault is the reason why it refuses requests, nil for none.
func collectState(fault error, ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(storeUp, prometheus.GaugeValue, oneIf(fault == nil))
	current := faultKind(fault)
	for _, kind := range faultKinds {
		ch <- prometheus.MustNewConstMetric(storeFault, prometheus.GaugeValue, oneIf(kind == current), kind)
	}
}

// figure is a metric that is read from the statistics of a store.
type figure[S any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(S) float64
}

func gauge[S any](name, help string, of func(S) float64) figure[S] {
	return figure[S]{prometheus.NewDesc(namespace+"_"+name, help, nil, nil), prometheus.GaugeValue, of}
}

func counter[S any](name, help string, of func(S) float64) figure[S] {
	return figure[S]{prometheus.NewDesc(namespace+"_"+name, help, nil, nil), prometheus.CounterValue, of}
}

// describeAll describes the metrics of a kind of store.
func describeAll[S any](figures []figure[S], measured []prometheus.Collector, ch chan<- *prometheus.Desc) {
	for _, f := range figures {
		ch <- f.desc
	}
	for _, c := range measured {
		c.Describe(ch)
	}
}

// collectAll collects the metrics of a store with the statistics s.
func collectAll[S any](figures []figure[S], s S, measured []prometheus.Collector, ch chan<- prometheus.Metric) {
	for _, f := range figures {
		ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.of(s))
	}
	for _, c := range measured {
		c.Collect(ch)
	}
}
