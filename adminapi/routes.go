package adminapi

import (
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/internal/exchange"
	"github.com/limitkeeper/limitkeeper/internal/logthrottle"
)

// base is what every path begins with.
const base = "/functions/v1"

// handler answers one request, or writes nothing and returns the error to answer with.
type handler func(*call) error

type route struct {
	method string
	path   string // below base
	need   core.Permission
	handle handler
	params []string // the allowed query parameters
	public bool     // needs neither owner's key nor permission, and does not count for service_rate_limit
	plain  bool     // allowed over plain HTTP too
}

// changes reports whether the operation changes or counts something.
func (rt *route) changes() bool { return rt.method != http.MethodGet }

// Query parameters.
var (
	pageParams = []string{"page", "limit"}
	keyParams  = append([]string{"user_id", "plan_id", "status"}, pageParams...)
	userParams = append([]string{"email", "external_id"}, pageParams...)
	dayParams  = []string{"from", "to", "meter"}

	historyParams = append([]string{"status", "reason", "meter", "user_id", "key_id", "endpoint", "method", "ip_address", "request_id", "from", "to", "cursor"},
		pageParams...)
)

var routes = []route{
	{method: "POST", path: validatePath, need: core.PermitValidate, handle: validate},

	{method: "GET", path: "/holds/{id}", need: core.PermitHold, handle: get(ofHold, (*service.Service).Hold, reply(viewHold))},
	{method: "DELETE", path: "/holds/{id}", need: core.PermitValidate, handle: ofHold(releaseHold)},
	{method: "POST", path: "/holds/{id}/settle", need: core.PermitValidate, handle: ofHold(settleHold)},

	{method: "GET", path: "/keys", need: core.PermitRead, handle: listKeys, params: keyParams},
	{method: "POST", path: "/keys", need: core.PermitEdit, handle: createKey},
	{method: "GET", path: "/keys/{id}", need: core.PermitRead, handle: get(ofKey, (*service.Service).Key, replyKey)},
	{method: "PUT", path: "/keys/{id}", need: core.PermitSupport, handle: ofKey(updateKey)},
	{method: "DELETE", path: "/keys/{id}", need: core.PermitEdit, handle: remove(ofKey, "API key", (*service.Service).DeleteKey)},
	{method: "POST", path: "/keys/{id}/regenerate", need: core.PermitEdit, handle: ofKey(regenerateKey)},
	{method: "GET", path: "/keys/{id}/usage", need: core.PermitRead, handle: get(ofKey, (*service.Service).KeyUsage, reply(viewKeyUsage))},
	{method: "POST", path: "/keys/{id}/usage/adjust", need: core.PermitSupport, handle: adjust(ofKey, (*service.Service).AdjustKey, viewKeyUsage)},
	{method: "GET", path: "/keys/{id}/usage/daily", need: core.PermitRead, handle: daily(ofKey, (*service.Service).KeyDays), params: dayParams},
	{method: "GET", path: "/keys/{id}/usage/hourly", need: core.PermitRead, handle: hourly(ofKey, (*service.Service).KeyDays), params: dayParams},
	{method: "GET", path: "/keys/{id}/requests", need: core.PermitRead, handle: history(ofKey, (*service.Service).KeyHistory, viewKeyRequest), params: pageParams},

	{method: "GET", path: "/plans", need: core.PermitRead, handle: listPlans, params: pageParams},
	{method: "POST", path: "/plans", need: core.PermitEdit, handle: create(patch(&core.PlanMembers), (*service.Service).CreatePlan, reply(viewPlan))},
	{method: "GET", path: "/plans/{id}", need: core.PermitRead, handle: get(ofPlan, (*service.Service).Plan, reply(viewPlan))},
	{method: "PUT", path: "/plans/{id}", need: core.PermitEdit, handle: update(ofPlan, patch(&core.PlanMembers, "id", "created_at", "updated_at"), (*service.Service).UpdatePlan, reply(viewPlan))},
	{method: "DELETE", path: "/plans/{id}", need: core.PermitEdit, handle: remove(ofPlan, "Plan", (*service.Service).DeletePlan)},
	{method: "GET", path: "/plans/{id}/usage", need: core.PermitRead, handle: get(ofPlan, (*service.Service).PlanUsage, reply(viewPlanUsage))},
	{method: "GET", path: "/plans/{id}/usage/daily", need: core.PermitRead, handle: daily(ofPlan, (*service.Service).PlanDays), params: dayParams},
	{method: "GET", path: "/plans/{id}/usage/hourly", need: core.PermitRead, handle: hourly(ofPlan, (*service.Service).PlanDays), params: dayParams},
	{method: "GET", path: "/plans/{id}/users", need: core.PermitRead, handle: listOf(ofPlan, (*service.Service).Plan, viewPlanUser, planUsers), params: pageParams},
	{method: "GET", path: "/plans/{id}/keys", need: core.PermitRead, handle: listOf(ofPlan, (*service.Service).Plan, viewPlanKey, planKeys), params: pageParams},

	{method: "GET", path: "/prices", need: core.PermitRead, handle: getPrices},
	{method: "PUT", path: "/prices", need: core.PermitEdit, handle: putPrices},
	{method: "POST", path: "/prices/quote", need: core.PermitRead, handle: quote},

	{method: "GET", path: "/users", need: core.PermitRead, handle: listUsers, params: userParams},
	{method: "POST", path: "/users", need: core.PermitEdit, handle: create(readNewUser, (*service.Service).CreateUser, reply(viewUser))},
	{method: "GET", path: "/users/{id}", need: core.PermitRead, handle: get(ofUser, (*service.Service).User, reply(viewUser))},
	{method: "PUT", path: "/users/{id}", need: core.PermitEdit, handle: update(ofUser, patch(&core.UserMembers, "user_id", "created_at", "updated_at"), (*service.Service).UpdateUser, reply(viewUser))},
	{method: "DELETE", path: "/users/{id}", need: core.PermitEdit, handle: remove(ofUser, "User", (*service.Service).DeleteUser)},
	{method: "GET", path: "/users/{id}/usage", need: core.PermitRead, handle: get(ofUser, (*service.Service).UserUsage, reply(viewUserUsage))},
	{method: "POST", path: "/users/{id}/usage/adjust", need: core.PermitSupport, handle: adjust(ofUser, (*service.Service).AdjustUser, viewUserUsage)},
	{method: "GET", path: "/users/{id}/usage/daily", need: core.PermitRead, handle: daily(ofUser, (*service.Service).UserDays), params: dayParams},
	{method: "GET", path: "/users/{id}/usage/hourly", need: core.PermitRead, handle: hourly(ofUser, (*service.Service).UserDays), params: dayParams},
	{method: "GET", path: "/users/{id}/keys", need: core.PermitRead, handle: listOf(ofUser, (*service.Service).User, viewUserKey, userKeys), params: pageParams},
	{method: "POST", path: "/users/{id}/keys", need: core.PermitEdit, handle: ofUser(createUserKey)},
	{method: "GET", path: "/users/{id}/requests", need: core.PermitRead, handle: history(ofUser, (*service.Service).UserHistory, viewUserRequest), params: pageParams},

	{method: "GET", path: "/webhooks", need: core.PermitRead, handle: listWebhooks, params: pageParams},
	{method: "POST", path: "/webhooks", need: core.PermitEdit, handle: create(patch(&core.WebhookMembers), (*service.Service).CreateWebhook, reply(viewNewSecret))},
	{method: "GET", path: "/webhooks/{id}", need: core.PermitRead, handle: get(ofWebhook, (*service.Service).Webhook, reply(viewWebhook))},
	{method: "PUT", path: "/webhooks/{id}", need: core.PermitEdit, handle: update(ofWebhook, patch(&core.WebhookMembers, webhookAnswers...), (*service.Service).UpdateWebhook, reply(viewWebhook))},
	{method: "DELETE", path: "/webhooks/{id}", need: core.PermitEdit, handle: remove(ofWebhook, "Webhook", (*service.Service).DeleteWebhook)},
	{method: "POST", path: "/webhooks/{id}/rotate", need: core.PermitEdit, handle: ofWebhook(rotateWebhook)},
	{method: "POST", path: "/webhooks/{id}/test", need: core.PermitEdit, handle: ofWebhook(testWebhook)},
	{method: "GET", path: "/webhooks/{id}/deliveries", need: core.PermitRead, handle: deliveries, params: pageParams},

	{method: "GET", path: "/search", need: core.PermitRead, handle: searchByQuery, params: []string{"q", "limit"}},
	{method: "POST", path: "/search", need: core.PermitRead, handle: searchByBody},
	{method: "GET", path: "/thresholds", need: core.PermitRead, handle: thresholds, params: append([]string{"over", "meter"}, pageParams...)},
	{method: "GET", path: "/requests", need: core.PermitRead, handle: accountRequests, params: historyParams},
	{method: "GET", path: "/audit", need: core.PermitRead, handle: auditLog, params: auditParams},
	{method: "GET", path: "/usage", need: core.PermitRead, handle: usageReport, params: []string{"from", "to", "group_by"}},
	{method: "GET", path: "/usage/feed", need: core.PermitRead, handle: usageFeed},
	{method: "PUT", path: "/usage/feed", need: core.PermitEdit, handle: rewindUsageFeed},

	{method: "GET", path: "/health", handle: health, public: true, plain: true},
	{method: "GET", path: "/health/ready", handle: ready, public: true, plain: true},
	{method: "GET", path: "/health/live", handle: live, public: true, plain: true},
	{method: "GET", path: "/openapi.yaml", handle: openAPI, public: true},
}

// endpoint is one path with its methods. The endpoint without methods answers unknown paths.
type endpoint struct {
	config  *Config
	path    string
	methods map[string]*route
	faults  logthrottle.Throttle // of log lines about errors that the answer hides
}

func endpoints(c *Config) map[string]*endpoint {
	es := map[string]*endpoint{}
	for i := range routes {
		rt := &routes[i]
		e, ok := es[rt.path]
		if !ok {
			e = &endpoint{config: c, path: base + rt.path, methods: map[string]*route{}}
			es[rt.path] = e
		}
		e.methods[rt.method] = rt
		if rt.method == http.MethodGet {
			e.methods[http.MethodHead] = rt // net/http leaves out the body
		}
	}
	return es
}

// ServeHTTP runs the route for the method and writes its error, if any.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{config: e.config, w: w, r: r, ids: [1]string{requestID()}, faults: &e.faults, validation: e.path == base+validatePath}
	w.Header()["X-Request-Id"] = c.ids[:]
	defer c.recover()
	if err := e.serve(c); err != nil {
		c.fail(err)
	}
}

// requestID returns a random id of 26 letters and digits. It is unique, but not secret: crypto/rand.Text takes three times as long.
func requestID() string {
	var room [26]byte
	b := strconv.AppendUint(room[:0], rand.Uint64()|1<<63, 32) // 13 digits
	return string(strconv.AppendUint(b, rand.Uint64()|1<<63, 32))
}

// serve checks the request and runs the handler. A request over plain HTTP is refused before its
// credentials, query and body are read.
func (e *endpoint) serve(c *call) error {
	rt, ok := e.methods[c.r.Method]
	if !(ok && rt.plain) && !c.config.Secure(c.r) {
		return errPlainHTTP
	}
	if len(e.methods) == 0 {
		return errNotFound
	}
	if !ok {
		c.w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(e.methods)), ", "))
		return errMethodNotAllowed
	}
	c.public = rt.public
	if !rt.changes() || rt.method == http.MethodDelete {
		exchange.AnswerUnread(c.w, c.r) // no handler reads a body
	}
	if rt.changes() && exchange.Early(c.r) {
		return ErrEarly
	}
	if !rt.public {
		if err := c.authenticate(); err != nil {
			return err
		}
		if err := c.throttle(); err != nil {
			return err
		}
		if err := c.permit(rt.need); err != nil {
			return err
		}
		if rt.changes() && rt.need > core.PermitValidate { // the audit log has no decisions
			c.act()
		}
	}
	if err := c.parseQuery(rt.params); err != nil {
		return err
	}
	return rt.handle(c)
}
