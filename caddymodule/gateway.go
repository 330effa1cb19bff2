package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
)

func init() { caddy.RegisterModule(new(Gateway)) }

// DefaultAccount is the account of a gateway that names none.
const DefaultAccount = "default"

// What a gateway does when it cannot decide.
const (
	onStoreErrorDeny  = "deny"
	onStoreErrorAllow = "allow"
)

// Gateway counts every request against the plan of the caller's key and passes on
// those that fit. Answers carry the rate limit headers, allowed and refused alike.
//
// A request without a key, or with one that is malformed, unknown or expired, is
// refused with 401, with a disabled key with 403, over the quota with 429 and
// `Retry-After`. Nothing that is refused reaches the handlers behind.
//
// After a decision the placeholders `{http.limitkeeper.*}` are set: account,
// outcome, repeated, user_id, user_name, key_id, key_name, plan_id, plan_name, limit,
// used, remaining, reset. `{http.auth.user.id}` is the id of the user, and so is user_id
// in the access log.
//
// Keys are kept out of the access log and the error log of the server. Other handlers of
// Caddy log requests as they get them: those in front of the gateway at level DEBUG, and
// `reverse_proxy` behind it at level WARN when an upstream breaks off. That line has the key
// with keep_key, and when the client has put the key into the path.
type Gateway struct {
	// The account whose keys are accepted. It need not exist yet: until it does every
	// key is unknown, and it is served as soon as it is created. Default: `default`.
	Account string `json:"account,omitempty"`

	// Where a request carries its key. The first place that has one counts. Default:
	// the header field `X-API-Key`, then `Authorization: Bearer`.
	Keys []KeySource `json:"keys,omitempty"`

	// Forward the key and all its copies. Cookies of the dashboard are still removed. By
	// default the gateway removes the used key from header fields, cookies and the query:
	// a header line, cookie or parameter whose whole value is the key is dropped, and a copy
	// inside another value, such as a Referer, becomes REDACTED. Every other key in a place
	// of `keys` is removed too.
	KeepKey bool `json:"keep_key,omitempty"`

	// What a request costs: a whole number from 0 to 1000000, or placeholders that
	// give one; empty counts as 1. With a value that is none the request is refused
	// with 400, and neither counted nor passed on. A placeholder that the client can
	// choose lets it choose what it pays. Default: 1.
	Cost caddyhttp.WeakString `json:"cost,omitempty"`

	// Where a request carries an id. A request with the id of an earlier one of the same
	// key, up to 24 hours old, is passed on without being counted again, with the headers
	// of the first answer; `{http.limitkeeper.repeated}` is then `true`. Ids are 1 to 128
	// bytes without control characters, as they stand, and the same as in the member
	// `request_id` of `/validate`. A request without one, or with an empty one, is counted.
	// One with two, or with one that cannot be kept, is refused with 400. Who chooses the
	// ids can use one again to have another request not counted: take them from clients
	// only if what is behind answers a repeat from its memory. Default: nowhere.
	RequestID *RequestIDSource `json:"request_id,omitempty"`

	// What to do while the store cannot be reached: `deny` answers 503, `allow` passes
	// requests on without counting. Default: `deny`.
	OnStoreError string `json:"on_store_error,omitempty"`

	// Refuse nothing: count, set headers and placeholders, and pass everything on. A
	// credential that cannot be one of our keys is then left where it is.
	Observe bool `json:"observe,omitempty"`

	// Hand refusals to the error routes (`handle_errors`), with the headers set,
	// instead of answering in JSON.
	Errors bool `json:"errors,omitempty"`

	// The rate limit headers on answers, allowed and refused: `x-ratelimit` (X-RateLimit-Limit,
	// X-RateLimit-Remaining, X-RateLimit-Reset, X-RateLimit-Plan), `ietf` (RateLimit,
	// RateLimit-Policy), `all` or `none`. Refusals over the quota have Retry-After, and answers
	// with a key have Vary and Cache-Control, with every value. Default: `all`.
	Headers string `json:"headers,omitempty"`

	app        *App
	log        *zap.Logger
	counters   gatewayCounters
	cost       int64 // when costOf is ""
	costOf     string
	vary       string                       // the value of Vary on answers that pass
	headers    adminapi.RateLimitHeaders    // Headers, parsed
	account    atomic.Pointer[core.Account] // nil until it exists
	noAccount  sync.Once
	storeError throttledLog
}

// CaddyModule implements [caddy.Module].
func (*Gateway) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.limitkeeper", New: func() caddy.Module { return new(Gateway) }}
}

// Provision implements [caddy.Provisioner].
func (g *Gateway) Provision(ctx caddy.Context) error {
	g.log = ctx.Logger()
	app, err := ctx.App(appName)
	if err != nil {
		return err
	}
	g.app = app.(*App)
	if g.Account == "" {
		g.Account = DefaultAccount
	}
	if g.Account, err = caddy.NewReplacer().ReplaceOrErr(g.Account, true, true); err != nil {
		return fmt.Errorf("account: %w", err)
	}
	if len(g.Keys) == 0 {
		g.Keys = defaultKeySources()
	}
	if g.OnStoreError == "" {
		g.OnStoreError = onStoreErrorDeny
	}
	if g.Headers == "" {
		g.Headers = "all"
	}
	g.headers = headerFamilies[g.Headers]
	if err := redactLogs(ctx, g.Keys); err != nil {
		return err
	}
	g.app.warnOfSpoofing(ctx)
	if g.KeepKey {
		g.log.Warn("keep_key forwards the key: reverse_proxy logs it when an upstream breaks off, unless a log filter removes it")
	}
	for i, s := range g.Keys {
		g.Keys[i] = s.normal() // once, and not for every request
	}
	g.vary = varyOf(g.Keys)
	return g.provisionCost()
}

func (g *Gateway) provisionCost() (err error) {
	g.cost, g.costOf = 1, ""
	switch s := string(g.Cost); {
	case hasPlaceholders(s):
		g.costOf = s
	case s != "":
		g.cost, err = configuredCost(s)
	}
	return err
}

// hasPlaceholders reports whether a text of the config has some, which all end.
func hasPlaceholders(s string) bool {
	n := strings.Count(s, "{")
	return n > 0 && n == strings.Count(s, "}")
}

// parseCost reads a cost. One that is none is an [core.Error] with the code
// INVALID_REQUEST.
func parseCost(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		n = -1 // out of bounds, like every other that is no cost
	}
	if err := core.CheckCost(n); err != nil {
		return 0, err
	}
	return n, nil
}

// configuredCost reads a cost of the config, and says what is there in place of one.
func configuredCost(s string) (int64, error) {
	n, err := parseCost(s)
	if err != nil {
		return 0, fmt.Errorf("cost: want a whole number from 0 to %d, got %q", core.MaxCost, s)
	}
	return n, nil
}

// Validate implements [caddy.Validator].
func (g *Gateway) Validate() error {
	seen := map[KeySource]bool{}
	for _, s := range g.Keys {
		if err := s.check(); err != nil {
			return err
		}
		if seen[s.normal()] {
			return fmt.Errorf("key source %s %s is named twice", s.In, s.Name)
		}
		seen[s.normal()] = true
	}
	if g.RequestID != nil {
		if err := g.RequestID.check(); err != nil {
			return err
		}
		if err := g.RequestID.checkBeside(g.Keys); err != nil {
			return err
		}
	}
	if g.OnStoreError != onStoreErrorDeny && g.OnStoreError != onStoreErrorAllow {
		return fmt.Errorf("on_store_error: want deny or allow, got %q", g.OnStoreError)
	}
	if _, ok := headerFamilies[g.Headers]; !ok {
		return fmt.Errorf("headers: want all, x-ratelimit, ietf or none, got %q", g.Headers)
	}
	if !utf8.ValidString(g.Account) {
		return errors.New("account: the name is not valid UTF-8")
	}
	return nil
}

// The outcomes beside those of a decision.
const (
	outcomeRepeated    = "repeated"    // allowed, and counted before: in the metrics of decisions
	outcomeMissing     = "missing"     // the request has no key
	outcomeUnavailable = "unavailable" // the store could not be asked
	outcomeError       = "error"       // no decision could be made for another reason
)

// requestState is what the gateway found about a request, and what it is needed for until
// the request is answered.
type requestState struct {
	account  string
	outcome  string
	decision core.Decision // without anything but the account unless the store decided
	err      error         // why there is no decision
	at       time.Time     // of the decision
	writer   headerWriter  // of the answer, if it gets that far
	vary     string        // the value of Vary, "" for none
	headers  adminapi.RateLimitHeaders

	// The values of the header fields that writer adds. They are arrays, so that the header
	// can refer to them without an allocation.
	varyValue, cacheValue [1]string
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	secret := findKey(r, g.Keys)
	v := &requestState{account: g.Account, outcome: outcomeMissing, at: time.Now(), vary: g.vary, headers: g.headers}
	start := v.at
	if secret != "" {
		g.evaluate(r, repl, vars, secret, v)
	}
	metrics.gateway(&g.counters, v, time.Since(start))
	setPlaceholders(repl, vars, v)
	if secret != "" && !g.KeepKey {
		g.strip(r, repl, secret, v)
	}
	dropDashboardCookies(r.Header)
	if !g.passes(v) {
		return g.refuse(w, v)
	}
	lw := v.wrap(w)
	defer lw.add() // when nothing was written Caddy writes the header
	return next.ServeHTTP(lw, r)
}

// strip removes key values from a request with the key value secret. While the gateway
// observes, a secret that cannot be one of our keys may be the upstream's own, and stays.
func (g *Gateway) strip(r *http.Request, repl *caddy.Replacer, secret string, v *requestState) {
	s := stripper{secret: secret, ours: core.WellFormedUserSecret(secret), sources: g.Keys}
	// A key that nobody has is no secret: a stranger cannot buy the search for its copies.
	s.masks = s.ours && (v.decision.Outcome != core.Unknown || g.passes(v))
	if g.Observe && !s.ours {
		s.secret = ""
	}
	s.strip(r)
	s.stripOriginal(r, repl)
}

// passes reports whether a request may pass.
func (g *Gateway) passes(v *requestState) bool {
	switch {
	case v.decision.Allowed(), g.Observe:
		return true
	case v.outcome == outcomeUnavailable:
		return g.OnStoreError == onStoreErrorAllow
	}
	return false
}

// evaluate decides on a request with the secret, and counts it when it is allowed.
func (g *Gateway) evaluate(r *http.Request, repl *caddy.Replacer, vars map[string]any, secret string, v *requestState) {
	if v.err = g.decide(r, repl, vars, secret, v); v.err == nil {
		v.outcome = string(v.decision.Outcome)
		return
	}
	v.outcome = outcomeError
	if errors.Is(v.err, core.ErrUnavailable) {
		v.outcome = outcomeUnavailable
	}
	if !core.IsLogged(v.err) {
		g.storeError.write(g.log, v.at, "could not decide on a request", zap.String("account", g.Account),
			zap.String("error", core.MaskSecrets(v.err.Error())))
	}
}

func (g *Gateway) decide(r *http.Request, repl *caddy.Replacer, vars map[string]any, secret string, v *requestState) error {
	q, fault := g.coreRequest(r, repl, vars, secret)
	service, err := g.app.await(r.Context())
	if err != nil {
		return err
	}
	account, err := g.accountID(r.Context(), service)
	if err != nil {
		return err
	}
	if v.decision, err = service.Validate(r.Context(), account, q); err != nil {
		return err
	}
	v.at = v.decision.At
	if fault != nil && v.decision.HasUsage() {
		v.decision = core.Decision{}
		return fault
	}
	return nil
}

// coreRequest returns what is to be decided on. With a fault in it, which is the error, it is no
// more than a look: who may not pass anyway is told that first.
func (g *Gateway) coreRequest(r *http.Request, repl *caddy.Replacer, vars map[string]any, secret string) (core.Request, error) {
	q := core.Request{Secret: secret, Endpoint: endpoint(r), Method: r.Method}
	q.IP, _ = vars[caddyhttp.ClientIPVarKey].(string)
	cost, err := g.requestCost(repl)
	if err != nil {
		return q, err
	}
	id, err := g.RequestID.find(r)
	if err != nil {
		return q, err
	}
	q.Cost, q.RequestID = cost, id
	return q, nil
}

// requestCost returns what this request costs.
func (g *Gateway) requestCost(repl *caddy.Replacer) (int64, error) {
	if g.costOf == "" {
		return g.cost, nil
	}
	s := strings.TrimSpace(repl.ReplaceAll(g.costOf, ""))
	if s == "" {
		return 1, nil
	}
	return parseCost(s)
}

// accountID returns the id of the account, "" when it does not exist.
func (g *Gateway) accountID(ctx context.Context, s *core.Service) (string, error) {
	if a := g.account.Load(); a != nil {
		return a.ID, nil
	}
	a, err := s.AccountByName(ctx, g.Account)
	if errors.Is(err, core.ErrAccountNotFound) {
		g.noAccount.Do(func() {
			g.log.Warn("the account does not exist yet: until it is created every key is unknown",
				zap.String("account", g.Account))
		})
		return "", nil
	}
	if err != nil {
		return "", err
	}
	g.app.live.Load().names.learn(a)
	g.account.Store(a)
	return a.ID, nil
}

// endpoint returns what the client asked for, as the history keeps it: its path, before any
// rewrite.
func endpoint(r *http.Request) string {
	if o, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && o.URL != nil {
		return o.URL.Path
	}
	return r.URL.Path
}

// throttledLog writes an error at most once a second: a store that is away fails
// every request, and a log line for each would be a fault of its own.
type throttledLog struct {
	next       atomic.Int64 // Unix nanoseconds
	suppressed atomic.Int64
}

func (l *throttledLog) write(log *zap.Logger, now time.Time, msg string, fields ...zap.Field) {
	next := l.next.Load()
	if now.UnixNano() < next || !l.next.CompareAndSwap(next, now.Add(time.Second).UnixNano()) {
		l.suppressed.Add(1)
		return
	}
	if c := log.Check(zapcore.ErrorLevel, msg); c != nil {
		c.Write(append(fields, zap.Int64("suppressed", l.suppressed.Swap(0)))...)
	}
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Gateway)(nil)
	_ caddy.Validator             = (*Gateway)(nil)
	_ caddyhttp.MiddlewareHandler = (*Gateway)(nil)
)
