package dashboard_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/core/signin"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

const password = "correct horse battery"

// testClock is a clock that can be moved.
type testClock struct{ ahead atomic.Int64 }

func (c *testClock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *testClock) advance(d time.Duration) { c.ahead.Add(int64(d)) }
func (s *site) signInForm(b *browser, f url.Values) answer {
	s.Helper()
	return b.post("/dashboard/sign-in", f)
}

// A link signs in once, within ten minutes. Opening its page does not use it up.
func TestSignInByLink(t *testing.T) {
	clock := &testClock{}
	s := newSiteAt(t, clock.now)
	link := s.link("Acme")
	b := s.browser()
	for range 2 {
		b.get("/dashboard/sign-in?link="+link).want(t, 200, "This link signs in once", link)
	}
	s.signInForm(b, url.Values{"link": {link}}).want(t, 200, "Acme", "Sign out")
	thief := s.browser()
	s.signInForm(thief, url.Values{"link": {link}}).want(t, 403, "used already")
	thief.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>")

	late := s.link("Acme")
	clock.advance(10 * time.Minute)
	s.signInForm(thief, url.Values{"link": {late}}).want(t, 403, "older than ten minutes")
	for _, wrong := range []string{"x", "lk_link_acct_x-" + strings.Repeat("x", 43), strings.Repeat("x", 5000)} {
		s.signInForm(thief, url.Values{"link": {wrong}}).want(t, 403, "Sign in")
	}
}

// The cookie of a session is for this server, for HTTPS and for no script, and goes with no
// request of another site.
func TestCookie(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	cookie := s.signInForm(b, url.Values{"link": {s.link("Acme")}}).header.Get("Set-Cookie")
	for _, want := range []string{"__Secure-limitkeeper=lk_session_", "; Path=/dashboard/", "; HttpOnly", "; Secure", "; SameSite=Strict"} {
		if !strings.Contains(cookie, want) {
			t.Errorf("Set-Cookie: got %q, want %q in it", cookie, want)
		}
	}
	if strings.Contains(cookie, "Domain") || strings.Contains(cookie, "Max-Age") {
		t.Errorf("Set-Cookie: got %q, want one for this host, until the browser ends", cookie)
	}
}

// Every answer says that nothing may be loaded from elsewhere or shown in a frame, and is
// kept nowhere.
func TestHeaders(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	for _, path := range []string{"sign-in", "plans", "nowhere", "settings"} {
		h := b.get("/dashboard/" + path).header
		for name, want := range map[string]string{"Content-Security-Policy": "default-src 'none'; script-src 'self'", "Referrer-Policy": "no-referrer",
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin", "X-Frame-Options": "DENY"} {
			if !strings.HasPrefix(h.Get(name), want) {
				t.Errorf("%s: %s: got %q, want %q", path, name, h.Get(name), want)
			}
		}
		if strings.Contains(h.Get("Content-Security-Policy"), "unsafe") {
			t.Errorf("%s: got %q", path, h.Get("Content-Security-Policy"))
		}
	}
}

// Without a session every page redirects to the sign-in page, which returns to it. Forms change nothing.
func TestMissingSession(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	for _, path := range []string{"", "plans", "plans/new", "keys/key_x", "settings", "nowhere"} {
		p := b.get("/dashboard/"+path).want(t, 200, "<h1>Sign in</h1>")
		if !strings.HasPrefix(p.path, "/dashboard/sign-in") {
			t.Errorf("%s: got to %s", path, p.path)
		}
	}
	for _, path := range []string{"plans", "owner-keys", "settings/password", "sign-out-everywhere", "users/1/delete"} {
		b.post("/dashboard/"+path, url.Values{"name": {"x"}, "max_requests": {"1"}, "request_period": {"day"}}).want(t, 200, "<h1>Sign in</h1>")
	}
	if plans, _, _ := s.svc.Plans(t.Context(), s.acc.ID, core.Page{Number: 1, Size: 9}); len(plans) > 0 {
		t.Errorf("plans: got %v, want none", plans)
	}
	p := b.get("/dashboard/owner-keys?page=1")
	next := p.path[strings.Index(p.path, "next=")+5:]
	next, _ = url.QueryUnescape(next)
	s.signInForm(b, url.Values{"link": {s.link("Acme")}, "next": {next}}).want(t, 200, "<h1>Owner’s keys</h1>")
}

// The sign-in never redirects to another site.
func TestNext(t *testing.T) {
	s := newSite(t)
	for _, next := range []string{"https://example.com/dashboard/", "//example.com/dashboard/", "/\\example.com/dashboard/", "/dashboard/\\..\\x", "javascript:alert(1)", "/other",
		"\x01https://example.com/dashboard/", "/%2fexample.com/..%2fdashboard/x", "///example.com/dashboard/", "/dashboard/../functions/v1"} {
		b := s.browser()
		b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		got := s.signInForm(b, url.Values{"link": {s.link("Acme")}, "next": {next}}).header.Get("Location")
		if !strings.HasPrefix(got, "/dashboard/") || strings.Contains(got, "example") || strings.Contains(got, "..") {
			t.Errorf("next %q: sent to %q", next, got)
		}
	}
}

// A form is taken once, from the session that it was given to and from no other site.
func TestForms(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	plan := url.Values{"name": {"Basic"}, "max_requests": {"10"}, "request_period": {"day"}, "form": {b.token("/dashboard/plans/new")}}
	for _, h := range []http.Header{{"Sec-Fetch-Site": {"cross-site"}}, {"Sec-Fetch-Site": {"same-site"}}, {"Origin": {"https://example.com"}}, {"Origin": {"null"}}} {
		b.do("POST", "/dashboard/plans", plan, h).want(t, 403, "from another site")
		b.do("POST", "/dashboard/sign-in", url.Values{"link": {s.link("Acme")}}, h).want(t, 403, "from another site")
	}
	other := s.signedIn("Acme")
	other.post("/dashboard/plans", plan).want(t, 400, "already sent or has expired")
	b.do("POST", "/dashboard/plans", plan, http.Header{"Sec-Fetch-Site": {"same-origin"}}).want(t, 200, "Created.", "Basic")
	b.post("/dashboard/plans", plan).want(t, 400, "already sent or has expired")
	plan.Del("form")
	b.post("/dashboard/plans", plan).want(t, 400, "already sent or has expired")
	if plans, _, _ := s.svc.Plans(t.Context(), s.acc.ID, core.Page{Number: 1, Size: 9}); len(plans) != 1 {
		t.Errorf("plans: got %v, want 1", plans)
	}
	b.post("/dashboard/plans", url.Values{"name": {strings.Repeat("x", 70_000)}}).want(t, 413, "The form is too long")
	b.do("POST", "/dashboard/plans", nil, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}).want(t, 400)
}

// A password is set with a session, changed with the current one, and then signs in.
func TestPassword(t *testing.T) {
	s := newSite(t)
	b, other := s.signedIn("Acme"), s.signedIn("Acme")
	b.send("/dashboard/settings", "settings/password", url.Values{"password": {"short"}}).want(t, 422, "at least 12 characters")
	b.send("/dashboard/settings", "settings/password", url.Values{"password": {password}}).want(t, 200, "The password is set")
	other.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>")

	b = s.browser()
	for _, wrong := range []url.Values{{"name": {"Acme"}, "password": {"wrong"}}, {"name": {"Nobody"}, "password": {password}}, {"name": {"Acme"}}, {}} {
		p := s.signInForm(b, wrong).want(t, 403, "The name, the email or the password is wrong")
		if strings.Contains(p.body, "wrong\"") {
			t.Errorf("the password is on the page:\n%s", p.body)
		}
	}
	s.signInForm(b, url.Values{"name": {"Acme"}, "password": {password}}).want(t, 200, "Sign out")
	b.send("/dashboard/settings", "settings/password", url.Values{"current": {"wrong"}, "password": {password + "2"}}).want(t, 422, "not the current password")
	b.send("/dashboard/settings", "settings/password", url.Values{"current": {password}, "password": {password + "2"}}).want(t, 200, "The password is set")
	s.signInForm(s.browser(), url.Values{"name": {"Acme"}, "password": {password}}).want(t, 403)
	for range signin.WrongPasswords {
		s.signInForm(s.browser(), url.Values{"name": {"Acme"}, "password": {"wrong"}})
	}
	s.signInForm(s.browser(), url.Values{"name": {"Acme"}, "password": {password + "2"}}).want(t, 429, "Too many wrong passwords")
	s.signInForm(s.browser(), url.Values{"link": {s.link("Acme")}}).want(t, 200, "Sign out")
}

// A second cookie of the name, which a sibling host can set, does not hide the session.
func TestSecondSessionCookie(t *testing.T) {
	s := newSite(t)
	s.signedIn("Acme")
	in, err := s.svc.SignIn.ByLink(t.Context(), s.link("Acme"), signin.Client{})
	if err != nil {
		t.Fatal(err)
	}
	planted := "__Secure-limitkeeper=" + strings.Replace(in.Session, "-", "-x", 1)[:len(in.Session)]
	session := "__Secure-limitkeeper=" + in.Session
	send := func(cookies ...string) answer {
		t.Helper()
		return s.browser().do("GET", "/dashboard/plans", nil, http.Header{"Cookie": {strings.Join(cookies, "; ")}})
	}
	send(session).want(t, 200, "<h1>Plans</h1>")
	send(planted, session).want(t, 200, "<h1>Plans</h1>")
	send("__Secure-limitkeeper=", "__Secure-limitkeeper=x", planted, session).want(t, 200, "<h1>Plans</h1>")
	send(session, planted).want(t, 200, "<h1>Plans</h1>")
	send(planted, planted).want(t, 200, "<h1>Sign in</h1>")
	send(planted, planted, planted, planted, session).want(t, 200, "<h1>Sign in</h1>") // look-ups are bounded
}

// A browser that has signed in has a cookie for the sign-in page. When strangers lock the
// name, that browser still signs in.
func TestKnownBrowser(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	b.send("/dashboard/settings", "settings/password", url.Values{"password": {password}}).want(t, 200, "The password is set")
	b.send("/dashboard/settings", "sign-out", nil).want(t, 200, "<h1>Sign in</h1>")
	cookies := b.client.Jar.Cookies(must(url.Parse(s.url + "/dashboard/sign-in")))
	if len(cookies) != 1 || cookies[0].Name != dashboard.BrowserCookieName || !strings.HasPrefix(cookies[0].Value, "lk_browser_acct_") {
		t.Fatalf("cookies after signing out: got %v, want that of the browser", cookies)
	}
	if other := b.client.Jar.Cookies(must(url.Parse(s.url + "/dashboard/plans"))); len(other) != 0 {
		t.Errorf("cookies for another page: got %v, want none", other)
	}
	for range signin.WrongPasswords {
		s.signInForm(s.browser(), url.Values{"name": {"Acme"}, "password": {"wrong"}}).want(t, 403)
	}
	form := url.Values{"name": {"Acme"}, "password": {password}}
	s.signInForm(s.browser(), form).want(t, 429)
	s.signInForm(b, form).want(t, 200, "Sign out")
	b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	set := s.signInForm(b, form).header["Set-Cookie"]
	want := "; Path=/dashboard/sign-in; Max-Age=15552000; HttpOnly; Secure; SameSite=Strict"
	if len(set) != 2 || !strings.HasPrefix(set[1], dashboard.BrowserCookieName+"=") || !strings.HasSuffix(set[1], want) {
		t.Errorf("Set-Cookie: got %q, want the second with %q", set, want)
	}
}

// Each sign-in and each refusal leaves a log line with the account, the address and the
// reason, and none with a password, a link or a name that no account has. A storm leaves 60
// lines a minute.
func TestSignInsAreLogged(t *testing.T) {
	clock := &testClock{}
	s := newSiteAt(t, clock.now)
	b := s.signedIn("Acme")
	b.send("/dashboard/settings", "settings/password", url.Values{"password": {password}}).want(t, 200)
	s.signInForm(s.browser(), url.Values{"name": {"Acme"}, "password": {password}}).want(t, 200)
	const typed = "my-password-in-the-wrong-field"
	for range signin.WrongPasswords {
		s.signInForm(s.browser(), url.Values{"name": {typed}, "password": {typed}}).want(t, 403)
	}
	s.signInForm(s.browser(), url.Values{"name": {"Acme"}, "password": {typed}}).want(t, 429)
	s.signInForm(s.browser(), url.Values{"link": {"lk_link_" + typed}}).want(t, 403)
	b.send("/dashboard/settings", "settings/password", url.Values{"current": {typed}, "password": {password}})
	account := "account=" + s.acc.ID
	for line, want := range map[string]int{
		`level=INFO msg="signed in" ` + account + ` address=127.0.0.1 reason=link suppressed=0`:                                             1,
		`level=INFO msg="signed in" ` + account + ` address=127.0.0.1 reason=password suppressed=0`:                                         1,
		`level=INFO msg="sign-in refused" account="" address=127.0.0.1 reason="wrong password" suppressed=0`:                                10,
		`level=INFO msg="sign-in refused" ` + account + ` address=127.0.0.1 reason="too many wrong passwords" suppressed=0`:                 1,
		`level=INFO msg="sign-in refused" account="" address=127.0.0.1 reason="wrong link" suppressed=0`:                                    1,
		`level=WARN msg="password change refused" ` + account + ` address=127.0.0.1 reason="This is not the current password" suppressed=0`: 1,
	} {
		if got := len(s.log.with(line)); got != want {
			t.Errorf("%s: got %d lines, want %d", line, got, want)
		}
	}
	for _, secret := range []string{typed, password, "lk_"} {
		if got := s.log.with(secret); got != nil {
			t.Errorf("%s is in the log: %q", secret, got)
		}
	}

	const refused = 200
	for range refused {
		s.signInForm(s.browser(), url.Values{"link": {"x"}}).want(t, 403)
	}
	if got := len(s.log.with("wrong link")); got != 60 {
		t.Errorf("lines of a storm: got %d, want 60", got)
	}
	clock.advance(time.Minute)
	s.signInForm(s.browser(), url.Values{"link": {"x"}})
	if got := s.log.with("suppressed=141"); len(got) != 1 {
		t.Errorf("after a minute: got %q, want one line that counts those left out", got)
	}
}

// An account is served at most 1000 pages and forms in any minute, whichever browsers ask.
// Refreshes of open pages count apart, so do the pages of a session that end access, and
// assets do not count.
func TestPagesAreThrottled(t *testing.T) {
	clock := &testClock{}
	frozen := clock.now()
	s := newSiteAt(t, func() time.Time { return frozen.Add(time.Duration(clock.ahead.Load())) })
	s.account("Other")
	a, b, other := s.signedIn("Acme"), s.signedIn("Acme"), s.signedIn("Other") // each has loaded a page
	token := a.token("/dashboard/users/new")
	for range service.DashboardLimit - 3 {
		a.get("/dashboard/plans/new").want(t, 200)
	}
	p := b.post("/dashboard/users", url.Values{"name": {"one too many"}, "form": {token}}).want(t, 429, "Too many pages requested for this account: please wait")
	if got := p.header.Get("Retry-After"); got != "60" {
		t.Errorf("Retry-After: got %q, want 60", got)
	}
	if _, n, _ := s.svc.Users(t.Context(), s.acc.ID, core.UserFilter{}, core.Page{Number: 1, Size: 1}); n != 0 {
		t.Errorf("users: got %d, want 0", n)
	}
	a.get("/dashboard/start?part=first").want(t, 204)
	for range service.DashboardLimit {
		a.get("/dashboard/settings").want(t, 200)
	}
	a.get("/dashboard/settings").want(t, 429)
	b.get("/dashboard/settings").want(t, 200, "Sign out everywhere") // else a stolen session could keep its owner out
	other.get("/dashboard/plans").want(t, 200)
	a.get("/dashboard/assets/icon.svg")
	s.browser().get("/dashboard/sign-in").want(t, 200)
	for range service.DashboardLimit - 1 {
		a.get("/dashboard/start?part=first").want(t, 204)
	}
	a.get("/dashboard/start?part=first").want(t, 429)
	clock.advance(time.Minute)
	a.post("/dashboard/users", url.Values{"name": {"in time"}, "form": {token}}).want(t, 200, "in time")
}

// Signing out ends this session, everywhere all of the account.
func TestSignOut(t *testing.T) {
	s := newSite(t)
	s.account("Other")
	a, b, c, other := s.signedIn("Acme"), s.signedIn("Acme"), s.signedIn("Acme"), s.signedIn("Other")
	cookies := a.client.Jar.Cookies(must(url.Parse(s.url + "/dashboard/")))
	a.send("/dashboard/plans", "sign-out", nil).want(t, 200, "<h1>Sign in</h1>")
	a.client.Jar.SetCookies(must(url.Parse(s.url+"/dashboard/")), cookies) // a browser with a copy of the cookie
	a.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>")
	b.get("/dashboard/plans").want(t, 200, "<h1>Plans</h1>")
	b.send("/dashboard/settings", "sign-out-everywhere", nil).want(t, 200, "<h1>Sign in</h1>")
	c.get("/dashboard/plans").want(t, 200, "<h1>Sign in</h1>")
	other.get("/dashboard/plans").want(t, 200, "<h1>Plans</h1>")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Plain HTTP is refused, and an unavailable store gets 503.
func TestNotServed(t *testing.T) {
	svc := newSite(t).svc
	config := dashboard.Config{
		Service: func() *service.Service { return svc }, Secure: func(r *http.Request) bool { return r.TLS != nil },
		ClientIP: func(*http.Request) string { return "" }, Email: func(*http.Request) string { return "" }, Logger: discard,
	}
	send := func(c dashboard.Config, target string) (int, string) {
		w := httptest.NewRecorder()
		dashboard.New(c).ServeHTTP(w, httptest.NewRequest("GET", target, nil))
		b, _ := io.ReadAll(w.Body)
		return w.Code, string(b)
	}
	if status, body := send(config, "http://example.com/dashboard/sign-in"); status != 400 || !strings.Contains(body, "over HTTPS only") {
		t.Errorf("plain HTTP: got %d\n%s", status, body)
	}
	config.Service = func() *service.Service { return nil }
	if status, body := send(config, "https://example.com/dashboard/sign-in"); status != 503 || !strings.Contains(body, "The store is unavailable") {
		t.Errorf("no store: got %d\n%s", status, body)
	}
	for _, path := range []string{"//dashboard/plans", "/dashboard/./plans", "/dashboard/x/../plans", "/dashboard//plans"} {
		if status, _ := send(config, "https://example.com"+path); status != 503 && status != 404 {
			t.Errorf("%s: got %d, want no redirect", path, status)
		}
	}
}

// failing is a store that fails when an account is looked up by name, as every sign-in by password does.
type failing struct {
	core.Store
	fail func() error
}

func (f failing) AccountByName(context.Context, string) (*core.Account, error) { return nil, f.fail() }

// An error that the client caused by disconnecting is no internal error: it gets 503 and is not logged.
// Any other unknown error gets 500 and is logged, also after the client has disconnected.
func TestClientDisconnects(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	broken := errors.New("the store is broken")
	for _, tc := range []struct {
		name   string
		fail   func() error
		status int
		logged bool
	}{
		{"the store fails", func() error { return broken }, 500, true},
		{"the store reports a cancellation of its own", func() error { return context.Canceled }, 500, true},
		{"the client disconnects", func() error { cancel(); return ctx.Err() }, 503, false},
		{"the store fails after the client disconnected", func() error { return broken }, 500, true},
		{"the handler panics after the client disconnected", func() error { panic("broken") }, 500, true},
	} {
		var log bytes.Buffer
		svc := service.New(failing{memstore.New(), tc.fail}, service.Config{})
		pages := dashboard.New(dashboard.Config{
			Service: func() *service.Service { return svc }, Secure: func(*http.Request) bool { return true },
			ClientIP: func(*http.Request) string { return "192.0.2.1" }, Email: func(*http.Request) string { return "" }, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		r := httptest.NewRequestWithContext(ctx, "POST", "/dashboard/sign-in", strings.NewReader("name=Acme&password=x"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, r)
		if logged := log.Len() > 0; w.Code != tc.status || logged != tc.logged {
			t.Errorf("%s: got %d and the log %q, want %d, logged: %v", tc.name, w.Code, log.String(), tc.status, tc.logged)
		}
	}
}
