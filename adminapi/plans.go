package adminapi

import (
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
)

func viewPlan(p *core.Plan) object {
	return view(object{{"id", p.ID}}, &core.PlanMembers, p).and(p.CreatedAt, p.UpdatedAt)
}

func viewPlanUsage(u *core.PlanUsage) object {
	return object{
		{"total_users", u.Users},
		{"total_requests", u.Used},
		{"average_usage", u.Average()},
		{"period", u.Plan.Period},
	}
}

func readNewPlan(m *members) (p core.PlanPatch) {
	document.Read(m.Object, &core.PlanMembers, &p)
	return p
}

// readPlan takes the members of a plan and ignores the read-only ones.
func readPlan(m *members) core.PlanPatch {
	m.Ignore("id", "created_at", "updated_at")
	return readNewPlan(m)
}

func listPlans(c *call) error {
	return list(c, viewEach(viewPlan), func(p core.Page) ([]*core.Plan, int, error) {
		return c.svc.Plans(c.ctx(), c.account, p)
	})
}

func planUsers(c *call, id string) error {
	if _, err := c.svc.Plan(c.ctx(), c.account, id); err != nil {
		return err
	}
	return list(c, viewEach(viewPlanUser), func(p core.Page) ([]*core.User, int, error) {
		return c.svc.Users(c.ctx(), c.account, core.UserFilter{OnPlan: id}, p)
	})
}
