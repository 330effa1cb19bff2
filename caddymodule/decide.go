package caddymodule

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/aiusage"
)

// evaluate decides on a request of the caller of q, and counts it if it is allowed. It sets
// the outcome, the decision and the error of v.
func (g *Gateway) evaluate(r *http.Request, repl *caddy.Replacer, vars map[string]any, q service.Request, v *requestState) {
	ctx, span := startSpan(r.Context())
	if span != nil {
		defer func() { endSpan(span, v) }()
	}
	if v.err = g.decide(ctx, r, repl, vars, q, v); v.err == nil {
		v.outcome = string(v.decision.Outcome)
		v.ownerKey = v.decision.Outcome == service.Malformed && secrets.WellFormedOwnerSecret(q.Secret)
		return
	}
	metrics.failed(v.err)
	v.outcome = outcomeError
	if errors.Is(v.err, core.ErrUnavailable) {
		v.outcome = outcomeUnavailable
	}
	if _, ofClient := errors.AsType[bodyError](v.err); !ofClient && !core.IsLogged(v.err) {
		g.logFault(v)
	}
}

// logFault logs why there is no decision on a request.
func (g *Gateway) logFault(v *requestState) {
	suppressed, ok := g.faults.Admit(v.at)
	if !ok {
		return
	}
	if c := g.log.Check(zapcore.ErrorLevel, "no decision on a request"); c != nil {
		c.Write(zap.String("account", g.Account), zap.String("error", secrets.MaskSecrets(v.err.Error())), zap.Int64("suppressed", suppressed))
	}
}

// warnOfMeter logs and counts a request with a cost on a meter that no limit and no price of the account names.
func (g *Gateway) warnOfMeter(meter string, at time.Time) {
	metrics.unknownMeters.WithLabelValues(g.Account, meter).Inc()
	if suppressed, ok := g.unknownMeters.Admit(at); ok {
		g.log.Warn("the cost on a meter is not counted: no limit and no price of the account names the meter", zap.String("account", g.Account), zap.String("meter", meter),
			zap.Int64("suppressed", suppressed))
	}
}

// warnOfUser logs why no user is made for a caller.
func (g *Gateway) warnOfUser(why error, at time.Time) {
	if suppressed, ok := g.faults.Admit(at); ok {
		g.log.Warn("no user is made for a caller", zap.String("account", g.Account), zap.String("error", secrets.MaskSecrets(why.Error())), zap.Int64("suppressed", suppressed))
	}
}

// logRefusal logs a refused request at level DEBUG, without its key.
func (g *Gateway) logRefusal(v *requestState) {
	c := g.log.Check(zapcore.DebugLevel, "request refused")
	if c == nil {
		return
	}
	fields := []zap.Field{zap.String("account", v.account), zap.String("outcome", v.outcome)}
	d := &v.decision
	if d.Plan != nil {
		fields = append(fields, zap.String("plan", secrets.MaskSecrets(d.Plan.Name)), zap.Int64("limit", d.Limit.Max), zap.Int64("used", d.Usage.Used))
	}
	if d.User != nil {
		fields = append(fields, zap.Int64("user_id", d.User.ID))
	}
	if d.Key != nil {
		fields = append(fields, zap.String("key_id", d.Key.ID))
	}
	c.Write(fields...)
}

func (g *Gateway) decide(ctx context.Context, r *http.Request, repl *caddy.Replacer, vars map[string]any, q service.Request, v *requestState) error {
	svc, err := g.app.await(ctx)
	if err != nil {
		return err
	}
	account, err := g.accountID(ctx, svc)
	if err != nil {
		return err
	}
	if v.body, err = g.readBody(ctx, svc, account, r, &q); err != nil {
		return err
	}
	v.model = q.Model
	if v.body != nil && v.body.isObject && g.from() == string(aiusage.OpenAI) {
		if v.addedUsage, err = v.body.askUsage(); err != nil {
			return err
		}
	}
	q, invalid := g.coreRequest(r, repl, vars, v.body, q)
	if invalid != nil {
		q.PlanName = "" // a refused request makes no user
	}
	if invalid == nil && g.Clamp != "" && v.body != nil && v.body.isObject {
		err = g.validateClamped(ctx, svc, account, q, v)
	} else {
		v.decision, err = svc.Validate(ctx, account, q)
	}
	if err != nil {
		return err
	}
	v.at = v.decision.At
	if o := v.decision.Outcome; (o == service.Unknown || o == service.Malformed) && account != "" && !svc.IsOpen(ctx, account) {
		g.noteClosed(ctx, svc, account)
	}
	if meter := v.decision.UnknownMeter; meter != "" {
		g.warnOfMeter(meter, v.at)
	}
	if why := v.decision.NotMade; why != nil {
		g.warnOfUser(why, v.at)
	}
	if invalid != nil && v.decision.HasUsage() {
		v.decision = service.Decision{}
		return invalid
	}
	return nil
}

// coreRequest returns the request of a caller to decide on. If the cost or the request id is invalid it
// returns the error, and a request without any cost, so that decide can report a bad key first.
func (g *Gateway) coreRequest(r *http.Request, repl *caddy.Replacer, vars map[string]any, body *requestBody, q service.Request) (service.Request, error) {
	q.Endpoint, q.Method, q.Path = endpoint(r), r.Method, cmp.Or(r.URL.EscapedPath(), "/")
	q.Scopes, q.Features, q.IgnoreUnknownMeters = g.RequireScopes, g.RequireFeatures, true
	q.IP, _ = vars[caddyhttp.ClientIPVarKey].(string)
	cost, byPrice := int64(0), true
	var costs []core.MeterCost
	for i := range g.costs {
		c := &g.costs[i]
		n, given, err := g.costOf(c, repl, body)
		switch {
		case errors.Is(err, errUnknownPlaceholder):
			metrics.unknownPlaceholders.WithLabelValues(g.Account, c.meter).Inc()
		case err != nil:
			return q, err
		case !given:
		case c.meter == core.MeterRequests:
			cost, byPrice = n, false
		default:
			costs = append(costs, core.MeterCost{Meter: c.meter, Cost: n})
		}
	}
	id, err := g.RequestID.find(r)
	if err != nil {
		return q, err
	}
	q.Cost, q.CostByPrice, q.Costs, q.RequestID = cost, byPrice, costs, id
	g.askHold(&q, body)
	return q, nil
}

// accountID returns the id of the account, "" if it does not exist.
func (g *Gateway) accountID(ctx context.Context, s *service.Service) (string, error) {
	if a := g.account.Load(); a != nil {
		return a.ID, nil
	}
	a, err := s.AccountByName(ctx, g.Account)
	if errors.Is(err, core.ErrAccountNotFound) {
		g.noAccountLog.Do(func() { g.warnOfMissingAccount(ctx, s) })
		return "", nil
	}
	if err != nil {
		return "", err
	}
	g.app.live.Load().names.add(a)
	g.account.Store(a)
	return a.ID, nil
}

// noteClosed forgets a deleted account, so that the next request looks up an account by the name. A disabled account stays: it may be renamed
// before it is enabled again.
func (g *Gateway) noteClosed(ctx context.Context, s *service.Service, account string) {
	switch deleted, err := s.IsDeleted(ctx, account); {
	case err != nil: // the next request tries again
	case deleted:
		g.account.Store(nil)
	default:
		g.noAccountLog.Do(func() { g.log.Warn(disabledAccount, zap.String("account", g.Account)) })
	}
}

const disabledAccount = "the account is disabled: every key is unknown until limitkeeper account enable brings it back"

// warnOfMissingAccount logs why every key is unknown.
func (g *Gateway) warnOfMissingAccount(ctx context.Context, s *service.Service) {
	message := "the account does not exist: every key is unknown until limitkeeper account create has created it"
	fields := []zap.Field{zap.String("account", g.Account)}
	a, err := s.OperatorAccount(ctx, g.Account)
	now, failed := s.RenamedAccount(ctx, g.Account)
	switch {
	case err == nil && a.Disabled:
		message = disabledAccount
	case failed == nil && now != nil:
		message, fields = "the account has been renamed: every key is unknown until the config has its present name", append(fields, zap.String("renamed_to", now.Name))
	}
	g.log.Warn(message, fields...)
}

// endpoint returns the path of the original request, before any rewrite, for the history.
func endpoint(r *http.Request) string {
	if o, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && o.URL != nil {
		return o.URL.Path
	}
	return r.URL.Path
}

// passes reports whether to call the next handler.
func (g *Gateway) passes(v *requestState) bool {
	switch {
	case v.decision.Allowed(), g.Observe:
		return true
	case v.outcome == outcomeUnavailable:
		return g.OnStoreError == onStoreErrorAllow
	}
	return false
}
