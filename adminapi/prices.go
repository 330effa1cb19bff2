package adminapi

import (
	"fmt"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
)

func viewPrices(p *core.Prices) object {
	rules := make([]object, len(p.Rules))
	for i, r := range p.Rules {
		rules[i] = append(append(some("endpoint", r.Endpoint), some("model", r.Model)...), field{"costs", r.Costs})
	}
	return object{{"rules", rules}, {"updated_at", orNull(p.UpdatedAt)}}
}

func getPrices(c *call) error {
	p, err := c.svc.Prices(c.ctx(), c.account)
	return reply(viewPrices)(c, http.StatusOK, p, err)
}

func putPrices(c *call) error {
	rules, err := decode(c, readRules)
	if err != nil {
		return err
	}
	p, err := c.svc.SetPrices(c.ctx(), c.account, rules)
	return reply(viewPrices)(c, http.StatusOK, p, err)
}

// readRules returns the rules of a list of prices. The text of a fault names the rule.
func readRules(m *members) (rules []core.PriceRule) {
	m.Ignore("updated_at")
	v := m.Take("rules")
	if v == nil || v.Kind != '[' {
		m.Wrong("rules", "Rules is required: an array of rules such as {\"endpoint\": \"POST /v1/search*\", \"costs\": {\"requests\": 10}}, empty to remove all")
		return nil
	}
	v.Open()
	if len(v.Items) > core.MaxPriceRules {
		m.Wrong("rules", fmt.Sprintf("Rules must be at most %d", core.MaxPriceRules))
		return nil
	}
	report := func(_ int, path, text string) { m.Wrong("rules", fieldName(path)+": "+text) }
	for i := range v.Items {
		if one := document.NewObject(&v.Items[i], fmt.Sprintf("rules[%d]", i), "Must be an object", report); one != nil {
			rules = append(rules, one.PriceRule())
			one.End(nil)
		}
	}
	return rules
}

// quote answers with the price of a request. It counts nothing.
func quote(c *call) error {
	p, err := decode(c, readPriced)
	if err != nil {
		return err
	}
	q, err := c.svc.Quote(c.ctx(), c.account, p)
	return reply(viewQuote)(c, http.StatusOK, q, err)
}

func readPriced(m *members) core.PricedRequest {
	p := core.PricedRequest{Method: m.Word("method"), Path: m.Word("endpoint")}
	p.Model, p.Usage = m.model(), m.usage()
	return p
}

// viewQuote shows the cost on each meter that is charged now, and lists the meters that are charged later.
func viewQuote(q core.Quote) object {
	costs := object{{core.MeterRequests, q.Requests}}
	for _, m := range q.Costs {
		costs = append(costs, field{m.Meter, m.Cost})
	}
	var rule any // null without a rule
	if q.Rule >= 0 {
		rule = q.Rule
	}
	return object{{"rule", rule}, {"costs", costs}, {"later", append([]string{}, q.Later...)}}
}

const wantUsage = "Must be an object with a whole number for each quantity, such as {\"input\": 900, \"output\": 120}"

// model returns the member model, "" if it is missing or null: the model is unknown.
func (m *members) model() string {
	if v := m.Take("model"); v == nil || v.Kind == 'n' {
		return ""
	}
	return m.Word("model")
}

// usage returns the member usage, nil if it is missing or null: the usage is not known yet.
func (m *members) usage() core.Quantities {
	of := m.Take("usage")
	if of == nil || of.Kind == 'n' {
		return nil
	}
	if of.Kind != '{' {
		m.Wrong("usage", wantUsage)
	}
	of.Open()
	if len(of.Members) > core.MaxQuantities {
		m.Wrong("usage", fmt.Sprintf("Usage must have at most %d quantities", core.MaxQuantities))
		return nil
	}
	usage := make(core.Quantities, len(of.Members))
	for i := range of.Members {
		n, ok := document.Whole(&of.Members[i].Value)
		if !ok {
			m.Wrong("usage", wantUsage)
		}
		usage[of.Members[i].Name] = n
	}
	return usage
}
