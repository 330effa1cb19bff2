package adminapi

import (
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

func viewPlan(p *core.Plan) object {
	return view(object{{"id", p.ID}}, &core.PlanMembers, p).and(p.CreatedAt, p.UpdatedAt)
}

func viewPlanUsage(u *service.PlanUsage) object {
	return object{
		{"total_users", u.Users},
		{"total_requests", u.Used},
		{"average_usage", u.Average()},
		{"period", u.Plan.Period},
	}
}

func listPlans(c *call) error {
	return list(c, c.query(), viewPlan, func(p core.Page) ([]*core.Plan, int, error) { return c.svc.Plans(c.ctx(), c.account, p) })
}

func planUsers(c *call, id string, p core.Page) ([]*core.User, int, error) {
	return c.svc.Users(c.ctx(), c.account, core.UserFilter{OnPlan: id}, p)
}
