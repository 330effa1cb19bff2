package dashboard_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// A form rendered before another change does not undo that change.
func TestStaleForms(t *testing.T) {
	s := newSite(t)
	pl := s.plan(s.acc, "Team", 100)
	u := s.user(s.acc, "Ada", pl.ID)
	k, secret := s.key(s.acc, u.ID, "production")
	b := s.signedIn("Acme")
	for page, form := range map[string]url.Values{
		"keys/" + k.ID: {"name": {"renamed"}, "user_id": {"1"}, "status": {"active"}}, "users/1": {"name": {"renamed"}, "plan_id": {pl.ID}},
		"plans/" + pl.ID: {"name": {"renamed"}, "max_requests": {"100"}, "request_period": {"day"}},
	} {
		form.Set("seen", seenPattern.FindStringSubmatch(b.get("/dashboard/" + page + "/edit").body)[1])
		if _, err := s.svc.UpdateKey(t.Context(), s.acc.ID, k.ID, core.KeyPatch{Status: new("inactive")}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.svc.UpdateUser(t.Context(), s.acc.ID, u.ID, core.UserPatch{Disabled: new(true)}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.svc.UpdatePlan(t.Context(), s.acc.ID, pl.ID, core.PlanPatch{Limit: core.Some(int64(7))}); err != nil {
			t.Fatal(err)
		}
		p := b.send("/dashboard/"+page+"/edit", page, form).want(t, 422, "Someone changed it meanwhile", "renamed")
		form.Set("seen", seenPattern.FindStringSubmatch(p.body)[1])
		s.wantOutcome(secret, service.Disabled)
		if pl, _ := s.svc.Plan(t.Context(), s.acc.ID, pl.ID); pl.Limit != 7 || pl.Name != "Team" {
			t.Errorf("%s: the plan is %+v", page, pl)
		}
		form.Del("seen")
		b.post("/dashboard/"+page, url.Values{"form": {b.token("/dashboard/plans/new")}, "name": {"x"}, "user_id": {"1"}, "status": {"active"},
			"max_requests": {"1"}, "request_period": {"day"}}).want(t, 422, "Someone changed it meanwhile")
	}
}

// A secret in an address is removed by a redirect.
func TestSecretsInAddresses(t *testing.T) {
	s := newSite(t)
	pl := s.plan(s.acc, "Team", 100)
	u := s.user(s.acc, "Ada", pl.ID)
	k, secret := s.key(s.acc, u.ID, "production")
	b := s.signedIn("Acme")
	for path, want := range map[string]string{
		"keys?q=" + secret: "/dashboard/keys/" + k.ID,
		"keys?q=" + secrets.NewUserSecret(secrets.DefaultKeyPrefix): "/dashboard/keys?q=lk_user_***",
		"keys?q=" + secrets.NewOwnerSecret():                        "/dashboard/keys?q=lk_user_***",
		"users?q=" + secret:                                         "/dashboard/users?q=lk_***",
		"plans?x=" + url.QueryEscape(secret+" "):                    "/dashboard/plans?x=lk_***+",
		"users/" + secret:                                           "/dashboard/users/lk_***",
	} {
		if p := b.get("/dashboard/" + path); p.path != want || strings.Contains(p.body, secret) {
			t.Errorf("%s: got to %s, want %s\n%s", path, p.path, want, p.body)
		}
	}
	live := b.do("GET", "/dashboard/keys?q="+secret, nil, http.Header{"Hx-Request": {"true"}})
	if got := live.header.Get("HX-Redirect"); got != "/dashboard/keys/"+k.ID {
		t.Errorf("a search while typing: got sent to %q", got)
	}
	if p := s.browser().get("/dashboard/users?q="+secret).want(t, 200, "<h1>Sign in</h1>"); strings.Contains(p.path+p.body, secret) {
		t.Errorf("without a session: the secret is at %s", p.path)
	}
}
