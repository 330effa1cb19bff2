package adminapi

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// plan is the JSON form of a plan.
type plan struct {
	ID            string       `json:"id"`
	Name          string       `json:"name"`
	Description   *string      `json:"description"`
	MaxRequests   *int64       `json:"max_requests"` // null: no such limit
	RequestPeriod core.Period  `json:"request_period"`
	Limits        []core.Limit `json:"limits"`
	Rate          *core.Rate   `json:"rate"` // null: none
	IsActive      bool         `json:"is_active"`
	Features      []string     `json:"features"`
	CreatedAt     time.Time    `json:"created_at"`
	UpdatedAt     time.Time    `json:"updated_at"`
}

func viewPlan(p *core.Plan) plan {
	features := p.Features
	if features == nil {
		features = []string{}
	}
	return plan{p.ID, p.Name, p.Description, maxOrNull(p.Limit), p.Period, append([]core.Limit{}, p.Limits...), p.Rate, !p.Inactive, features, p.CreatedAt, p.UpdatedAt}
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

func readNewPlan(m *members) core.PlanPatch {
	unlimited := string(m.raw["max_requests"]) == "null"
	if unlimited {
		m.ignore("max_requests")
	}
	return core.PlanPatch{
		Name:        m.text("name"),
		Description: m.optionalText("description"),
		Limit:       m.whole("max_requests"),
		Unlimited:   unlimited,
		Period:      m.text("request_period"),
		Limits:      m.limits("limits"),
		Rate:        m.rate("rate"),
		Active:      m.flag("is_active"),
		Features:    m.texts("features"),
	}
}

// readPlan takes the writable members of a plan and ignores the read-only ones.
func readPlan(m *members) core.PlanPatch {
	m.ignore("id", "created_at", "updated_at")
	return readNewPlan(m)
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
