// Package caddymodule connects Limitkeeper to Caddy: modules, Caddyfile and metrics.
//
// # The modules
//
//   - [App], the app limitkeeper: holds the store and the service that counts in it.
//   - [BadgerStore], limitkeeper.store.badger: the embedded store.
//   - [RedisStore], limitkeeper.store.redis: the store that several nodes share.
//   - [Gateway], http.handlers.limitkeeper: counts each request against the plan of the
//     caller's key, and refuses requests over the quota.
//   - [API], http.handlers.limitkeeper_api: serves the REST API and the dashboard.
//
// The package also has the Caddyfile directives limitkeeper and limitkeeper_api, and the global
// option limitkeeper. Package command has the commands, and the part of Caddy's admin endpoint
// that serves them. Both packages are registered by an import of
// github.com/limitkeeper/limitkeeper.
//
// # One store for many configs
//
// During a reload Caddy runs the old and the new config side by side, and a second instance
// cannot open an embedded store. The store is therefore in a pool. Its key is the identity of
// the store, such as the directory, and not its settings, so a reload finds the store open.
//
//	Provision  acquires the store if it is open already: no request of a reload waits
//	Start      opens the store otherwise: validating a config opens nothing
//	"started"  applies settings and creates accounts, once all apps of the config run
//	Stop       withdraws the settings
//	Cleanup    releases the store; the last release closes it
//
// A rejected config therefore changes nothing.
package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
)

func init() { caddy.RegisterModule(new(App)) }

// appName is the name of the app, of the gateway directive and of the global option.
const appName = "limitkeeper"

// App is the quota service. It keeps accounts, users, plans and keys in a store, and counts
// requests. The handlers `limitkeeper` and `limitkeeper_api` use it. Without a configuration of
// its own it runs with the defaults.
type App struct {
	// The store of all data. Default: `{"module": "badger"}`, an embedded database in Caddy's
	// data directory.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=limitkeeper.store inline_key=module"`

	// How many keys, users and plans to cache in memory. Default: 100000 of each.
	KeyCache int `json:"key_cache,omitempty"`

	// How long to keep the history of requests. A change applies to requests made after it.
	// Default: `30d`.
	HistoryRetention caddy.Duration `json:"history_retention,omitempty"`

	// The rate limit of the REST API for each owner's key: `<n>/<duration>`, or `off`.
	// Default: `1000/1m`.
	ServiceRateLimit string `json:"service_rate_limit,omitempty"`

	// The shares of a limit, in per cent, at which there is an event `limitkeeper.threshold`: 1 to 10 whole numbers from 50
	// to 100, ascending. Default: `[80, 100]`.
	Thresholds []int64 `json:"thresholds,omitempty"`

	// How many users an account may have. Existing users above the limit stay. Default: 1000000.
	MaxUsers int `json:"max_users,omitempty"`

	// How many keys an account may have. Default: 1000000.
	MaxKeys int `json:"max_keys,omitempty"`

	// How many plans an account may have. Default: 10000.
	MaxPlans int `json:"max_plans,omitempty"`

	// Whether webhooks may have private and loopback addresses. Default: false, so that an account cannot make the server
	// send requests to its own network.
	WebhookAllowPrivate bool `json:"webhook_allow_private,omitempty"`

	// Accounts to create, each with an owner's key, once the whole config runs. Removing one
	// from the config does not delete it.
	Accounts []Account `json:"accounts,omitempty"`

	ctx      context.Context // canceled when the config ends
	log      *zap.Logger
	store    StoreModule
	tuning   *tuning
	live     atomic.Pointer[live] // nil until the store is open
	acquired bool                 // holds a reference in stores
	warned   sync.Map             // the results of checkRoutes by server, and keys of other warnings about a server

	gatewayAccounts gatewayAccounts

	background sync.WaitGroup // goroutines that end with ctx

	awaitsEvent bool          // applyConfig runs on an event of Caddy
	ready       chan struct{} // closed when the config is applied or has failed
	markReady   func()        // closes ready, once
}

// Account is an account to create.
type Account struct {
	// The name of the account. Placeholders are replaced.
	Name string `json:"name"`

	// The owner's key of the account: `lk_` and 29 letters or digits. Use a placeholder such as
	// `{env.LIMITKEEPER_KEY}` or `{file./run/secrets/key}` to keep it out of the config.
	Key string `json:"key"`

	// The prefix of new keys of the account's users, such as `acme_live_`: 2 to 32 letters a to z, digits or `_`. It
	// begins with a letter, ends with `_`, and does not begin with `lk_`. Keys with earlier prefixes keep working.
	// Placeholders are replaced. Default: the prefix that the account has, at first `lk_user_`.
	KeyPrefix string `json:"key_prefix,omitempty"`
}

// CaddyModule implements [caddy.Module].
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: appName, New: func() caddy.Module { return new(App) }}
}

// Provision implements [caddy.Provisioner]. It opens no store, so a config can be validated
// beside a running server. It acquires a store that is open already, so a reload never makes
// requests wait.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.log = ctx, ctx.Logger()
	a.ready = make(chan struct{})
	a.markReady = sync.OnceFunc(func() { close(a.ready) })
	var err error
	if a.store, err = LoadStore(ctx, a.StoreRaw); err != nil {
		return err
	}
	if err := a.provisionAccounts(); err != nil {
		return err
	}
	tunables, err := a.Tunables()
	if err != nil {
		return err
	}
	a.tuning = &tuning{tunables: tunables, store: a.store}
	metrics.register(ctx, a)
	if err := a.onConfigStarted(ctx); err != nil {
		return err
	}
	if err := a.acquireStore(func() (caddy.Destructor, error) { return nil, errNotOpen }); err != nil && !errors.Is(err, errNotOpen) {
		return err
	}
	return nil
}

// errNotOpen means that the store is not open, and that the caller must not open it.
var errNotOpen = errors.New("the store is not open")

// acquireStore takes a reference to the pooled store. open creates the store if the pool has none.
func (a *App) acquireStore(open caddy.Constructor) error {
	if a.acquired {
		return nil
	}
	l, _, err := stores.LoadOrNew(a.store.PoolKey(), open)
	if err != nil {
		return err
	}
	a.acquired = true
	a.live.Store(l.(*live))
	return nil
}

// onConfigStarted calls applyConfig once all apps of the config have started. Start is too early,
// because another app may still fail, and a rejected config must change nothing. Caddy runs the
// handlers of this event before it stops the previous config. Handlers registered here run
// before the handlers of the config, which could abort the event.
func (a *App) onConfigStarted(ctx caddy.Context) error {
	if ctx.Module() == nil {
		return nil // provisioned by a test: no config starts
	}
	mod, err := ctx.App("events")
	if err != nil {
		return err
	}
	events := mod.(*caddyevents.App)
	a.awaitsEvent = true
	a.tuning.events = &emitter{log: a.log, emit: func(name string, data map[string]any) { events.Emit(ctx, name, data) }}
	return events.On("started", startedHandler{a.applyConfig})
}

// startedHandler is an event handler that calls a function. It is not a method of App, because
// Caddy logs event handlers at level DEBUG, and App holds owner's keys.
type startedHandler struct{ do func() }

// Handle implements [caddyevents.Handler].
func (h startedHandler) Handle(context.Context, caddy.Event) error {
	h.do()
	return nil
}

// Start implements [caddy.App]. It opens the store, unless another config has it open, and checks
// that the configured accounts can be created. It does not change an open store: see
// onConfigStarted. Start accepts a config while an open store is unavailable, because the new
// config may repair the connection, and while Redis reports lost data, because an operator
// accepts the loss through the running server.
func (a *App) Start() (err error) {
	running, ready := a.acquired, a.acquired || !a.awaitsEvent
	defer func() {
		if err != nil || ready {
			a.markReady()
		}
	}()
	if err := a.acquireStore(func() (caddy.Destructor, error) { return openLive(a.tuning) }); err != nil {
		return err
	}
	svc := a.live.Load().service
	for _, acc := range a.Accounts {
		err := svc.CheckAccount(a.ctx, acc.Name, acc.Key)
		if err == nil {
			err = svc.CheckAccountPatch(a.ctx, acc.Name, acc.patch())
		}
		if err != nil && !errors.Is(err, core.ErrOwnerKeyRevoked) && !errors.Is(err, service.ErrAccountDisabled) && !(running && errors.Is(err, core.ErrUnavailable)) && !errors.Is(err, redisstore.ErrLost) {
			return fmt.Errorf("account %q: %w", acc.Name, err)
		}
		if _, err := svc.Authenticate(a.ctx, acc.Key); err != nil {
			ready = !a.awaitsEvent
		}
	}
	return nil
}

// applyConfig applies the tunables and creates the configured accounts. The config is running
// already, so errors are only logged.
func (a *App) applyConfig() {
	defer a.markReady()
	l := a.live.Load()
	l.apply(a.tuning)
	var left []Account
	for _, acc := range a.Accounts {
		if err := a.ensure(l, acc); err != nil {
			left = append(left, acc)
			a.log.Warn("the store is unavailable: the configured account is created once it is available", zap.String("account", acc.Name), zap.Error(err))
		}
	}
	if len(left) > 0 {
		a.background.Go(func() { a.ensureLater(l, left) })
	}
}

// ensure creates an account unless it exists. It returns [core.ErrUnavailable] if the caller
// should retry, and logs permanent errors.
func (a *App) ensure(l *live, acc Account) error {
	ctx := core.WithActor(a.ctx, core.Actor{Kind: core.ActorConfig})
	made, err := l.service.EnsureAccount(ctx, acc.Name, acc.Key)
	if made != nil {
		l.names.add(made)
		if _, failed := l.service.UpdateAccount(ctx, made.ID, acc.patch()); failed != nil {
			err = failed
		}
	}
	switch {
	case errors.Is(err, core.ErrUnavailable):
		return err
	case errors.Is(err, core.ErrOwnerKeyRevoked):
		a.log.Error("the configured owner's key is revoked: configure another one",
			zap.String("account", acc.Name), zap.String("key", secrets.HintOf(acc.Key)))
	case errors.Is(err, service.ErrAccountDisabled):
		a.log.Warn("a configured account is disabled: limitkeeper account enable brings it back", zap.String("account", acc.Name))
	case err != nil:
		a.log.Error("the configured account was not created or changed: reload the config once the error is fixed", zap.String("account", acc.Name), zap.Error(err))
	}
	return nil
}

// ensureLater retries to create accounts until it succeeds or the config ends.
func (a *App) ensureLater(l *live, left []Account) {
	for len(left) > 0 {
		select {
		case <-a.ctx.Done():
			return
		case <-time.After(ensureEvery):
		}
		left = slices.DeleteFunc(left, func(acc Account) bool { return a.ensure(l, acc) == nil })
	}
}

// ensureEvery is the interval between attempts to create an account.
const ensureEvery = time.Second

// Stop implements [caddy.App]. The store stays open until Cleanup, because requests may still
// be in progress.
func (a *App) Stop() error {
	if a.markReady != nil {
		a.markReady() // releases requests that wait for this config
	}
	if l := a.live.Load(); l != nil {
		l.withdraw(a.tuning)
	}
	return nil
}

// Cleanup implements [caddy.CleanerUpper]. It releases the reference to the store. Caddy also
// calls it after a failed Provision or Start.
func (a *App) Cleanup() error {
	if a.markReady != nil {
		a.markReady()
	}
	a.background.Wait() // Caddy has canceled ctx
	if !a.acquired {
		return nil
	}
	a.acquired = false
	a.live.Load().withdraw(a.tuning)
	_, err := stores.Delete(a.store.PoolKey())
	return err
}

// service returns the service, or [core.ErrUnavailable] until the store is open.
func (a *App) service() (*service.Service, error) {
	l := a.live.Load()
	if l == nil {
		return nil, core.Unavailable(errNotOpen)
	}
	return l.service, nil
}

// settled records the end of a hold in the metrics.
func (a *App) settled(s *service.Settled, d *service.Decision) {
	if l := a.live.Load(); l != nil {
		l.settled(s, d)
	}
}

// testWebhook sends a test to a webhook.
func (a *App) testWebhook(ctx context.Context, account, id string) (*core.Attempt, error) {
	if l := a.live.Load(); l != nil {
		return l.deliverer.Test(ctx, account, id)
	}
	return nil, core.Unavailable(errNotOpen)
}

// clock returns the state of the clock, the zero value until the store is open.
func (a *App) clock() (s core.ClockState) {
	if l := a.live.Load(); l != nil {
		s = l.clock.State()
	}
	return s
}

// startWait is the maximum time that a request waits for the config to start.
const startWait = 2 * time.Second

// await returns the service once the config has started, and waits up to startWait for that.
// Caddy starts apps in random order, so requests may arrive before the store is open and the
// configured accounts exist. await returns at once when the config fails.
func (a *App) await(ctx context.Context) (*service.Service, error) {
	select {
	case <-a.ready:
	default:
		select {
		case <-a.ready:
		case <-ctx.Done():
		case <-time.After(startWait):
		}
	}
	return a.service()
}

// Interface guards.
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
