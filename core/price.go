package core

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The bounds of prices.
const (
	MaxPriceRules  = 500
	maxPricesBytes = 64 << 10 // of all rules as JSON
	maxModelLength = 128      // bytes
)

// Prices is the price list of an account. The first rule that matches a request sets the costs of the request. A request that
// no rule matches costs 1 of the meter requests.
type Prices struct {
	Rules     []PriceRule `json:"rules,omitempty"`
	UpdatedAt time.Time   `json:"updated_at,omitzero"` // of the last change; the zero time if there was none

	// Former are earlier rules, oldest first. The settlement of a hold uses the prices under which the hold was opened.
	Former []FormerPrices `json:"former,omitempty"`
}

// FormerPrices are rules that a change has replaced.
type FormerPrices struct {
	Rules     []PriceRule `json:"rules,omitempty"`
	UpdatedAt time.Time   `json:"updated_at,omitzero"` // of the change that has set the rules
	Until     time.Time   `json:"until"`               // of the change that has replaced the rules
}

// maxFormerBytes bounds the former rules as JSON: the former rules of two changes of the longest list, or of dozens of changes of a usual list.
const maxFormerBytes = 2 * maxPricesBytes

// Replace returns the prices after a change at a time. The result keeps the former rules under which a hold that is still open may have been
// opened, at most maxFormerBytes of them.
func (p *Prices) Replace(rules []PriceRule, at time.Time) *Prices {
	n := &Prices{Rules: rules, UpdatedAt: at}
	former, size := append(slices.Clone(p.Former), FormerPrices{p.Rules, p.UpdatedAt, at}), 0
	for i, f := range slices.Backward(former) {
		text, err := json.Marshal(f)
		if size += len(text); err != nil || size > maxFormerBytes || at.Sub(f.Until) > MaxHoldTime {
			break
		}
		n.Former = former[i:]
	}
	return n
}

// VersionOf returns the compiled prices that were set by the change at a time, nil if the prices no longer have that version.
func (p *Prices) VersionOf(updatedAt time.Time) *PriceList {
	if p.UpdatedAt.Equal(updatedAt) {
		return p.Compiled()
	}
	for _, f := range p.Former {
		if f.UpdatedAt.Equal(updatedAt) {
			return (&Prices{Rules: f.Rules}).Compiled()
		}
	}
	return nil
}

// PriceRule is the price of the requests to an endpoint, of the requests for a model, or of the requests for a model to an endpoint.
type PriceRule struct {
	Endpoint string           `json:"endpoint,omitempty"` // methods and a path as in allowed_endpoints; "" for every endpoint
	Model    string           `json:"model,omitempty"`    // a name, or with * at its end the beginning of names; "" for every model
	Costs    map[string]Price `json:"costs"`              // by meter
}

// Price is the cost of a request on a meter: a whole number, or a formula such as "15*input + 60*output" over the usage of the
// request. In JSON a whole number is a number.
type Price string

// WholePrice returns the price that is the whole number n.
func WholePrice(n int64) Price { return Price(strconv.FormatInt(n, 10)) }

// whole returns the whole number, and false for a formula.
func (p Price) whole() (int64, bool) {
	n, err := strconv.ParseInt(string(p), 10, 64)
	return n, err == nil && WholePrice(n) == p
}

// MarshalJSON implements [json.Marshaler].
func (p Price) MarshalJSON() ([]byte, error) {
	if _, ok := p.whole(); ok {
		return []byte(p), nil
	}
	return json.Marshal(string(p))
}

// UnmarshalJSON implements [json.Unmarshaler].
func (p *Price) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		if err := json.Unmarshal(text, (*string)(p)); err != nil {
			return err
		}
		if _, ok := p.whole(); !ok {
			return nil
		}
	}
	var n int64
	if err := json.Unmarshal(text, &n); err != nil {
		return fmt.Errorf("a price must be a whole number or a formula: %w", err)
	}
	*p = WholePrice(n)
	return nil
}

// Check returns a validation error of the member rules unless every rule is valid and the list is within its bounds.
func (p *Prices) Check() error {
	if len(p.Rules) > MaxPriceRules {
		return Invalid("rules", fmt.Sprintf("Rules must be at most %d", MaxPriceRules))
	}
	for i := range p.Rules {
		if _, err := p.Rules[i].compile(); err != nil {
			return Invalid("rules", fmt.Sprintf("rules[%d].%s: %s", i, err.Field, err.Detail))
		}
	}
	if text, err := json.Marshal(p.Rules); err != nil || len(text) > maxPricesBytes {
		return Invalid("rules", "The rules must be at most 64 KiB of JSON together: use fewer or shorter rules")
	}
	return nil
}

// Check returns a validation error unless the rule is valid.
func (r *PriceRule) Check() error {
	if _, err := r.compile(); err != nil {
		return err
	}
	return nil
}

// Equal reports whether two rules are the same.
func (r PriceRule) Equal(other PriceRule) bool {
	return r.Endpoint == other.Endpoint && r.Model == other.Model && maps.Equal(r.Costs, other.Costs)
}

// compiledRule is the form of a rule that a decision reads.
type compiledRule struct {
	endpoint *endpointPattern // nil for every endpoint
	model    string           // without the star; "" for every model
	prefix   bool             // the model is the beginning of a name

	requests int64       // 1 unless the rule names requests
	named    []string    // the meters that the rule names, sorted
	costs    []MeterCost // the whole numbers above 0 on the other meters, sorted
	later    []string    // the meters with the price 0, sorted
	formulas []meterFormula
}

// meterFormula is the formula of the cost on a meter.
type meterFormula struct {
	meter string
	formula
}

// compile returns the compiled rule, or a validation error.
func (r *PriceRule) compile() (c compiledRule, _ *Error) {
	c.requests = 1
	if r.Endpoint != "" {
		p, problem := parseEndpoint(r.Endpoint)
		if problem != "" {
			return c, Invalid("endpoint", "An endpoint "+problem)
		}
		c.endpoint = &p
	}
	c.model, c.prefix = strings.CutSuffix(r.Model, "*")
	switch {
	case r.Endpoint == "" && r.Model == "":
		return c, Invalid("endpoint", "A rule has an endpoint, a model, or both: * is every endpoint")
	case strings.Contains(c.model, "*") || strings.TrimSpace(r.Model) != r.Model || !isModel(r.Model) && r.Model != "":
		return c, Invalid("model", fmt.Sprintf("A model is a name of 1 to %d bytes without control characters and without space at its ends, and may end with *", maxModelLength))
	case len(r.Costs) == 0:
		return c, Invalid("costs", `A rule has costs, such as {"requests": 10}`)
	}
	for _, meter := range slices.Sorted(maps.Keys(r.Costs)) {
		if err := c.add(meter, r.Costs[meter]); err != nil {
			return c, err
		}
	}
	if len(r.Costs) > MaxCosts {
		return c, Invalid("costs", fmt.Sprintf("Costs must name at most %d meters", MaxCosts))
	}
	return c, nil
}

// add adds the price on a meter.
func (c *compiledRule) add(meter string, p Price) *Error {
	if !IsMeterName(meter) {
		return Invalid("costs", "Costs must name meters: "+meterForm)
	}
	meter = Intern(meter)
	c.named = append(c.named, meter)
	n, whole := p.whole()
	switch {
	case !whole:
		f, problem := parseFormula(string(p))
		if problem != "" {
			return Invalid("costs", "The cost of "+meter+" "+problem)
		}
		c.formulas = append(c.formulas, meterFormula{meter, f})
		return nil
	case n < 0 || n > maxCostOf(meter):
		return Invalid("costs", fmt.Sprintf("The cost of %s must be a whole number from 0 to %d, or a formula such as 15*input + 60*output", meter, maxCostOf(meter)))
	case n == 0:
		c.later = append(c.later, meter)
	}
	if meter == MeterRequests {
		c.requests = n
	} else if n > 0 {
		c.costs = append(c.costs, MeterCost{meter, n})
	}
	return nil
}

// maxCostOf returns the largest cost of a request on a meter.
func maxCostOf(meter string) int64 {
	if meter == MeterRequests {
		return MaxCost
	}
	return MaxMeterCost
}

// isModel reports whether a text can be the name of a model.
func isModel(name string) bool {
	return name != "" && len(name) <= maxModelLength && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}
