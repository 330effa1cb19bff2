package dashboard

import (
	"net/http"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// user returns the user with a decimal id.
func (q *request) user(id string) (*core.User, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, core.ErrUserNotFound
	}
	return q.svc.User(q.r.Context(), q.account(), n)
}

type userRow struct {
	*core.User
	Plan *core.Plan // nil for none
	Keys int
}

func usersPage(q *request) error {
	users, pg, err := found(q, core.UserFilter{OnPlan: q.query("plan")}, q.svc.SearchUsers, q.svc.Users)
	if err != nil {
		return err
	}
	rows := make([]userRow, len(users))
	plan := cachedLookup(q, q.svc.Plan)
	for i, u := range users {
		if rows[i], err = q.userRow(u, plan); err != nil {
			return err
		}
	}
	return q.renderList("users", "Users", rows, pg, "Name, email, external id or id")
}

// renderList answers with a list that can be searched and filtered by plan, and by the other fields. search says what the search finds.
func (q *request) renderList(name, title string, rows any, pg pager, search string, others ...field) error {
	status, err := q.filtersExist()
	if err != nil {
		return err
	}
	plans, err := q.planOptions("All plans", q.query("plan"), true)
	if err != nil {
		return err
	}
	fields := append([]field{
		{Name: "q", Label: "Search", Type: "search", Value: q.query("q"), Placeholder: search},
		{Name: "plan", Label: "Plan", Type: "select", Value: q.query("plan"), Options: plans},
	}, others...)
	return q.render(status, name, title, listView{form{Action: href(name), Fields: fields}, q.narrow(), rows, pg})
}

// filtersExist returns the status of a list: 404 if the query names a plan or user that does not
// exist.
func (q *request) filtersExist() (status int, err error) {
	if id := q.query("plan"); id != "" {
		_, err = q.svc.Plan(q.r.Context(), q.account(), id)
	}
	if id := q.query("user"); id != "" && err == nil {
		_, err = q.user(id)
	}
	if statuses[core.ErrorCode(err)] == http.StatusNotFound {
		return http.StatusNotFound, nil
	}
	return http.StatusOK, err
}

// userRow reads the plan of a user and counts its keys.
func (q *request) userRow(u *core.User, plan func(string) (*core.Plan, error)) (row userRow, err error) {
	row.User = u
	if row.Plan, err = plan(u.PlanID); err != nil {
		return row, err
	}
	_, row.Keys, err = q.svc.Keys(q.r.Context(), q.account(), core.KeyFilter{UserID: u.ID}, onlyOne)
	return row, err
}

type userView struct {
	userRow
	Metadata string
	Disable  form
	Usage    *userUsage // nil without keys
	Table    keyTable
	Chart    *chart
	History  *historyView
}

func userPage(q *request, u *core.User) error {
	h, err := q.userHistory(u.ID)
	if err != nil || q.part("history") {
		return q.renderHistory("user", h, err)
	}
	row, err := q.userRow(u, cachedLookup(q, q.svc.Plan))
	if err != nil {
		return err
	}
	keys, _, err := q.svc.Keys(q.r.Context(), q.account(), core.KeyFilter{UserID: u.ID}, core.Page{Number: 1, Size: pageSize})
	if err != nil {
		return err
	}
	v := userView{userRow: row, Metadata: indented(u.Metadata), Disable: userKind.disableForm(q, u, u.Disabled), History: h}
	if row.Keys > 0 {
		if v.Usage, err = q.userUsage(u); err != nil {
			return err
		}
	}
	if v.Table.Keys, err = q.keyRows(keys); err != nil {
		return err
	}
	v.Chart, err = q.chart("Requests of "+u.Name, func(first, last core.Date) ([]core.DayTotals, error) {
		return q.svc.UserDays(q.r.Context(), q.account(), u.ID, first, last)
	})
	if err != nil {
		return err
	}
	return q.render(http.StatusOK, "user", u.Name, v)
}

var userKind = &kind[int64, core.User, core.UserPatch]{
	noun:    "user",
	note:    "A change applies to the next request. The usage of the current period stays.",
	members: &core.UserMembers,
	omit:    "is_disabled",
	special: userFields,
	find:    func(q *request) (*core.User, error) { return q.user(q.r.PathValue("id")) },
	of:      func(u *core.User) (id int64, name string, updated time.Time) { return u.ID, u.Name, u.UpdatedAt },
	create:  withoutSecret((*service.Service).CreateUser),
	update:  (*service.Service).UpdateUser,
	toStop:  core.PermitEdit,
	disable: func(disabled bool) core.UserPatch { return core.UserPatch{Disabled: &disabled} },
	remove:  (*service.Service).DeleteUser,
	missing: core.ErrUserNotFound,
	losses:  (*request).userLosses,
	adjust: func(q *request, id int64, a service.AdjustmentCall) error {
		_, _, err := q.svc.AdjustUser(q.r.Context(), q.account(), id, a)
		return err
	},
}

var userFields = []field{
	{Name: "name", Label: "Name", Required: true, Autofocus: true},
	{Name: "email", Label: "Email", Type: "email", Autocomplete: "off", Hint: "No two users have the same."},
	{Name: "external_id", Label: "External id", Autocomplete: "off", Hint: "The id of the user in your other systems. No two users have the same."},
	{Name: "plan_id", Label: "Plan", Type: "select", Plans: "No plan",
		Hint: "The user’s keys share its limit. A key can have a plan of its own instead."},
	{Name: "custom_start", Label: "Periods begin at", Type: "datetime-local",
		Hint: "In UTC. The days, weeks, months and years of this user begin at this time. Empty: with the calendar. A change keeps the usage."},
	{Name: "overrides", Label: "Overrides", Type: "textarea", Placeholder: "requests 5000 month until 2030-01-31T00:00:00Z",
		Hint: "Limits for this user in place of the plan’s, one on each line: a meter, how much, a period, and a time if the override ends."},
	metadataField,
}

func (q *request) userLosses(u *core.User) (points []string, refused bool, err error) {
	_, keys, err := q.svc.Keys(q.r.Context(), q.account(), core.KeyFilter{UserID: u.ID}, onlyOne)
	return []string{
		deletedKeys(keys),
		"The history of its requests can no longer be asked for, and its days leave the chart of the account.",
		"It cannot be taken back. To stop it for a while, disable it instead."}, false, err
}

// deletedKeys returns a sentence about the keys of a user to delete.
func deletedKeys(n int) string {
	switch n {
	case 0:
		return "It has no keys."
	case 1:
		return "Its key is deleted with it: the next request with that is refused, on every server."
	}
	return "Its " + plural(n, "key") + " are deleted with it: the next request with one of them is refused, on every server."
}
