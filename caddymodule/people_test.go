package caddymodule

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/limitkeeper/limitkeeper/core"
)

// visitor is a browser behind a proxy that ends TLS, with header fields of its own.
type visitor struct {
	t      *testing.T
	s      *server
	client *http.Client
	fields map[string]string
}

func newVisitor(t *testing.T, s *server, fields map[string]string) *visitor {
	return &visitor{t, s, &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, fields}
}

// send sends a request with the cookies of the answers before, and returns the answer with its text. A form is posted.
func (v *visitor) send(path string, form url.Values, cookies ...*http.Cookie) (*http.Response, string) {
	v.t.Helper()
	method, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	r, err := http.NewRequest(method, v.s.URL(path), body)
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header.Set("X-Forwarded-Proto", "https")
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range v.fields {
		r.Header.Set(name, value)
	}
	for _, c := range cookies {
		r.AddCookie(c)
	}
	resp, err := v.client.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return resp, string(text)
}

// want fails unless a page has a status and holds a text.
func (v *visitor) want(path string, form url.Values, status int, text string, cookies ...*http.Cookie) *http.Response {
	v.t.Helper()
	resp, body := v.send(path, form, cookies...)
	if resp.StatusCode != status || !strings.Contains(body, text) {
		v.t.Errorf("%s: got %d\n%s\nwant %d with %q", path, resp.StatusCode, body, status, text)
	}
	return resp
}

// signIn signs in without a password and returns the cookies.
func (v *visitor) signIn(account string) []*http.Cookie {
	v.t.Helper()
	return v.want("/dashboard/sign-in", url.Values{"by": {"server"}, "name": {account}}, 303, "").Cookies()
}

// person adds a person to an account of the server.
func person(t *testing.T, s *server, account, email string, role core.Role) *core.Person {
	t.Helper()
	p, _, err := s.Service().SignIn.Invite(context.Background(), account, core.PersonSpec{Name: email, Email: email, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Whom basic_auth of Caddy has authenticated signs in without a password, as the person with that email. An authenticated stranger gets 403, and a
// wrong password of Caddy its 401.
func TestPeopleByBasicAuth(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("open sesame"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	s.Start("store memory", fmt.Sprintf(`
		basic_auth {
			ann@example.com %[1]s
			eve@example.com %[1]s
		}
		limitkeeper_api {
			people {http.auth.user.id}
		}`, hash))
	ten := s.Tenant("acme", 1)
	ann := person(t, s, ten.Account, "Ann@Example.com", core.RoleEditor)
	as := func(email, password string) *visitor {
		r := httptest.NewRequest("GET", "/", nil)
		r.SetBasicAuth(email, password)
		return newVisitor(t, s, map[string]string{"Authorization": r.Header.Get("Authorization")})
	}
	as("ann@example.com", "wrong").want("/dashboard/sign-in", nil, 401, "")
	v := as("ann@example.com", "open sesame")
	v.want("/dashboard/sign-in", nil, 200, "This server knows you as ann@example.com")
	cookies := v.signIn("acme")
	v.want("/dashboard/plans", nil, 200, "New plan", cookies...)
	v.want("/dashboard/people", nil, 403, "it needs the role owner", cookies...)
	v.want("/dashboard/plans", url.Values{"name": {"x"}}, 400, "already sent or has expired", cookies...)
	v.want("/dashboard/plans", nil, 303, "")

	eve := as("eve@example.com", "open sesame")
	eve.want("/dashboard/sign-in", url.Values{"by": {"server"}, "name": {"acme"}}, 403, "this account has no person with your email")
	eve.want("/dashboard/plans", nil, 303, "", cookies...) // with the cookies of ann
	if err := s.Service().SignIn.RemovePerson(t.Context(), ten.Account, ann.ID); err != nil {
		t.Fatal(err)
	}
	v.want("/dashboard/plans", nil, 303, "", cookies...)
}

// With forward_auth, an authentication service names the person in a header field. A field that the client sends counts for nothing, and whom the
// service does not name gets the ordinary sign-in page.
func TestPeopleByForwardAuth(t *testing.T) {
	auth := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch c, err := r.Cookie("sso"); {
		case err != nil:
			w.WriteHeader(http.StatusUnauthorized)
		case c.Value != "guest":
			w.Header().Set("Remote-Email", c.Value+"@example.com")
		}
	}))
	defer auth.Close()
	s := newServer(t)
	const key = "lk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	s.Start("store memory\naccount acme {\nkey "+key+"\n}", `
		forward_auth `+strings.TrimPrefix(auth.URL, "http://")+` {
			uri /check
			copy_headers Remote-Email
		}
		limitkeeper_api {
			people {http.request.header.Remote-Email}
		}`)
	a, err := s.Service().AccountByName(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	person(t, s, a.ID, "ann@example.com", core.RoleViewer)
	as := func(sso string) *visitor {
		return newVisitor(t, s, map[string]string{"Cookie": "sso=" + sso, "Remote-Email": "ann@example.com"})
	}
	newVisitor(t, s, map[string]string{"Remote-Email": "ann@example.com"}).want("/dashboard/sign-in", nil, 401, "")
	ann := as("ann")
	_, page := ann.send("/dashboard/sign-in", nil)
	if !strings.Contains(page, "This server knows you as ann@example.com") || strings.Contains(page, `name="name"`) {
		t.Errorf("the page of the only account of the config: got\n%s", page)
	}
	cookies := ann.signIn("")
	ann.want("/dashboard/plans", nil, 200, "<h1>Plans</h1>", cookies...)
	as("eve").want("/dashboard/sign-in", url.Values{"by": {"server"}}, 403, "this account has no person with your email")
	guest := as("guest")
	guest.want("/dashboard/sign-in", nil, 200, `name="password"`)
	guest.want("/dashboard/sign-in", url.Values{"by": {"server"}}, 401, "This server does not know you")
	guest.want("/dashboard/plans", nil, 303, "", cookies...)
}
