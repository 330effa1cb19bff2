package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
)

func init() { caddy.RegisterModule(new(App)) }

// appName is the name of the app, of the directive of the gateway and of the
// global option.
const appName = "limitkeeper"

// App is the usage-limiting service: it keeps accounts, users, plans and keys in a
// store, and counts. The handlers `limitkeeper` and `limitkeeper_api` use it; when
// they are configured and it is not, it runs with its defaults.
type App struct {
	// Where everything is kept. Default: `{"module": "badger"}`, an embedded
	// database in Caddy's data directory.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=limitkeeper.store inline_key=module"`

	// How many keys, users and plans are kept in memory to decide without asking the
	// store. Default: 100000 of each.
	KeyCache int `json:"key_cache,omitempty"`

	// How long the history of requests is kept. It holds for requests made after it
	// is set. Default: `30d`.
	HistoryRetention caddy.Duration `json:"history_retention,omitempty"`

	// The bound of the REST API itself: how many requests of one owner's key are
	// served in any span of a length, as `<n>/<duration>`, or `off`. Default:
	// `1000/1m`.
	ServiceRateLimit string `json:"service_rate_limit,omitempty"`

	// How many users an account may have. More are refused; existing ones stay. Default:
	// 1000000.
	MaxUsers int `json:"max_users,omitempty"`

	// How many keys an account may have. Default: 1000000.
	MaxKeys int `json:"max_keys,omitempty"`

	// How many plans an account may have. Default: 10000.
	MaxPlans int `json:"max_plans,omitempty"`

	// Accounts that shall exist, each with this owner's key. They are made once the
	// whole config runs; removing one from the config removes nothing.
	Accounts []Account `json:"accounts,omitempty"`

	ctx      context.Context // ends with the config
	log      *zap.Logger
	store    StoreModule
	tuning   *tuning
	live     atomic.Pointer[live] // nil until the store is open
	acquired bool                 // holds a reference in stores
	warned   sync.Map             // the servers that warnOfSpoofing has told about

	awaitsEvent bool          // is put in force by an event of Caddy
	ready       chan struct{} // closed when the config is in force, or will not be
	markReady   func()        // closes settled, once
}

// Account is an account that shall exist.
type Account struct {
	// The name of the account. Placeholders are replaced, as in that of a gateway.
	Name string `json:"name"`

	// An owner's key of the account: `lk_` and 29 letters or digits. Placeholders like
	// `{env.LIMITKEEPER_KEY}` and `{file./run/secrets/key}` are replaced, so that it
	// need not be in the config.
	Key string `json:"key"`
}

// CaddyModule implements [caddy.Module].
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: appName, New: func() caddy.Module { return new(App) }}
}

// Provision implements [caddy.Provisioner]. It opens nothing, so that a config can
// be validated beside a running server; but a store that is open it takes, so that
// no request of a reloaded config finds the app unready.
func (a *App) Provision(ctx caddy.Context) error {
	if a.StoreRaw == nil {
		a.StoreRaw = json.RawMessage(`{"module": "badger"}`)
	}
	a.ctx, a.log = ctx, ctx.Logger()
	a.ready = make(chan struct{})
	a.markReady = sync.OnceFunc(func() { close(a.ready) })
	var err error
	if a.store, err = loadStore(ctx, a.StoreRaw); err != nil {
		return err
	}
	if err := a.provisionAccounts(); err != nil {
		return err
	}
	tunables, err := a.tunables()
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

// errNotOpen says that the store is not open yet, and that this is not the time to
// open it.
var errNotOpen = errors.New("the store is not open")

// acquireStore takes a reference on the live store, made by open if there is none.
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

// onConfigStarted has the config put in force once all apps of it have started. In
// Start would be too early: another app may fail after it, a server whose address
// is taken for one, and a config that is rejected changes nothing. Caddy waits for
// the handlers of this event before it drops the config that runs; those that are
// registered here are called before any that a config names, which could abort it.
func (a *App) onConfigStarted(ctx caddy.Context) error {
	if ctx.Module() == nil {
		return nil // provisioned by hand, as tests do: there is no config to start
	}
	events, err := ctx.App("events")
	if err != nil {
		return err
	}
	a.awaitsEvent = true
	return events.(*caddyevents.App).On("started", startedHandler{a.applyConfig})
}

// startedHandler handles an event by a call. It shows nothing of the app: Caddy logs
// the handlers of an event at level DEBUG, and the app holds owner's keys.
type startedHandler struct{ do func() }

// Handle implements [caddyevents.Handler].
func (h startedHandler) Handle(context.Context, caddy.Event) error {
	h.do()
	return nil
}

// provisionAccounts replaces the placeholders in the accounts.
func (a *App) provisionAccounts() (err error) {
	repl, seen, keys := caddy.NewReplacer(), map[string]bool{}, map[string]bool{}
	for i := range a.Accounts {
		acc := &a.Accounts[i]
		if acc.Name, err = repl.ReplaceOrErr(acc.Name, true, true); err != nil {
			return fmt.Errorf("name of account %d: %w", i, err)
		}
		if acc.Name = strings.TrimSpace(acc.Name); acc.Name == "" || seen[acc.Name] {
			return fmt.Errorf("account %d: the name %q is missing or named twice", i, acc.Name)
		}
		seen[acc.Name] = true
		if acc.Key, err = repl.ReplaceOrErr(acc.Key, true, true); err != nil {
			return fmt.Errorf("key of account %q: %w", acc.Name, err)
		}
		if acc.Key = strings.TrimSpace(acc.Key); !core.WellFormedOwnerSecret(acc.Key) {
			return fmt.Errorf("key of account %q: an owner's key is lk_ and 29 letters or digits", acc.Name)
		}
		if keys[acc.Key] {
			return fmt.Errorf("key of account %q: another account has the same", acc.Name)
		}
		keys[acc.Key] = true
	}
	return nil
}

// tunables returns what the config wants of the service.
func (a *App) tunables() (core.Tunables, error) {
	t := core.DefaultTunables()
	if a.KeyCache < 0 {
		return t, fmt.Errorf("key_cache: want 1 or more, got %d", a.KeyCache)
	}
	if a.HistoryRetention < 0 {
		return t, fmt.Errorf("history_retention: want more than 0, got %s", time.Duration(a.HistoryRetention))
	}
	if a.KeyCache > 0 {
		t.KeyCache = a.KeyCache
	}
	if a.HistoryRetention > 0 {
		t.Retention = time.Duration(a.HistoryRetention)
	}
	t.MaxUsers, t.MaxKeys, t.MaxPlans = a.MaxUsers, a.MaxKeys, a.MaxPlans // 0: the default
	if min(a.MaxUsers, a.MaxKeys, a.MaxPlans) < 0 {
		return t, errors.New("max_users, max_keys, max_plans: want 1 or more")
	}
	if a.ServiceRateLimit == "" {
		return t, nil
	}
	var err error
	t.ThrottleLimit, t.ThrottleWindow, err = parseRate(a.ServiceRateLimit)
	return t, err
}

// maxRate bounds the service rate limit: the throttle keeps 8 bytes for each
// request in the window.
const maxRate = 1_000_000

// parseRate reads `<n>/<duration>` or `off`, which is the limit 0.
func parseRate(s string) (limit int, window time.Duration, err error) {
	if s == "off" {
		return 0, time.Minute, nil
	}
	n, d, _ := strings.Cut(s, "/")
	limit, err = strconv.Atoi(n)
	if err == nil {
		window, err = caddy.ParseDuration(d)
	}
	if err != nil || limit < 1 || limit > maxRate || window <= 0 {
		return 0, 0, fmt.Errorf("service_rate_limit: want <n>/<duration> like 1000/1m with n up to %d, or off; got %q", maxRate, s)
	}
	return limit, window, nil
}

// Start implements [caddy.App]: it opens the store if no config has it open, and
// looks whether the configured accounts can be made. It changes nothing in a store
// that is open already: see whenStarted. When such a store is away, that is no reason
// to reject the config: it may be what mends it. Nor is a loss of data: an operator
// accepts it through the running server.
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
	service := a.live.Load().service
	for _, acc := range a.Accounts {
		err := service.CheckAccount(a.ctx, acc.Name, acc.Key)
		if err != nil && !errors.Is(err, core.ErrOwnerKeyRevoked) && !(running && errors.Is(err, core.ErrUnavailable)) && !errors.Is(err, redisstore.ErrLost) {
			return fmt.Errorf("account %q: %w", acc.Name, err)
		}
		if _, err := service.Authenticate(a.ctx, acc.Key); err != nil {
			ready = !a.awaitsEvent
		}
	}
	return nil
}

// applyConfig puts the tunables in force and makes the configured accounts. The config
// runs: what goes wrong now can only be told.
func (a *App) applyConfig() {
	defer a.markReady()
	l := a.live.Load()
	l.apply(a.tuning)
	var left []Account
	for _, acc := range a.Accounts {
		if err := a.ensure(l, acc); err != nil {
			left = append(left, acc)
			a.log.Warn("the configured account is made, if it is not there, once the store is available", zap.String("account", acc.Name), zap.Error(err))
		}
	}
	if len(left) > 0 {
		go a.ensureLater(l, left)
	}
}

// ensure makes an account unless it is there. What is in the way for good is logged; it
// returns [core.ErrUnavailable] when it is to be tried again.
func (a *App) ensure(l *live, acc Account) error {
	made, err := l.service.EnsureAccount(a.ctx, acc.Name, acc.Key)
	if made != nil {
		l.names.learn(made)
	}
	switch {
	case errors.Is(err, core.ErrUnavailable):
		return err
	case errors.Is(err, core.ErrOwnerKeyRevoked):
		a.log.Error("the configured owner's key was revoked and stays so: configure another",
			zap.String("account", acc.Name), zap.String("key", core.HintOf(acc.Key)))
	case err != nil:
		a.log.Error("the configured account could not be made", zap.String("account", acc.Name), zap.Error(err))
	}
	return nil
}

// ensureLater makes accounts once the store is available, until the config ends.
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

// ensureEvery is how often it is tried to make an account.
const ensureEvery = time.Second

// Stop implements [caddy.App]. The store stays open until Cleanup: requests may
// still be under way.
func (a *App) Stop() error {
	if a.markReady != nil {
		a.markReady() // nobody shall wait for a config that ends
	}
	if l := a.live.Load(); l != nil {
		l.withdraw(a.tuning)
	}
	return nil
}

// Cleanup implements [caddy.CleanerUpper]. It gives back what was taken, and
// nothing else: Caddy also calls it after a Provision or Start that failed.
func (a *App) Cleanup() error {
	if a.markReady != nil {
		a.markReady()
	}
	if !a.acquired {
		return nil
	}
	a.acquired = false
	a.live.Load().withdraw(a.tuning)
	_, err := stores.Delete(a.store.PoolKey())
	return err
}

// service returns the service, or an error that is [core.ErrUnavailable] until the
// store is open.
func (a *App) service() (*core.Service, error) {
	l := a.live.Load()
	if l == nil {
		return nil, core.Unavailable(errNotOpen)
	}
	return l.service, nil
}

// clock returns a reading of the clock, the zero one until the store is open.
func (a *App) clock() (s core.ClockState) {
	if l := a.live.Load(); l != nil {
		s = l.clock.State()
	}
	return s
}

// startWait bounds how long a request waits for the config to be in force.
const startWait = 2 * time.Second

// await is service for a request with the context. Caddy starts apps in random
// order, so a server may take requests before the store is open and has the accounts
// of the config: they wait for both, but not long, and not when the config fails.
func (a *App) await(ctx context.Context) (*core.Service, error) {
	select {
	case <-a.ready:
	default:
		ctx, cancel := context.WithTimeout(ctx, startWait)
		defer cancel()
		select {
		case <-a.ready:
		case <-ctx.Done():
		}
	}
	return a.service()
}

// Interface guards.
var (
	_ caddyevents.Handler = startedHandler{}

	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
