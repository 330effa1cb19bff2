package caddymodule

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
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

	unknownMeters       *prometheus.CounterVec
	unknownPlaceholders *prometheus.CounterVec

	settled      *prometheus.CounterVec
	overrun      *prometheus.CounterVec
	unknownUsage *prometheus.CounterVec
	inFlight     prometheus.Gauge

	seen sync.Map // of decisionLabels: the counters of the series of decisions that exist, except other
	mu   sync.Mutex
	sets map[string]int // number of series in seen, by account
}

// decisionLabels are the labels of a decision.
type decisionLabels struct{ account, plan, outcome string }

func newMetrics() *metricSet {
	m := &metricSet{
		decisions: newCounterVec("decisions_total",
			"Decisions on requests of end users, by the gateway and by /validate. Outcome repeated: allowed by the answer to an earlier request with the same id.",
			"account", "plan", "outcome"),
		requests: newCounterVec("gateway_requests_total",
			"Requests that reached a gateway. The outcomes beside those of a decision: missing (no key), unavailable (no store), error.",
			"account", "outcome"),
		latency: newHistogram("gateway_decision_seconds", "How long the gateway took to decide on a request.", decisionBuckets...),
		validate: newHistogram("validate_decision_seconds",
			"How long POST /validate took to decide on a request, without reading its body and writing the answer.", decisionBuckets...),
		errors: newCounterVec("store_errors_total",
			"Requests at gateways and to the REST API that failed because of a fault of the store, by the kind of the fault.", "kind"),
		unknownMeters: newCounterVec("unknown_meters_total",
			"Requests at gateways with a cost on a meter that no limit and no price of the account names: the cost is not counted.", "account", "meter"),
		unknownPlaceholders: newCounterVec("unknown_placeholders_total",
			"Requests at gateways whose cost on a meter has a placeholder that no handler has set: the price decides.", "account", "meter"),
		settled: newCounterVec("settled_units_total", "Final cost of settled holds, in units of the meter.", "account", "plan", "meter"),
		overrun: newCounterVec("overrun_units_total", "Cost of settled holds beyond the held cost.", "account", "plan", "meter"),
		unknownUsage: newCounterVec("unknown_usage_total",
			"Requests at gateways whose answer does not say what they have cost: on_unknown decides.", "account"),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "gateway_in_flight", Help: "Requests at gateways with an open hold."}),
		sets:     map[string]int{},
	}
	for _, kind := range faultKinds {
		m.errors.WithLabelValues(kind) // begins at 0, so that the first fault is an increase
	}
	return m
}

// namespace is the prefix of all metrics.
const namespace = "limitkeeper"

func newCounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func newCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

func newHistogram(name, help string, buckets ...float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
}

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
	for _, c := range []prometheus.Collector{m.decisions, m.requests, m.latency, m.validate, m.errors, m.unknownMeters, m.unknownPlaceholders, m.settled, m.overrun, m.unknownUsage, m.inFlight, eventsTotal, eventsDropped, &serviceStats{app: a}} {
		if err := registry.Register(c); err != nil {
			ctx.Logger().Warn("some metrics are missing: " + err.Error())
		}
	}
}

// gateway counts a request at a gateway. took is the duration of the decision.
func (m *metricSet) gateway(v *requestState, took time.Duration) {
	m.requests.WithLabelValues(v.account, v.outcome).Inc()
	m.latency.Observe(took.Seconds())
}

// decided counts a decision.
func (m *metricSet) decided(names *accountNames, d *service.Decision) {
	l := decisionLabels{account: d.Account, outcome: string(d.Outcome)}
	if d.Repeated {
		l.outcome = outcomeRepeated
	}
	if d.Plan != nil {
		l.plan = d.Plan.Name
	}
	c, ok := m.seen.Load(l)
	if !ok {
		c = m.counter(l, names)
	}
	c.(prometheus.Counter).Inc()
}

// ended counts the units of a settled hold, under the labels that decisions on its plan have. d is one of them, without a plan if it is unknown.
func (m *metricSet) ended(names *accountNames, s *service.Settled, d *service.Decision) {
	if s.Status != core.HoldSettled || s.Repeated {
		return
	}
	account, plan := other, other
	if d.Plan != nil {
		l := decisionLabels{account: d.Account, outcome: string(service.Allowed), plan: d.Plan.Name}
		if _, known := m.seen.Load(l); known {
			account, plan = names.name(d.Account), d.Plan.Name
		}
	}
	for _, c := range append(slices.Clone(s.SettledCosts), core.MeterCost{Meter: core.MeterRequests, Cost: s.Settled}) {
		m.settled.WithLabelValues(account, plan, c.Meter).Add(float64(c.Cost))
	}
	for _, c := range s.Overrun() {
		m.overrun.WithLabelValues(account, plan, c.Meter).Add(float64(c.Cost))
	}
}

// counter returns the counter of labels that are not in seen, and creates it unless the account cannot have another series of its own.
func (m *metricSet) counter(l decisionLabels, names *accountNames) prometheus.Counter {
	m.mu.Lock()
	defer m.mu.Unlock()
	full := func() bool {
		n, ok := m.sets[l.account]
		return n >= maxLabelSets || !ok && len(m.sets) >= maxAccounts
	}
	if full() {
		return m.decisions.WithLabelValues(other, other, l.outcome)
	}
	name := func() string { // the look-up may wait for the store
		m.mu.Unlock()
		defer m.mu.Lock()
		return names.name(l.account)
	}()
	if c, ok := m.seen.Load(l); ok { // another decision created it meanwhile
		return c.(prometheus.Counter)
	}
	if full() {
		return m.decisions.WithLabelValues(other, other, l.outcome)
	}
	c := m.decisions.WithLabelValues(name, secrets.MaskSecrets(l.plan), l.outcome)
	m.seen.Store(l, c)
	m.sets[l.account]++
	return c
}

// accountNames caches the names of accounts by their ids, without secrets: customers choose the names. Other nodes have the new name of an account after
// their next reload.
type accountNames struct {
	service *service.Service
	byID    sync.Map // of strings
}

// add adds the name of an account, and returns it.
func (n *accountNames) add(a *core.Account) string {
	name := secrets.MaskSecrets(a.Name)
	n.byID.Store(a.ID, name)
	return name
}

// name returns the name of the account with an id. It reads unknown names from the store. An account that is not found has
// its id as name.
func (n *accountNames) name(id string) string {
	if name, ok := n.byID.Load(id); ok {
		return name.(string)
	}
	if id == "" {
		return ""
	}
	a, err := n.service.Account(context.Background(), id)
	if err != nil {
		return id
	}
	return n.add(a)
}

// serviceStats collects the metrics of the app's service and its store.
type serviceStats struct{ app *App }

// Describe implements [prometheus.Collector]. It describes nothing, because each store has metrics of its own.
func (*serviceStats) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector]. Before the store is open it collects only the state of the store.
func (s *serviceStats) Collect(to chan<- prometheus.Metric) {
	ch := scrape(to)
	l := s.app.live.Load()
	if l == nil {
		collectState(core.ErrUnavailable, ch)
		return
	}
	ctx, cancel := context.WithTimeout(s.app.ctx, healthTimeout)
	defer cancel()
	collectState(l.service.Health(ctx), ch)
	collectClock(l.clock, ch)
	if m, ok := s.app.store.(meteredStore); ok {
		m.collect(l.store, ch)
	}
	st := l.service.Stats()
	ch.counter("cache_hits_total", "Look-ups of keys, users and plans that were answered from memory.", float64(st.CacheHits))
	ch.counter("cache_misses_total", "Look-ups of keys, users and plans that asked the store.", float64(st.CacheMisses))
	ch.counter("cache_evictions_total", "Keys, users and plans that were removed from memory to make room.", float64(st.CacheEvictions))
	ch.gauge("cached_keys", "Keys in memory.", float64(st.CachedKeys))
	ch.counter("events_missed_total", "Readings of limits and events that found no room in memory. Readings are made again.", float64(st.EventsDropped))
	w := l.deliverer.Stats()
	ch.counter("webhook_delivered_total", "Events that receivers of webhooks have accepted.", float64(w.Delivered))
	ch.counter("webhook_failed_total", "Attempts to deliver an event to a webhook that have failed.", float64(w.Failed))
	ch.counter("webhook_given_up_total", "Events that were not delivered to a webhook after the last attempt.", float64(w.GivenUp))
	ch.counter("webhook_dropped_total", "Events that were not delivered to a webhook because too many waited.", float64(w.Dropped))
	ch.gauge("webhook_pending", "Events that wait for a webhook. Only the node that delivers has any.", float64(w.Pending))
	ch.counter("throttled_requests_total", "Requests to the REST API that were refused by service_rate_limit.", float64(st.Throttled))
}

// healthTimeout is the longest time for which a scrape waits for the state of the store. On Redis, the timeout of the store applies.
const healthTimeout = 2 * time.Second

var storeFault = prometheus.NewDesc("limitkeeper_store_fault",
	"1 for the kind of fault because of which the store refuses requests, else 0.", []string{"kind"}, nil)

// collectState collects the state of the store. fault is the reason why it refuses requests, nil for none.
func collectState(fault error, ch scrape) {
	ch.gauge("store_up", "1 while the store counts requests, else 0.", oneIf(fault == nil))
	current := faultKind(fault)
	for _, kind := range faultKinds {
		ch <- prometheus.MustNewConstMetric(storeFault, prometheus.GaugeValue, oneIf(kind == current), kind)
	}
}

// meteredStore is a [StoreModule] whose stores have metrics of their own.
type meteredStore interface {
	collect(core.Store, scrape)
}

// scrape receives the metrics of one scrape.
type scrape chan<- prometheus.Metric

func (ch scrape) gauge(name, help string, value float64) {
	ch.send(prometheus.GaugeValue, name, help, value)
}

func (ch scrape) counter(name, help string, value float64) {
	ch.send(prometheus.CounterValue, name, help, value)
}

func (ch scrape) send(kind prometheus.ValueType, name, help string, value float64) {
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(namespace+"_"+name, help, nil, nil), kind, value)
}

// measured collects the metrics that are measured as they happen.
func (ch scrape) measured(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		c.Collect(ch)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
