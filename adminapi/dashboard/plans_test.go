package dashboard_test

import (
	"net/url"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// A plan is created, changed and deleted. An error is shown at its field, and the entered values stay.
func TestPlans(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	b.get("/dashboard/plans").want(t, 200, "No plans yet")
	good := url.Values{"name": {"Basic"}, "max_requests": {"10"}, "request_period": {"week"}, "description": {"For <all>"},
		"features": {"one\r\n\r\ntwo"}, "is_active": {"true"}}
	for name, wrong := range map[string]struct{ value, says string }{
		"name": {" ", "Name is required"}, "max_requests": {"ten", "Must be a whole number"}, "request_period": {"hour", "must be one of"},
	} {
		bad := url.Values{}
		for n, v := range good {
			bad[n] = v
		}
		bad.Set(name, wrong.value)
		b.send("/dashboard/plans/new", "plans", bad).want(t, 422, wrong.says, `aria-invalid="true"`, "For &lt;all&gt;")
	}
	b.send("/dashboard/plans/new", "plans", good).want(t, 200, "Created.", "10 a week", "For &lt;all&gt;", ">one<", ">two<")
	plans, _, err := s.svc.Plans(t.Context(), s.acc.ID, core.Page{Number: 1, Size: 9})
	if err != nil || len(plans) != 1 {
		t.Fatalf("plans: got %v, %v, want 1", plans, err)
	}
	id := plans[0].ID
	good.Set("max_requests", "12")
	good.Set("is_active", "false")
	good.Set("features", "")
	b.send("/dashboard/plans/"+id+"/edit", "plans/"+id, good).want(t, 200, "Saved.", "12 a week", "inactive")
	if pl, _ := s.svc.Plan(t.Context(), s.acc.ID, id); pl.Limit != 12 || !pl.Inactive || pl.Features != nil {
		t.Errorf("the plan: got %+v", pl)
	}
	b.send("/dashboard/plans/"+id+"/delete", "plans/"+id+"/delete", nil).want(t, 200, "Deleted.", "No plans yet")
}

// A plan in use is not deleted, and the page names the number of users and keys.
func TestDeletePlanInUse(t *testing.T) {
	s := newSite(t)
	s.filled()
	b := s.signedIn("Acme")
	plans, _, _ := s.svc.Plans(t.Context(), s.acc.ID, core.Page{Number: 1, Size: 9})
	path := "plans/" + plans[0].ID + "/delete"
	b.get("/dashboard/"+path).want(t, 200, "20 users").wantNone(t, ">Delete plan<")
	b.send("/dashboard/"+path, path, nil).want(t, 422, `role="alert"`)
	if _, err := s.svc.Plan(t.Context(), s.acc.ID, plans[0].ID); err != nil {
		t.Errorf("the plan: %v", err)
	}
}

// A plan of another account gets the same answer as a missing plan.
func TestPlansOfAnotherAccount(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	other := s.account("Other")
	pl, err := s.svc.CreatePlan(t.Context(), other.ID, core.PlanPatch{Name: new("theirs"), Limit: core.Some(int64(1)), Period: new("day")})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{pl.ID, "plan_none"} {
		for _, page := range []string{"", "/edit", "/delete"} {
			b.get("/dashboard/plans/"+id+page).want(t, 404, "Plan not found")
		}
		for _, form := range []string{"", "/delete"} {
			b.send("/dashboard/settings", "plans/"+id+form, url.Values{"name": {"mine"}, "max_requests": {"5"}, "request_period": {"day"}}).want(t, 404)
		}
	}
	if got, err := s.svc.Plan(t.Context(), other.ID, pl.ID); err != nil || got.Name != "theirs" {
		t.Errorf("the other account's plan: got %+v, %v", got, err)
	}
}
