package dashboard

import (
	"net/http"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// user returns the user with a decimal id.
func (q *request) user(id string) (*core.User, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, core.ErrUserNotFound
	}
	return q.svc.User(q.r.Context(), q.account(), n)
}

// userPath returns the path of a user's page below Base.
func userPath(id int64) string { return "users/" + strconv.FormatInt(id, 10) }

type usersView struct {
	Filters form
	Narrow  bool // a filter is set, or it is not the first page
	Users   []userRow
	Pager   pager
}

type userRow struct {
	*core.User
	Plan *core.Plan // nil for none
	Keys int
}

func usersPage(q *request) error {
	status, err := q.filtersExist()
	if err != nil {
		return err
	}
	users, pg, err := q.users()
	if err != nil {
		return err
	}
	plans, err := q.planOptions("All plans", q.query("plan"), true)
	if err != nil {
		return err
	}
	v := usersView{Pager: pg, Narrow: q.narrow(), Filters: form{Action: href("users"), Fields: []field{
		{Name: "q", Label: "Search", Type: "search", Value: q.query("q"), Placeholder: "Name, email, external id or id"},
		{Name: "plan", Label: "Plan", Type: "select", Value: q.query("plan"), Options: plans},
	}}}
	plan := cachedLookup(q, q.svc.Plan)
	for _, u := range users {
		row, err := q.userRow(u, plan)
		if err != nil {
			return err
		}
		v.Users = append(v.Users, row)
	}
	return q.render(status, "users", "Users", v)
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

// users returns the requested page of users. The total is unknown for a search.
func (q *request) users() ([]*core.User, pager, error) {
	f := core.UserFilter{OnPlan: q.query("plan")}
	if text := q.query("q"); text != "" {
		p := q.page()
		users, more, err := q.svc.SearchUsers(q.r.Context(), q.account(), text, f, p)
		return users, q.pager(p, len(users), -1, more), err
	}
	return listed(q, func(p core.Page) ([]*core.User, int, error) { return q.svc.Users(q.r.Context(), q.account(), f, p) })
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
	v := userView{userRow: row, Metadata: indented(u.Metadata), Disable: q.disableForm(userPath(u.ID), u.Disabled), History: h}
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

var userEditor = &editor[int64, core.User, core.UserPatch]{
	noun:    "user",
	note:    "A change applies to the next request. The usage of the current period stays.",
	members: &core.UserMembers,
	omit:    "is_disabled",
	special: (*request).userFields,
	of:      func(u *core.User) (id int64, name string, updated time.Time) { return u.ID, u.Name, u.UpdatedAt },
	create:  (*core.Service).CreateUser,
	update:  (*core.Service).UpdateUser,
}

func (q *request) userFields(value func(string) string) ([]field, error) {
	plans, err := q.planOptions("No plan", value("plan_id"), false)
	return []field{
		{Name: "name", Label: "Name", Value: value("name"), Required: true, Autofocus: true},
		{Name: "email", Label: "Email", Type: "email", Value: value("email"), Autocomplete: "off", Hint: "No two users have the same."},
		{Name: "external_id", Label: "External id", Value: value("external_id"), Autocomplete: "off",
			Hint: "The id of the user in your other systems. No two users have the same."},
		{Name: "plan_id", Label: "Plan", Type: "select", Value: value("plan_id"), Options: plans,
			Hint: "The user’s keys share its limit. A key can have a plan of its own instead."},
		{Name: "custom_start", Label: "Periods begin at", Type: "datetime-local", Value: value("custom_start"),
			Hint: "In UTC. The days, weeks, months and years of this user begin at this time. Empty: with the calendar. A change keeps the usage."},
		metadataField(value),
	}, err
}

func disableUser(q *request, u *core.User) error {
	return q.disable(userPath(u.ID), func(disabled bool) error {
		_, err := q.svc.UpdateUser(q.r.Context(), q.account(), u.ID, core.UserPatch{Disabled: &disabled})
		return err
	})
}

func deleteUserPage(q *request, u *core.User) error {
	_, keys, err := q.svc.Keys(q.r.Context(), q.account(), core.KeyFilter{UserID: u.ID}, onlyOne)
	if err != nil {
		return err
	}
	f := q.deleteForm(userPath(u.ID), "Delete user", nil)
	return q.showForm(http.StatusOK, "Delete “"+u.Name+"”?", formView{Form: f, Points: []string{
		deletedKeys(keys),
		"The history of its requests can no longer be asked for, and its days leave the chart of the account.",
		"It cannot be taken back. To stop it for a while, disable it instead."}})
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

func deleteUser(q *request, u *core.User) error {
	return q.finishDelete(q.svc.DeleteUser(q.r.Context(), q.account(), u.ID), core.ErrUserNotFound, "users")
}
