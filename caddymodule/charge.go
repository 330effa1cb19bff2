package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/aiusage"
)

// Charge configures the final cost of requests, which is read from their answers.
type Charge struct {
	// What is charged: `prices` for the prices of the account, or the name of a meter.
	Of string `json:"of"`

	// Where the answer says it: `openai`, `anthropic` or `gemini` for the usage in answers of these APIs, as JSON or as
	// server-sent events; `header`, a field of the header or a trailer; `json`, a path in an answer of JSON; `mcp` for the
	// prices of tools of an MCP server, whose answers say nothing.
	From string `json:"from"`

	// The name of the field, or the path, with dots between the names of members.
	Name string `json:"name,omitempty"`

	// How a meter is charged by the quantities, such as `15*input + 60*output`. Default: each token, or the value, counts once.
	Formula string `json:"formula,omitempty"`

	price *core.PriceList // of the meter
}

// The words of charge.
const (
	chargePrices = "prices"
	fromHeader   = "header"
	fromJSON     = "json"
	fromMCP      = "mcp"
)

var aiAPIs = []string{string(aiusage.OpenAI), string(aiusage.Anthropic), string(aiusage.Gemini)}

// readsAnswer reports whether the usage is in the body of the answer.
func (c *Charge) readsAnswer() bool {
	return c != nil && (c.From == fromJSON || slices.Contains(aiAPIs, c.From))
}

// callsModel reports whether the body of a request says which model or tool it calls. A request without a body calls none.
func (c *Charge) callsModel() bool {
	return c != nil && (c.From == fromMCP || slices.Contains(aiAPIs, c.From))
}

// check returns an error for an invalid option.
func (c *Charge) check() error {
	switch {
	case c.Of != chargePrices && !core.IsMeterName(c.Of):
		return fmt.Errorf("charge: want prices or the name of a meter, got %q", c.Of)
	case !slices.Contains(append([]string{fromHeader, fromJSON, fromMCP}, aiAPIs...), c.From):
		return fmt.Errorf("charge: want from openai, anthropic, gemini, header <name>, json <path> or mcp, got from %q", c.From)
	case (c.From == fromHeader || c.From == fromJSON) != (c.Name != ""):
		return errors.New("charge: want a name after header and json only: charge tokens from header X-Tokens, charge prices from json usage")
	case c.From == fromHeader && !httpguts.ValidHeaderFieldName(c.Name):
		return fmt.Errorf("charge: %q is not the name of a field", c.Name)
	case c.Of == chargePrices && c.Formula != "":
		return errors.New("charge prices: remove the formula, the prices of the account have one")
	case c.From == fromMCP && c.Of != chargePrices:
		return errors.New("charge: from mcp is for prices: charge prices from mcp")
	case c.Of == chargePrices && c.From == fromHeader:
		return errors.New("charge prices: a field of the header is one number, and prices need quantities: charge tokens from header X-Tokens")
	}
	if c.Of != chargePrices {
		rule := core.PriceRule{Endpoint: "*", Costs: map[string]core.Price{c.Of: core.Price(c.formula())}}
		if err := rule.Check(); err != nil {
			e, _ := errors.AsType[*core.Error](err)
			return fmt.Errorf("charge: %s", e.Detail)
		}
		names := aiusage.Names()
		if c.From == fromHeader || c.From == fromJSON {
			names = nil // json: the names of the members
		}
		for _, name := range strings.FieldsFunc(c.formula(), func(r rune) bool { return strings.ContainsRune(" +*0123456789", r) }) {
			if names != nil && !slices.Contains(names, name) {
				return fmt.Errorf("charge: want %s, got %q", strings.Join(names, ", "), name)
			}
		}
		c.price = (&core.Prices{Rules: []core.PriceRule{rule}}).Compiled()
	}
	return nil
}

// formula returns how a meter is charged by the quantities.
func (c *Charge) formula() string {
	switch {
	case c.Formula != "":
		return c.Formula
	case c.From == fromHeader || c.From == fromJSON:
		return "value"
	}
	return aiusage.Formula
}

// cost returns the cost on the meter for a usage.
func (c *Charge) cost(q core.Quantities) (n int64, ok bool) {
	costs, _, err := c.price.FinalCosts(&core.PricedRequest{Method: http.MethodGet, Path: "/", Usage: q})
	if err != nil || len(costs) != 1 {
		return 0, false
	}
	return costs[0].Cost, true
}

// unmarshalCharge parses "charge prices|<meter> from <source> [<name>] [<quantity>*<n>...]".
func (g *Gateway) unmarshalCharge(_ string, args []string) error {
	if len(args) < 3 || args[1] != "from" {
		return errors.New("charge: want prices or a meter, and where answers have the usage: charge prices from openai, charge tokens from header X-Tokens")
	}
	c := &Charge{Of: args[0], From: args[2]}
	rest := args[3:]
	if (c.From == fromHeader || c.From == fromJSON) && len(rest) > 0 {
		c.Name, rest = rest[0], rest[1:]
	}
	for i, term := range rest { // 15*input, as in prices, or input*15
		quantity, factor, has := strings.Cut(term, "*")
		if _, err := strconv.Atoi(quantity); err == nil {
			quantity, factor = factor, quantity
		}
		if _, err := strconv.Atoi(factor); !has || err != nil {
			return fmt.Errorf("charge: want a quantity and its factor such as output*4, got %q", term)
		}
		rest[i] = factor + "*" + quantity
	}
	c.Formula = strings.Join(rest, " + ")
	g.Charge = c
	return nil
}

// The values of count_on and on_unknown.
const (
	countAlways  = "always"
	countSuccess = "success"
	countNot5xx  = "not_5xx"

	unknownKeep    = "keep"
	unknownRelease = "release"
)

// checkCharge returns an error for an invalid option about the final cost of requests.
func (g *Gateway) checkCharge() error {
	switch {
	case !slices.Contains([]string{"", countAlways, countSuccess, countNot5xx}, g.CountOn):
		return fmt.Errorf("count_on: want always, success or not_5xx, got %q", g.CountOn)
	case !slices.Contains([]string{"", unknownKeep, unknownRelease}, g.OnUnknown):
		return fmt.Errorf("on_unknown: want keep or release, got %q", g.OnUnknown)
	}
	if g.Charge != nil {
		if err := g.Charge.check(); err != nil {
			return err
		}
	}
	return nil
}

// checkMembers returns an error for options that are about members of requests, and do not fit together.
func (g *Gateway) checkMembers() error {
	switch {
	case g.Clamp != "" && g.clampedCost() == nil:
		for _, c := range g.costs {
			if c.member != "" {
				return fmt.Errorf("clamp: no cost is read from the member %q of the request: write clamp %s, the member that cost reads", g.Clamp, c.member)
			}
		}
		return fmt.Errorf("clamp: no cost is read from the member %q of the request: add cost tokens request %s 4096", g.Clamp, g.Clamp)
	case g.RequestID != nil && g.alwaysHolds():
		return errors.New("request_id: a request that repeats an id is not counted again, so it would not be charged: remove request_id, charge or count_on")
	}
	return nil
}

// alwaysHolds reports whether each request takes a hold. Otherwise only a concurrency asks for one.
func (g *Gateway) alwaysHolds() bool {
	return g.Charge != nil || g.CountOn != "" && g.CountOn != countAlways
}

// holdTime is the time of the holds of a gateway. They are extended while a request runs: the holds of a crashed process end within a minute.
const holdTime = time.Minute
