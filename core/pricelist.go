package core

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// PriceList is the form of [Prices] that a decision reads. It is shared: do not change it.
type PriceList struct {
	rules []compiledRule
	paths bool // a rule has an endpoint

	UpdatedAt time.Time // see [Prices]
}

// noPrices is the list without rules: most accounts have it.
var noPrices = new(PriceList)

// Compiled returns the compiled list. An invalid rule matches no request.
func (p *Prices) Compiled() *PriceList {
	if len(p.Rules) == 0 && p.UpdatedAt.IsZero() {
		return noPrices
	}
	l := &PriceList{rules: make([]compiledRule, 0, len(p.Rules)), UpdatedAt: p.UpdatedAt}
	for i := range p.Rules {
		c, err := p.Rules[i].compile()
		if err != nil {
			c = compiledRule{model: "\x00"} // no request has such a model; the indexes of the other rules stay
		}
		l.paths = l.paths || c.endpoint != nil
		l.rules = append(l.rules, c)
	}
	return l
}

// Meters returns the meters that the rules name, besides requests, sorted.
func (p *Prices) Meters() (meters []string) {
	for i := range p.Rules {
		for meter := range p.Rules[i].Costs {
			if meter != MeterRequests {
				meters = append(meters, Intern(meter))
			}
		}
	}
	slices.Sort(meters)
	return slices.Compact(meters)
}

// Empty reports whether the list has no rules.
func (l *PriceList) Empty() bool { return len(l.rules) == 0 }

// PricedRequest has the members of a request that its price depends on.
type PricedRequest struct {
	Method string
	Path   string     // as the client sends it, with its escapes
	Model  string     // "" if it is unknown
	Usage  Quantities // nil if it is unknown

	// StrictUsage refuses a usage that is not empty when the formulas of the rule use none of its quantities: a misspelt name would be free.
	// Without StrictUsage such a usage costs 0 on the meters with a formula: an answer may lack a quantity that it has not used. StrictUsage also
	// refuses a usage that costs more than the largest cost. Without StrictUsage such a usage costs the largest cost.
	StrictUsage bool
}

// Check returns an error with the code INVALID_REQUEST if the model or the usage is out of bounds.
func (p *PricedRequest) Check() error {
	if p.Model != "" && !isModel(p.Model) {
		return BadRequest("model", fmt.Sprintf("Model must be 1 to %d bytes of UTF-8 without control characters", maxModelLength))
	}
	return p.Usage.Check()
}

// Quote is the price of a request. Its lists are shared: do not change them.
type Quote struct {
	Rule     int         // the index of the rule; -1 without a rule
	Requests int64       // the cost on the meter requests
	Costs    []MeterCost // the costs on the other meters, sorted; none is 0
	Later    []string    // the meters that are charged afterwards, sorted: with the price 0, or with a formula while the usage is unknown
}

// Quote returns the price of a request. A path that programs read in different ways costs what its dearest reading costs, on each meter. The error
// has the code INVALID_REQUEST: StrictUsage refuses the usage, or the path is too long to be compared.
func (l *PriceList) Quote(p *PricedRequest) (Quote, error) {
	path, other, err := l.readings(p.Path)
	if err != nil {
		return Quote{}, err
	}
	q, err := l.quote(p, path)
	if err == nil && other != path {
		var byOther Quote
		byOther, err = l.quote(p, other)
		q = q.dearer(byOther)
	}
	return q, err
}

// readings returns a path as the rules compare it: in two ways if programs read it in different ways, else twice the same.
func (l *PriceList) readings(path string) (first, second string, err error) {
	if !l.paths {
		return "", "", nil
	}
	if normal, ok := normalPath(path); ok {
		return normal, normal, nil
	}
	if len(path) > maxPathLength {
		return "", "", BadRequest("endpoint", fmt.Sprintf("Endpoint must be at most %d bytes long: longer ones are not compared with the prices", maxPathLength))
	}
	return caddyPath(path), lenientPath(path), nil
}

// FinalCosts returns the final cost of a request whose usage is known, on each meter that its rule names and on requests, sorted. ok is false if
// no rule matches. FinalCosts returns the same errors as Quote.
func (l *PriceList) FinalCosts(p *PricedRequest) (costs []MeterCost, ok bool, err error) {
	q, err := l.Quote(p)
	if err != nil || q.Rule < 0 {
		return nil, false, err
	}
	for _, meter := range l.rules[q.Rule].named {
		n := q.Requests
		if meter != MeterRequests {
			n = costIn(q.Costs, meter)
		}
		costs = append(costs, MeterCost{meter, n})
	}
	for _, m := range q.Costs { // with the costs of the other reading of a path that programs read in different ways
		if !slices.Contains(l.rules[q.Rule].named, m.Meter) {
			costs = append(costs, m)
		}
	}
	SortCosts(costs)
	return costs, true, nil
}

// LaterOfAnyModel returns the meters that the rules for an endpoint charge afterwards, whatever the model, sorted. The path is read as by Quote; of a
// path that Quote refuses, there are none.
func (l *PriceList) LaterOfAnyModel(p *PricedRequest) (meters []string) {
	path, other, err := l.readings(p.Path)
	if err != nil {
		return nil
	}
	for i := range l.rules {
		r := &l.rules[i]
		if r.endpoint != nil && !r.endpoint.matches(p.Method, path) && !r.endpoint.matches(p.Method, other) {
			continue
		}
		meters = append(meters, r.later...)
		for _, f := range r.formulas {
			meters = append(meters, f.meter)
		}
	}
	slices.Sort(meters)
	return slices.Compact(meters)
}

// ByModel reports whether the rule of a quote names a model.
func (l *PriceList) ByModel(q *Quote) bool {
	return q.Rule >= 0 && (l.rules[q.Rule].prefix || l.rules[q.Rule].model != "")
}

// quote returns the price by the first rule that matches a path.
func (l *PriceList) quote(p *PricedRequest, path string) (Quote, error) {
	for i := range l.rules {
		if r := &l.rules[i]; r.matches(p, path) {
			return r.quote(i, p)
		}
	}
	return Quote{Rule: -1, Requests: 1}, nil
}

// dearer returns the larger cost of two quotes on each meter, with the rule that costs more requests.
func (q Quote) dearer(other Quote) Quote {
	if q.Rule == other.Rule {
		return q
	}
	if other.Requests > q.Requests || q.Rule < 0 {
		q.Rule, q.Requests = other.Rule, max(q.Requests, other.Requests)
	}
	costs := slices.Clone(q.Costs)
	for _, c := range other.Costs {
		if i := slices.IndexFunc(costs, func(m MeterCost) bool { return m.Meter == c.Meter }); i >= 0 {
			costs[i].Cost = max(costs[i].Cost, c.Cost)
		} else {
			costs = append(costs, c)
		}
	}
	SortCosts(costs)
	q.Costs, q.Later = costs, slices.Concat(q.Later, other.Later)
	slices.Sort(q.Later)
	q.Later = slices.Compact(q.Later)
	return q
}

func (r *compiledRule) matches(p *PricedRequest, normal string) bool {
	switch {
	case r.prefix && (p.Model == "" || !strings.HasPrefix(p.Model, r.model)):
		return false
	case !r.prefix && r.model != "" && r.model != p.Model:
		return false
	}
	return r.endpoint == nil || r.endpoint.matches(p.Method, normal)
}

// quote returns the price by the rule. It copies the lists of the rule only to add the results of formulas.
func (r *compiledRule) quote(index int, p *PricedRequest) (Quote, error) {
	q := Quote{index, r.requests, r.costs, r.later}
	if len(r.formulas) == 0 {
		return q, nil
	}
	u := p.Usage
	if p.StrictUsage && len(u) > 0 {
		if err := r.checkUsage(u); err != nil {
			return q, err
		}
	}
	q.Costs, q.Later = slices.Clone(q.Costs), slices.Clone(q.Later)
	for _, f := range r.formulas {
		most := int64(MaxPricedCost)
		if f.meter == MeterRequests {
			most = MaxCost
		}
		n, ok := f.value(u, most)
		switch {
		case !ok && p.StrictUsage:
			return q, BadRequest("usage", fmt.Sprintf("By its price this usage costs more than %d of %s", most, f.meter))
		case u == nil:
			q.Later = append(q.Later, f.meter)
		}
		if f.meter == MeterRequests {
			q.Requests = n
		} else if n > 0 {
			q.Costs = append(q.Costs, MeterCost{f.meter, n})
		}
	}
	SortCosts(q.Costs)
	slices.Sort(q.Later)
	return q, nil
}

// checkUsage returns an error if the formulas of the rule use no quantity of a usage.
func (r *compiledRule) checkUsage(u Quantities) error {
	var names []string
	for _, f := range r.formulas {
		for _, t := range f.formula {
			if _, ok := u[t.quantity]; ok {
				return nil
			}
			names = append(names, t.quantity)
		}
	}
	slices.Sort(names)
	return BadRequest("usage", "The price of this request uses no quantity of this usage: name one or more of "+strings.Join(slices.Compact(names), ", "))
}
