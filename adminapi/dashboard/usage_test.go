package dashboard_test

import (
	"fmt"
	"maps"
	"net/url"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// A plan gets limits, a rate and a user with a start of its own; an error is shown at its field.
func TestPlanLimitsAndRate(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	good := url.Values{"name": {"AI"}, "max_requests": {"10"}, "request_period": {"day"}, "active": {"true"},
		"limits": {"tokens 1000000 month\r\nrequests 5 lifetime"}, "rate": {"2"}, "per": {"second"}, "burst": {""}}
	for _, wrong := range []struct{ field, value, says string }{
		{"limits", "tokens", "such as “tokens 1000000 month”"}, {"limits", "tokens x month", "a number and a period"},
		{"limits", "Tokens 5 month", "A meter is named by"}, {"limits", "requests 5 day", "repeats max_requests"},
		{"rate", "two", "Rate must be a whole number"}, {"rate", "0", "from 1 to 1000000"}, {"burst", "x", "Burst must be a whole number"},
	} {
		bad := maps.Clone(good)
		bad.Set(wrong.field, wrong.value)
		b.send("/dashboard/plans/new", "plans", bad).want(t, 422, wrong.says, `aria-invalid="true"`)
	}
	b.send("/dashboard/plans/new", "plans", maps.Clone(good)).want(t, 200, "Created.", "10 a day", "1,000,000 tokens a month", "5 requests in its lifetime", "2 a second, burst 2")
	plans, _, _ := s.svc.Plans(t.Context(), s.acc.ID, core.Page{Number: 1, Size: 1})
	path := "plans/" + plans[0].ID
	b.get("/dashboard/"+path+"/edit").want(t, 200, "tokens 1000000 month", `name="burst" type="number" value="2"`)
	good.Set("burst", "3")
	good.Set("limits", "")
	b.send("/dashboard/"+path+"/edit", path, maps.Clone(good)).want(t, 200, "Saved.", "2 a second, burst 3").without(t, "tokens")
	good.Set("rate", "")
	b.send("/dashboard/"+path+"/edit", path, maps.Clone(good)).want(t, 200, "Saved.").without(t, "a second, burst")

	user := url.Values{"name": {"Ann"}, "email": {""}, "plan_id": {plans[0].ID}, "metadata": {""}, "custom_start": {"2026-01-31T08:30"}}
	b.send("/dashboard/users/new", "users", maps.Clone(user)).want(t, 200, "Created.", "Periods begin at", "31 Jan 2026")
	u, err := s.svc.User(t.Context(), s.acc.ID, 1)
	if err != nil || u.Anchors.Start().Format("2006-01-02 15:04") != "2026-01-31 08:30" {
		t.Fatalf("the start: got %v, %v", u, err)
	}
	b.send("/dashboard/users/1/edit", "users/1", maps.Clone(user)).want(t, 200, "Saved.")
	if again, _ := s.svc.User(t.Context(), s.acc.ID, 1); len(again.Anchors) != 1 {
		t.Errorf("an unchanged start: got the anchors %v, want one", again.Anchors)
	}
	user.Set("custom_start", "")
	b.send("/dashboard/users/1/edit", "users/1", maps.Clone(user)).want(t, 200, "Saved.").without(t, "Periods begin at")
}

// A key gets limits and a rate of its own, a user overrides, and a plan a limit that refuses nothing. The pages say whose limit it is.
func TestOwnLimitsAndOverrides(t *testing.T) {
	s := newSite(t)
	k, secret := s.customer(s.acc, "Some", 3)
	b := s.signedIn("Acme")
	key, user := "keys/"+k.ID, fmt.Sprintf("users/%d", k.UserID)
	form := url.Values{"name": {"Report"}, "user_id": {fmt.Sprint(k.UserID)}, "plan_id": {k.PlanID}, "status": {"active"}, "metadata": {""},
		"limits": {"requests 2 day\ntokens 9 month allow"}, "rate": {"1"}, "per": {"minute"}, "burst": {"2"}}
	for _, wrong := range []struct{ field, value, says string }{
		{"limits", "requests 2 day maybe", "“allow” if the limit refuses nothing"}, {"limits", "requests 0 day", "must be greater than 0"}, {"burst", "x", "Burst must be"},
	} {
		bad := maps.Clone(form)
		bad.Set(wrong.field, wrong.value)
		b.send("/dashboard/"+key+"/edit", key, bad).want(t, 422, wrong.says)
	}
	b.send("/dashboard/"+key+"/edit", key, maps.Clone(form)).want(t, 200, "Saved.", "2 requests a day", "9 tokens a month, refuses nothing", "1 a minute, burst 2", "of the key")
	b.get("/dashboard/"+key+"/edit").want(t, 200, "tokens 9 month allow")
	s.makeRequests(s.acc, secret, "/v1", 3)
	b.get("/dashboard/"+key).want(t, 200, "used up", "denied")

	u, err := s.svc.User(t.Context(), s.acc.ID, k.UserID)
	if err != nil {
		t.Fatal(err)
	}
	owner := url.Values{"name": {"Ann"}, "email": {""}, "plan_id": {u.PlanID}, "metadata": {""}, "overrides": {"requests 7 month until 2030-01-31T00:00:00Z"}}
	bad := maps.Clone(owner)
	bad.Set("overrides", "requests 7 month after tomorrow")
	b.send("/dashboard/"+user+"/edit", user, bad).want(t, 422, "until 2030-01-31T00:00:00Z")
	b.send("/dashboard/"+user+"/edit", user, maps.Clone(owner)).want(t, 200, "Saved.", "7 requests a month until 31 Jan 2030")
	b.get("/dashboard/"+user+"/edit").want(t, 200, "requests 7 month until 2030-01-31T00:00:00Z")
	b.get("/dashboard/"+key).want(t, 200, "override")

	billed := url.Values{"name": {"Billed"}, "max_requests": {"1"}, "request_period": {"day"}, "on_exceed": {"allow"}, "is_active": {"true"}, "limits": {""}, "rate": {""}, "per": {"second"}, "burst": {""}}
	b.send("/dashboard/plans/new", "plans", billed).want(t, 200, "Created.", "1 a day, refuses nothing")
	plans, n, _ := s.svc.Plans(t.Context(), s.acc.ID, core.Page{Number: 1, Size: 10})
	over, secret, err := s.svc.CreateKey(t.Context(), s.acc.ID, core.KeyPatch{Name: new("Over"), UserID: &k.UserID, PlanID: core.Some(plans[n-1].ID)})
	if err != nil {
		t.Fatal(err)
	}
	s.makeRequests(s.acc, secret, "/v1", 3)
	b.get("/dashboard/keys/"+over.ID).want(t, 200, "2 beyond").without(t, "used up")
}

// Usage is adjusted with a reason that the history shows, for a key and for a user. A posted form counts once.
func TestAdjustUsage(t *testing.T) {
	s := newSite(t)
	k, secret := s.customer(s.acc, "Some", 3)
	for range 4 {
		s.makeRequests(s.acc, secret, "/v1", 1)
	}
	b := s.signedIn("Acme")
	key, user := "keys/"+k.ID, fmt.Sprintf("users/%d", k.UserID)
	b.get("/dashboard/"+key).want(t, 200, "denied", "quota", `href="/dashboard/`+key+`/adjust"`, "used up")
	give := url.Values{"way": {"give"}, "number": {"2"}, "meter": {"requests"}, "period": {"month"}, "reason": {"Goodwill <b>"}}
	for _, wrong := range []struct{ field, value, says string }{
		{"number", "-1", "a whole number of 0 or more"}, {"number", "0", "Number must not be 0"}, {"reason", " ", "Reason must be"}, {"meter", "spend", "No limit of the account"},
	} {
		bad := maps.Clone(give)
		bad.Set(wrong.field, wrong.value)
		b.send("/dashboard/"+key+"/adjust", key+"/adjust", bad).want(t, 422, wrong.says)
	}
	b.send("/dashboard/"+key+"/adjust", key+"/adjust", maps.Clone(give)).want(t, 200, "Adjusted", "<b>1</b> of 3", "Goodwill &lt;b&gt;", "requests -2", ">adjusted<").without(t, "used up")
	give.Set("way", "set")
	give.Set("number", "7")
	give.Set("period", "day")
	b.send("/dashboard/"+user+"/adjust", user+"/adjust", maps.Clone(give)).want(t, 200, "Adjusted", "requests set to 7 (day)")
	give.Set("way", "charge")
	b.send("/dashboard/"+user+"/adjust", user+"/adjust", maps.Clone(give)).want(t, 200, "requests &#43;7")
	other := s.account("Other")
	theirs, _ := s.customer(other, "Theirs", 3)
	for _, path := range []string{"keys/" + theirs.ID, "users/99"} {
		b.get("/dashboard/"+path+"/adjust").want(t, 404)
		b.send("/dashboard/settings", path+"/adjust", maps.Clone(give)).want(t, 404)
	}
}
