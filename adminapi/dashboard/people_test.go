package dashboard_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/signin"
)

var invitationPattern = regexp.MustCompile(`data-secret>(https://[^<]+)<`)

// invitation returns the path of the link that a page shows.
func (a answer) invitation(t *testing.T) string {
	t.Helper()
	m := invitationPattern.FindStringSubmatch(a.want(t, 200).body)
	if m == nil {
		t.Fatalf("%s: no link on the page\n%s", a.path, a.body)
	}
	u, err := url.Parse(html.UnescapeString(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return u.RequestURI()
}

// An owner invites a person by a link that is shown once. The person sets a password with it, once, and then signs in with account, email
// and password.
func TestInvitation(t *testing.T) {
	clock := &testClock{}
	s := newSiteAt(t, clock.now)
	b := s.signedIn("Acme")
	b.get("/dashboard/people").want(t, 200, "Nobody yet")
	form := url.Values{"name": {"<b>Ann"}, "email": {"nobody"}, "role": {"editor"}}
	b.send("/dashboard/people/new", "people", form).want(t, 422, "Invalid email format")
	form.Set("email", "Ann@example.com")
	link := b.send("/dashboard/people/new", "people", form).want(t, 200, "the link for &lt;b&gt;Ann").invitation(t)
	b.send("/dashboard/people/new", "people", form).want(t, 422, "A person with this email exists already")
	if p := b.get("/dashboard/people").want(t, 200, "&lt;b&gt;Ann", "Ann@example.com", "invited until"); strings.Contains(p.body, "lk_invite_") {
		t.Errorf("the list shows the link\n%s", p.body)
	}

	ann := s.browser()
	secret := must(url.Parse(link)).Query().Get("link")
	for range 2 { // opening it does not use it up
		ann.get(link).want(t, 200, "&lt;b&gt;Ann, choose a password", "Acme", "Ann@example.com", `name="password"`)
	}
	s.signInForm(ann, url.Values{"link": {secret}, "password": {"short"}}).want(t, 422, "at least 12 characters", secret)
	s.signInForm(ann, url.Values{"link": {secret}, "password": {password}}).want(t, 200, "Sign out", "&lt;b&gt;Ann")
	thief := s.browser()
	thief.get(link).want(t, 403, "This invitation was used already")
	s.signInForm(thief, url.Values{"link": {secret}, "password": {password + "2"}}).want(t, 403, "This invitation was used already")

	for _, wrong := range []url.Values{
		{"name": {"Acme"}, "email": {"ann@example.com"}, "password": {"wrong"}}, {"name": {"Acme"}, "email": {"bob@example.com"}, "password": {password}},
		{"name": {"Acme"}, "password": {password}}, {"name": {"Other"}, "email": {"ann@example.com"}, "password": {password}}} {
		s.signInForm(s.browser(), wrong).want(t, 403, "The name, the email or the password is wrong")
	}
	s.signInForm(ann, url.Values{"name": {"Acme"}, "email": {"ann@EXAMPLE.com"}, "password": {password}}).want(t, 200, "Sign out", "&lt;b&gt;Ann")
	ann.get("/dashboard/settings").want(t, 200, "with the role editor", "Current password")

	form.Set("email", "late@example.com")
	late := b.send("/dashboard/people/new", "people", form).invitation(t)
	clock.advance(signin.InvitationLife)
	thief.get(late).want(t, 403, "older than seven days")
}

// Another role applies to the next page. A new link replaces a forgotten password. A removed person is signed out. The last owner stays.
func TestPeople(t *testing.T) {
	s := newSite(t)
	ann, b := s.person("ann", core.RoleOwner)
	bob, bobs := s.person("bob", core.RoleViewer)
	bobs.get("/dashboard/plans/new").want(t, 403)
	b.send("/dashboard/people/"+bob.ID+"/role", "people/"+bob.ID+"/role", url.Values{"role": {"admin"}}).want(t, 422, "Role must be viewer")
	b.send("/dashboard/people/"+bob.ID+"/role", "people/"+bob.ID+"/role", url.Values{"role": {"editor"}}).want(t, 200, "Saved.", "<td>editor</td>")
	bobs.get("/dashboard/plans/new").want(t, 200)

	link := b.send("/dashboard/people/"+bob.ID+"/link", "people/"+bob.ID+"/link", nil).invitation(t)
	bobs.get("/dashboard/plans").want(t, 200, "<h1>Plans</h1>")
	again := s.browser()
	s.signInForm(again, url.Values{"link": {must(url.Parse(link)).Query().Get("link")}, "password": {password + "2"}}).want(t, 200, "bob")
	bobs.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>")

	b.send("/dashboard/people/"+bob.ID+"/remove", "people/"+bob.ID+"/remove", nil).want(t, 200, "Removed")
	again.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>")
	for _, what := range []string{"role", "remove", "link"} {
		b.get("/dashboard/people/"+bob.ID+"/"+what).want(t, 404, "There is no such person")
	}
	b.send("/dashboard/people/"+ann.ID+"/remove", "people/"+ann.ID+"/remove", nil).want(t, 422, "This is the last owner")
	b.send("/dashboard/people/"+ann.ID+"/role", "people/"+ann.ID+"/role", url.Values{"role": {"viewer"}}).want(t, 422, "This is the last owner")
	b.get("/dashboard/people").want(t, 200, `<span class="tag">you</span>`)

	other := s.account("Other")
	theirs, _, err := s.svc.SignIn.Invite(t.Context(), other.ID, core.PersonSpec{Name: "x", Email: "x@example.com", Role: core.RoleOwner})
	if err != nil {
		t.Fatal(err)
	}
	b.get("/dashboard/people/"+theirs.ID+"/remove").want(t, 404, "There is no such person")
	b.send("/dashboard/people", "people/"+theirs.ID+"/remove", nil).want(t, 404)
}

// The settings list the sessions with browser and address, and end each. A person sees its own sessions, an owner sees all.
func TestSessions(t *testing.T) {
	s := newSite(t)
	_, owner := s.person("ann", core.RoleOwner)
	_, viewer := s.person("bob", core.RoleViewer)
	phone := s.browser()
	agent := http.Header{"User-Agent": {`Mozilla/5.0 (Linux; Android 15) <script>alert(1)</script> Chrome/142 Safari/537 ` + strings.Repeat("x", 5000)}}
	phone.do("POST", "/dashboard/sign-in", url.Values{"name": {"Acme"}, "email": {"bob@example.com"}, "password": {password}}, agent).want(t, 200, "bob")
	p := viewer.get("/dashboard/settings").want(t, 200, "Chrome on Android", "127.0.0.1", "this browser")
	if strings.Contains(p.body, "<script>alert") || strings.Contains(p.body, ">ann<") || len(p.body) > 20_000 {
		t.Errorf("the settings of a viewer\n%s", p.body)
	}
	end := regexp.MustCompile(`action="/dashboard/(sessions/[0-9a-f]{64}/end)"`)
	ends := end.FindAllStringSubmatch(p.body, -1)
	if len(ends) != 1 {
		t.Fatalf("other sessions of the viewer: got %d, want 1\n%s", len(ends), p.body)
	}
	all := end.FindAllStringSubmatch(owner.get("/dashboard/settings").want(t, 200, ">bob<").body, -1)
	if len(all) != 2 {
		t.Fatalf("other sessions that the owner sees: got %d, want 2", len(all))
	}
	viewer.send("/dashboard/settings", ends[0][1], nil).want(t, 200, "The session has ended")
	phone.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>")
	viewer.send("/dashboard/settings", ends[0][1], nil).want(t, 404, "There is no such session")

	owners := end.FindAllStringSubmatch(owner.get("/dashboard/settings").body, -1)
	_, third := s.person("eve", core.RoleEditor)
	third.send("/dashboard/settings", owners[0][1], nil).want(t, 404, "There is no such session")
	viewer.get("/dashboard/plans").want(t, 200, "<h1>Plans</h1>")
	owner.send("/dashboard/settings", owners[0][1], nil).want(t, 200, "The session has ended")
	viewer.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>")
}
