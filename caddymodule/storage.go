package caddymodule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap/exp/zapslog"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/webhook"
)

// StoreModule is a module in the namespace limitkeeper.store: it identifies, opens and
// reconfigures one store.
type StoreModule interface {
	// PoolKey returns the identity of the store. Configs with the same key share one open store,
	// whatever their other settings.
	PoolKey() string
	// Open opens the store with caches of the size in the tunables. It is called once for a
	// PoolKey until the store is closed. c is the clock of the process; nil means the clock of
	// the machine. The error is one line that says what to do.
	Open(log *slog.Logger, t service.Tunables, c *core.Clock) (core.Store, error)
	// Tune applies the options that may change while the store is open, and the cache size.
	Tune(core.Store, service.Tunables)
}

// storeNamespace is the prefix of the module IDs of stores.
const storeNamespace = "limitkeeper.store."

// LoadStore loads the module of a store from its config, without opening the store. nil stands for the default. The error has
// no Caddy module path in front.
func LoadStore(ctx caddy.Context, raw json.RawMessage) (StoreModule, error) {
	if raw == nil {
		raw = json.RawMessage(`{"module": "badger"}`)
	}
	var config struct {
		Module string `json:"module"`
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := knownStore(config.Module); err != nil {
		return nil, err
	}
	mod, err := ctx.LoadModule(&App{StoreRaw: raw}, "StoreRaw")
	if err != nil {
		_, reason, _ := strings.Cut(err.Error(), storeNamespace+config.Module+": ") // the part before is the module path
		return nil, fmt.Errorf("store %s: %s", config.Module, strings.TrimPrefix(cmp.Or(reason, err.Error()), "store "+config.Module+": "))
	}
	m, ok := mod.(StoreModule)
	if !ok {
		return nil, fmt.Errorf("module %s is not a store", config.Module)
	}
	return m, nil
}

// knownStore returns an error unless a store module has the name. The error shows the name up to a
// colon only, because the rest may be a URL with a password.
func knownStore(name string) error {
	if _, err := caddy.GetModule(storeNamespace + name); err == nil {
		return nil
	}
	if kind, _, isURL := strings.Cut(name, ":"); isURL {
		name = kind + ":…"
	}
	return fmt.Errorf("there is no store %q in this build: want badger or redis", secrets.MaskSecrets(name))
}

// stores holds the open stores of all configs of the process, by PoolKey.
var stores = caddy.NewUsagePool()

// live is an open store and its service, shared by all configs with the same PoolKey.
type live struct {
	store   core.Store
	service *service.Service
	clock   *core.Clock // used by the store and the service
	names   *accountNames
	events  *eventQueue

	sender    *webhook.Sender
	deliverer *webhook.Deliverer

	stopWatch func() // ends watchHealth, and waits for its end

	mu    sync.Mutex
	inUse []*tuning // one for each running config; the last one applies
}

// tuning is the settings of one config for a live store.
type tuning struct {
	tunables service.Tunables
	store    StoreModule
	events   *emitter // nil in tests without a config
}

// openLive opens a store and applies the settings of the first config that uses it.
func openLive(t *tuning) (caddy.Destructor, error) {
	log := slog.New(currentLog{})
	clock := newClock(log)
	store, err := t.store.Open(log, t.tunables, clock)
	if err != nil {
		return nil, err
	}
	l := &live{store: store, clock: clock, events: newEventQueue()}
	l.service = service.New(store, service.Config{Clock: clock.Now, OnDecision: l.observe, OnEvent: l.happened})
	l.service.Tune(t.tunables)
	l.names = &accountNames{service: l.service}
	l.sender = webhook.NewSender("Limitkeeper", 0)
	l.sender.SetAllowPrivate(t.tunables.WebhookAllowPrivate)
	l.deliverer = webhook.New(webhook.Options{Service: l.service, Store: store, Sender: l.sender, Logger: log})
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { l.watchHealth(ctx) })
	watch.Go(func() { repeat(ctx, workEvery, l.service.ExpireHolds) }) // each decision ends the expired holds of its own counters, too
	watch.Go(func() { repeat(ctx, workEvery, l.service.KeepRankings) })
	watch.Go(func() { repeat(ctx, workEvery, l.service.RankAccounts) }) // the first call ranks all counters
	watch.Go(func() {
		repeat(ctx, workEvery, func(ctx context.Context) error { return l.service.PurgeAccounts(ctx, purgeLog(log)) })
	})
	watch.Go(func() { repeat(ctx, eventsEvery, l.service.WriteEvents) })
	watch.Go(func() { l.deliverer.Run(ctx) })
	watch.Go(func() { repeat(ctx, auditEvery, l.service.TrimAudit) })
	l.stopWatch = func() { cancel(); watch.Wait() }
	return l, nil
}

// Destruct closes the store. The pool calls it when the last config is gone.
func (l *live) Destruct() error {
	l.stopWatch()
	ctx, cancel := context.WithTimeout(context.Background(), maxFlush)
	defer cancel()
	_ = l.service.FlushEvents(ctx) // the next start makes the other events of limits again
	l.sender.Close()
	l.events.close()
	return l.store.Close()
}

// observe records a decision in the metrics.
func (l *live) observe(d *service.Decision) { metrics.decided(l.names, d) }

// settled records the end of a hold in the metrics.
func (l *live) settled(s *service.Settled, d *service.Decision) { metrics.ended(l.names, s, d) }

// repeat calls work until ctx ends, with a pause after each call.
func repeat(ctx context.Context, pause time.Duration, work func(context.Context) error) {
	for {
		_ = work(ctx) // the next call continues
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// The pauses between two calls of background work.
const (
	workEvery   = 10 * time.Second // ends expired holds, ranks counters, deletes accounts
	eventsEvery = time.Second      // writes events
	auditEvery  = time.Hour        // removes old entries of audit logs
)

// maxFlush is how long closing the store waits for the last events.
const maxFlush = 2 * time.Second

// purgeLogEvery is the shortest time between two log lines about the deletion of accounts.
const purgeLogEvery = 30 * time.Second

// purgeLog returns a function that logs how far the deletion of accounts has come.
func purgeLog(log *slog.Logger) func(service.Purge) {
	last := time.Time{}
	return func(p service.Purge) {
		switch {
		case p.Done:
			log.Info("an account was deleted", "account", p.Account.ID)
		case time.Since(last) >= purgeLogEvery:
			last = time.Now()
			log.Info("an account is being deleted", "account", p.Account.ID, "keys_and_users_left", p.Left)
		}
	}
}

// apply applies t until it is withdrawn or another tuning is applied.
func (l *live) apply(t *tuning) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse = append(l.inUse, t)
	l.tuneLocked()
}

// withdraw removes t and applies the latest remaining tuning. The last tuning stays, because the
// store is about to be closed.
func (l *live) withdraw(t *tuning) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.inUse, t)
	if i < 0 {
		return
	}
	last := i == len(l.inUse)-1
	l.inUse = slices.Delete(l.inUse, i, i+1)
	if last {
		l.tuneLocked()
	}
}

func (l *live) tuneLocked() {
	if len(l.inUse) == 0 {
		l.events.use(nil)
		return
	}
	t := l.inUse[len(l.inUse)-1]
	l.events.use(t.events)
	l.service.Tune(t.tunables)
	l.sender.SetAllowPrivate(t.tunables.WebhookAllowPrivate)
	t.store.Tune(l.store, t.tunables)
}

// OpenStore is the open store of a config, and what uses it.
type OpenStore struct {
	Store   core.Store
	Service *service.Service
	Clock   *core.Clock // used by Store and Service

	// Retention is the configured history_retention, or 0 for the default.
	Retention time.Duration

	app  *App
	live *live
}

// TestWebhook sends a test to a webhook, and returns the attempt.
func (o *OpenStore) TestWebhook(ctx context.Context, account, id string) (*core.Attempt, error) {
	return o.live.deliverer.Test(ctx, account, id)
}

// RunningStore returns the open store of the running config. It returns a [caddy.APIError] if the config does not use
// Limitkeeper, and [core.ErrUnavailable] until the store is open. An admin module cannot use its own context: that context
// may belong to a config that is still loading or was rejected.
func RunningStore() (*OpenStore, error) {
	mod, err := caddy.ActiveContext().AppIfConfigured(appName)
	if err != nil {
		return nil, caddy.APIError{HTTPStatus: http.StatusNotFound, Err: errors.New("the running config does not use limitkeeper")}
	}
	app := mod.(*App)
	l := app.live.Load()
	if l == nil {
		return nil, core.Unavailable(errNotOpen)
	}
	return &OpenStore{Store: l.store, Service: l.service, Clock: l.clock, Retention: time.Duration(app.HistoryRetention), app: app, live: l}, nil
}

// currentLog writes to the default log of the running config. The store outlives the config that
// opened it, and the log files of that config.
type currentLog struct{}

func (currentLog) handler() slog.Handler {
	const never = slog.Level(math.MaxInt) // no record has this level, so none gets a stack trace
	return zapslog.NewHandler(caddy.Log().Core(), zapslog.WithName("limitkeeper.store"), zapslog.AddStacktraceAt(never))
}

// Enabled implements [slog.Handler].
func (c currentLog) Enabled(ctx context.Context, l slog.Level) bool {
	return c.handler().Enabled(ctx, l)
}

// Handle implements [slog.Handler].
func (c currentLog) Handle(ctx context.Context, r slog.Record) error {
	return c.handler().Handle(ctx, r)
}

// WithAttrs implements [slog.Handler]. The result writes to the log of the present config: stores do not keep it.
func (c currentLog) WithAttrs(attrs []slog.Attr) slog.Handler { return c.handler().WithAttrs(attrs) }

// WithGroup implements [slog.Handler], as WithAttrs does.
func (c currentLog) WithGroup(name string) slog.Handler { return c.handler().WithGroup(name) }
