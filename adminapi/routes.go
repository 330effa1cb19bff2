package adminapi

import (
	_ "embed"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// base is what every path begins with.
const base = "/functions/v1"

// handler answers one request, or returns the error to answer with; then it has
// written nothing.
type handler func(*call) error

// route is one operation of the API.
type route struct {
	method string
	path   string // below base
	handle handler
	params []string // the parameters that the query may have
	public bool     // needs no owner's key and is not counted
	plain  bool     // answered over plain HTTP too
}

// The parameters of lists and of days.
var (
	pageParams = []string{"page", "limit"}
	keyParams  = append([]string{"user_id", "plan_id", "status"}, pageParams...)
	userParams = append([]string{"email"}, pageParams...)
	dayParams  = []string{"from", "to"}
)

// routes is the whole API.
var routes = []route{
	{method: "POST", path: validatePath, handle: validate},

	{method: "GET", path: "/keys", handle: listKeys, params: keyParams},
	{method: "POST", path: "/keys", handle: createKey},
	{method: "GET", path: "/keys/{id}", handle: ofKey(getKey)},
	{method: "PUT", path: "/keys/{id}", handle: ofKey(updateKey)},
	{method: "DELETE", path: "/keys/{id}", handle: ofKey(deleteKey)},
	{method: "POST", path: "/keys/{id}/regenerate", handle: ofKey(regenerateKey)},
	{method: "GET", path: "/keys/{id}/usage", handle: ofKey(keyUsage)},
	{method: "GET", path: "/keys/{id}/usage/daily", handle: ofKey(keyDaily), params: dayParams},
	{method: "GET", path: "/keys/{id}/requests", handle: ofKey(keyRequests), params: pageParams},

	{method: "GET", path: "/plans", handle: listPlans, params: pageParams},
	{method: "POST", path: "/plans", handle: createPlan},
	{method: "GET", path: "/plans/{id}", handle: ofPlan(getPlan)},
	{method: "PUT", path: "/plans/{id}", handle: ofPlan(updatePlan)},
	{method: "DELETE", path: "/plans/{id}", handle: ofPlan(deletePlan)},
	{method: "GET", path: "/plans/{id}/usage", handle: ofPlan(planUsage)},
	{method: "GET", path: "/plans/{id}/usage/daily", handle: ofPlan(planDaily), params: dayParams},
	{method: "GET", path: "/plans/{id}/users", handle: ofPlan(planUsers), params: pageParams},
	{method: "GET", path: "/plans/{id}/keys", handle: ofPlan(planKeys), params: pageParams},

	{method: "GET", path: "/users", handle: listUsers, params: userParams},
	{method: "POST", path: "/users", handle: createUser},
	{method: "GET", path: "/users/{id}", handle: ofUser(getUser)},
	{method: "PUT", path: "/users/{id}", handle: ofUser(updateUser)},
	{method: "DELETE", path: "/users/{id}", handle: ofUser(deleteUser)},
	{method: "GET", path: "/users/{id}/usage", handle: ofUser(userUsage)},
	{method: "GET", path: "/users/{id}/usage/daily", handle: ofUser(userDaily), params: dayParams},
	{method: "GET", path: "/users/{id}/keys", handle: ofUser(userKeys), params: pageParams},
	{method: "POST", path: "/users/{id}/keys", handle: ofUser(createUserKey)},
	{method: "GET", path: "/users/{id}/requests", handle: ofUser(userRequests), params: pageParams},

	{method: "GET", path: "/health", handle: health, public: true, plain: true},
	{method: "GET", path: "/openapi.yaml", handle: document, public: true},
}

// endpoint is one path with its methods. One without any answers for the paths
// that there are not.
type endpoint struct {
	config  *Config
	path    string
	methods map[string]route
}

// endpoints gathers the routes by path.
func endpoints(c *Config) map[string]*endpoint {
	es := map[string]*endpoint{}
	for _, rt := range routes {
		e, ok := es[rt.path]
		if !ok {
			e = &endpoint{config: c, path: base + rt.path, methods: map[string]route{}}
			es[rt.path] = e
		}
		e.methods[rt.method] = rt
		if rt.method == http.MethodGet {
			e.methods[http.MethodHead] = rt // net/http leaves out the body
		}
	}
	return es
}

// ServeHTTP runs the route of the request's method and writes the error that it
// returns.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := newCall(e.config, w, r)
	c.validation = e.path == base+validatePath
	w.Header()["X-Request-Id"] = c.ids[:]
	defer c.recover()
	if err := e.serve(c); err != nil {
		c.fail(err)
	}
}

// serve runs the checks before a handler. A request over plain HTTP is refused by its method
// and path alone: credentials, query and body are not read.
func (e *endpoint) serve(c *call) error {
	if !e.methods[c.r.Method].plain && !c.config.Secure(c.r) {
		return errPlainHTTP
	}
	if len(e.methods) == 0 {
		return errNotFound
	}
	rt, ok := e.methods[c.r.Method]
	if !ok {
		c.w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(e.methods)), ", "))
		return errMethodNotAllowed
	}
	if !rt.public {
		if err := c.authenticate(); err != nil {
			return err
		}
		if err := c.throttle(); err != nil {
			return err
		}
	}
	if err := c.parseQuery(rt.params); err != nil {
		return err
	}
	return rt.handle(c)
}

// serviceHealth says how the service is doing.
type serviceHealth struct {
	Status string       `json:"status"`
	Clock  *clockHealth `json:"clock,omitempty"` // only while the clock is held
}

// clockHealth is a jump of the clock.
type clockHealth struct {
	Used         time.Time `json:"used"`          // the time at which requests count
	AheadSeconds int64     `json:"ahead_seconds"` // of the machine's clock
}

// health answers whether requests are counted, and why not, and whether the clock has jumped.
func health(c *call) error {
	svc, err := c.service()
	if err != nil {
		return err
	}
	if err := svc.Health(c.ctx()); err != nil {
		return err
	}
	h := serviceHealth{Status: "ok"}
	if s := c.config.Clock(); s.Held {
		h.Clock = &clockHealth{s.Used.UTC().Truncate(time.Millisecond), int64(s.Ahead() / time.Second)}
	}
	return c.write(http.StatusOK, h)
}

//go:embed openapi.yaml
var openapi []byte

// document answers with the contract.
func document(c *call) error {
	c.w.Header().Set("Content-Type", "application/yaml")
	_, _ = c.w.Write(openapi) // a client that went away is no fault
	return nil
}
