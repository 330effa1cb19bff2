package adminapi

import (
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
)

func viewPlan(p *core.Plan) object {
	return view(object{{"id", p.ID}}, &core.PlanMembers, p).and(p.CreatedAt, p.UpdatedAt)
}

// planUsageView is the JSON form of the usage of a plan.
type planUsageView struct {
	TotalUsers    int         `json:"total_users"`
	TotalRequests int64       `json:"total_requests"`
	AverageUsage  float64     `json:"average_usage"`
	Period        core.Period `json:"period"`
}

func viewPlanUsage(u *core.PlanUsage) planUsageView {
	return planUsageView{u.Users, u.Used, u.Average(), u.Plan.Period}
}

func readNewPlan(m *members) core.PlanPatch { return readPatch(m, &core.PlanMembers, nil) }

// readPlan takes the members of a plan and ignores the read-only ones.
func readPlan(m *members) core.PlanPatch {
	return readPatch(m, &core.PlanMembers, []string{"id", "created_at", "updated_at"})
}

func listPlans(c *call) error {
	return list(c, viewEach(viewPlan), func(p core.Page) ([]*core.Plan, int, error) {
		return c.svc.Plans(c.ctx(), c.account, p)
	})
}

func createPlan(c *call) error {
	p, err := decode(c, readNewPlan)
	if err != nil {
		return err
	}
	pl, err := c.svc.CreatePlan(c.ctx(), c.account, p)
	return reply(c, http.StatusCreated, viewPlan, pl, err)
}

func getPlan(c *call, id string) error {
	pl, err := c.svc.Plan(c.ctx(), c.account, id)
	return reply(c, http.StatusOK, viewPlan, pl, err)
}

func updatePlan(c *call, id string) error {
	p, err := decode(c, readPlan)
	if err != nil {
		return err
	}
	pl, err := c.svc.UpdatePlan(c.ctx(), c.account, id, p)
	return reply(c, http.StatusOK, viewPlan, pl, err)
}

func deletePlan(c *call, id string) error {
	return deleted(c, "Plan", c.svc.DeletePlan(c.ctx(), c.account, id))
}

func planUsage(c *call, id string) error {
	u, err := c.svc.PlanUsage(c.ctx(), c.account, id)
	return reply(c, http.StatusOK, viewPlanUsage, u, err)
}

func planUsers(c *call, id string) error {
	if _, err := c.svc.Plan(c.ctx(), c.account, id); err != nil {
		return err
	}
	return list(c, viewEach(viewPlanUser), func(p core.Page) ([]*core.User, int, error) {
		return c.svc.Users(c.ctx(), c.account, core.UserFilter{OnPlan: id}, p)
	})
}
