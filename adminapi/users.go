package adminapi

import (
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
	"github.com/limitkeeper/limitkeeper/core/service"
)

func viewUser(u *core.User) object {
	return view(object{{"user_id", u.ID}}, &core.UserMembers, u).and(u.CreatedAt, u.UpdatedAt)
}

// viewPlanUser returns a user in the list of a plan.
func viewPlanUser(u *core.User) object {
	return object{{"user_id", u.ID}, {"name", u.Name}, {"email", u.Email}, {"created_at", u.CreatedAt}}
}

// viewUserUsage returns the JSON form of the usage of a user, with the fullest counters: see [service.UserUsage].
func viewUserUsage(u *service.UserUsage) object {
	sum := core.LimitUsage{Limit: core.Limit{Max: u.Limit}, Usage: core.Usage{Used: u.Used}}
	counters := make([]object, len(u.Counters))
	for i, c := range u.Counters { // without a key: the counter that the keys on the user's plan share
		counters[i] = object{{"key_id", orNull(c.KeyID)}, {"plan_name", c.Plan.Name}, {"limits", viewForecasts(c.Limits, c.ExhaustsAt)}}
	}
	return object{
		{"type", "user"},
		{"current_usage", u.Used},
		{"limit", maxOrNull(u.Limit)},
		{"percentage_used", sum.Percentage()},
		{"user_name", u.User.Name},
		{"plan_name", orNull(u.PlanNames())},
		{"counters", counters},
		{"counter_count", u.Total}, // of all counters
	}
}

// readNewUser takes the members of a new user: it starts enabled.
func readNewUser(m *members) (p core.UserPatch) {
	document.Read(&m.Object, &core.UserMembers, &p, "is_disabled")
	return p
}

func listUsers(c *call) error {
	q := c.query()
	f := core.UserFilter{Email: q.text("email"), ExternalID: q.text("external_id")}
	return list(c, q, viewUser, func(p core.Page) ([]*core.User, int, error) { return c.svc.Users(c.ctx(), c.account, f, p) })
}
