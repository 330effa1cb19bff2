package dashboard_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// The prices are set, changed and removed. An error names its line, and the entered text stays.
func TestPrices(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	b.get("/dashboard/prices").want(t, 200, "No prices yet")
	save := func(text string) answer {
		t.Helper()
		return b.send("/dashboard/prices/edit", "prices", url.Values{"rules": {text}})
	}
	save("POST,PUT /v1/search* = requests 010\r\n\r\nmodel gpt 4 = x* = tokens input + 4*output, spend 0\n /v1/chat model m = spend 7 , requests 2").
		want(t, 200, "Saved.", "POST,PUT /v1/search*", "requests 10", "gpt 4 = x*", "tokens input &#43; 4*output")
	want := []core.PriceRule{
		{Endpoint: "POST,PUT /v1/search*", Costs: map[string]core.Price{"requests": "10"}},
		{Model: "gpt 4 = x*", Costs: map[string]core.Price{"tokens": "input + 4*output", "spend": "0"}},
		{Endpoint: "/v1/chat", Model: "m", Costs: map[string]core.Price{"spend": "7", "requests": "2"}},
	}
	rules := func() []core.PriceRule {
		t.Helper()
		p, err := s.svc.Prices(t.Context(), s.acc.ID)
		if err != nil {
			t.Fatal(err)
		}
		return p.Rules
	}
	if got := rules(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got the rules %v, want %v", got, want)
	}
	b.get("/dashboard/prices/edit").want(t, 200, "POST,PUT /v1/search* = requests 10\nmodel gpt 4 = x* = spend 0, tokens input &#43; 4*output\n/v1/chat model m = requests 2, spend 7")
	for text, says := range map[string]string{
		"/a = requests 1\n\nget /b = requests 1": "Line 3: An endpoint must begin with methods",
		"/a requests 1":                          "Line 1: A price is an endpoint or a model",
		"/a = requests":                          "Line 1: The cost of requests must be a whole number",
		"/a = requests 1, requests 2":            "Line 1: It names requests twice",
		"/a = requests -1":                       "Line 1: The cost of requests must be a whole number from 0",
		"/a = tokens input - 1":                  "Line 1: The cost of tokens must be a whole number, or a sum",
		" = requests 1":                          "Line 1: A price is an endpoint",
		"model  = requests 1":                    "Line 1: An endpoint must have a path",
		"<b>/a":                                  "&lt;b&gt;/a",
	} {
		save(text).want(t, 422, says, `aria-invalid="true"`)
	}
	if got := rules(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("after errors: got the rules %v", got)
	}
	save("").want(t, 200, "Saved.", "No prices yet")
}

// A form that shows older prices does not undo a later change.
func TestPricesOfAnOldForm(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	old := url.Values{"rules": {"/a = requests 2"}, "seen": {seenPattern.FindStringSubmatch(b.get("/dashboard/prices/edit").body)[1]}}
	if _, err := s.svc.SetPrices(t.Context(), s.acc.ID, []core.PriceRule{{Model: "m", Costs: map[string]core.Price{"requests": "3"}}}); err != nil {
		t.Fatal(err)
	}
	b.send("/dashboard/prices/edit", "prices", old).want(t, 422, "Someone changed it meanwhile", "/a = requests 2")
	if p, err := s.svc.Prices(t.Context(), s.acc.ID); err != nil || len(p.Rules) != 1 || p.Rules[0].Model != "m" {
		t.Errorf("got %+v, %v", p, err)
	}
}
