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

// Charge says what requests cost in the end, and where their answers say it.
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
}

// The words of charge.
const (
	chargePrices = "prices"
	fromHeader   = "header"
	fromJSON     = "json"
	fromMCP      = "mcp"
)

var aiAPIs = []string{string(aiusage.OpenAI), string(aiusage.Anthropic), string(aiusage.Gemini)}

// reads reports whether the usage is in the body of the answer.
func (c *Charge) reads() bool {
	return c != nil && (c.From == fromJSON || slices.Contains(aiAPIs, c.From))
}

// check returns an error for an invalid option.
func (c *Charge) check() error {
	switch {
	case c.Of != chargePrices && !core.IsMeterName(c.Of):
		return fmt.Errorf("charge: want prices or the name of a meter, got %q", c.Of)
	case !slices.Contains(append([]string{fromHeader, fromJSON, fromMCP}, aiAPIs...), c.From):
		return fmt.Errorf("charge: want from openai, anthropic, gemini, header <name>, json <path> or mcp, got from %q", c.From)
	case (c.From == fromHeader || c.From == fromJSON) != (c.Name != ""):
		return fmt.Errorf("charge: want a name after header and json only: charge %s from header X-Cost", c.Of)
	case c.From == fromHeader && !httpguts.ValidHeaderFieldName(c.Name):
		return fmt.Errorf("charge: %q is not the name of a field", c.Name)
	case c.Of == chargePrices && c.Formula != "":
		return errors.New("charge prices: the prices have the formulas")
	case c.From == fromMCP && c.Of != chargePrices:
		return errors.New("charge: from mcp is for prices: charge prices from mcp")
	case c.Of == chargePrices && c.From == fromHeader:
		return errors.New("charge prices: a field of the header has no quantities: charge a meter by it")
	}
	if c.Of != chargePrices {
		if err := (&core.PriceRule{Endpoint: "*", Costs: map[string]core.Price{c.Of: core.Price(c.formula())}}).Check(); err != nil {
			e, _ := errors.AsType[*core.Error](err)
			return fmt.Errorf("charge: %s", e.Detail)
		}
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

// cost returns the cost on the meter for a usage. ok is false if it is above the largest cost.
func (c *Charge) cost(q core.Quantities) (n int64, ok bool) {
	rule := core.PriceRule{Endpoint: "*", Costs: map[string]core.Price{c.Of: core.Price(c.formula())}}
	costs, _, err := (&core.Prices{Rules: []core.PriceRule{rule}}).Compiled().Charge(&core.PricedRequest{Method: http.MethodGet, Path: "/", Usage: q})
	if err != nil || len(costs) != 1 {
		return 0, false
	}
	return costs[0].Cost, true
}

// unmarshalCharge parses "charge prices|<meter> from <source> [<name>] [<quantity>*<n>...]".
func (g *Gateway) unmarshalCharge(_ string, args []string) error {
	if len(args) < 3 || args[1] != "from" {
		return errors.New("charge: want what, and where answers say it: charge prices from openai, charge tokens from header X-Tokens")
	}
	c := &Charge{Of: args[0], From: args[2]}
	rest := args[3:]
	if (c.From == fromHeader || c.From == fromJSON) && len(rest) > 0 {
		c.Name, rest = rest[0], rest[1:]
	}
	for i, term := range rest { // "input*15" is "15*input" in prices
		quantity, factor, has := strings.Cut(term, "*")
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

// checkCharge returns an error for an invalid option about what requests cost in the end.
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

// checkClamp returns an error if no cost is read from the member clamp.
func (g *Gateway) checkClamp() error {
	if g.Clamp != "" && g.clamped() == nil {
		return fmt.Errorf("clamp: no cost is read from the member %q of the request: add cost tokens request %s 4096", g.Clamp, g.Clamp)
	}
	return nil
}

// clamped returns the cost that the option clamp is about, nil without the option.
func (g *Gateway) clamped() *costOption {
	for i := range g.costs {
		if c := &g.costs[i]; g.Clamp != "" && c.member == g.Clamp {
			return c
		}
	}
	return nil
}

// holds reports whether each request takes a hold. Otherwise only a concurrency asks for one.
func (g *Gateway) holds() bool { return g.Charge != nil || g.CountOn != "" && g.CountOn != countAlways }

// holdTime is the time of the holds of a gateway. While a request runs, its hold is extended: after a crash it ends soon.
const holdTime = time.Minute

// peeks reports whether the gateway reads the beginning of bodies.
func (g *Gateway) peeks() bool {
	return g.Charge.reads() || g.Charge != nil && g.Charge.From == fromMCP || slices.ContainsFunc(g.costs, func(c costOption) bool { return c.member != "" })
}

// The members of requests that the gateway reads.
const (
	memberModel   = "model"
	memberStream  = "stream"
	memberOptions = "stream_options"
	memberUsage   = "stream_options.include_usage"
	memberMethod  = "method" // of JSON-RPC
	memberTool    = "params.name"
)

// peek reads the beginning of the body of a request whose caller is recognized.
func (g *Gateway) peek(r *http.Request) (*jsonBody, error) {
	if !g.peeks() {
		return nil, nil
	}
	members := []string{memberModel, memberStream, memberOptions, memberMethod, memberTool}
	for _, c := range g.costs {
		if c.member != "" {
			members = append(members, c.member)
		}
	}
	return peekBody(r, members...)
}

// model returns the model of a request, or the tool that it calls on an MCP server; "" for none.
func (b *jsonBody) model() string {
	switch {
	case b == nil:
		return ""
	case b.picker.Text(memberMethod) == "tools/call":
		return b.picker.Text(memberTool)
	}
	return b.picker.Text(memberModel)
}
