package caddymodule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/exchange"
	"github.com/limitkeeper/limitkeeper/internal/logthrottle"
)

func init() { caddy.RegisterModule(new(Gateway)) }

// DefaultAccount is the default account of a gateway.
const DefaultAccount = "default"

// The values of on_store_error.
const (
	onStoreErrorDeny  = "deny"
	onStoreErrorAllow = "allow"
)

// Gateway counts each request against the plan of the caller's key. Allowed requests go to the
// next handler; refused requests do not. Allowed and refused answers have the rate limit headers,
// unless Headers is `none`.
//
// The gateway answers
//
//   - 400 to an invalid cost, request id or target
//   - 401 without a key, or with a malformed, unknown or expired key
//   - 425 to early data of TLS 1.3, which anyone can send again
//   - 403 if the key or its user is disabled, if the key or its plan does not allow the request, or if `identify` finds no user
//   - 429 over the quota or the rate of the plan, with `Retry-After` unless the limit never resets
//   - 503 while the store is unavailable, see OnStoreError
//
// The decision sets the placeholders `{http.limitkeeper.*}`: account, outcome, repeated, user_id,
// user_name, key_id, key_name, plan_id, plan_name, limit, used, remaining, reset.
// `{http.auth.user.id}`, and user_id in the access log, is the id of the user.
//
// A server that logs requests, or that has handlers beside the gateway that may fail, needs the encoder `limitkeeper` in each log that gets
// entries of the HTTP app: it removes keys. Such a config with another encoder is refused. In other configs the gateway itself answers
// and logs failures of the handlers behind it.
type Gateway struct {
	// The account of the accepted keys. It may be created later; until then, and while it is disabled, every key is unknown.
	// Default: `default`.
	Account string `json:"account,omitempty"`

	// Where to find the key in a request. The first place with a value decides. Default: the header
	// `X-API-Key`, then `Authorization: Bearer`.
	Keys []KeySource `json:"keys,omitempty"`

	// Instead of a key: one placeholder that yields the `external_id` of a user, such as `{http.auth.user.id}` behind an authentication
	// handler. The counter of the user decides. A request with an empty value is refused with 401. Do not use a placeholder that the client controls.
	// Default: none.
	Identify string `json:"identify,omitempty"`

	// The name of the plan with which the first request of an unknown `external_id` makes its user, within the cap of users of the account. Default: an
	// unknown user is refused with 403.
	IdentifyPlan string `json:"identify_plan,omitempty"`

	// Forward the key and all its copies. Cookies of the dashboard are still removed. By
	// default the gateway removes the used key from header fields, cookies and the query:
	// a header line, cookie or parameter whose whole value is the key is dropped, and a copy
	// inside another value, such as a Referer, becomes REDACTED. Every other key in a place
	// of `keys` is removed too.
	KeepKey bool `json:"keep_key,omitempty"`

	// The cost of a request: a whole number from 0 to 1000000, placeholders that yield one, or `request`, a member of the
	// JSON body of the request, and a default. It
	// overrides the prices of the account. An empty value leaves the price, 1 without one. An
	// invalid value is refused with 400 and not counted. Do not use a placeholder that the client
	// controls: the client would set its own price. Default: the price.
	Cost caddyhttp.WeakString `json:"cost,omitempty"`

	// The costs of a request on other meters, by meter: each a whole number from 0 to 1000000000, or
	// placeholders that yield one. They override the prices of the account, meter by meter. An empty
	// value leaves the price, 0 without one. A meter that no limit and no price of the account
	// names costs nothing: the log warns of it, and `limitkeeper_unknown_meters_total` counts the requests. Default: the prices.
	Costs map[string]caddyhttp.WeakString `json:"costs,omitempty"`

	// What requests cost in the end, as their answers say it. Until then the cost is held. Default: requests cost what the options `cost`
	// and the prices say, at once.
	Charge *Charge `json:"charge,omitempty"`

	// The member of the JSON body of a request, such as `max_tokens`, that is lowered to what the limits have left. A cost is read from it:
	// `request max_tokens 4096`. Default: none.
	Clamp string `json:"clamp,omitempty"`

	// Which answers count: `always`, `success` (2xx and 3xx) or `not_5xx`. Any other answer gives everything back. Default: `always`.
	CountOn string `json:"count_on,omitempty"`

	// What happens if an answer does not say what the request has cost, because the client has gone, the answer was cut, or says nothing:
	// `keep` what was held, or `release` it. The same happens after a crash. Default: `keep`.
	OnUnknown string `json:"on_unknown,omitempty"`

	// Where to find the request id. A request that repeats an id of the same key within 24 hours is
	// forwarded without being counted again. Its answer has the rate limit headers of the first
	// answer, and `{http.limitkeeper.repeated}` is `true`. An id has 1 to 128 bytes without control
	// characters, and is the same as `request_id` of `/validate`. A quoted string is the id inside
	// the quotes. A request with two ids or an invalid id is refused with 400. A client that chooses
	// the ids can reuse one to avoid being counted, so the upstream must answer a repeated id from a
	// cache. Default: no request ids.
	RequestID *RequestIDSource `json:"request_id,omitempty"`

	// The scopes that a key with `scopes` must have, otherwise the answer is 403. A key without
	// `scopes` may do everything. Default: none.
	RequireScopes []string `json:"require_scopes,omitempty"`

	// The features that the plan in force must have, otherwise the answer is 403. Default: none.
	RequireFeatures []string `json:"require_features,omitempty"`

	// What to do while the store is unavailable: `deny` answers 503, `allow` forwards requests
	// without counting. Default: `deny`.
	OnStoreError string `json:"on_store_error,omitempty"`

	// Refuse nothing: count, set headers and placeholders, and forward every request. Credentials
	// that are no key and do not have its form stay in the request.
	Observe bool `json:"observe,omitempty"`

	// Send refusals to the error routes (`handle_errors`), with the headers set, instead of
	// answering in JSON.
	Errors bool `json:"errors,omitempty"`

	// The form of refusals in JSON: `openai` for errors as clients of the API of OpenAI read them. By
	// default they are as the answers of `/validate`. Requests of gRPC get a status of gRPC.
	ErrorForm string `json:"error_form,omitempty"`

	// Answer refusals with problem details (RFC 9457) to clients that accept
	// `application/problem+json`.
	ProblemJSON bool `json:"problem_json,omitempty"`

	// The rate limit headers on answers, allowed and refused: `x-ratelimit` (X-RateLimit-Limit,
	// X-RateLimit-Remaining, X-RateLimit-Reset, X-RateLimit-Plan), `ietf` (RateLimit,
	// RateLimit-Policy), `all` or `none`. Whatever the value, Retry-After
	// stays, answers of the next handler have Vary and, with a key, Cache-Control, and refusals have
	// `Cache-Control: no-store`. Default: `all`.
	Headers string `json:"headers,omitempty"`

	app           *App
	log           *zap.Logger
	logsAreClean  bool                         // each log has a [LogEncoder]
	costs         []costOption                 // sorted by meter
	read          []string                     // the members of bodies that the gateway reads; none if it reads no bodies
	vary          string                       // the value of Vary on answers of the next handler
	headers       adminapi.RateLimitHeaders    // Headers, parsed
	account       atomic.Pointer[core.Account] // nil until the account exists, and while it is closed
	noAccountLog  sync.Once                    // logs once that the account does not exist
	faults        logthrottle.Throttle         // of log lines about requests without a decision
	unknownMeters logthrottle.Throttle         // of log lines about meters that no plan names
	unknownUsage  logthrottle.Throttle         // of log lines about answers that do not say what they cost
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
	if len(g.Keys) == 0 && g.Identify == "" {
		g.Keys = defaultKeySources()
	}
	if err := cmp.Or(g.check(), g.checkMembers()); err != nil {
		return err
	}
	g.read = g.members()
	g.headers = headerFamilies[g.Headers]
	routes := g.app.checkRoutes(ctx)
	if routes.err != nil {
		return routes.err
	}
	g.checkPlaceholders(routes)
	if g.logsAreClean, err = checkLogs(ctx, g.Keys, g.Identify == "" && (routes.mayFail || g.KeepKey || g.Errors)); err != nil {
		return err
	}
	g.app.gatewayAccounts.add(g.Account)
	g.warnOfAccount()
	for i, s := range g.Keys {
		g.Keys[i] = s.normal() // normalized once, not for each request
	}
	g.vary = varyOf(g.Keys)
	return nil
}

// onePlaceholder matches one placeholder and nothing else: the form of [Gateway.Identify]. With acme-{http.auth.user.id}, all callers
// without an id would share the user acme-.
var onePlaceholder = regexp.MustCompile(`^\{[^{}]+\}$`)

// check returns an error for an invalid option, and parses the costs.
func (g *Gateway) check() error {
	if err := g.checkIdentify(); err != nil {
		return err
	}
	seen := map[KeySource]bool{}
	for _, s := range g.Keys {
		if err := s.check(); err != nil {
			return err
		}
		if seen[s.normal()] {
			return fmt.Errorf("key %s is given twice", strings.TrimSpace(s.In+" "+s.Name))
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
	if !slices.Contains([]string{"", onStoreErrorDeny, onStoreErrorAllow}, g.OnStoreError) {
		return fmt.Errorf("on_store_error: want deny or allow, got %q", g.OnStoreError)
	}
	if g.ErrorForm != "" && g.ErrorForm != formOpenAI {
		return fmt.Errorf("errors: want no word or openai, got %q", g.ErrorForm)
	}
	if _, ok := headerFamilies[g.Headers]; !ok {
		return fmt.Errorf("headers: want all or x-ratelimit or ietf or none, got %q", g.Headers)
	}
	if e, ok := errors.AsType[*core.Error](core.CheckNeed(g.RequireScopes, g.RequireFeatures)); ok {
		return fmt.Errorf("require: %s", e.Detail)
	}
	if !utf8.ValidString(g.Account) {
		return errors.New("account: the name is not valid UTF-8")
	}
	return cmp.Or(g.checkCharge(), g.provisionCost())
}

// checkIdentify returns an error for an invalid option identify, or for an option that has no meaning with it.
func (g *Gateway) checkIdentify() error {
	switch {
	case g.Identify == "" && g.IdentifyPlan != "":
		return errors.New("identify_plan: identify is missing")
	case g.Identify == "":
		return nil
	case !hasPlaceholders(g.Identify):
		return fmt.Errorf("identify: want a placeholder such as {http.auth.user.id}, got %q", g.Identify)
	case len(g.Keys) > 0 || g.KeepKey:
		return errors.New("identify: it stands in place of a key: remove key and keep_key")
	case !onePlaceholder.MatchString(g.Identify):
		return fmt.Errorf("identify: want one placeholder and nothing else, such as {http.auth.user.id}, got %q", g.Identify)
	case len(g.RequireScopes) > 0:
		return errors.New("identify: a caller without a key has no scopes: remove require scope")
	}
	return nil
}

// The outcomes that the gateway adds to [service.Outcome].
const (
	outcomeRepeated    = "repeated"    // allowed, and counted by an earlier request; label of limitkeeper_decisions_total
	outcomeMissing     = "missing"     // the request has no key
	outcomeEarly       = "early"       // early data, of which a copy could be counted again: nothing is decided
	outcomeUnavailable = "unavailable" // the store is unavailable
	outcomeError       = "error"       // any other error, such as an invalid cost
)

// requestState is the state of one request from the decision until its answer is written. It is
// one allocation.
type requestState struct {
	account  string
	outcome  string
	decision service.Decision // zero if there is no decision
	err      error            // why there is no decision
	ownerKey bool             // the client sent an owner's key

	identifies bool         // the gateway has the option identify
	body       *requestBody // nil without a body, and if the gateway does not read bodies
	model      string       // that the request calls, "" if it is unknown
	addedUsage bool         // the gateway asks for the usage of a stream, and the client has not
	clamped    int64        // what the option clamp lowers its member to; -1 if it stays
	at         time.Time    // when the decision was made
	writer     headerWriter // of the next handler
	vary       string       // the value of Vary, "" for none
	headers    adminapi.RateLimitHeaders
}

// errOpaque refuses a target such as x:http://host/v1/admin: matchers of Caddy see no path, and an upstream sees /v1/admin.
var errOpaque = core.BadRequest("path", "The target of the request must be a path, or an address with http or https")

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	if exchange.Early(r) {
		return g.refuse(w, r, &requestState{outcome: outcomeEarly})
	}
	if r.URL.Opaque != "" {
		return g.refuse(w, r, &requestState{outcome: outcomeError, err: errOpaque})
	}
	g.app.warnOfSpoofing(r)
	secret, external := findKey(r, g.Keys), ""
	if g.Identify != "" {
		external = strings.TrimSpace(repl.ReplaceAll(g.Identify, ""))
	}
	v := &requestState{account: g.Account, outcome: outcomeMissing, at: time.Now(), vary: g.vary, headers: g.headers, identifies: g.Identify != "", clamped: -1}
	start := v.at
	if secret != "" || external != "" {
		g.evaluate(r, repl, vars, service.Request{Secret: secret, External: external, PlanName: g.IdentifyPlan}, v)
	}
	defer v.body.close()
	if v.body != nil && g.passes(v) { // before keys are removed from the trailers behind the body
		g.sendBody(r, v)
	}
	metrics.gateway(v, time.Since(start))
	setPlaceholders(repl, vars, v)
	switch {
	case g.Identify != "":
		g.stripStray(r, repl)
	case secret != "" && !g.KeepKey:
		g.strip(r, repl, secret, v)
	}
	dropDashboardCookies(r.Header)
	if !g.passes(v) {
		g.logRefusal(v)
		return g.refuse(w, r, v)
	}
	lw := v.wrap(w)
	defer lw.add() // for a handler that writes nothing
	err := g.next(lw, r, next, v)
	if err == nil || g.logsAreClean {
		return err
	}
	g.answerFailure(lw, r, err, time.Since(start))
	return nil
}

// answerFailure answers and logs the failure of a handler as Caddy does without error routes, but without the header fields of the request.
// Caddy would log the fields that the client sent, with the key.
func (g *Gateway) answerFailure(w http.ResponseWriter, r *http.Request, err error, took time.Duration) {
	status := http.StatusInternalServerError
	if failed, ok := errors.AsType[caddyhttp.HandlerError](err); ok && failed.StatusCode > 0 {
		status = failed.StatusCode
	}
	if status >= http.StatusInternalServerError {
		g.log.Error("a handler has failed", zap.String("error", secrets.MaskSecrets(err.Error())), zap.Int("status", status), zap.Duration("duration", took),
			zap.String("method", secrets.MaskSecrets(r.Method)), zap.String("host", secrets.MaskSecrets(r.Host)), zap.String("path", secrets.MaskSecrets(r.URL.Path)))
	}
	w.WriteHeader(status)
}

// hasKeyForm reports whether a value has the form of a key of the account. While the prefixes of the account are unknown, any
// value with the characters of a key has it.
func (g *Gateway) hasKeyForm(ctx context.Context, value string) bool {
	if g == nil || strings.HasPrefix(value, secrets.DefaultKeyPrefix) {
		return secrets.WellFormedUserSecret(value)
	}
	if !secrets.HasKeyCharacters(value) {
		return false
	}
	a := g.account.Load()
	service, err := g.app.service()
	if err != nil || a == nil {
		return true
	}
	ok, err := service.WellFormedKey(ctx, a.ID, value)
	return ok || err != nil
}

// Interface guards.
var (
	_ caddy.Provisioner = (*Gateway)(nil)
)
