package dashboard

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// priceCost is the price on one meter, for a page.
type priceCost struct {
	Meter string
	Price core.Price
}

// costsOf returns the costs of a rule: requests first, and then by name.
func costsOf(r core.PriceRule) (costs []priceCost) {
	for _, meter := range slices.Sorted(maps.Keys(r.Costs)) {
		if meter == core.MeterRequests {
			costs = slices.Insert(costs, 0, priceCost{meter, r.Costs[meter]})
		} else {
			costs = append(costs, priceCost{meter, r.Costs[meter]})
		}
	}
	return costs
}

func prices(q *request) (*core.Prices, error) { return q.svc.Prices(q.r.Context(), q.account()) }

func pricesPage(q *request) error {
	p, err := prices(q)
	if err != nil {
		return err
	}
	return q.render(http.StatusOK, "prices", "Prices", p)
}

var pricesForm = formPage[*core.Prices]{
	view: func(q *request, p *core.Prices) (formView, error) {
		f := q.form("prices", "Save", "prices", field{Name: "rules", Label: "Prices", Type: "textarea", Value: ruleLines(p.Rules), Autofocus: true,
			Placeholder: "POST /v1/search* = requests 10",
			Hint:        "One on each line: methods and a path, or model and a name, or both; then = and what each meter costs. The first line that matches a request decides. Empty: each request costs 1."})
		f.Hidden = []hidden{{"seen", version(p.UpdatedAt)}}
		return formView{Title: "Edit the prices", Form: f, Text: "A change applies to the next request.", Points: []string{
			"POST,PUT /v1/search* = requests 10",
			"model gpt-4o-mini* = tokens input + output, spend 15*input + 60*output",
			"/v1/chat model gpt-4o* = requests 2, tokens input + output"}}, nil
	},
	send: func(q *request, p *core.Prices) error {
		rules, err := parseRules(q.r.PostForm.Get("rules"))
		if err == nil && q.r.PostForm.Get("seen") != version(p.UpdatedAt) {
			err = errChanged
		}
		if err == nil {
			_, err = q.svc.SetPrices(q.r.Context(), q.account(), rules)
		}
		if err != nil {
			return err
		}
		return q.redirect("prices?done=saved")
	},
}

// ruleLines returns rules as parseRules reads them, one on a line.
func ruleLines(rules []core.PriceRule) string {
	var b strings.Builder
	for _, r := range rules {
		selects := r.Endpoint
		if r.Model != "" {
			selects += " model " + r.Model
		}
		b.WriteString(strings.TrimSpace(selects))
		separator := " = "
		for _, c := range costsOf(r) {
			fmt.Fprintf(&b, "%s%s %s", separator, c.Meter, c.Price)
			separator = ", "
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// parseRules parses rules, one on each line. The error names the line.
func parseRules(text string) (rules []core.PriceRule, err error) {
	number := 0
	for line := range strings.Lines(text) {
		if number++; strings.TrimSpace(line) == "" {
			continue
		}
		if len(rules) == core.MaxPriceRules {
			return nil, core.Invalid("rules", "Prices must be at most "+strconv.Itoa(core.MaxPriceRules))
		}
		r, err := parseRule(strings.TrimSpace(line))
		if err == nil {
			err = r.Check()
		}
		if e, ok := errors.AsType[*core.Error](err); ok {
			return nil, core.Invalid("rules", fmt.Sprintf("Line %d: %s", number, e.Detail))
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func parseRule(line string) (r core.PriceRule, err error) {
	const separator, model = " = ", "model "
	i := strings.LastIndex(line, separator) // costs have none
	if i < 0 {
		return r, core.Invalid("rules", "A price is an endpoint or a model, = and costs, such as “POST /v1/search* = requests 10”")
	}
	selects := " " + strings.TrimSpace(line[:i])
	r.Endpoint, r.Model, _ = strings.Cut(selects, " "+model)
	r.Endpoint, r.Model = strings.TrimSpace(r.Endpoint), strings.TrimSpace(r.Model)
	r.Costs = map[string]core.Price{}
	for cost := range strings.SplitSeq(line[i+len(separator):], ",") {
		meter, price, _ := strings.Cut(strings.TrimSpace(cost), " ")
		if _, twice := r.Costs[meter]; twice {
			return r, core.Invalid("rules", "It names "+meter+" twice")
		}
		price = strings.TrimSpace(price)
		if n, err := strconv.ParseInt(price, 10, 64); err == nil {
			price = string(core.WholePrice(n)) // 010 is 10
		}
		r.Costs[meter] = core.Price(price)
	}
	return r, nil
}
