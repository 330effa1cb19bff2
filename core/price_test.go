package core_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

func costs(list ...string) map[string]core.Price {
	m := map[string]core.Price{}
	for i := 0; i < len(list); i += 2 {
		m[list[i]] = core.Price(list[i+1])
	}
	return m
}

// The first rule that matches decides: by method and path, by model, or by both.
func TestQuote(t *testing.T) {
	prices := core.Prices{Rules: []core.PriceRule{
		{Endpoint: "POST,PUT /v1/search*", Costs: costs("requests", "10")},
		{Endpoint: "/v1/chat", Model: "gpt-4o-mini*", Costs: costs("tokens", "input + output", "spend", "15*input + 8*cached+60 * output")},
		{Model: "exact", Costs: costs("tokens", "7", "requests", "0")},
		{Endpoint: "/v1/free", Costs: costs("requests", "0")},
		{Endpoint: "/v1/calls", Costs: costs("requests", "2*calls", "tokens", "0")},
		{Endpoint: "*.csv", Costs: costs("rows", "0*input")},
	}}
	if err := prices.Check(); err != nil {
		t.Fatal(err)
	}
	list := prices.Compiled()
	one := core.Quote{Rule: -1, Requests: 1}
	used := core.Quantities{"input": 900, "output": 120, "calls": 3}
	for _, test := range []struct {
		method, path, model string
		usage               core.Quantities
		want                core.Quote
	}{
		{"POST", "/v1/search", "", nil, core.Quote{Rule: 0, Requests: 10}},
		{"PUT", "/v1/SEARCH/7?q=1", "other", used, core.Quote{Rule: 0, Requests: 10}},
		{"GET", "/v1/search", "", nil, one},
		{"POST", "/v1/chat", "", nil, one},
		{"POST", "/v1/chat", "gpt-4o", nil, one},
		{"POST", "/v1/chat", "gpt-4o-mini", nil, core.Quote{Rule: 1, Requests: 1, Later: []string{"spend", "tokens"}}},
		{"POST", "/v1/chat", "gpt-4o-mini-2", used, core.Quote{Rule: 1, Requests: 1, Costs: []core.MeterCost{{Meter: "spend", Cost: 20700}, {Meter: "tokens", Cost: 1020}}}},
		{"POST", "/v1/chat", "gpt-4o-mini-2", core.Quantities{}, core.Quote{Rule: 1, Requests: 1}},
		{"POST", "/v1/x", "exact", nil, core.Quote{Rule: 2, Requests: 0, Costs: []core.MeterCost{{Meter: "tokens", Cost: 7}}, Later: []string{"requests"}}},
		{"POST", "/v1/x", "exact2", nil, one},
		{"POST", "/v1/free", "", nil, core.Quote{Rule: 3, Requests: 0, Later: []string{"requests"}}},
		{"POST", "/v1/calls", "", nil, core.Quote{Rule: 4, Requests: 0, Later: []string{"requests", "tokens"}}},
		{"POST", "/v1/calls", "", used, core.Quote{Rule: 4, Requests: 6, Later: []string{"tokens"}}},
		{"GET", "/a/b.csv", "", used, core.Quote{Rule: 5, Requests: 1}},
	} {
		got, err := list.Quote(&core.PricedRequest{Method: test.method, Path: test.path, Model: test.model, Usage: test.usage})
		if diff := cmp.Diff(test.want, got, cmp.Transformer("empty", func(l []string) []string { return append([]string(nil), l...) })); err != nil || diff != "" {
			t.Errorf("%s %s of %q: %v %s", test.method, test.path, test.model, err, diff)
		}
	}
	if got := strings.Join(prices.Meters(), " "); got != "rows spend tokens" {
		t.Errorf("meters: got %q", got)
	}
}

// Another spelling of a path does not make a request cheaper, whether it evades the price of its path or finds a lower one.
func TestQuoteOfOtherSpellings(t *testing.T) {
	list := (&core.Prices{Rules: []core.PriceRule{
		{Endpoint: "/v1/list*", Costs: costs("requests", "1", "rows", "7")},
		{Endpoint: "/v1/search*", Costs: costs("requests", "10", "rows", "2", "tokens", "input")},
		{Endpoint: "/v1/report", Costs: costs("requests", "10")},
	}}).Compiled()
	for _, path := range []string{"//v1/search", "/v1//search", "/v1/./search", "/v1/%2e/search", "/x/../v1/search", "/v1%2Fsearch", "/v1/search;a=b",
		"/v1/search%3f", "/V1/%53earch", "/v1/search%00", "/v1/search%zz", "/" + strings.Repeat("./", 1000) + "v1/search",
		"/v1/search?x=%2e%2e", "/v1/search#x", "/v1/list/../search", "/v1/list/..;/search", `/v1/list\..\search`, "/v1/list/%252e%252e/search", "/v1/search/..;/list",
		"/v1/report;x", "/v1/report%00.html", "/v1;a=b/report", `\v1\report`, "/v1%5creport", "/v1/report%3fx", "/v1/report%253fx", "/v1/report%2523", "/x;/..;/v1/report"} {
		if q, err := list.Quote(&core.PricedRequest{Method: "GET", Path: path}); err != nil || q.Requests != 10 {
			t.Errorf("%.60q: got %+v, %v", path, q, err)
		}
	}
	want := core.Quote{Rule: 1, Requests: 10, Costs: []core.MeterCost{{Meter: "rows", Cost: 7}}, Later: []string{"tokens"}}
	for _, path := range []string{"/v1/list/..;/search", "/v1/search/..;/list"} {
		if q, err := list.Quote(&core.PricedRequest{Method: "GET", Path: path}); err != nil || !cmp.Equal(q, want) {
			t.Errorf("%q: got %+v, %v, want %+v", path, q, err, want)
		}
	}
	_, err := list.Quote(&core.PricedRequest{Method: "GET", Path: "/v1/search/" + strings.Repeat("a", 2048)})
	if e, ok := errors.AsType[*core.Error](err); !ok || e.Code != core.CodeInvalidRequest || e.Field != "endpoint" {
		t.Errorf("a long path: got %v, want an error of endpoint", err)
	}
}

// A price above the largest cost of a request is refused, whatever the numbers are; without StrictUsage it is the largest cost.
func TestQuoteAboveTheLargestCost(t *testing.T) {
	list := (&core.Prices{Rules: []core.PriceRule{{Model: "*", Costs: costs("tokens", "1000000000*input + 1000000000*output", "requests", "output")}}}).Compiled()
	for _, test := range []struct {
		usage            core.Quantities
		ok               bool
		requests, tokens int64 // without StrictUsage
	}{
		{core.Quantities{"input": 1}, true, 0, 1e9},
		{core.Quantities{"input": 999, "output": 1}, true, 1, core.MaxPricedCost},
		{core.Quantities{"input": 1000, "output": 1}, false, 1, core.MaxPricedCost},
		{core.Quantities{"input": core.MaxMeterCost, "output": core.MaxMeterCost}, false, core.MaxCost, core.MaxPricedCost},
		{core.Quantities{"input": 0, "output": core.MaxCost + 1}, false, core.MaxCost, core.MaxPricedCost},
	} {
		r := &core.PricedRequest{Model: "m", Usage: test.usage}
		if q, err := list.Quote(r); err != nil || q.Requests != test.requests || len(q.Costs) != 1 || q.Costs[0].Cost != test.tokens {
			t.Errorf("usage %v without StrictUsage: got %+v, %v", test.usage, q, err)
		}
		r.StrictUsage = true
		_, err := list.Quote(r)
		e, is := errors.AsType[*core.Error](err)
		if (err == nil) != test.ok || !test.ok && (!is || e.Code != core.CodeInvalidRequest || e.Field != "usage") {
			t.Errorf("usage %v: got %v", test.usage, err)
		}
	}
}

// Invalid rules are refused, and the text says which one and why.
func TestPricesCheck(t *testing.T) {
	ok := costs("requests", "1")
	many := make([]core.PriceRule, core.MaxPriceRules+1)
	for i := range many {
		many[i] = core.PriceRule{Model: "m", Costs: ok}
	}
	long := []core.PriceRule{}
	for i := range 400 {
		long = append(long, core.PriceRule{Endpoint: fmt.Sprintf("/%d/%s", i, strings.Repeat("a", 200)), Costs: ok})
	}
	meters := costs()
	for i := range core.MaxCosts + 1 {
		meters[fmt.Sprintf("m%d", i)] = "1"
	}
	var quantities []string
	for i := range 17 {
		quantities = append(quantities, fmt.Sprintf("q%d", i))
	}
	rule := func(endpoint, model string, c map[string]core.Price) []core.PriceRule {
		return []core.PriceRule{{Model: "fine", Costs: ok}, {Endpoint: endpoint, Model: model, Costs: c}}
	}
	for _, test := range []struct {
		name  string
		rules []core.PriceRule
		want  string // in the text, "" for valid rules
	}{
		{"none", nil, ""},
		{"fine", rule("GET /x", "m*", costs("requests", "1000000", "tokens", "1000000000", "spend", "1000000000*input")), ""},
		{"too many", many, "at most 500"},
		{"the most", many[1:], ""},
		{"too long", long, "64 KiB"},
		{"neither", rule("", "", ok), "rules[1].endpoint: A rule has an endpoint"},
		{"lower case method", rule("get /x", "", ok), "rules[1].endpoint: An endpoint must begin with methods"},
		{"relative", rule("x", "", ok), "rules[1].endpoint"},
		{"star inside", rule("", "a*b", ok), "rules[1].model"},
		{"two stars", rule("", "a**", ok), "rules[1].model"},
		{"long model", rule("", strings.Repeat("m", 129), ok), "rules[1].model"},
		{"space at the end", rule("", "a ", ok), "rules[1].model"},
		{"control character", rule("", "a\nb", ok), "rules[1].model"},
		{"no costs", rule("/x", "", nil), "rules[1].costs: A rule has costs"},
		{"bad meter", rule("/x", "", costs("Tokens", "1")), "rules[1].costs: Costs must name meters"},
		{"too many meters", rule("/x", "", meters), "at most 17 meters"},
		{"negative", rule("/x", "", costs("tokens", "-1")), "The cost of tokens must be a whole number from 0 to 1000000000"},
		{"above the most", rule("/x", "", costs("tokens", "1000000001")), "1000000000"},
		{"requests above the most", rule("/x", "", costs("requests", "1000001")), "The cost of requests must be a whole number from 0 to 1000000,"},
		{"empty formula", rule("/x", "", costs("tokens", "")), "The cost of tokens must be a whole number, or a sum"},
		{"a number that is no int64", rule("/x", "", costs("tokens", "99999999999999999999")), "must be a whole number, or a sum"},
		{"difference", rule("/x", "", costs("tokens", "input - output")), "sum"},
		{"constant in a sum", rule("/x", "", costs("tokens", "5 + input")), "sum"},
		{"fraction", rule("/x", "", costs("tokens", "1.5*input")), "sum"},
		{"two products", rule("/x", "", costs("tokens", "2*3*input")), "sum"},
		{"twice", rule("/x", "", costs("tokens", "input + 2*input")), "each quantity once"},
		{"large factor", rule("/x", "", costs("tokens", "1000000001*input")), "factors from 0 to 1000000000"},
		{"16 quantities", rule("/x", "", costs("tokens", strings.Join(quantities[:16], "+"))), ""},
		{"17 quantities", rule("/x", "", costs("tokens", strings.Join(quantities, "+"))), "at most 16 quantities"},
	} {
		err := (&core.Prices{Rules: test.rules}).Check()
		e, is := errors.AsType[*core.Error](err)
		if test.want == "" && err != nil || test.want != "" && (!is || e.Field != "rules" || !strings.Contains(e.Detail, test.want)) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
}

// A request names at most 16 quantities, each from 0 to 1,000,000,000, and a model of one line.
func TestPricedRequestCheck(t *testing.T) {
	many := core.Quantities{}
	for i := range 17 {
		many[fmt.Sprintf("q%d", i)] = 1
	}
	for _, test := range []struct {
		p     core.PricedRequest
		field string
	}{
		{core.PricedRequest{Model: "gpt-4o", Usage: core.Quantities{"cache_write": core.MaxMeterCost, "x": 0}}, ""},
		{core.PricedRequest{}, ""},
		{core.PricedRequest{Model: strings.Repeat("m", 129)}, "model"},
		{core.PricedRequest{Model: "a\x00"}, "model"},
		{core.PricedRequest{Usage: many}, "usage"},
		{core.PricedRequest{Usage: core.Quantities{"Input": 1}}, "usage"},
		{core.PricedRequest{Usage: core.Quantities{"input": -1}}, "usage"},
		{core.PricedRequest{Usage: core.Quantities{"input": math.MaxInt64}}, "usage"},
	} {
		err := test.p.Check()
		e, is := errors.AsType[*core.Error](err)
		if test.field == "" && err != nil || test.field != "" && (!is || e.Field != test.field || e.Code != core.CodeInvalidRequest) {
			t.Errorf("%.60v: got %v, want an error of %q", test.p, err, test.field)
		}
	}
}

// Prices that core accepts come back from JSON unchanged, and no text makes the reader of formulas or the quote fail.
func TestPricesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		price := rapid.OneOf(rapid.Just("input + 2*output"), rapid.StringMatching(`[0-9]{1,9}`), rapid.StringMatching(`[0-9a-z*+ _-]{0,20}`), rapid.String())
		p := core.Prices{Rules: []core.PriceRule{{
			Endpoint: rapid.SampledFrom([]string{"", "GET /a*", "*", "/a/*/b"}).Draw(t, "endpoint"),
			Model:    rapid.SampledFrom([]string{"", "m", "m*", "*"}).Draw(t, "model"),
			Costs:    costs(rapid.SampledFrom([]string{"requests", "tokens"}).Draw(t, "meter"), price.Draw(t, "price"), "x", price.Draw(t, "price of x")),
		}}}
		usage := core.Quantities{"input": rapid.Int64Range(0, core.MaxMeterCost).Draw(t, "input"), "output": rapid.Int64Range(0, core.MaxMeterCost).Draw(t, "output")}
		q, err := p.Compiled().Quote(&core.PricedRequest{Method: "GET", Path: rapid.String().Draw(t, "path"), Model: "m", Usage: usage})
		if err == nil {
			for _, c := range append(q.Costs, core.MeterCost{Cost: q.Requests}) {
				if c.Cost < 0 || c.Cost > core.MaxPricedCost {
					t.Fatalf("the quote %+v is out of bounds", q)
				}
			}
		}
		if p.Check() != nil {
			return
		}
		text, err := json.Marshal(&p)
		var again core.Prices
		if err != nil || json.Unmarshal(text, &again) != nil || !p.Rules[0].Equal(again.Rules[0]) {
			t.Fatalf("%s: got %+v, want %+v", text, again, p)
		}
	})
}

// BenchmarkQuote measures a request that only the last of 20 rules matches.
func BenchmarkQuote(b *testing.B) {
	var p core.Prices
	for i := range 20 {
		p.Rules = append(p.Rules, core.PriceRule{Endpoint: fmt.Sprintf("GET,POST /v1/things%d/*", i), Costs: costs("requests", "2")})
	}
	list, r := p.Compiled(), &core.PricedRequest{Method: "POST", Path: "/v1/things19/42"}
	b.ReportAllocs()
	for b.Loop() {
		if q, err := list.Quote(r); err != nil || q.Requests != 2 {
			b.Fatal(q, err)
		}
	}
}

// Prices keep the rules that open holds may have been taken under, within their bound.
func TestFormerPrices(t *testing.T) {
	at := time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC)
	rules := func(n int) []core.PriceRule {
		return []core.PriceRule{{Endpoint: "*", Costs: map[string]core.Price{"requests": core.WholePrice(int64(n))}}}
	}
	costOf := func(l *core.PriceList) int64 {
		if l == nil {
			return -1
		}
		q, err := l.Quote(&core.PricedRequest{Method: "GET", Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		return q.Requests
	}
	p, times := &core.Prices{}, []time.Time{{}}
	for n := range 30 {
		times = append(times, at.Add(time.Duration(n)*time.Hour))
		p = p.Replace(rules(n+2), times[n+1])
	}
	for n, set := range times {
		want := int64(n + 1)
		if n < len(times)-1 && times[len(times)-1].Sub(times[n+1]) > core.MaxHoldTime {
			want = -1
		}
		if got := costOf(p.VersionOf(set)); got != want {
			t.Errorf("prices set at %v: got the cost %d, want %d", set, got, want)
		}
	}
	long := make([]core.PriceRule, 400)
	for i := range long {
		long[i] = core.PriceRule{Endpoint: "/" + strings.Repeat("x", 100) + strconv.Itoa(i), Costs: map[string]core.Price{"requests": "2"}}
	}
	for n := range 50 {
		p = p.Replace(long, at.Add(48*time.Hour+time.Duration(n)*time.Second))
	}
	if text, err := json.Marshal(p); err != nil || len(text) > 200<<10 || len(p.Former) == 0 {
		t.Errorf("after 50 changes of a long list: got %d bytes with %d former lists, %v; want at most 200 KiB with some", len(text), len(p.Former), err)
	}
}

// A usage whose names no formula uses is refused with the names that the price uses: a misspelt name would be free. One known name is enough, and an empty
// usage costs 0.
func TestMisspeltUsage(t *testing.T) {
	p := core.Prices{Rules: []core.PriceRule{
		{Model: "gpt*", Costs: costs("tokens", "input + output", "spend", "15*input + 8*cached")},
		{Model: "image", Costs: costs("images", "1")},
	}}
	list := p.Compiled()
	for _, tt := range []struct {
		model string
		usage core.Quantities
		want  string // part of the error
	}{
		{"gpt", core.Quantities{"inputs": 900, "outputs": 0}, "name one or more of cached, input, output"},
		{"gpt", core.Quantities{"inputs": 900, "cached": 1}, ""},
		{"gpt", core.Quantities{}, ""},
		{"image", core.Quantities{"inputs": 900}, ""},
		{"other", core.Quantities{"inputs": 900}, ""},
	} {
		r := &core.PricedRequest{Method: "POST", Path: "/v1/chat", Model: tt.model, Usage: tt.usage, StrictUsage: true}
		_, err := list.Quote(r)
		_, _, chargeErr := list.FinalCosts(r)
		for _, err := range []error{err, chargeErr} {
			e, _ := errors.AsType[*core.Error](err)
			if (e != nil) != (tt.want != "") || e != nil && (e.Code != core.CodeInvalidRequest || e.Field != "usage" || !strings.Contains(e.Detail, tt.want)) {
				t.Errorf("%s %v: got error %v, want one that contains %q", tt.model, tt.usage, err, tt.want)
			}
		}
		r.StrictUsage = false
		if _, err := list.Quote(r); err != nil {
			t.Errorf("%s %v without StrictUsage: got error %v", tt.model, tt.usage, err)
		}
	}
}
