package document

import (
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

const wantRuleCosts = "Must be an object with a whole number or a formula for each meter, such as {\"requests\": 10, \"tokens\": \"input + 4*output\"}"

// PriceRule returns the rule of prices that the object is. [core.PriceRule.Check] checks it.
func (o *Object) PriceRule() (r core.PriceRule) {
	r.Endpoint, r.Model, r.Costs = o.rulePart("endpoint"), o.rulePart("model"), o.ruleCosts()
	o.End(nil)
	return r
}

// rulePart returns what a rule selects requests by, "" if it is missing or null.
func (o *Object) rulePart(name string) string {
	v, ok := o.Member(name, core.TypeText, true)
	if part, _ := v.(string); part != "" || !ok || v == nil {
		return part
	}
	o.Wrong(name, "Must not be empty")
	return ""
}

func (o *Object) ruleCosts() map[string]core.Price {
	v := o.Take("costs")
	if v == nil {
		return nil
	}
	if v.Kind != '{' {
		o.Wrong("costs", wantRuleCosts)
		return nil
	}
	v.Open()
	costs := map[string]core.Price{}
	for i := range v.Members {
		meter := &v.Members[i]
		n, whole := Whole(&meter.Value)
		switch {
		case whole:
			costs[strings.Clone(meter.Name)] = core.WholePrice(n)
		case meter.Kind == '"' && strings.Trim(meter.Text, "0123456789 ") != "":
			costs[strings.Clone(meter.Name)] = core.Price(strings.Clone(meter.Text))
		case meter.Kind != 0:
			o.fault(meter.Line, Join(Join(o.Path, "costs"), Shown(meter.Name)), "Must be a whole number, or a formula in quotation marks such as \"input + 4*output\"")
		}
	}
	return costs
}
