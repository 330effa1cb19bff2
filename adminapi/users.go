package adminapi

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

func viewUser(u *core.User) object {
	return view(object{{"user_id", u.ID}}, &core.UserMembers, u).and(u.CreatedAt, u.UpdatedAt)
}

// planUser is a user in the list of a plan.
type planUser struct {
	UserID    int64     `json:"user_id"`
	Name      string    `json:"name"`
	Email     *string   `json:"email"`
	CreatedAt time.Time `json:"created_at"`
}

func viewPlanUser(u *core.User) planUser {
	return planUser{u.ID, u.Name, u.Email, u.CreatedAt}
}

// userUsageView is the JSON form of the usage of a user.
type userUsageView struct {
	Type           string  `json:"type"` // user
	CurrentUsage   int64   `json:"current_usage"`
	Limit          *int64  `json:"limit"` // null: a counter has no limit
	PercentageUsed float64 `json:"percentage_used"`
	UserName       string  `json:"user_name"`
	PlanName       *string `json:"plan_name"`

	Counters     []counter `json:"counters"`      // the fullest counters, see [core.UserUsage]
	CounterCount int       `json:"counter_count"` // number of all counters
}

func viewUserUsage(u *core.UserUsage) userUsageView {
	sum := core.LimitUsage{Limit: core.Limit{Max: u.Limit}, Usage: core.Usage{Used: u.Used}}
	return userUsageView{"user", u.Used, maxOrNull(u.Limit), sum.Percentage(), u.User.Name, orNull(u.PlanNames()),
		viewCounters(u.Counters), u.Total}
}

// readNewUser takes the members of a new user: it starts enabled.
func readNewUser(m *members) core.UserPatch {
	p := readPatch(m, &core.UserMembers, nil, "is_disabled")
	m.checkPlanID(p.PlanID)
	return p
}

// readUser takes the members of a user and ignores the read-only ones.
func readUser(m *members) core.UserPatch {
	p := readPatch(m, &core.UserMembers, []string{"user_id", "created_at", "updated_at"})
	m.checkPlanID(p.PlanID)
	return p
}

func listUsers(c *call) error {
	q := c.query()
	f := core.UserFilter{Email: q.text("email"), ExternalID: q.textUpTo("external_id", maxExternalID)}
	if q.err != nil {
		return q.err
	}
	return list(c, viewEach(viewUser), func(p core.Page) ([]*core.User, int, error) {
		return c.svc.Users(c.ctx(), c.account, f, p)
	})
}

func createUser(c *call) error {
	p, err := decode(c, readNewUser)
	if err != nil {
		return err
	}
	u, err := c.svc.CreateUser(c.ctx(), c.account, p)
	return reply(c, http.StatusCreated, viewUser, u, err)
}

func getUser(c *call, id int64) error {
	u, err := c.svc.User(c.ctx(), c.account, id)
	return reply(c, http.StatusOK, viewUser, u, err)
}

func updateUser(c *call, id int64) error {
	p, err := decode(c, readUser)
	if err != nil {
		return err
	}
	u, err := c.svc.UpdateUser(c.ctx(), c.account, id, p)
	return reply(c, http.StatusOK, viewUser, u, err)
}

func deleteUser(c *call, id int64) error {
	return deleted(c, "User", c.svc.DeleteUser(c.ctx(), c.account, id))
}

func userUsage(c *call, id int64) error {
	u, err := c.svc.UserUsage(c.ctx(), c.account, id)
	return reply(c, http.StatusOK, viewUserUsage, u, err)
}
