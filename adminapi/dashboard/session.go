package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/signin"
)

// CookieName is the name of the session cookie. Browsers accept the prefix __Secure- over HTTPS only
// (RFC 6265bis section 4.1.3). Cookies are shared by all ports of a host, so a gateway on the same
// host gets this cookie and must remove it.
const CookieName = "__Secure-limitkeeper"

// BrowserCookieName names the cookie that identifies a browser that has signed in, see
// [core.Browser]. Browsers send it to the sign-in page only.
const BrowserCookieName = "__Secure-limitkeeper-browser"

// OwnsCookie reports whether the dashboard sets a cookie with the name. It holds a secret, so no
// upstream may get it.
func OwnsCookie(name string) bool { return name == CookieName || name == BrowserCookieName }

// maxSessionCookies bounds how many sessions of one request are looked up.
const maxSessionCookies = 4

// session returns the session of a request, or [signin.ErrSession]. A sibling host can give
// the browser a second cookie with the same name (RFC 6265 section 8.6): each is tried, so
// that an invalid one does not hide the session. use is passed to [service.Service.SignedIn].
func (q *request) session(use bool) (*signin.SignedIn, error) {
	cookies := q.r.CookiesNamed(CookieName)
	for _, c := range cookies[:min(len(cookies), maxSessionCookies)] {
		signedIn, err := q.svc.SignIn.SignedIn(q.r.Context(), c.Value, use)
		if !errors.Is(err, signin.ErrSession) {
			return signedIn, err
		}
	}
	return nil, signin.ErrSession
}

// client returns the address and the known-browser cookie of a sign-in.
func (q *request) client() signin.Client {
	by := signin.Client{Address: q.s.config.ClientIP(q.r)}
	if c, err := q.r.Cookie(BrowserCookieName); err == nil {
		by.Browser = c.Value
	}
	return by
}

// setCookie sets a cookie for maxAge seconds: 0 until the browser closes, negative to delete the cookie.
func (q *request) setCookie(name, value, path string, maxAge int) {
	http.SetCookie(q.w, &http.Cookie{Name: name, Value: value, Path: path, MaxAge: maxAge,
		Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

// askToSignIn redirects to the sign-in page. After the sign-in the browser returns to the requested
// page.
func (q *request) askToSignIn() {
	to := Base + "sign-in"
	if q.r.Method == http.MethodGet && q.r.URL.Path != Base {
		to += "?" + url.Values{"next": {secrets.MaskSecrets(q.r.URL.RequestURI())}}.Encode()
	}
	if q.r.Header.Get("HX-Request") != "" { // a refresh by htmx: redirect the whole page
		q.w.Header().Set("HX-Redirect", Base+"sign-in")
		q.w.WriteHeader(http.StatusUnauthorized)
		return
	}
	http.Redirect(q.w, q.r, to, http.StatusSeeOther)
}

type signInView struct {
	Link string // secret of a sign-in link, "" for a form with name and password
	Form form
}

func signInPage(q *request) error {
	return q.showSignIn(http.StatusOK, q.r.URL.Query().Get("link"), q.r.URL.Query().Get("next"), "", nil)
}

func (q *request) showSignIn(status int, link, next, name string, fault error) error {
	f := form{Action: Base + "sign-in", Submit: "Sign in", Fault: errorText(fault)}
	f.Hidden = []hidden{{"next", next}}
	if link != "" {
		f.Hidden = append(f.Hidden, hidden{"link", link})
	} else {
		f.Fields = []field{
			{Name: "name", Label: "Account", Value: name, Required: true, Autocomplete: "username", Autofocus: name == ""},
			{Name: "password", Label: "Password", Type: "password", Required: true, Autocomplete: "current-password", Autofocus: name != ""},
		}
	}
	return q.render(status, "sign-in", "Sign in", signInView{link, f})
}

func signIn(q *request) error {
	network, block := signin.NetworksOf(q.s.config.ClientIP(q.r))
	release, err := q.s.signInBlocks.Hold(block, maxSignIn)
	if err != nil {
		return errBusy
	}
	err = q.readForm(&q.s.signIns, network, maxSignIn)
	release()
	if err != nil {
		return err
	}
	post := q.r.PostForm
	link, name := post.Get("link"), post.Get("name")
	var in signin.Credentials
	how := "password"
	if link != "" {
		how = "link"
		in, err = q.svc.SignIn.ByLink(q.r.Context(), link, q.client())
	} else {
		in, err = q.svc.SignIn.ByPassword(q.r.Context(), name, post.Get("password"), q.client())
	}
	if err != nil {
		return q.refuseSignIn(err, post.Get("next"), name)
	}
	q.logAuth(slog.LevelInfo, "signed in", how, func() string { return in.Account })
	if before, err := q.session(false); err == nil { // end the previous session
		_ = q.svc.SignIn.SignOut(q.r.Context(), before)
	}
	q.setCookie(CookieName, in.Session, Base, 0)
	q.setCookie(BrowserCookieName, in.Browser, Base+"sign-in", int(core.BrowserLife/time.Second))
	http.Redirect(q.w, q.r, dashboardPath(post.Get("next")), http.StatusSeeOther)
	return nil
}

// retryBusy is the Retry-After while too many passwords wait to be checked.
const retryBusy = time.Minute

// refusals are the answers to a sign-in that fails. reason is for the log.
var refusals = []struct {
	err        error
	status     int
	retryAfter time.Duration // 0: not told
	reason     string
}{
	{signin.ErrSignIn, http.StatusForbidden, 0, "wrong password"},
	{signin.ErrSignInLink, http.StatusForbidden, 0, "wrong link"},
	{signin.ErrTooManyPasswords, http.StatusTooManyRequests, signin.WrongPasswordsIn, "too many wrong passwords"},
	{signin.ErrBusy, http.StatusServiceUnavailable, retryBusy, "too many passwords wait"},
}

// refuseSignIn shows the form again with the fault. It returns any other error.
func (q *request) refuseSignIn(err error, next, name string) error {
	for _, r := range refusals {
		if !errors.Is(err, r.err) {
			continue
		}
		q.logAuth(slog.LevelInfo, "sign-in refused", r.reason, func() string { return q.accountNamed(name) })
		if r.retryAfter > 0 {
			q.retryAfter(r.retryAfter)
		}
		return q.showSignIn(r.status, "", next, name, err)
	}
	return err
}

// dashboardPath returns next if it is an address of the dashboard, else [Base].
func dashboardPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || strings.Contains(next, "\\") || !strings.HasPrefix(next, Base) || !strings.HasPrefix(path.Clean(u.Path), Base) {
		return Base
	}
	return next
}

func signingOut(end func(*signin.Service, context.Context, *signin.SignedIn) error) handler {
	return func(q *request) error {
		if err := end(q.svc.SignIn, q.r.Context(), q.signedIn); err != nil {
			return err
		}
		q.setCookie(CookieName, "", Base, -1)
		return q.redirect("sign-in")
	}
}

type settingsView struct {
	Password  form
	KeyPrefix form
	Prefixes  []string // that the account accepts besides the prefix of new keys
	Sessions  []sessionView
	Form      string
}

type sessionView struct {
	core.Session
	This bool
}

func settingsPage(q *request) error {
	return q.showSettings(http.StatusOK, q.signedIn.Account.PrefixOfNewKeys(), nil, nil)
}

// showSettings shows the settings: prefix in the field of the key prefix, and the fault of each form.
func (q *request) showSettings(status int, prefix string, prefixFault, passwordFault error) error {
	sessions, err := q.svc.SignIn.Sessions(q.r.Context(), q.signedIn)
	if err != nil {
		return err
	}
	a := q.signedIn.Account
	v := settingsView{Form: q.token(), Prefixes: slices.DeleteFunc(append([]string{secrets.DefaultKeyPrefix}, a.KeyPrefixes...),
		func(p string) bool { return p == a.PrefixOfNewKeys() })}
	v.KeyPrefix = q.form("settings/key-prefix", "Save prefix", "", field{Name: "key_prefix", Label: "Prefix of new keys", Value: prefix, Required: true,
		Hint: "As in acme_live_: letters a to z, digits and _, with _ at the end. Created and regenerated keys begin with it."})
	v.KeyPrefix.setFault(prefixFault)
	for _, se := range sessions {
		v.Sessions = append(v.Sessions, sessionView{se, se.Digest == q.signedIn.Session.Digest})
	}
	submit := "Set password"
	var fields []field
	if q.signedIn.HasPassword {
		submit = "Change password"
		if q.svc.SignIn.AsksPassword(q.signedIn) {
			fields = append(fields, field{Name: "current", Label: "Current password", Type: "password", Required: true, Autocomplete: "current-password"})
		}
	}
	fields = append(fields, field{Name: "password", Label: "New password", Type: "password", Required: true, Autocomplete: "new-password",
		Hint: "At least 12 characters. Setting it signs out every other browser.", MinLength: signin.MinPasswordLength})
	v.Password = q.form("settings/password", submit, "", fields...)
	v.Password.setFault(passwordFault)
	return q.render(status, "settings", "Settings", v)
}

func setPassword(q *request) error {
	post := q.r.PostForm
	err := q.svc.SignIn.SetPassword(q.r.Context(), q.signedIn, post.Get("current"), post.Get("password"))
	if status, ok := formStatus(err); ok {
		if e, _ := errors.AsType[*core.Error](err); e.Field != "password" {
			q.logAuth(slog.LevelWarn, "password change refused", errorText(err), q.account)
		}
		return q.showSettings(status, q.signedIn.Account.PrefixOfNewKeys(), nil, err)
	}
	if err != nil {
		return err
	}
	return q.redirect("settings?done=password")
}

func setKeyPrefix(q *request) error {
	prefix := strings.TrimSpace(q.r.PostForm.Get("key_prefix"))
	_, err := q.svc.UpdateAccount(q.r.Context(), q.account(), core.AccountPatch{KeyPrefix: &prefix})
	if status, ok := formStatus(err); ok {
		return q.showSettings(status, prefix, err, nil)
	}
	if err != nil {
		return err
	}
	return q.redirect("settings?done=prefix")
}
