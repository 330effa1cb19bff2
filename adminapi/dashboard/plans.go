package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// planRow is a plan with the numbers of users and keys on it.
type planRow struct {
	*core.Plan
	Users, Keys int
}

func plansPage(q *request) error {
	plans, pg, err := listed(q, func(p core.Page) ([]*core.Plan, int, error) { return q.svc.Plans(q.r.Context(), q.account(), p) })
	if err != nil {
		return err
	}
	rows := make([]planRow, len(plans))
	for i, pl := range plans {
		if rows[i], err = q.planRow(pl); err != nil {
			return err
		}
	}
	return q.render(http.StatusOK, "plans", "Plans", listView{Rows: rows, Pager: pg})
}

// planRow counts the users and keys on a plan.
func (q *request) planRow(pl *core.Plan) (planRow, error) {
	_, users, err := q.svc.Users(q.r.Context(), q.account(), core.UserFilter{OnPlan: pl.ID}, onlyOne)
	if err != nil {
		return planRow{}, err
	}
	_, keys, err := q.svc.Keys(q.r.Context(), q.account(), core.KeyFilter{PlanID: &pl.ID}, onlyOne)
	return planRow{pl, users, keys}, err
}

type planView struct {
	planRow
	Usage *service.PlanUsage
	Chart *chart
}

func planPage(q *request, pl *core.Plan) error {
	row, err := q.planRow(pl)
	if err != nil {
		return err
	}
	c, err := q.chart("Requests under "+pl.Name, func(first, last core.Date) ([]core.DayTotals, error) {
		name := fmt.Sprint("days ", q.account(), " ", pl.ID, " ", first, " ", last)
		return cached(q, name, func(ctx context.Context) ([]core.DayTotals, error) {
			return q.svc.PlanDays(ctx, q.account(), pl.ID, first, last)
		})
	})
	if err != nil {
		return err
	}
	u, err := cached(q, "usage "+q.account()+" "+pl.ID, func(ctx context.Context) (*service.PlanUsage, error) {
		return q.svc.PlanUsage(ctx, q.account(), pl.ID)
	})
	if err != nil {
		return err
	}
	return q.render(http.StatusOK, "plan", pl.Name, planView{row, u, c})
}

// periodOptions returns the options of the period of a plan.
func periodOptions() (options []option) {
	for _, p := range core.PlanPeriods() {
		label := per(p)
		if p == core.Week {
			label += ", from Monday"
		}
		options = append(options, option{Value: p.String(), Label: label})
	}
	return options
}

var planKind = &kind[string, core.Plan, core.PlanPatch]{
	noun:    "plan",
	note:    "A change applies to the next request. The usage of the current period stays.",
	members: &core.PlanMembers,
	first:   map[string]string{"request_period": "month", "is_active": "true", "per": "second", "on_exceed": "deny"},
	special: planFields,
	find: func(q *request) (*core.Plan, error) {
		return q.svc.Plan(q.r.Context(), q.account(), q.r.PathValue("id"))
	},
	of:      func(pl *core.Plan) (id, name string, updated time.Time) { return pl.ID, pl.Name, pl.UpdatedAt },
	create:  withoutSecret((*service.Service).CreatePlan),
	update:  (*service.Service).UpdatePlan,
	remove:  (*service.Service).DeletePlan,
	missing: core.ErrPlanNotFound,
	losses:  (*request).planLosses,
}

var planFields = slices.Concat([]field{
	{Name: "name", Label: "Name", Required: true, Autofocus: true},
	{Name: "max_requests", Label: "Requests", Type: "number", Min: "1", Max: "9007199254740991",
		Hint: "How many are allowed in each period. Empty: unlimited."},
	{Name: "request_period", Label: "In", Type: "select", Required: true, Options: periodOptions(),
		Hint: "Calendar periods, in UTC, unless a user has a start of its own."},
	{Name: "on_exceed", Label: "Beyond them", Type: "select", Required: true, Options: []option{
		{Value: "deny", Label: "refuse"}, {Value: "allow", Label: "allow, and count the overage"}}},
}, limitFields("Further limits", "All limits must allow a request."), []field{
	{Name: "description", Label: "Description", Type: "textarea"},
	{Name: "features", Label: "Features", Type: "textarea", Hint: "One on each line."},
	{Name: "is_active", Label: "Status", Type: "radio", Options: []option{
		{"true", "Active", ""}, {"false", "Inactive", "Existing users keep the plan. New assignments are blocked."}}},
})

func (q *request) planLosses(pl *core.Plan) (points []string, refused bool, err error) {
	row, err := q.planRow(pl)
	points = []string{"It cannot be taken back.", "Nobody draws on it: nothing else changes."}
	if refused = row.Users > 0 || row.Keys > 0; refused {
		points[1] = "A plan that is in use cannot be deleted: " + plural(row.Users, "user") + " and " + plural(row.Keys, "key") + " of their own draw on it. Give them another plan first."
	}
	return points, refused, err
}

// maxPlanOptions is the maximum number of plans in a select field.
const maxPlanOptions = 100

// planOptions returns the options of a plan field: none, the first maxPlanOptions plans, and the
// chosen plan. inactive includes inactive plans, for filters.
func (q *request) planOptions(none, chosen string, inactive bool) ([]option, error) {
	plans, _, err := q.svc.Plans(q.r.Context(), q.account(), core.Page{Number: 1, Size: maxPlanOptions})
	if err != nil {
		return nil, err
	}
	options := []option{{Label: none}}
	for _, pl := range plans {
		if inactive || !pl.Inactive || pl.ID == chosen {
			options = append(options, option{Value: pl.ID, Label: pl.Name})
		}
	}
	if slices.ContainsFunc(options, func(o option) bool { return o.Value == chosen }) {
		return options, nil
	}
	pl, err := nilIfMissing(q.svc.Plan(q.r.Context(), q.account(), chosen))
	if err != nil {
		return nil, err
	}
	if pl == nil {
		pl = &core.Plan{ID: chosen, Name: chosen}
	}
	return append(options, option{Value: pl.ID, Label: pl.Name}), nil
}
