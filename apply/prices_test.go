package apply_test

import (
	"fmt"
	"testing"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A file replaces the whole list of prices, a second run changes nothing, and only prune removes the list.
func TestPrices(t *testing.T) {
	eachStore(t, func(b *bench) {
		const file = `
account: acme
prices:
  - {endpoint: "POST,PUT /v1/search*", costs: {requests: 10}}
  - {model: gpt-4o-mini*, costs: {tokens: input + output}}
plans: [{name: free, max_requests: 100, request_period: day}]
`
		b.apply(file, apply.Options{DryRun: true}, `+ prices "acme"`, `+ plan "free"`)
		b.apply(file, apply.Options{}, `+ prices "acme"`, `+ plan "free"`)
		before := b.dump()
		b.apply(file, apply.Options{})
		b.apply(file, apply.Options{Prune: true})
		b.apply("account: acme\nprices: []\n", apply.Options{})
		b.apply("account: acme\nplans: []\n", apply.Options{})
		if after := b.dump(); fmt.Sprint(before) != fmt.Sprint(after) {
			b.Errorf("got %v, want the account unchanged: %v", after, before)
		}
		b.apply("account: acme\nprices: [{endpoint: /x, costs: {requests: 2}}]\n", apply.Options{},
			`~ prices "acme": rules [{"endpoint":"POST,PUT /v1/search*","costs":{"requests":10}},{"model":"gpt-4o-mini*","costs":{"tokens":"input + output"}}] → [{"endpoint":"/x","costs":{"requests":2}}]`)
		if q, err := b.svc.Quote(t.Context(), b.account, core.PricedRequest{Method: "GET", Path: "/x"}); err != nil || q.Requests != 2 {
			b.Errorf("the price of a request: got %+v, %v", q, err)
		}
		b.apply("account: acme\nprices: []\n", apply.Options{Prune: true}, `- prices "acme"`)
		b.apply("account: acme\nprices: []\n", apply.Options{Prune: true})
		b.refuse(`account: acme
prices:
  - {endpoint: get /x, costs: {requests: 1}}
  - endpoint: /y
    cost: {requests: 1}
  - {endpoint: /z, costs: {requests: "1"}}
  - {endpoint: 7, costs: {requests: 1}}
  - {costs: {requests: 1}, max_requests: 5}
  - {costs: {requests: 1}}
  - {endpoint: /z, costs: {tokens: input -}}
`, apply.Options{},
			`line 3: prices[0].endpoint: An endpoint must begin with methods in upper case, such as GET,HEAD /v1/items*, or with a path`,
			`line 5: prices[1].cost: Unknown member: did you mean costs?`,
			`line 6: prices[2].costs.requests: Must be a whole number, or a formula in quotation marks such as "input + 4*output"`,
			`line 7: prices[3].endpoint: Must be a string; put it in quotation marks`,
			`line 8: prices[4].max_requests: Unknown member: it is a member of a plan, so check the indentation`,
			`line 9: prices[5].endpoint: A rule has an endpoint, a model, or both: * is every endpoint`,
			`line 10: prices[6].costs: The cost of tokens must be a whole number, or a sum such as 15*input + 60*output of whole numbers and names of quantities`)
		b.refuse("account: acme\nprices: {}\n", apply.Options{}, `line 2: prices: Must be a list`)
	})
}

// A change of the prices by another request between the comparison and a transaction is seen.
func TestPricesRace(t *testing.T) {
	const file = "account: acme\nprices: [{endpoint: /x, costs: {requests: %d}}]"
	for _, previews := range []int{0, 1} {
		racing := &racingStore{Store: memstore.New()}
		b := newBench(t, racing)
		other := *b
		other.svc = service.New(racing.Store, service.Config{})
		racing.others, racing.race = previews, func() { other.apply(fmt.Sprintf(file, 2), apply.Options{}, `+ prices "acme"`) }
		b.apply(fmt.Sprintf(file, 3), apply.Options{},
			`~ prices "acme": rules [{"endpoint":"/x","costs":{"requests":2}}] → [{"endpoint":"/x","costs":{"requests":3}}]`)
		if racing.race != nil {
			t.Error("the change did not run")
		}
	}
}
