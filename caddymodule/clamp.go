package caddymodule

import (
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// maxClampTries bounds how often a clamped request is decided again, because other requests have used the remaining quota between the look
// at the limits and the decision.
const maxClampTries = 5

// validateClamped decides a request whose cost on one meter is lowered to what its limits have left. Each answer that the request wants gets
// the same bound.
func (g *Gateway) validateClamped(ctx context.Context, svc *service.Service, account string, q service.Request, v *requestState) error {
	c := g.clampedCost()
	choices, err := g.choices(v.body)
	if err != nil {
		return err
	}
	q.Costs = slices.Clone(q.Costs)
	cost := &q.Cost
	if i := slices.IndexFunc(q.Costs, func(m core.MeterCost) bool { return m.Meter == c.meter }); i >= 0 {
		cost = &q.Costs[i].Cost
	}
	asked := *cost
	for try := 0; ; try++ {
		limits, err := svc.Look(ctx, account, q)
		if err != nil {
			return err
		}
		*cost = asked
		for _, l := range limits {
			if l.Limit.Meter == c.meter && !l.Limit.Unlimited() && l.Limit.OnExceed == core.DenyExceed {
				left := l.Limit.Remaining(l.Used)
				*cost = min(*cost, max(choices, left-left%choices))
			}
		}
		if v.decision, err = svc.Validate(ctx, account, q); err != nil {
			return err
		}
		if d := &v.decision; d.Outcome != service.Denied || *cost <= choices || d.Limit.Meter != c.meter || try == maxClampTries {
			v.clamped = *cost / choices
			return nil
		}
	}
}
