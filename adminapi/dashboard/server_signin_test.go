package dashboard_test

import (
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// knownAs makes the server authenticate the requests of a browser as somebody with an email.
type knownAs struct {
	email *string
	next  http.RoundTripper
}

func (k knownAs) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Test-Email", *k.email)
	return k.next.RoundTrip(r)
}

// knownBrowser returns a browser whose requests the server authenticates as *email.
func (s *site) knownBrowser(email *string) *browser {
	b := s.browser()
	b.client.Transport = knownAs{email, b.client.Transport}
	return b
}

// A person whom the server has authenticated signs in without a password, to the account that the person names. Anybody else gets 403, the same
// for an account that does not exist.
func TestSignInByServer(t *testing.T) {
	s := newSite(t)
	ann, link := s.invite("ann", core.RoleEditor)
	s.account("Other")
	email := " ANN@example.com "
	b := s.knownBrowser(&email)
	b.get("/dashboard/plans").want(t, 200, "This server knows you as", "Continue", `name="name"`)
	for _, account := range []string{"Other", "Nobody", ""} {
		s.signInForm(b, url.Values{"by": {"server"}, "name": {account}}).want(t, 403, "this account has no person with your email")
	}
	for _, h := range []http.Header{{"Sec-Fetch-Site": {"cross-site"}}, {"Origin": {"https://example.com"}}} {
		b.do("POST", "/dashboard/sign-in", url.Values{"by": {"server"}, "name": {"Acme"}}, h).want(t, 403, "from another site")
	}
	s.signInForm(b, url.Values{"by": {"server"}, "name": {" Acme "}, "next": {"/dashboard/plans"}}).want(t, 200, "<h1>Plans</h1>", "New plan", "ann")
	b.get("/dashboard/people").want(t, 403, "it needs the role owner")
	b.get("/dashboard/settings").want(t, 200, "by this server")
	b.post("/dashboard/plans", url.Values{"name": {"Basic"}}).want(t, 400, "already sent or has expired")
	stranger := s.browser()
	s.signInForm(stranger, url.Values{"link": {link}, "password": {password}}).want(t, 403, "This invitation was used already")

	// the session is of the person whom the server knows, and of nobody else
	for _, other := range []string{"bob@example.com", ""} {
		email = other
		if p := b.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>"); strings.Contains(p.body, "Sign out") {
			t.Errorf("as %q: the session of another person goes on", other)
		}
	}
	s.signInForm(b, url.Values{"by": {"server"}, "name": {"Acme"}}).want(t, 401, "This server does not know you")
	email = "ann@example.com"
	b.get("/dashboard/plans").want(t, 200, "<h1>Plans</h1>")
	if err := s.svc.SignIn.RemovePerson(t.Context(), s.acc.ID, ann.ID); err != nil {
		t.Fatal(err)
	}
	b.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>")
	s.signInForm(b, url.Values{"by": {"server"}, "name": {"Acme"}}).want(t, 403)
}

// A browser that the server does not know gets the ordinary page, and a known one reaches it: links and passwords work on.
func TestSignInBesideServer(t *testing.T) {
	s := newSite(t)
	s.person("ann", core.RoleOwner)
	email := ""
	b := s.knownBrowser(&email)
	b.get("/dashboard/sign-in").want(t, 200, `name="password"`)
	email = "nobody@example.com"
	b.get("/dashboard/sign-in").want(t, 200, "This server knows you as nobody@example.com", `href="/dashboard/sign-in?password"`)
	b.get("/dashboard/sign-in?password").want(t, 200, `name="password"`)
	s.signInForm(b, url.Values{"name": {"Acme"}, "email": {"ann@example.com"}, "password": {password}}).want(t, 200, "Sign out", "ann")
	b.get("/dashboard/plans").want(t, 200, "<h1>Plans</h1>")
	jar, _ := cookiejar.New(nil)
	b.client.Jar = jar
	b.get("/dashboard/sign-in?link="+s.link("Acme")).want(t, 200, "This link signs in once")
	s.signInForm(b, url.Values{"link": {s.link("Acme")}}).want(t, 200, "Sign out")
}
