package service_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// consuming is a store that keeps the last consumption.
type consuming struct {
	*memstore.Store
	last core.Consumption
}

func (s *consuming) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	s.last = *c
	return s.Store.Consume(ctx, c)
}

func rule(endpoint, model string, costs map[string]core.Price) core.PriceRule {
	return core.PriceRule{Endpoint: endpoint, Model: model, Costs: costs}
}

// priced returns a tenant with prices and a key.
func priced(t *testing.T, rules ...core.PriceRule) (c *tenant, store *consuming, secret string) {
	t.Helper()
	store = &consuming{Store: memstore.New()}
	c = newTenant(t, service.New(store, service.Config{}), "acme")
	_, err := c.svc.SetPrices(t.Context(), c.id, rules)
	c.ok(err)
	_, secret = c.newKey("k")
	return c, store, secret
}

// What a request says itself overrides its price, meter by meter, and a meter whose cost is not known yet is charged afterwards.
func TestPriceOfARequest(t *testing.T) {
	c, store, secret := priced(t,
		rule("POST /search", "", map[string]core.Price{"requests": "10", "tokens": "5"}),
		rule("/chat", "gpt*", map[string]core.Price{"tokens": "input + output", "spend": "2*input"}),
		rule("/free", "", map[string]core.Price{"requests": "0"}),
		rule("/batch", "", map[string]core.Price{"requests": "calls", "spend": "3"}),
	)
	used := core.Quantities{"input": 90, "output": 10, "calls": 4}
	type want struct {
		cost  int64
		costs []core.MeterCost
		later []string
	}
	costs := func(list ...any) (all []core.MeterCost) {
		for i := 0; i < len(list); i += 2 {
			all = append(all, core.MeterCost{Meter: list[i].(string), Cost: int64(list[i+1].(int))})
		}
		return all
	}
	for _, test := range []struct {
		name string
		r    service.Request
		want want
	}{
		{"no price", service.Request{Endpoint: "/x", CostByPrice: true}, want{1, nil, nil}},
		{"no price, and a cost", service.Request{Endpoint: "/x", Cost: 3, Costs: costs("tokens", 7)}, want{3, costs("tokens", 7), nil}},
		{"a price", service.Request{Endpoint: "/search", CostByPrice: true}, want{10, costs("tokens", 5), nil}},
		{"another method", service.Request{Endpoint: "/search", Method: "GET", CostByPrice: true}, want{1, nil, nil}},
		{"the path that the upstream gets", service.Request{Endpoint: "/api/search", Path: "/search", CostByPrice: true}, want{10, costs("tokens", 5), nil}},
		{"a cost of requests", service.Request{Endpoint: "/search", Cost: 2}, want{2, costs("tokens", 5), nil}},
		{"a look", service.Request{Endpoint: "/search"}, want{0, nil, nil}},
		{"a cost of tokens", service.Request{Endpoint: "/search", CostByPrice: true, Costs: costs("tokens", 9)}, want{10, costs("tokens", 9), nil}},
		{"a cost of another meter", service.Request{Endpoint: "/search", CostByPrice: true, Costs: costs("spend", 9)}, want{10, costs("spend", 9, "tokens", 5), nil}},
		{"tokens afterwards", service.Request{Endpoint: "/search", CostByPrice: true, Costs: costs("tokens", 0), Later: []string{"tokens"}}, want{10, nil, []string{"tokens"}}},
		{"requests afterwards", service.Request{Endpoint: "/search", Later: []string{"requests"}}, want{0, costs("tokens", 5), []string{"requests"}}},
		{"no tokens", service.Request{Endpoint: "/search", CostByPrice: true, Costs: costs("tokens", 0)}, want{10, nil, nil}},
		{"a formula without usage", service.Request{Endpoint: "/chat", Model: "gpt-4o", CostByPrice: true}, want{1, nil, []string{"spend", "tokens"}}},
		{"a formula with usage", service.Request{Endpoint: "/chat", Model: "gpt-4o", Usage: used, CostByPrice: true}, want{1, costs("spend", 180, "tokens", 100), nil}},
		{"one meter said, one afterwards", service.Request{Endpoint: "/chat", Model: "gpt-4o", CostByPrice: true, Costs: costs("tokens", 4)}, want{1, costs("tokens", 4), []string{"spend"}}},
		{"both afterwards", service.Request{Endpoint: "/chat", Model: "gpt-4o", CostByPrice: true, Costs: costs("tokens", 0), Later: []string{"tokens"}}, want{1, nil, []string{"spend", "tokens"}}},
		{"another model", service.Request{Endpoint: "/chat", Model: "llama", Usage: used, CostByPrice: true}, want{1, nil, nil}},
		{"free", service.Request{Endpoint: "/free", CostByPrice: true}, want{0, nil, []string{"requests"}}},
		{"requests by formula", service.Request{Endpoint: "/batch", Usage: used, CostByPrice: true}, want{4, costs("spend", 3), nil}},
		{"requests by formula without usage", service.Request{Endpoint: "/batch", CostByPrice: true}, want{0, costs("spend", 3), []string{"requests"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := test.r
			if r.Secret = secret; r.Method == "" {
				r.Method = "POST"
			}
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
			d, err := c.svc.Validate(t.Context(), c.id, r)
			if err != nil || !d.Allowed() || d.Cost != test.want.cost {
				t.Fatalf("got %+v, %v", d, err)
			}
			got := want{store.last.Cost, store.last.Costs, store.last.Later}
			if got.cost != store.last.Entry.Cost || cmp.Diff(got.costs, store.last.Entry.Costs) != "" {
				t.Errorf("the entry has other costs: %+v", store.last.Entry)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if r.CostByPrice && len(r.Costs) == 0 { // then a quote says the same
				q, err := c.svc.Quote(t.Context(), c.id, core.PricedRequest{Method: r.Method, Path: store.last.Entry.Endpoint, Model: r.Model, Usage: r.Usage})
				if r.Path == "" && (err != nil || q.Requests != got.cost || cmp.Diff(q.Costs, got.costs) != "" || cmp.Diff(q.Later, got.later) != "") {
					t.Errorf("quote %+v, %v; the request: %+v", q, err, got)
				}
			}
		})
	}
}

// A usage whose price is above the largest cost of a request is refused, and counts nothing.
func TestPriceAboveTheLargestCost(t *testing.T) {
	c, store, secret := priced(t, rule("*", "", map[string]core.Price{"tokens": "1000000000*input"}))
	store.last = core.Consumption{}
	_, err := c.svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", CostByPrice: true, Usage: core.Quantities{"input": 1001}})
	if e, ok := errors.AsType[*core.Error](err); !ok || e.Code != core.CodeInvalidRequest || e.Field != "usage" || store.last.KeyID != "" {
		t.Errorf("got %v, and the consumption %+v", err, store.last)
	}
	if _, err := c.svc.Quote(t.Context(), c.id, core.PricedRequest{Path: "/", Method: "GET", Model: "a\n"}); fieldOf(err) != "model" {
		t.Errorf("a quote for an invalid model: %v", err)
	}
}

// Promise 3: a change of prices applies to the next request of this node, and of another node as soon as it hears of the change.
func TestPricesApplyToTheNextRequest(t *testing.T) {
	w := newWatched(t)
	w.store.watcher.RenewLease(time.Hour)
	cost := func(svc *service.Service) int64 {
		t.Helper()
		d, err := svc.Validate(t.Context(), w.account, service.Request{Secret: w.secret, Endpoint: "/", Method: "GET", CostByPrice: true})
		w.ok(err)
		return d.Cost
	}
	set := func(rules ...core.PriceRule) {
		t.Helper()
		_, err := w.there.SetPrices(t.Context(), w.account, rules)
		w.ok(err)
	}
	if here, there := cost(w.here), cost(w.there); here != 1 || there != 1 {
		t.Fatalf("without prices: got %d and %d, want 1", here, there)
	}
	for n := range 3 {
		set(rule("*", "", map[string]core.Price{"requests": core.WholePrice(int64(n + 2)), "tokens": "1"}))
		if got := cost(w.there); got != int64(n+2) {
			t.Errorf("on the node of the change: got %d, want %d", got, n+2)
		}
		w.store.watcher.Changed(core.Change{Account: w.account, Prices: true})
		if got := cost(w.here); got != int64(n+2) {
			t.Errorf("on another node: got %d, want %d", got, n+2)
		}
		if meters, err := w.here.Meters(t.Context(), w.account); err != nil || len(meters) != 2 {
			t.Errorf("the meters on another node: got %v, %v", meters, err)
		}
	}
	set()
	if got := cost(w.there); got != 1 {
		t.Errorf("after the removal: got %d, want 1", got)
	}
	rules := []core.PriceRule{rule("*", "", map[string]core.Price{"requests": "9"})}
	w.ok(w.there.Preview(t.Context(), w.account, nil, func(b *service.Transaction) error {
		_, err := b.SetPrices(rules)
		return err
	}))
	if got := cost(w.there); got != 1 {
		t.Errorf("after a preview: got %d, want 1", got)
	}
}

// A meter exists when a price names it, and the meters of plans and prices are bounded together.
func TestMetersOfPrices(t *testing.T) {
	c, _, secret := priced(t, rule("*", "", map[string]core.Price{"tokens": "0"}))
	said := func(meter string) error {
		_, err := c.svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Costs: []core.MeterCost{{Meter: meter, Cost: 1}}})
		return err
	}
	if err := said("tokens"); err != nil {
		t.Errorf("a meter of a price: %v", err)
	}
	if err := said("token"); fieldOf(err) != "costs.token" {
		t.Errorf("an unknown meter: got %v", err)
	}
	if _, _, err := c.svc.AdjustUser(t.Context(), c.id, 1, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: "tokens", Value: 5, Reason: "grant"}}); err != nil {
		t.Errorf("an adjustment of a meter of a price: %v", err)
	}
	_, err := c.svc.CreatePlan(t.Context(), c.id, limited("most", 0, core.MaxMeters-1))
	c.ok(err)
	if _, err := c.svc.CreatePlan(t.Context(), c.id, limited("more", 20, 21)); fieldOf(err) != "limits" {
		t.Errorf("a plan with the meter above the bound: got %v", err)
	}
	set := func(meters ...string) error {
		costs := map[string]core.Price{}
		for _, m := range meters {
			costs[m] = "1"
		}
		_, err := c.svc.SetPrices(t.Context(), c.id, []core.PriceRule{rule("*", "", costs)})
		return err
	}
	if err := set("tokens", "spend"); fieldOf(err) != "rules" {
		t.Errorf("a price with the meter above the bound: got %v", err)
	}
	if err := set("spend"); err != nil {
		t.Errorf("another meter in place of one: %v", err)
	}
	if err := said("tokens"); fieldOf(err) != "costs.tokens" {
		t.Errorf("a meter that no price names any more: got %v", err)
	}
	for i := 0; ; i++ {
		if err := set(fmt.Sprintf("t%d", i)); err != nil {
			if want := core.MaxMetersEver - core.MaxMeters - 1; i != want || fieldOf(err) != "rules" {
				t.Errorf("after %d other meters: got %v, want an error after %d", i, err, want)
			}
			return
		}
	}
}

// Each account has prices of its own, and each change of the prices gets a later time.
func TestPricesOfAccounts(t *testing.T) {
	c, _, _ := priced(t, rule("*", "", map[string]core.Price{"requests": "7"}))
	other := newTenant(t, c.svc, "other")
	p, err := c.svc.Prices(t.Context(), other.id)
	if err != nil || len(p.Rules) != 0 || !p.UpdatedAt.IsZero() {
		t.Errorf("another account: got %+v, %v", p, err)
	}
	q, err := c.svc.Quote(t.Context(), other.id, core.PricedRequest{Method: "GET", Path: "/"})
	if err != nil || q.Rule != -1 || q.Requests != 1 {
		t.Errorf("a quote of another account: got %+v, %v", q, err)
	}
	first, err := c.svc.Prices(t.Context(), c.id)
	c.ok(err)
	second, err := c.svc.SetPrices(t.Context(), c.id, nil)
	if err != nil || !second.UpdatedAt.After(first.UpdatedAt) || len(second.Rules) != 0 {
		t.Errorf("without rules: got %+v, %v, before %+v", second, err, first)
	}
}

// A request whose price is 0, or not known yet, is no look: it takes a token, is in the history, and passes while another meter is used up.
func TestFreeRequests(t *testing.T) {
	c, _, _ := priced(t, rule("/free", "", map[string]core.Price{"requests": "0"}), rule("/later", "", map[string]core.Price{"requests": "0", "tokens": "input"}),
		rule("/report", "", map[string]core.Price{"requests": "0", "reports": "1"}))
	pl, err := c.svc.CreatePlan(t.Context(), c.id, core.PlanPatch{Name: new("p"), Limit: core.Null[int64](), Rate: core.Some(core.Rate{Requests: 1, Per: core.PerMinute, Burst: 2}),
		Limits: core.Some([]core.Limit{{Meter: "reports", Max: 1, Period: core.Day}, {Meter: "tokens", Max: 9, Period: core.Day}})})
	c.ok(err)
	u, err := c.svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("u")})
	c.ok(err)
	k, secret, err := c.svc.CreateKey(t.Context(), c.id, core.KeyPatch{Name: new("k"), UserID: &u.ID, PlanID: core.Some(pl.ID)})
	c.ok(err)
	for _, step := range []struct {
		path string
		want service.Outcome
	}{{"/report", service.Allowed}, {"/free", service.Allowed}, {"/later", service.OverRate}} {
		d, err := c.svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: step.path, Method: "GET", CostByPrice: true})
		if c.ok(err); d.Outcome != step.want {
			t.Errorf("%s: got %v, want %v", step.path, d.Outcome, step.want)
		}
	}
	if list, n, err := c.svc.KeyHistory(t.Context(), c.id, k.ID, core.Page{Number: 1, Size: 9}); err != nil || n != 3 {
		t.Errorf("the history has %d entries, want 3: %v, %v", n, list, err)
	}
}
