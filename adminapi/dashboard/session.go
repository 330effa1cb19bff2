package dashboard

import (
	"cmp"
	"context"
	"encoding/hex"
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
		if err == nil && !signedIn.Continues(q.s.config.Email(q.r)) {
			continue
		}
		if !errors.Is(err, signin.ErrSession) {
			return signedIn, err
		}
	}
	return nil, signin.ErrSession
}

// client returns the address and the known-browser cookie of a sign-in.
func (q *request) client() signin.Client {
	by := signin.Client{Address: q.s.config.ClientIP(q.r), UserAgent: q.r.UserAgent()}
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
	Text  string
	Help  bool   // the page says how to get a link
	Email string // the email that the server has authenticated, "" for none
	Form  form
}

func signInPage(q *request) error {
	values := q.r.URL.Query()
	if email := q.s.config.Email(q.r); email != "" && values.Get("link") == "" && !values.Has("password") {
		return q.showServerSignIn(http.StatusOK, email, values.Get("next"), q.s.config.Account, nil)
	}
	return q.showSignIn(http.StatusOK, values.Get("link"), values.Get("next"), signin.Login{}, nil)
}

// showSignIn shows the sign-in page: for a link, for an invitation, or for a password.
func (q *request) showSignIn(status int, link, next string, in signin.Login, fault error) error {
	v := signInView{Form: form{Action: Base + "sign-in", Submit: "Sign in", Hidden: []hidden{{"next", next}}}}
	f := &v.Form
	switch {
	case signin.IsInvitation(link):
		a, p, err := q.svc.SignIn.Invited(q.r.Context(), link)
		if err != nil {
			return q.refuseSignIn(err, "", next, signin.Login{})
		}
		v.Text = p.Name + ", choose a password. Then you sign in to the account " + a.Name + " with your email " + p.Email + " and this password."
		f.Submit, f.Hidden = "Set password", append(f.Hidden, hidden{"link", link})
		f.Fields = []field{newPasswordField("At least 12 characters.")}
	case link != "":
		v.Text = "This link signs in once. It was made for you by whoever runs the server."
		f.Hidden = append(f.Hidden, hidden{"link", link})
	default:
		v.Help = true
		f.Fields = []field{
			{Name: "name", Label: "Account", Value: in.Account, Required: true, Autocomplete: "organization", Autofocus: in.Account == ""},
			{Name: "email", Label: "Email", Value: in.Email, Autocomplete: "username", Hint: "Leave it empty for the password of the account."},
			{Name: "password", Label: "Password", Type: "password", Required: true, Autocomplete: "current-password", Autofocus: in.Account != ""},
		}
	}
	f.setFault(fault)
	return q.render(status, "sign-in", "Sign in", v)
}

// showServerSignIn shows the sign-in page for an email that the server has authenticated: without a password, for the account of the configuration, or
// with a field for the name of the account.
func (q *request) showServerSignIn(status int, email, next, account string, fault error) error {
	v := signInView{Text: "This server knows you as " + email + ".", Email: email}
	v.Form = form{Action: Base + "sign-in", Submit: "Continue", Fault: errorText(fault), Hidden: []hidden{{"next", next}, {"by", byServer}}}
	if q.s.config.Account == "" {
		v.Form.Fields = []field{{Name: "name", Label: "Account", Value: account, Required: true, Autocomplete: "organization", Autofocus: true}}
	}
	return q.render(status, "sign-in", "Sign in", v)
}

// byServer is the value of the field "by" of a form without a password.
const byServer = "server"

// signInByServer signs in the person whose email the server has authenticated. [Server.serve] has refused forms of other sites.
func (q *request) signInByServer() error {
	email, post := q.s.config.Email(q.r), q.r.PostForm
	if email == "" {
		return q.showSignIn(http.StatusUnauthorized, "", post.Get("next"), signin.Login{}, errNotKnown)
	}
	if wait, ok := q.svc.AdmitPage("server " + core.FoldEmail(email)); !ok {
		q.retryAfter(wait)
		return errThrottled
	}
	account := cmp.Or(q.s.config.Account, post.Get("name"))
	in, err := q.svc.SignIn.ByServer(q.r.Context(), account, email, q.client())
	if errors.Is(err, signin.ErrUnknownPerson) {
		q.logAuth(slog.LevelInfo, "sign-in refused", "unknown person", func() string { return q.accountNamed(account) })
		return q.showServerSignIn(http.StatusForbidden, email, post.Get("next"), account, err)
	}
	if err != nil {
		return err
	}
	return q.startSession(in, byServer, post.Get("next"))
}

// errNotKnown means that the server has authenticated no email for the request.
var errNotKnown = &core.Error{Code: core.CodeUnauthorized, Message: "This server does not know you: sign in with a password"}

// newPasswordField is the field of a new password.
func newPasswordField(hint string) field {
	return field{Name: "password", Label: "New password", Type: "password", Required: true, Autocomplete: "new-password", Hint: hint, MinLength: signin.MinPasswordLength}
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
	if post.Get("by") == byServer {
		return q.signInByServer()
	}
	link, login := post.Get("link"), signin.Login{Account: post.Get("name"), Email: post.Get("email"), Password: post.Get("password")}
	var in signin.Credentials
	how := "password"
	switch {
	case signin.IsInvitation(link):
		how = "invitation"
		in, err = q.svc.SignIn.ByInvitation(q.r.Context(), link, login.Password, q.client())
	case link != "":
		how = "link"
		in, err = q.svc.SignIn.ByLink(q.r.Context(), link, q.client())
	default:
		in, err = q.svc.SignIn.ByPassword(q.r.Context(), login, q.client())
	}
	if err != nil {
		return q.refuseSignIn(err, link, post.Get("next"), login)
	}
	return q.startSession(in, how, post.Get("next"))
}

// startSession answers a sign-in with the cookies of the session, and redirects to a page. It ends the previous session of the browser.
func (q *request) startSession(in signin.Credentials, how, next string) error {
	q.logAuth(slog.LevelInfo, "signed in", how, func() string { return in.Account })
	if before, err := q.session(false); err == nil { // end the previous session
		_ = q.svc.SignIn.SignOut(q.r.Context(), before)
	}
	q.setCookie(CookieName, in.Session, Base, 0)
	q.setCookie(BrowserCookieName, in.Browser, Base+"sign-in", int(core.BrowserLife/time.Second))
	http.Redirect(q.w, q.r, dashboardPath(next), http.StatusSeeOther)
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
	{signin.ErrInvitation, http.StatusForbidden, 0, "wrong invitation"},
	{signin.ErrTooManyPasswords, http.StatusTooManyRequests, signin.WrongPasswordsIn, "too many wrong passwords"},
	{signin.ErrBusy, http.StatusServiceUnavailable, retryBusy, "too many passwords wait"},
}

// refuseSignIn shows the form again with the fault. A fault of a new password keeps the form of the invitation. refuseSignIn returns any other error.
func (q *request) refuseSignIn(err error, link, next string, in signin.Login) error {
	if status, ok := formStatus(err); ok && core.ErrorCode(err) == core.CodeValidation {
		return q.showSignIn(status, link, next, signin.Login{}, err)
	}
	for _, r := range refusals {
		if !errors.Is(err, r.err) {
			continue
		}
		q.logAuth(slog.LevelInfo, "sign-in refused", r.reason, func() string { return q.accountNamed(in.Account) })
		if r.retryAfter > 0 {
			q.retryAfter(r.retryAfter)
		}
		return q.showSignIn(r.status, "", next, in, err)
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

// endSession ends the session in the path.
func endSession(q *request) error {
	d, ok := secrets.ParseDigest(q.r.PathValue("id"))
	if !ok {
		return signin.ErrNoSession
	}
	if err := q.svc.SignIn.EndSession(q.r.Context(), q.signedIn, d); err != nil {
		return err
	}
	return q.redirect("settings?done=ended")
}

type settingsView struct {
	Person    core.Person
	Password  form
	KeyPrefix form
	Prefixes  []string // that the account accepts besides the prefix of new keys
	Sessions  []sessionView
	Form      string
}

type sessionView struct {
	signin.PersonSession
	This bool
}

// Hex returns the digest of the session in hexadecimal digits. The digest is not a secret.
func (v sessionView) Hex() string { return hex.EncodeToString(v.Digest[:]) }

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
	v := settingsView{Person: q.signedIn.Person, Form: q.token(), Prefixes: slices.DeleteFunc(append([]string{secrets.DefaultKeyPrefix}, a.KeyPrefixes...),
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
	fields = append(fields, newPasswordField("At least 12 characters. Setting it signs out your other browsers."))
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
