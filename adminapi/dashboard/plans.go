package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// ofPlan calls a handler with the plan in the path.
func ofPlan(h func(*request, *core.Plan) error) handler {
	return func(q *request) error {
		pl, err := q.svc.Plan(q.r.Context(), q.account(), q.r.PathValue("id"))
		if err != nil {
			return err
		}
		return h(q, pl)
	}
}

// plansView is the data of the page of plans.
type plansView struct {
	Plans []planRow
	Pager pager
}

// planRow is a plan with the numbers of users and keys on it.
type planRow struct {
	*core.Plan
	Users, Keys int
}

func plansPage(q *request) error {
	p := q.page()
	plans, total, err := q.svc.Plans(q.r.Context(), q.account(), p)
	if err != nil {
		return err
	}
	v := plansView{Pager: q.pager(p, len(plans), total, p.Offset()+len(plans) < total)}
	for _, pl := range plans {
		row, err := q.planRow(pl)
		if err != nil {
			return err
		}
		v.Plans = append(v.Plans, row)
	}
	return q.render(http.StatusOK, "plans", "Plans", v)
}

// planRow counts the users and keys on a plan.
func (q *request) planRow(pl *core.Plan) (planRow, error) {
	one := core.Page{Number: 1, Size: 1}
	_, users, err := q.svc.Users(q.r.Context(), q.account(), core.UserFilter{OnPlan: pl.ID}, one)
	if err != nil {
		return planRow{}, err
	}
	_, keys, err := q.svc.Keys(q.r.Context(), q.account(), core.KeyFilter{PlanID: &pl.ID}, one)
	return planRow{pl, users, keys}, err
}

// planView is the data of the page of a plan.
type planView struct {
	planRow
	Usage *core.PlanUsage
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
	u, err := cached(q, "usage "+q.account()+" "+pl.ID, func(ctx context.Context) (*core.PlanUsage, error) {
		return q.svc.PlanUsage(ctx, q.account(), pl.ID)
	})
	if err != nil {
		return err
	}
	return q.render(http.StatusOK, "plan", pl.Name, planView{row, u, c})
}

// periodOptions are the periods of a plan.
var periodOptions = []option{{Value: "day", Label: "a day"}, {Value: "week", Label: "a week, from Monday"}, {Value: "month", Label: "a month"}, {Value: "year", Label: "a year"}}

// planFields returns the fields of the form of a plan. value returns the value of a field by name.
func planFields(value func(string) string) []field {
	return withOthers([]field{
		{Name: "name", Label: "Name", Value: value("name"), Required: true, Autofocus: true},
		{Name: "max_requests", Label: "Requests", Type: "number", Value: value("max_requests"), Min: "1", Max: "9007199254740991",
			Hint: "How many are allowed in each period. Empty: unlimited."},
		{Name: "request_period", Label: "In", Type: "select", Value: value("request_period"), Required: true, Options: periodOptions,
			Hint: "Calendar periods, in UTC, unless a user has a start of its own."},
		{Name: "limits", Label: "Further limits", Type: "textarea", Value: value("limits"), Placeholder: "tokens 1000000 month",
			Hint: "One on each line: a meter, how much, and a period from minute to year, or lifetime. All limits must allow a request."},
		{Name: "rate", Label: "Rate", Type: "number", Value: value("rate"), Min: "1", Max: "1000000", Hint: "Requests in a second or a minute. Empty: no rate."},
		{Name: "per", Label: "Per", Type: "select", Value: value("per"), Required: true, Options: []option{{Value: "second", Label: "second"}, {Value: "minute", Label: "minute"}}},
		{Name: "burst", Label: "Burst", Type: "number", Value: value("burst"), Min: "1", Max: "1000000", Hint: "Requests allowed at once. Empty: as many as the rate."},
		{Name: "description", Label: "Description", Type: "textarea", Value: value("description")},
		{Name: "features", Label: "Features", Type: "textarea", Value: value("features"), Hint: "One on each line."},
		{Name: "is_active", Label: "Status", Type: "radio", Value: value("is_active"), Options: []option{
			{"true", "Active", ""}, {"false", "Inactive", "Existing users keep the plan. New assignments are blocked."}}},
	}, &core.PlanMembers, value)
}

// planPatch parses the form of a plan. pl is the plan that it edits, nil for a new one.
func (q *request) planPatch(pl *core.Plan) (p core.PlanPatch, err error) {
	post := q.r.PostForm
	if err = readMembers(post, &core.PlanMembers, pl, &p, "rate"); err == nil && post.Has("rate") {
		p.Rate, err = planRate(post)
	}
	return p, err
}

// planLimits parses limits, one on each line, as limitLines writes them.
func planLimits(text string) (list []core.Limit, err error) {
	for _, line := range lines(text) {
		words := strings.Fields(line)
		if len(words) != 3 {
			return nil, fieldError("limits", "A limit is a meter, a number and a period, such as “tokens 1000000 month”: "+line)
		}
		n, err := strconv.ParseInt(words[1], 10, 64)
		period, unknown := core.ParsePeriod(words[2])
		if err != nil || unknown != nil {
			return nil, fieldError("limits", "A limit is a meter, a number and a period ("+core.PeriodNames(core.Periods())+"): "+line)
		}
		list = append(list, core.Limit{Meter: words[0], Max: n, Period: period})
	}
	return list, nil
}

// limitLines writes limits, one on each line.
func limitLines(limits []core.Limit) string {
	var b strings.Builder
	for _, l := range limits {
		fmt.Fprintf(&b, "%s %d %v\n", l.Meter, l.Max, l.Period)
	}
	return b.String()
}

// planRate parses the fields of a rate: none if the field rate is empty.
func planRate(post url.Values) (core.Optional[core.Rate], error) {
	rate, burst := strings.TrimSpace(post.Get("rate")), strings.TrimSpace(post.Get("burst"))
	if rate == "" {
		return core.Null[core.Rate](), nil
	}
	r := core.Rate{Per: core.RatePer(post.Get("per"))}
	var err error
	if r.Requests, err = strconv.ParseInt(rate, 10, 64); err != nil {
		return core.Optional[core.Rate]{}, fieldError("rate", "Rate must be a whole number, or empty for no rate")
	}
	if r.Burst = r.Requests; burst != "" {
		if r.Burst, err = strconv.ParseInt(burst, 10, 64); err != nil {
			return core.Optional[core.Rate]{}, fieldError("burst", "Burst must be a whole number")
		}
	}
	return core.Some(r), nil
}

func newPlanPage(q *request) error {
	return q.showNewPlan(http.StatusOK, func(name string) string {
		return map[string]string{"request_period": "month", "is_active": "true", "per": "second"}[name]
	}, nil)
}

func (q *request) showNewPlan(status int, value func(string) string, fault error) error {
	f := q.form("plans", "Create plan", planFields(value), fault)
	f.Cancel = href("plans")
	return q.showForm(status, "New plan", formView{Form: f})
}

func createPlan(q *request) error {
	p, err := q.planPatch(nil)
	var pl *core.Plan
	if err == nil {
		pl, err = q.svc.CreatePlan(q.r.Context(), q.account(), p)
	}
	return q.finish(err, q.showNewPlan, func() string { return "plans/" + pl.ID + "?done=created" })
}

func editPlanPage(q *request, pl *core.Plan) error {
	rate, burst, per := "", "", core.PerSecond
	if r := pl.Rate; r != nil {
		rate, burst, per = strconv.FormatInt(r.Requests, 10), strconv.FormatInt(r.Burst, 10), r.Per
	}
	return q.showEditPlan(http.StatusOK, pl, func(name string) string {
		if of, ok := map[string]string{"rate": rate, "per": string(per), "burst": burst}[name]; ok {
			return of
		}
		return memberText(&core.PlanMembers, pl, name)
	}, nil)
}

func (q *request) showEditPlan(status int, pl *core.Plan, value func(string) string, fault error) error {
	return q.showEdit(status, "plans/"+pl.ID, pl.Name, "A change applies to the next request. The usage of the current period stays.",
		planFields(value), pl.UpdatedAt, fault)
}

func updatePlan(q *request, pl *core.Plan) error {
	p, err := q.planPatch(pl)
	if err == nil {
		err = q.checkUnchanged(pl.UpdatedAt)
	}
	if err == nil {
		_, err = q.svc.UpdatePlan(q.r.Context(), q.account(), pl.ID, p)
	}
	return finishEdit(q, err, (*request).showEditPlan, pl, "plans/"+pl.ID)
}

func deletePlanPage(q *request, pl *core.Plan) error { return q.showDeletePlan(http.StatusOK, pl, nil) }

func (q *request) showDeletePlan(status int, pl *core.Plan, fault error) error {
	row, err := q.planRow(pl)
	if err != nil {
		return err
	}
	f := q.deleteForm("plans/"+pl.ID, "Delete plan", fault)
	points := []string{"It cannot be taken back.", "Nobody draws on it: nothing else changes."}
	if row.Users > 0 || row.Keys > 0 {
		f.Submit = ""
		points[1] = "A plan that is in use cannot be deleted: " + plural(row.Users, "user") + " and " + plural(row.Keys, "key") + " of their own draw on it. Give them another plan first."
	}
	return q.showForm(status, "Delete “"+pl.Name+"”?", formView{Form: f, Points: points})
}

func deletePlan(q *request, pl *core.Plan) error {
	err := q.svc.DeletePlan(q.r.Context(), q.account(), pl.ID)
	if status, ok := formStatus(err); ok {
		return q.showDeletePlan(status, pl, err)
	}
	return q.finishDelete(err, core.ErrPlanNotFound, "plans")
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
