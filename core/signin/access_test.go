package signin_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/core/signin"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// signedIn signs in to an account by a link. It returns the session and its secret.
func signedIn(t *testing.T, s *service.Service, name string) (*signin.SignedIn, string) {
	t.Helper()
	_, link, _, err := s.SignIn.NewLink(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.SignIn.ByLink(t.Context(), link, signin.Client{})
	if err != nil {
		t.Fatal(err)
	}
	si, err := s.SignIn.SignedIn(t.Context(), c.Session, true)
	if err != nil {
		t.Fatal(err)
	}
	return si, c.Session
}

// from returns a client at an address, in a browser that has never signed in.
func from(address string) signin.Client { return signin.Client{Address: address} }

// want fails unless err wraps want.
func want(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// newService returns a service on an empty store. Its clock shows *now.
func newService(now *time.Time) *service.Service {
	return service.New(memstore.New(), service.Config{Clock: func() time.Time { return *now }})
}

const password = "correct horse battery"

// A link works once, within ten minutes, and for its account only.
func TestSignInByLink(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, _, _, _ := s.CreateAccount(t.Context(), "acme")
	if _, _, _, err := s.CreateAccount(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	_, _, _, err := s.SignIn.NewLink(t.Context(), "nobody")
	want(t, "a link for no account", err, core.ErrAccountNotFound)
	got, link, expires, err := s.SignIn.NewLink(t.Context(), " acme ")
	if err != nil || got.ID != a.ID || !expires.Equal(now.Add(10*time.Minute)) {
		t.Fatalf("NewSignInLink: got %v, %v, %v", got, expires, err)
	}
	for _, wrong := range []string{"", "lk_link_", link + "x", link[:len(link)-1], strings.Replace(link, a.ID, "acct_nobody", 1),
		strings.ToUpper(link), strings.Repeat(link, 10), "lk_session_" + link[len("lk_link_"):]} {
		_, err := s.SignIn.ByLink(t.Context(), wrong, signin.Client{})
		want(t, fmt.Sprintf("the link %q", wrong), err, signin.ErrSignInLink)
	}
	secret, err := s.SignIn.ByLink(t.Context(), link, signin.Client{})
	if err != nil {
		t.Fatal(err)
	}
	si, err := s.SignIn.SignedIn(t.Context(), secret.Session, true)
	if err != nil || si.Account.Name != "acme" || si.HasPassword || !si.Session.ByLink {
		t.Errorf("SignedIn: got %+v, %v", si, err)
	}
	_, err = s.SignIn.ByLink(t.Context(), link, signin.Client{})
	want(t, "a link that was used", err, signin.ErrSignInLink)
	_, err = s.SignIn.SignedIn(t.Context(), link, true)
	want(t, "a link as a session", err, signin.ErrSession)

	_, link, _, _ = s.SignIn.NewLink(t.Context(), "acme")
	now = now.Add(10 * time.Minute)
	_, err = s.SignIn.ByLink(t.Context(), link, signin.Client{})
	want(t, "a link after ten minutes", err, signin.ErrSignInLink)
}

// Of concurrent uses of one link exactly one signs in.
func TestSignInByLinkAtOnce(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	_, _, _, _ = s.CreateAccount(t.Context(), "acme")
	_, link, _, _ := s.SignIn.NewLink(t.Context(), "acme")
	var wg sync.WaitGroup
	in := make(chan string, 20)
	for range 20 {
		wg.Go(func() {
			if secret, err := s.SignIn.ByLink(t.Context(), link, signin.Client{}); err == nil {
				in <- secret.Session
			}
		})
	}
	wg.Wait()
	if len(in) != 1 {
		t.Errorf("sign-ins: got %d, want 1", len(in))
	}
}

// A session ends after twelve hours without use, when it is signed out, and when its account is
// signed out everywhere.
func TestSessionsEnd(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	for _, name := range []string{"acme", "other"} {
		if _, _, _, err := s.CreateAccount(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	_, first := signedIn(t, s, "acme")
	for range 4 {
		now = now.Add(11 * time.Hour)
		if _, err := s.SignIn.SignedIn(t.Context(), first, true); err != nil {
			t.Fatalf("a session that is used: %v", err)
		}
	}
	now = now.Add(12 * time.Hour)
	_, err := s.SignIn.SignedIn(t.Context(), first, true)
	want(t, "a session after twelve idle hours", err, signin.ErrSession)

	_, watched := signedIn(t, s, "acme")
	now = now.Add(11 * time.Hour)
	if _, err := s.SignIn.SignedIn(t.Context(), watched, false); err != nil {
		t.Errorf("a session with a page that refreshes itself: %v", err)
	}
	now = now.Add(time.Hour)
	_, err = s.SignIn.SignedIn(t.Context(), watched, false)
	want(t, "a session without any other use", err, signin.ErrSession)

	si, second := signedIn(t, s, "acme")
	_, third := signedIn(t, s, "acme")
	_, others := signedIn(t, s, "other")
	if list, err := s.SignIn.Sessions(t.Context(), si); err != nil || len(list) != 2 {
		t.Errorf("Sessions: got %v, %v, want 2", list, err)
	}
	if err := s.SignIn.SignOut(t.Context(), si); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignIn.SignedIn(t.Context(), second, true)
	want(t, "a session that was signed out", err, signin.ErrSession)
	si, err = s.SignIn.SignedIn(t.Context(), third, true)
	if err != nil {
		t.Fatal(err)
	}
	_, link, _, _ := s.SignIn.NewLink(t.Context(), "acme")
	if err := s.SignIn.SignOutEverywhere(t.Context(), si); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignIn.SignedIn(t.Context(), third, true)
	want(t, "a session after signing out everywhere", err, signin.ErrSession)
	_, err = s.SignIn.ByLink(t.Context(), link, signin.Client{})
	want(t, "a link after signing out everywhere", err, signin.ErrSignInLink)
	if _, err := s.SignIn.SignedIn(t.Context(), others, true); err != nil {
		t.Errorf("a session of another account: %v", err)
	}
	for _, wrong := range []string{"", "lk_session_", others + "x", strings.Replace(others, "lk_session_", "lk_link_", 1)} {
		_, err = s.SignIn.SignedIn(t.Context(), wrong, true)
		want(t, "the session "+wrong, err, signin.ErrSession)
	}
}

// A signed-in person sets a password, which ends the other sessions. Changing it requires the
// current password, unless the session began by a link.
func TestPassword(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, _, _, _ := s.CreateAccount(t.Context(), "acme")
	_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: ""}, from("192.0.2.1"))
	want(t, "an account without a password", err, signin.ErrSignIn)
	si, mine := signedIn(t, s, "acme")
	_, other := signedIn(t, s, "acme")
	for _, bad := range []string{"", "short", "elevenchars", strings.Repeat("x", 1025)} {
		if err := s.SignIn.SetPassword(t.Context(), si, "", bad); core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("the password %q: got %v, want a fault", bad, err)
		}
	}
	if err := s.SignIn.SetPassword(t.Context(), si, "", password); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignIn.SignedIn(t.Context(), other, true)
	want(t, "another session after a new password", err, signin.ErrSession)
	if _, err = s.SignIn.SignedIn(t.Context(), mine, true); err != nil {
		t.Errorf("the session that set the password: %v", err)
	}
	secret, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: " acme ", Password: password}, from("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	si, _ = s.SignIn.SignedIn(t.Context(), secret.Session, true)
	if !si.HasPassword || si.Session.ByLink || si.Account.ID != a.ID {
		t.Errorf("SignedIn: got %+v", si)
	}
	for _, w := range [][2]string{{"acme", password + " "}, {"acme", ""}, {"ACME", password}, {"nobody", password}, {"", ""}} {
		_, err = s.SignIn.ByPassword(t.Context(), signin.Login{Account: w[0], Password: w[1]}, from("192.0.2.2"))
		want(t, fmt.Sprintf("%q", w), err, signin.ErrSignIn)
	}
	const next = "another long password"
	if err := s.SignIn.SetPassword(t.Context(), si, "wrong", next); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("a wrong current password: got %v, want a fault", err)
	}
	if err := s.SignIn.SetPassword(t.Context(), si, password, next); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, from("192.0.2.3"))
	want(t, "the password before", err, signin.ErrSignIn)
	late, _ := signedIn(t, s, "acme")
	now = now.Add(10 * time.Minute)
	if err := s.SignIn.SetPassword(t.Context(), late, "", password); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("a link of ten minutes ago: got %v, want a fault", err)
	}
	byLink, _ := signedIn(t, s, "acme")
	if err := s.SignIn.SetPassword(t.Context(), byLink, "", password); err != nil {
		t.Errorf("a forgotten password: %v", err)
	}
}

// A name and an address have ten wrong passwords in 15 minutes each, whether the account exists or
// not, in sequence or concurrently.
func TestWrongPasswordsAreBounded(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	s.SignIn.OnHash(func() {}) // on a busy machine ten real hashes would take longer than maxWait
	_, _, _, _ = s.CreateAccount(t.Context(), "acme")
	si, _ := signedIn(t, s, "acme")
	if err := s.SignIn.SetPassword(t.Context(), si, "", password); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"acme", "nobody"} {
		var wg sync.WaitGroup
		tried := make(chan error, 25)
		for i := range 25 {
			wg.Go(func() {
				_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: name, Password: "wrong password"}, from(fmt.Sprintf("198.51.100.%d", i)))
				tried <- err
			})
		}
		wg.Wait()
		close(tried)
		wrong := 0
		for err := range tried {
			if errors.Is(err, signin.ErrSignIn) {
				wrong++
			} else if !errors.Is(err, signin.ErrTooManyPasswords) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if wrong != signin.WrongPasswords {
			t.Errorf("%s: got %d passwords tried, want %d", name, wrong, signin.WrongPasswords)
		}
		_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: name, Password: password}, from("203.0.113.1"))
		want(t, name+" with the right password after too many", err, signin.ErrTooManyPasswords)
	}
	now = now.Add(15 * time.Minute)
	for i := range signin.WrongPasswords + 2 { // right passwords do not count
		if _, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, from("2001:db8::1")); err != nil {
			t.Fatalf("right password %d: %v", i, err)
		}
	}
	for i := range signin.WrongPasswords {
		_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: fmt.Sprintf("nobody %d", i), Password: "wrong password"}, from(fmt.Sprintf("2001:db8::%d", i)))
		want(t, "a wrong password", err, signin.ErrSignIn)
	}
	_, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, from("2001:db8::ffff"))
	want(t, "an address of the same network", err, signin.ErrTooManyPasswords)
	if _, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: "acme", Password: password}, from("2001:db8:0:1::1")); err != nil {
		t.Errorf("an address of another network: %v", err)
	}
}

// Promise 4: the stored Access contains no secret that signs in.
func TestAccessHoldsNoSecrets(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	store := memstore.New()
	s := service.New(store, service.Config{Clock: func() time.Time { return now }})
	a, _, _, _ := s.CreateAccount(t.Context(), "acme")
	_, link, _, _ := s.SignIn.NewLink(t.Context(), "acme")
	si, session := signedIn(t, s, "acme")
	if err := s.SignIn.SetPassword(t.Context(), si, "", password); err != nil {
		t.Fatal(err)
	}
	_, unused, _, _ := s.SignIn.NewLink(t.Context(), "acme")
	ac, err := store.Access(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%+v", ac)
	for _, secret := range []string{link, session, unused, password} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is stored in plain text", secret)
		}
	}
	if !strings.HasPrefix(ac.Password, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Errorf("the password is stored as %s", ac.Password)
	}
	for _, secret := range []string{link, session, unused} {
		if got := secrets.MaskSecrets("/dashboard/?x=" + secret); got != "/dashboard/?x=lk_***" {
			t.Errorf("%s is logged as %s", secret, got)
		}
	}
}

// A form token works once, in its own session, and for twelve hours.
func TestForms(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	_, _, _, _ = s.CreateAccount(t.Context(), "acme")
	si, secret := signedIn(t, s, "acme")
	other, _ := signedIn(t, s, "acme")
	form := s.SignIn.NewFormToken(si)
	for _, wrong := range []string{"", "x", form + "A", form[:len(form)-4], "AAAA" + form[4:], s.SignIn.NewFormToken(other)} {
		want(t, "the form "+wrong, s.SignIn.SpendFormToken(t.Context(), si, wrong), signin.ErrFormToken)
	}
	if err := s.SignIn.SpendFormToken(t.Context(), si, form); err != nil {
		t.Fatal(err)
	}
	want(t, "a form token that was used", s.SignIn.SpendFormToken(t.Context(), si, form), signin.ErrFormToken)
	old := s.SignIn.NewFormToken(si)
	var spent []string
	for range 300 {
		now = now.Add(time.Second)
		spent = append(spent, s.SignIn.NewFormToken(si))
		if err := s.SignIn.SpendFormToken(t.Context(), si, spent[len(spent)-1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range append(spent, old) { // tokens that the session has dropped are refused, too
		want(t, "an earlier form token", s.SignIn.SpendFormToken(t.Context(), si, f), signin.ErrFormToken)
	}
	late := s.SignIn.NewFormToken(si)
	for range 3 {
		now = now.Add(5 * time.Hour)
		if _, err := s.SignIn.SignedIn(t.Context(), secret, true); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "a form token of twelve hours ago", s.SignIn.SpendFormToken(t.Context(), si, late), signin.ErrFormToken)
	fresh := s.SignIn.NewFormToken(si)
	if err := s.SignIn.SignOutEverywhere(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	want(t, "a form token of an ended session", s.SignIn.SpendFormToken(t.Context(), si, fresh), signin.ErrSession)
}

// at returns a time in the form of RFC 3339.
func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t
}
