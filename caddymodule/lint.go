package caddymodule

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	maphandler "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
)

// rawRoute has the members of a route that the warnings use.
type rawRoute struct {
	Group  string                       `json:"group"`
	Match  []map[string]json.RawMessage `json:"match"`
	Handle []rawHandler                 `json:"handle"`
}

type rawHandler struct {
	Handler        string          `json:"handler"`
	Routes         []rawRoute      `json:"routes"`
	Errors         json.RawMessage `json:"errors"` // of a subroute
	HandleResponse json.RawMessage `json:"handle_response"`
	Destinations   []string        `json:"destinations"` // of a map: the placeholders that it sets

	// Of a gateway.
	Account string      `json:"account"`
	Keys    []KeySource `json:"keys"`
	KeepKey bool        `json:"keep_key"`

	Identify string `json:"identify"`
}

// hides reports whether no request can pass a gateway behind this one and be counted once: the gateway behind gets no key, or the same key again.
func (h *rawHandler) hides(behind *rawHandler) bool {
	if cmp.Or(h.Account, DefaultAccount) != cmp.Or(behind.Account, DefaultAccount) || h.Identify+behind.Identify != "" {
		return false
	}
	places := h.places()
	return h.KeepKey || !slices.ContainsFunc(behind.places(), func(s KeySource) bool { return !slices.Contains(places, s) })
}

// places returns where a gateway looks for keys.
func (h *rawHandler) places() (list []KeySource) {
	given := h.Keys
	if len(given) == 0 {
		given = defaultKeySources()
	}
	for _, s := range given {
		list = append(list, s.normal())
	}
	return list
}

// answers reports whether a handler answers each request. A reverse_proxy with handle_response, such as forward_auth, may pass it on.
func (h *rawHandler) answers() bool {
	return h.Handler == "static_response" || h.Handler == "reverse_proxy" && h.HandleResponse == nil
}

// takesAll reports whether a route takes each request that reaches it. Of a group only the first route that matches runs.
func (r *rawRoute) takesAll() bool { return len(r.Match) == 0 && r.Group == "" }

// takesPaths reports whether a route takes the requests of some paths. With another matcher, such as not, its
// author chose the open paths.
func (r *rawRoute) takesPaths() bool {
	return len(r.Match) > 0 && !slices.ContainsFunc(r.Match, func(set map[string]json.RawMessage) bool {
		_, path := set["path"]
		return !path || len(set) > 1
	})
}

// missesAPI reports whether a route takes the requests of some paths, and none of them is a path of the REST API or the dashboard.
func (r *rawRoute) missesAPI() bool {
	return r.takesPaths() && !slices.ContainsFunc(r.Match, func(set map[string]json.RawMessage) bool {
		var patterns []string
		err := json.Unmarshal(set["path"], &patterns)
		return err != nil || slices.ContainsFunc(patterns, func(p string) bool {
			if wild := strings.IndexAny(p, `*?[\{`); wild >= 0 {
				p = p[:wild]
			}
			overlaps := func(base string) bool { return strings.HasPrefix(base, p) || strings.HasPrefix(p, base) }
			return overlaps(APIBase) || overlaps(strings.TrimSuffix(dashboard.Base, "/"))
		})
	})
}

// neverFail are handlers that do not fail with a status of 500 or more.
var neverFail = []string{apiDirective, "encode", "headers", "map", "rewrite", "static_response", "subroute", "vars"}

// rawRoutes returns routes, some of them loaded already: Caddy drops the config of a handler after loading it.
func rawRoutes(list caddyhttp.RouteList) (routes []rawRoute) {
	for _, r := range list {
		raw := rawRoute{Group: r.Group}
		for _, set := range r.MatcherSets {
			names := map[string]json.RawMessage{}
			for _, m := range set {
				names[m.(caddy.Module).CaddyModule().ID.Name()], _ = json.Marshal(m) // another matcher may have no JSON
			}
			raw.Match = append(raw.Match, names)
		}
		for _, set := range r.MatcherSetsRaw {
			raw.Match = append(raw.Match, set)
		}
		for _, h := range r.HandlersRaw {
			var handler rawHandler
			_ = json.Unmarshal(h, &handler) // another handler may have a member routes of another type
			raw.Handle = append(raw.Handle, handler)
		}
		if r.HandlersRaw == nil {
			for _, h := range r.Handlers {
				handler := rawHandler{Handler: h.(caddy.Module).CaddyModule().ID.Name()}
				switch h := h.(type) {
				case *Gateway:
					handler.Account, handler.Keys, handler.KeepKey, handler.Identify = h.Account, h.Keys, h.KeepKey, h.Identify
				case *maphandler.Handler:
					handler.Destinations = h.Destinations
				case *caddyhttp.Subroute:
					handler.Routes = rawRoutes(h.Routes)
					if h.Errors != nil {
						handler.Errors = json.RawMessage("{}")
					}
				}
				raw.Handle = append(raw.Handle, handler)
			}
		}
		routes = append(routes, raw)
	}
	return routes
}

// checkRoutes returns the linter that has walked the routes of the server being provisioned. It walks the routes of each server once, and
// warns of valid routes that probably do not do what their author meant.
func (a *App) checkRoutes(ctx caddy.Context) *linter {
	l := &linter{log: a.log}
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return l
	}
	if known, checked := a.warned.Load(srv); checked {
		return known.(*linter)
	}
	l.walk(rawRoutes(srv.Routes), reached{})
	a.warned.Store(srv, l) // Caddy loads handlers one after another
	return l
}

// reached describes the requests that reach a handler.
type reached struct {
	all      bool       // every such request has passed a gateway
	some     bool       // the requests of some paths have passed a gateway
	gateway  rawHandler // that these requests have passed
	answered bool       // an earlier handler answers every such request
	notAPI   bool       // no such request has a path of the REST API or the dashboard
}

// linter warns of the routes of a server.
type linter struct {
	log     *zap.Logger
	mayFail bool     // a request with a key may reach a handler that can fail with a status of 500 or more, and that is not behind a gateway
	mapped  []string // the placeholders that the maps of the server set
	err     error    // a second gateway refuses each request that the first one lets through
}

// knows reports whether a placeholder is one of Caddy, of another module by its namespace, or of a map of the server.
func (l *linter) knows(placeholder string) bool {
	_, known := caddyhttp.NewTestReplacer(httptest.NewRequest(http.MethodGet, "/", nil)).Get(placeholder)
	module := strings.Contains(placeholder, ".") && !strings.HasPrefix(placeholder, "http.request.")
	return known || module || slices.Contains(l.mapped, "{"+placeholder+"}")
}

// walk warns of a list of routes, and returns the requests that reach the handler after the list.
func (l *linter) walk(routes []rawRoute, passed reached) reached {
	var before bool // passed.some in front of the group of r: of a group only one route runs
	for i, r := range routes {
		if r.Group == "" || i == 0 || r.Group != routes[i-1].Group {
			before = passed.some
		}
		inside := passed
		inside.some = before && len(r.Match) == 0 // it is unknown whether the paths of a matcher have passed the gateway
		inside.notAPI = passed.notAPI || r.missesAPI()
		for _, h := range r.Handle {
			switch {
			case h.Handler == appName && (inside.all || inside.some) && inside.gateway.hides(&h):
				l.err = errors.New("limitkeeper stands twice in the way of a request: the first one removes the key, and the second one finds none, " +
					"or with keep_key counts the request again. Remove one, or put each into a handle block of its own")
			case h.Handler == appName && (inside.all || inside.some):
				l.log.Warn("limitkeeper runs twice for one request: the second one gets no key, or with keep_key counts the request again")
			case h.Handler == apiDirective && inside.all:
				l.log.Warn("the gateway also guards the REST API behind it: put limitkeeper and limitkeeper_api into sites, or handle blocks, of their own")
			case (h.Handler == appName || h.Handler == apiDirective) && inside.answered:
				l.log.Warn("a handler before " + h.Handler + " answers every request: put " + h.Handler + " in front of it")
			case h.Handler == apiDirective && inside.notAPI:
				l.log.Warn("limitkeeper_api serves nothing here: its paths begin with " + APIBase + " and " + dashboard.Base + ", whatever its matcher")
			case h.Handler == "reverse_proxy" && inside.some && !inside.all:
				l.log.Warn("limitkeeper guards some paths only: other paths reach the reverse_proxy behind it without a key. Put both into one handle block")
			}
			if h.Errors != nil || !inside.all && h.Handler != appName && !slices.Contains(neverFail, h.Handler) {
				l.mayFail = true
			}
			l.mapped = append(l.mapped, h.Destinations...)
			inside = l.walk(h.Routes, inside)
			if h.Handler == appName {
				inside.all, inside.gateway = true, h
			}
			inside.answered = inside.answered || h.answers()
			inside.notAPI = inside.notAPI && h.Handler != "rewrite"
		}
		switch {
		case r.takesAll():
			passed.all, passed.gateway, passed.some, passed.answered = inside.all, inside.gateway, inside.some, inside.answered
		case r.takesPaths():
			if (inside.all || inside.some) && !inside.answered {
				passed.some, passed.gateway = true, inside.gateway
			}
		}
		passed.notAPI = passed.notAPI && inside.notAPI
	}
	return passed
}

// warnOfAccount warns of a gateway without an account line, in a config that declares other accounts.
func (g *Gateway) warnOfAccount() {
	var names []string
	for _, a := range g.app.Accounts {
		names = append(names, strconv.Quote(a.Name))
	}
	if len(names) == 0 || slices.Contains(names, strconv.Quote(g.Account)) {
		return
	}
	g.log.Warn("the config declares accounts, and not that of this gateway: until it is created every key is unknown",
		zap.String("account", g.Account), zap.String("declared", strings.Join(names, " ")))
}
