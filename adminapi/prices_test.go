package adminapi_test

import (
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// Every fault of a list of prices is refused with the rule in its text, and changes nothing.
func TestPricesAreRefused(t *testing.T) {
	a := newAPI(t)
	a.do("PUT", prefix+"/prices", `{"rules":[{"endpoint":"/x","costs":{"requests":2}}]}`).want(200)
	const rule = `{"model":"m","costs":{"requests":1}}`
	for _, test := range []struct{ rules, want string }{
		{`null`, "Rules is required"},
		{`{}`, "Rules is required"},
		{`[1]`, "rules[0]: Must be an object"},
		{`[` + rule + `,[]]`, "rules[1]: Must be an object"},
		{`[` + strings.Repeat(rule+`,`, core.MaxPriceRules) + rule + `]`, "at most 500"},
		{`[{"endpoint":"","costs":{"requests":1}}]`, "rules[0].endpoint: Must not be empty"},
		{`[{"endpoint":7,"costs":{"requests":1}}]`, "rules[0].endpoint: Must be a string"},
		{`[{"endpoint":"get /x","costs":{"requests":1}}]`, "rules[0].endpoint: An endpoint must begin"},
		{`[{"model":"a*b","costs":{"requests":1}}]`, "rules[0].model: A model is"},
		{`[{"model":"m","costs":[]}]`, "rules[0].costs: Must be an object"},
		{`[{"model":"m","costs":{}}]`, "rules[0].costs: A rule has costs"},
		{`[{"model":"m","costs":{"requests":1.5}}]`, "rules[0].costs.requests: Must be a whole number"},
		{`[{"model":"m","costs":{"requests":null}}]`, "rules[0].costs.requests: Must be a whole number"},
		{`[{"model":"m","costs":{"requests":1e99}}]`, "rules[0].costs: The cost of requests must be a whole number from 0 to 1000000"},
		{`[{"model":"m","costs":{"Tokens":1}}]`, "rules[0].costs: Costs must name meters"},
		{`[{"model":"m","costs":{"requests":1},"price":2}]`, "rules[0].price: Unknown member"},
	} {
		r := a.bad("PUT", prefix+"/prices", `{"rules":`+test.rules+`}`)
		r.wantField(core.CodeValidation, "rules")
		if text, _ := r.at("details")["message"].(string); !strings.Contains(text, test.want) {
			t.Errorf("%.80s: got %q, want %q", test.rules, text, test.want)
		}
	}
	if rules := a.do("GET", prefix+"/prices", nil).want(200).data()["rules"].([]any); len(rules) != 1 {
		t.Errorf("after refusals: got the rules %v", rules)
	}
	b := a.as(a.account("other"))
	if rules := b.do("GET", prefix+"/prices", nil).want(200).data()["rules"].([]any); len(rules) != 0 {
		t.Errorf("another account: got the rules %v", rules)
	}
	quote := `{"endpoint":"/x","method":"GET"}`
	for who, want := range map[*api]string{a: "2", b: "1"} {
		costs := who.do("POST", prefix+"/prices/quote", quote).want(200).data()["costs"].(map[string]any)
		if costs["requests"] != jsonNumber(want) {
			t.Errorf("quote: got %v, want %s requests", costs, want)
		}
	}
}
