package dashboard_test

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/core"
)

// invite adds a person to the account of the site, and returns the path of the invitation.
func (s *site) invite(name string, role core.Role) (*core.Person, string) {
	s.Helper()
	p, link, err := s.svc.SignIn.Invite(context.Background(), s.acc.ID, core.PersonSpec{Name: name, Email: name + "@example.com", Role: role})
	if err != nil {
		s.Fatal(err)
	}
	return p, link
}

// person adds a person, and signs the person in with a new browser.
func (s *site) person(name string, role core.Role) (*core.Person, *browser) {
	s.Helper()
	p, link := s.invite(name, role)
	b := s.browser()
	if a := s.signInForm(b, url.Values{"link": {link}, "password": {password}, "next": {"/dashboard/plans"}}); a.status != http.StatusOK || !strings.Contains(a.body, "<h1>Plans</h1>") {
		s.Fatalf("%s: got status %d\n%s", name, a.status, a.body)
	}
	return p, b
}

// The roles that may open a page or send a form, in the words of the documentation.
const (
	anybody  = "viewer support editor owner"
	supports = "support editor owner"
	edits    = "editor owner"
	owns     = "owner"
)

// rolesOf says who may open each page and send each form.
var rolesOf = map[string]string{
	"GET {$}": anybody, "GET start": anybody, "GET plans": anybody, "GET plans/{id}": anybody, "GET prices": anybody, "GET users": anybody, "GET users/{id}": anybody,
	"GET keys": anybody, "GET keys/{id}": anybody, "GET audit": anybody,
	"GET settings": anybody, "POST settings/password": anybody, "POST sessions/{id}/end": anybody, "POST sign-out": anybody, "POST sign-out-everywhere": anybody,

	"GET keys/{id}/adjust": supports, "POST keys/{id}/adjust": supports, "GET users/{id}/adjust": supports, "POST users/{id}/adjust": supports,
	"POST keys/{id}/disabled": supports, // enabling is for editors: see TestSupport

	"GET plans/new": edits, "POST plans": edits, "GET plans/{id}/edit": edits, "POST plans/{id}": edits, "GET plans/{id}/delete": edits, "POST plans/{id}/delete": edits,
	"GET users/new": edits, "POST users": edits, "GET users/{id}/edit": edits, "POST users/{id}": edits, "GET users/{id}/delete": edits, "POST users/{id}/delete": edits,
	"POST users/{id}/disabled": edits,
	"GET keys/new":             edits, "POST keys": edits, "GET keys/{id}/edit": edits, "POST keys/{id}": edits, "GET keys/{id}/delete": edits, "POST keys/{id}/delete": edits,
	"GET keys/{id}/regenerate": edits, "POST keys/{id}/regenerate": edits,
	"GET webhooks": anybody, "GET webhooks/{id}": anybody,
	"GET webhooks/new": edits, "POST webhooks": edits, "GET webhooks/{id}/edit": edits, "POST webhooks/{id}": edits, "GET webhooks/{id}/delete": edits, "POST webhooks/{id}/delete": edits,
	"GET webhooks/{id}/rotate": edits, "POST webhooks/{id}/rotate": edits, "POST webhooks/{id}/test": edits,
	"GET prices/edit": edits, "POST prices": edits,

	"POST settings/key-prefix": owns,
	"GET owner-keys":           owns, "GET owner-keys/new": owns, "POST owner-keys": owns, "GET owner-keys/{id}/regenerate": owns, "POST owner-keys/{id}/regenerate": owns,
	"GET owner-keys/{id}/revoke": owns, "POST owner-keys/{id}/revoke": owns,
	"GET people": owns, "GET people/new": owns, "POST people": owns, "GET people/{id}/role": owns, "POST people/{id}/role": owns,
	"GET people/{id}/link": owns, "POST people/{id}/link": owns, "GET people/{id}/remove": owns, "POST people/{id}/remove": owns,
}

// Each role opens exactly its pages and sends exactly its forms. A refused form keeps its token.
func TestRoles(t *testing.T) {
	s := newSite(t)
	s.filled()
	user, key := s.samples()
	keys, _, err := s.svc.OwnerKeys(t.Context(), s.acc.ID, core.Page{Number: 1, Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	guest, _ := s.invite("guest", core.RoleViewer)
	hook, err := s.svc.CreateWebhook(t.Context(), s.acc.ID, core.WebhookPatch{URL: new("https://example.com/hook")})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{"webhooks": hook.ID, "users": fmt.Sprint(user.ID), "keys": key.ID, "plans": user.PlanID, "owner-keys": keys[0].ID, "people": guest.ID, "sessions": strings.Repeat("0", 64)}
	patterns := dashboard.Patterns()
	for _, pattern := range patterns {
		if rolesOf[pattern] == "" {
			t.Errorf("%s is not in the table of roles", pattern)
		}
	}
	for _, role := range core.PersonRoles() {
		_, b := s.person(string(role), role)
		for pattern, roles := range rolesOf {
			method, path, _ := strings.Cut(pattern, " ")
			if !slices.Contains(patterns, pattern) {
				t.Errorf("the dashboard lacks %s", pattern)
			}
			kind, _, _ := strings.Cut(path, "/")
			path = "/dashboard/" + strings.TrimSuffix(strings.Replace(path, "{id}", ids[kind], 1), "{$}")
			want := http.StatusForbidden
			if slices.Contains(strings.Fields(roles), string(role)) {
				want = map[string]int{"GET": 200, "POST": 400}[method] // a form without a token
			}
			var form url.Values
			if method == "POST" {
				form = url.Values{"name": {"x"}}
			}
			a := b.do(method, path, form, nil)
			if a.status != want {
				t.Errorf("%s as %s: got %d, want %d", pattern, role, a.status, want)
			}
			if want == http.StatusForbidden {
				a.want(t, 403, "The role "+string(role)+" may not do this: it needs the role", roles[strings.LastIndex(" "+roles, " "):])
			}
		}
	}
}

var (
	hrefPattern   = regexp.MustCompile(`(?:href|hx-get)="(/dashboard/[^"#]*)`)
	actionPattern = regexp.MustCompile(`action="(/dashboard/[^"]*)"`)
)

// No page shows a link or a form that the role may not use.
func TestPagesShowWhatTheRoleMay(t *testing.T) {
	s := newSite(t)
	s.filled()
	s.samples()
	counts := map[core.Role]int{}
	for _, role := range core.PersonRoles() {
		_, b := s.person(string(role), role)
		seen, next := map[string]bool{}, []string{"/dashboard/"}
		for len(next) > 0 && len(seen) < 150 {
			path := next[0]
			next = next[1:]
			a := b.get(path)
			if a.status == http.StatusForbidden {
				t.Errorf("a page links to %s, which %s may not open", path, role)
			}
			for _, m := range hrefPattern.FindAllStringSubmatch(a.body, -1) {
				to := html.UnescapeString(m[1])
				kind := regexp.MustCompile(`[0-9]+|[a-z]+_[A-Za-z0-9]{20}`).ReplaceAllString(to, "#") // one of each kind
				if kind == to || strings.Count(fmt.Sprint(seen), kind) < 1 {
					if !seen[kind] && !strings.Contains(to, "/assets/") {
						seen[kind] = true
						next = append(next, to)
					}
				}
			}
			for _, m := range actionPattern.FindAllStringSubmatch(a.body, -1) {
				if action := html.UnescapeString(m[1]); !seen["POST "+action] && !strings.Contains(a.body, `method="get" action="`+m[1]) {
					seen["POST "+action] = true
					counts[role]++
					b.post(action, url.Values{}).want(t, 400, "already sent or has expired")
				}
			}
		}
	}
	if counts[core.RoleViewer] == 0 || counts[core.RoleViewer] >= counts[core.RoleSupport] || counts[core.RoleSupport] >= counts[core.RoleEditor] || counts[core.RoleEditor] >= counts[core.RoleOwner] {
		t.Errorf("forms found: got %v, want more for each next role", counts)
	}
}

// A person with the role support disables keys, does not enable them, and adjusts usage.
func TestSupport(t *testing.T) {
	s := newSite(t)
	s.filled()
	_, b := s.person("sue", core.RoleSupport)
	keys, _, err := s.svc.Keys(t.Context(), s.acc.ID, core.KeyFilter{}, core.Page{Number: 1, Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	page := "/dashboard/keys/" + keys[0].ID
	b.get(page).want(t, 200, ">Disable<", ">Adjust<")
	b.send(page, "keys/"+keys[0].ID+"/disabled", url.Values{"disabled": {"true"}}).want(t, 200, "Disabled: the next request is refused")
	p := b.get(page).want(t, 200)
	for _, text := range []string{">Enable<", ">Edit<", ">Delete<", ">Regenerate<"} {
		if strings.Contains(p.body, text) {
			t.Errorf("the page has the button %s", text)
		}
	}
	b.send(page, "keys/"+keys[0].ID+"/disabled", url.Values{"disabled": {"false"}}).want(t, 403, "it needs the role editor or owner")
	if k, err := s.svc.Key(t.Context(), s.acc.ID, keys[0].ID); err != nil || k.Status != core.KeyInactive {
		t.Errorf("the key: got %+v, %v, want it disabled", k, err)
	}
}
