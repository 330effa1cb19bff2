package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The entry of a change of the prices has the rules that differ, in their order, and not the others.
func TestAuditOfPrices(t *testing.T) {
	list := func(costs ...int64) *core.Prices {
		p := &core.Prices{}
		for i, n := range costs {
			p.Rules = append(p.Rules, core.PriceRule{Model: fmt.Sprint("m", i), Costs: map[string]core.Price{"tokens": core.WholePrice(n)}})
		}
		return p
	}
	moved := &core.Prices{Rules: []core.PriceRule{list(1, 2).Rules[1], list(1, 2).Rules[0], list(1, 2, 3).Rules[2]}}
	rule := func(i, n int) string { return fmt.Sprintf(`{"model":"m%d","costs":{"tokens":%d}}`, i, n) }
	for name, tc := range map[string]struct {
		before, after *core.Prices
		want          string
	}{
		"one of three": {list(1, 2, 3), list(1, 5, 3), `{"rules":[` + rule(1, 2) + `]} {"rules":[` + rule(1, 5) + `]}`},
		"a new one":    {list(1), list(1, 2), `{"rules":[]} {"rules":[` + rule(1, 2) + `]}`},
		"the first":    {nil, list(1), `{"rules":[]} {"rules":[` + rule(0, 1) + `]}`},
		"none":         {list(1, 1), list(1, 1), ""},
		"two moved":    {list(1, 2, 3), moved, `{"rules":[` + rule(0, 1) + `,` + rule(1, 2) + `]} {"rules":[` + rule(1, 2) + `,` + rule(0, 1) + `]}`},
	} {
		a := core.NewAuditing(core.WithAuditTime(t.Context(), time.Now()), "acct_1")
		a.Prices(tc.before, tc.after)
		got := ""
		if _, entries := a.Entries(); len(entries) > 0 {
			got = fmt.Sprintf("%s %s", entries[0].Before, entries[0].After)
		}
		if got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}
