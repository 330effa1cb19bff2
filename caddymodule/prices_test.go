package caddymodule

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// Without a cost of its own the gateway takes the prices of the account, by the path that the upstream gets. A cost overrides them, meter by meter.
func TestGatewayPrices(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", `handle /fixed/* {
		limitkeeper {
			cost 3
		}
		`+up.proxy()+`
	}
	handle_path /api/* {
		limitkeeper {
			cost tokens {http.request.header.Tokens}
		}
		`+up.proxy()+`
	}
	handle {
		limitkeeper
		`+up.proxy()+`
	}`)
	ten := s.Tenant("default", 1000)
	_, err := s.Service().UpdatePlan(t.Context(), ten.Account, ten.Plan.ID, core.PlanPatch{Limits: core.Some([]core.Limit{{Meter: "tokens", Max: 1000, Period: core.Year}})})
	s.Must(err)
	_, err = s.Service().SetPrices(t.Context(), ten.Account, []core.PriceRule{
		{Endpoint: "GET /search*", Costs: map[string]core.Price{"requests": "10", "tokens": "5"}},
		{Endpoint: "*", Costs: map[string]core.Price{"tokens": "2"}},
		{Model: "*", Costs: map[string]core.Price{"requests": "500"}},
	})
	s.Must(err)
	requests, tokens := int64(0), int64(0)
	for _, test := range []struct {
		path, header     string
		requests, tokens int64
	}{
		{"/search?q=a", "", 10, 5},
		{"//SEARCH", "", 10, 5},
		{"/list", "", 1, 2},
		{"/fixed/search", "", 3, 2},
		{"/api/search", "7", 10, 7},
		{"/api/search", "0", 10, 0},
		{"/api/search", "", 10, 5},
	} {
		got := s.Get(test.path, "X-API-Key: "+ten.Secret, "Tokens: "+test.header)
		requests, tokens = requests+test.requests, tokens+test.tokens
		u, err := s.Service().KeyUsage(t.Context(), ten.Account, ten.Key.ID)
		s.Must(err)
		if got.StatusCode != 200 || u.Limits[0].Used != requests || u.Limits[1].Used != tokens {
			t.Errorf("%s with %q: got %d, %d requests, %d tokens; want 200, %d, %d", test.path, test.header, got.StatusCode,
				u.Limits[0].Used, u.Limits[1].Used, requests, tokens)
		}
	}
}
