package caddymodule

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/core"
)

// costOption is the configured cost on a meter.
type costOption struct {
	meter string
	n     int64  // without placeholders
	of    string // a text with placeholders, "" for none

	member string // of the JSON body of the request; then n is the default
}

// provisionCost parses the costs.
func (g *Gateway) provisionCost() error {
	if _, twice := g.Costs[core.MeterRequests]; twice {
		return errors.New("costs: the cost of requests is the option cost")
	}
	all := map[string]caddyhttp.WeakString{}
	maps.Copy(all, g.Costs)
	if g.Cost != "" {
		all[core.MeterRequests] = g.Cost
	}
	g.costs = nil
	for _, meter := range slices.Sorted(maps.Keys(all)) {
		c, err := newCostOption(meter, string(all[meter]))
		if err != nil {
			return err
		}
		g.costs = append(g.costs, c)
	}
	return nil
}

// newCostOption parses a cost of the config. The error quotes the invalid value.
func newCostOption(meter, text string) (c costOption, err error) {
	c.meter = meter
	if words := strings.Fields(text); len(words) == 3 && words[0] == "request" {
		c.member, text = words[1], words[2]
	}
	switch _, err := strconv.ParseInt(text, 10, 64); {
	case c.member != "" && err != nil:
		return c, fmt.Errorf("cost: want a whole number after the member of the request, as in cost %s request max_tokens 4096, got %q", meter, text)
	case hasPlaceholders(text) && c.member == "":
		c.of = text
	case text != "":
		if c.n, err = parseCost(meter, text); err != nil {
			if meter == core.MeterRequests {
				return c, fmt.Errorf("cost: want a whole number from 0 to %d, a placeholder, or a meter and its cost, got %q", core.MaxCost, text)
			}
			return c, fmt.Errorf("cost: want a meter such as tokens, and a whole number from 0 to %d, got %q", core.MaxMeterCost, meter+" "+text)
		}
	}
	return c, core.CheckCosts([]core.MeterCost{{Meter: meter}})
}

// costOf returns the configured cost of a request. given is false for an empty value: then the price decides.
func (g *Gateway) costOf(c *costOption, repl *caddy.Replacer, body *requestBody) (n int64, given bool, err error) {
	if c.member != "" {
		return g.costIn(body, c)
	}
	if c.of == "" {
		return c.n, true, nil
	}
	s := strings.TrimSpace(repl.ReplaceAll(c.of, ""))
	if s == "" {
		if _, unknown := repl.ReplaceOrErr(c.of, false, true); unknown != nil {
			return 0, false, errUnknownPlaceholder
		}
		return 0, false, nil
	}
	n, err = parseCost(c.meter, s)
	return n, true, err
}

// errUnknownPlaceholder says that no handler of the request has set a placeholder of a cost.
var errUnknownPlaceholder = errors.New("no handler has set a placeholder of a cost")

// checkPlaceholders warns of a placeholder of a cost that nothing sets. A request then costs its price, or 1.
func (g *Gateway) checkPlaceholders(routes *linter) {
	for _, c := range g.costs {
		_, _ = caddy.NewReplacer().ReplaceFunc(c.of, func(name string, _ any) (any, error) {
			if !routes.knows(name) {
				g.log.Warn("the placeholder of a cost is misspelt, or nothing sets it: requests cost their price, or 1", zap.String("meter", c.meter),
					zap.String("placeholder", name))
			}
			return "", nil
		})
	}
}

// hasPlaceholders reports whether a config value has placeholders with balanced braces.
func hasPlaceholders(s string) bool {
	n := strings.Count(s, "{")
	return n > 0 && n == strings.Count(s, "}")
}

// parseCost parses a cost on a meter. The error is a [core.Error] with the code INVALID_REQUEST.
func parseCost(meter, s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		n = -1 // refused below
	}
	if meter == core.MeterRequests {
		err = core.CheckCost(n)
	} else {
		err = core.CheckCosts([]core.MeterCost{{Meter: meter, Cost: n}})
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}
