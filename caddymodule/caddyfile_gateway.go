package caddymodule

import (
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/core"
)

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	limitkeeper_api [<matcher>] {
//		dashboard off|on
//	}
func (a *API) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return d.ArgErr()
	}
	return words{parse: map[string]parser{
		"dashboard": func(d *caddyfile.Dispenser) error {
			var s string
			err := oneOf(&s, "off", "on")(d)
			a.Dashboard = new(s == "on")
			return err
		},
	}}.block(d, apiDirective)
}

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	limitkeeper [<matcher>] {
//		account <name>
//		key header <name> | bearer | query <name> | cookie <name>
//		keep_key
//		cost [<meter>] <n|placeholder>
//		request_id header <name>
//		on_store_error deny|allow
//		observe
//		errors
//		headers all|x-ratelimit|ietf|none
//	}
func (g *Gateway) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return d.ArgErr()
	}
	flag := func(b *bool) parser {
		return func(d *caddyfile.Dispenser) error {
			*b = true
			return noArgs(d)
		}
	}
	return words{
		parse: map[string]parser{
			"account":        text(&g.Account),
			"key":            g.unmarshalKey,
			"keep_key":       flag(&g.KeepKey),
			"cost":           g.unmarshalCost,
			"request_id":     g.unmarshalRequestID,
			"on_store_error": oneOf(&g.OnStoreError, onStoreErrorDeny, onStoreErrorAllow),
			"observe":        flag(&g.Observe),
			"errors":         flag(&g.Errors),
			"headers":        oneOf(&g.Headers, "all", "x-ratelimit", "ietf", "none"),
		},
		repeatable: map[string]bool{"key": true, "cost": true},
	}.block(d, "the directive "+appName)
}

func (g *Gateway) unmarshalKey(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 || len(args) > 2 {
		return d.Errf("key: want one place on a line: header <name>, bearer, query <name> or cookie <name>; got %d words", len(args))
	}
	s := KeySource{In: args[0]}
	if len(args) == 2 {
		s.Name = args[1]
	}
	if err := s.check(); err != nil {
		return d.WrapErr(err)
	}
	for _, have := range g.Keys {
		if have.normal() == s.normal() {
			return d.Errf("key %s is given twice", strings.Join(args, " "))
		}
	}
	g.Keys = append(g.Keys, s)
	return noBlock(d)
}

// unmarshalCost parses "cost <n>" and "cost <meter> <n>", which may stand once for each meter.
func (g *Gateway) unmarshalCost(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 1 {
		args = []string{core.MeterRequests, args[0]}
	}
	if len(args) != 2 {
		return d.ArgErr()
	}
	meter, text := args[0], args[1]
	if _, err := newCostOption(meter, text); err != nil {
		return d.WrapErr(err)
	}
	_, twice := g.Costs[meter]
	switch {
	case twice, meter == core.MeterRequests && g.Cost != "":
		return d.Errf("the cost of %s is given twice", meter)
	case meter == core.MeterRequests:
		g.Cost = caddyhttp.WeakString(text)
	default:
		if g.Costs == nil {
			g.Costs = map[string]caddyhttp.WeakString{}
		}
		g.Costs[meter] = caddyhttp.WeakString(text)
	}
	return noBlock(d)
}

func (g *Gateway) unmarshalRequestID(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 || len(args) > 2 {
		return d.ArgErr()
	}
	g.RequestID = &RequestIDSource{In: args[0]}
	if len(args) == 2 {
		g.RequestID.Name = args[1]
	}
	if err := g.RequestID.check(); err != nil {
		return d.WrapErr(err)
	}
	return noBlock(d)
}
