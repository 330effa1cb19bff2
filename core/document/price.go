package document

import (
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

const wantRuleCosts = "Must be an object with a whole number or a formula for each meter, such as {\"requests\": 10, \"tokens\": \"input + 4*output\"}"

// PriceRule returns the members of the object as a rule of prices. [core.PriceRule.Check] checks it.
func (o *Object) PriceRule() core.PriceRule {
	return core.PriceRule{Endpoint: o.rulePart("endpoint"), Model: o.rulePart("model"), Costs: o.ruleCosts()}
}

// rulePart returns what a rule selects requests by, "" if it is missing or null.
func (o *Object) rulePart(name string) string {
	v, ok := o.Member(name, core.TypeText, true)
	part, _ := v.(string)
	if part == "" && ok && v != nil {
		o.Wrong(name, "Must not be empty")
	}
	return part
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
