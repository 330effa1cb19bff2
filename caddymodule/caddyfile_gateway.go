package caddymodule

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/core"
)

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]. docs/caddyfile.md describes the words.
func (a *API) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return d.ArgErr()
	}
	return words{parse: map[string]parser{
		"people": one(func(_, arg string) error {
			a.People = arg
			return checkPeople(arg)
		}),
		"dashboard": one(func(_, arg string) error {
			if arg != "off" && arg != "on" {
				return fmt.Errorf("dashboard: want off or on, got %q", arg)
			}
			a.Dashboard = new(arg == "on")
			return nil
		}),
	}}.block(d, apiDirective)
}

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]. docs/caddyfile.md describes the words.
func (g *Gateway) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	if d.NextArg() {
		return d.ArgErr()
	}
	err := words{
		parse: map[string]parser{
			"account":        text(&g.Account),
			"key":            args(g.unmarshalKey),
			"keep_key":       flag(&g.KeepKey),
			"identify":       args(g.unmarshalIdentify),
			"cost":           args(g.unmarshalCost),
			"charge":         args(g.unmarshalCharge),
			"clamp":          text(&g.Clamp),
			"count_on":       text(&g.CountOn),
			"on_unknown":     text(&g.OnUnknown),
			"request_id":     args(g.unmarshalRequestID),
			"require":        args(g.unmarshalRequire),
			"on_store_error": text(&g.OnStoreError),
			"observe":        flag(&g.Observe),
			"errors":         args(g.unmarshalErrors),
			"problem_json":   flag(&g.ProblemJSON),
			"headers":        text(&g.Headers),
		},
		repeatable: map[string]bool{"key": true, "cost": true, "require": true},
		check:      g.check,
	}.block(d, "the directive "+appName)
	if err == nil {
		if err = g.checkMembers(); err != nil {
			err = d.WrapErr(err)
		}
	}
	return err
}

func (g *Gateway) unmarshalKey(_ string, args []string) error {
	if len(args) == 0 || len(args) > 2 {
		return fmt.Errorf("key: want one place on a line: header <name>, bearer, query <name> or cookie <name>; got %d words", len(args))
	}
	g.Keys = append(g.Keys, KeySource{In: args[0], Name: strings.Join(args[1:], "")})
	return nil
}

// unmarshalIdentify parses "identify <placeholder>" and "identify <placeholder> plan <name>".
func (g *Gateway) unmarshalIdentify(_ string, args []string) error {
	switch {
	case len(args) == 1:
	case len(args) == 3 && args[1] == "plan" && args[2] != "":
		g.IdentifyPlan = args[2]
	default:
		return errors.New("identify: want a placeholder, and plan with its name if unknown users are made: identify {http.auth.user.id} plan Basic")
	}
	g.Identify = args[0]
	return nil
}

// unmarshalCost parses "cost <n>" and "cost <meter> <n>", which may stand once for each meter. In place of <n> there may be "request <member> <default>".
func (g *Gateway) unmarshalCost(_ string, args []string) error {
	if len(args) == 1 || len(args) == 3 && args[0] == "request" {
		args = append([]string{core.MeterRequests}, args...)
	}
	switch {
	case len(args) == 3 && args[1] == "request":
		return fmt.Errorf("cost: want a default after the member of the request: cost %s request %s 4096", args[0], args[2])
	case len(args) != 2 && (len(args) != 4 || args[1] != "request"):
		return errCount
	}
	meter, cost := args[0], caddyhttp.WeakString(strings.Join(args[1:], " "))
	_, twice := g.Costs[meter]
	switch {
	case twice, meter == core.MeterRequests && g.Cost != "":
		return fmt.Errorf("the cost of %s is given twice", meter)
	case meter == core.MeterRequests:
		g.Cost = cost
	case g.Costs == nil:
		g.Costs = map[string]caddyhttp.WeakString{meter: cost}
	default:
		g.Costs[meter] = cost
	}
	return nil
}

// unmarshalErrors parses "errors", for the error routes, and "errors openai", for the answers.
func (g *Gateway) unmarshalErrors(_ string, args []string) error {
	switch len(args) {
	case 0:
		g.Errors = true
	case 1:
		g.ErrorForm = args[0]
	default:
		return errCount
	}
	return nil
}

// unmarshalRequire parses "require scope <name>..." and "require feature <name>...".
func (g *Gateway) unmarshalRequire(_ string, args []string) error {
	list := &g.RequireScopes
	switch {
	case len(args) < 2:
		return fmt.Errorf("require: want scope or feature, and names: require scope write")
	case args[0] == "feature":
		list = &g.RequireFeatures
	case args[0] != "scope":
		return fmt.Errorf("require: want scope or feature, got %q", args[0])
	}
	*list = append(*list, args[1:]...)
	return nil
}

func (g *Gateway) unmarshalRequestID(_ string, args []string) error {
	if len(args) == 0 || len(args) > 2 {
		return errCount
	}
	g.RequestID = &RequestIDSource{In: args[0], Name: strings.Join(args[1:], "")}
	return nil
}
