package core_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// signedIn signs in to an account by a link. It returns the session and its secret.
func signedIn(t *testing.T, s *core.Service, name string) (*core.SignedIn, string) {
	t.Helper()
	_, link, _, err := s.NewSignInLink(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.SignInByLink(t.Context(), link, core.Client{})
	if err != nil {
		t.Fatal(err)
	}
	si, err := s.SignedIn(t.Context(), c.Session, true)
	if err != nil {
		t.Fatal(err)
	}
	return si, c.Session
}

// from returns a client at an address, in a browser that has never signed in.
func from(address string) core.Client { return core.Client{Address: address} }

// want fails unless err wraps want.
func want(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
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
	_, _, _, err := s.NewSignInLink(t.Context(), "nobody")
	want(t, "a link for no account", err, core.ErrAccountNotFound)
	got, link, expires, err := s.NewSignInLink(t.Context(), " acme ")
	if err != nil || got.ID != a.ID || !expires.Equal(now.Add(10*time.Minute)) {
		t.Fatalf("NewSignInLink: got %v, %v, %v", got, expires, err)
	}
	for _, wrong := range []string{"", "lk_link_", link + "x", link[:len(link)-1], strings.Replace(link, a.ID, "acct_nobody", 1),
		strings.ToUpper(link), strings.Repeat(link, 10), "lk_session_" + link[len("lk_link_"):]} {
		_, err := s.SignInByLink(t.Context(), wrong, core.Client{})
		want(t, fmt.Sprintf("the link %q", wrong), err, core.ErrSignInLink)
	}
	secret, err := s.SignInByLink(t.Context(), link, core.Client{})
	if err != nil {
		t.Fatal(err)
	}
	si, err := s.SignedIn(t.Context(), secret.Session, true)
	if err != nil || si.Account.Name != "acme" || si.HasPassword || !si.Session.ByLink {
		t.Errorf("SignedIn: got %+v, %v", si, err)
	}
	_, err = s.SignInByLink(t.Context(), link, core.Client{})
	want(t, "a link that was used", err, core.ErrSignInLink)
	_, err = s.SignedIn(t.Context(), link, true)
	want(t, "a link as a session", err, core.ErrSession)

	_, link, _, _ = s.NewSignInLink(t.Context(), "acme")
	now = now.Add(10 * time.Minute)
	_, err = s.SignInByLink(t.Context(), link, core.Client{})
	want(t, "a link after ten minutes", err, core.ErrSignInLink)
}

// Of concurrent uses of one link exactly one signs in.
func TestSignInByLinkAtOnce(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	_, _, _, _ = s.CreateAccount(t.Context(), "acme")
	_, link, _, _ := s.NewSignInLink(t.Context(), "acme")
	var wg sync.WaitGroup
	in := make(chan string, 20)
	for range 20 {
		wg.Go(func() {
			if secret, err := s.SignInByLink(t.Context(), link, core.Client{}); err == nil {
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
		if _, err := s.SignedIn(t.Context(), first, true); err != nil {
			t.Fatalf("a session that is used: %v", err)
		}
	}
	now = now.Add(12 * time.Hour)
	_, err := s.SignedIn(t.Context(), first, true)
	want(t, "a session after twelve idle hours", err, core.ErrSession)

	_, watched := signedIn(t, s, "acme")
	now = now.Add(11 * time.Hour)
	if _, err := s.SignedIn(t.Context(), watched, false); err != nil {
		t.Errorf("a session with a page that refreshes itself: %v", err)
	}
	now = now.Add(time.Hour)
	_, err = s.SignedIn(t.Context(), watched, false)
	want(t, "a session without any other use", err, core.ErrSession)

	si, second := signedIn(t, s, "acme")
	_, third := signedIn(t, s, "acme")
	_, others := signedIn(t, s, "other")
	if list, err := s.Sessions(t.Context(), si); err != nil || len(list) != 2 {
		t.Errorf("Sessions: got %v, %v, want 2", list, err)
	}
	if err := s.SignOut(t.Context(), si); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignedIn(t.Context(), second, true)
	want(t, "a session that was signed out", err, core.ErrSession)
	si, err = s.SignedIn(t.Context(), third, true)
	if err != nil {
		t.Fatal(err)
	}
	_, link, _, _ := s.NewSignInLink(t.Context(), "acme")
	if err := s.SignOutEverywhere(t.Context(), si); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignedIn(t.Context(), third, true)
	want(t, "a session after signing out everywhere", err, core.ErrSession)
	_, err = s.SignInByLink(t.Context(), link, core.Client{})
	want(t, "a link after signing out everywhere", err, core.ErrSignInLink)
	if _, err := s.SignedIn(t.Context(), others, true); err != nil {
		t.Errorf("a session of another account: %v", err)
	}
	for _, wrong := range []string{"", "lk_session_", others + "x", strings.Replace(others, "lk_session_", "lk_link_", 1)} {
		_, err = s.SignedIn(t.Context(), wrong, true)
		want(t, "the session "+wrong, err, core.ErrSession)
	}
}

// A signed-in person sets a password, which ends the other sessions. Changing it requires the
// current password, unless the session began by a link.
func TestPassword(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, _, _, _ := s.CreateAccount(t.Context(), "acme")
	_, err := s.SignInByPassword(t.Context(), "acme", "", from("192.0.2.1"))
	want(t, "an account without a password", err, core.ErrSignIn)
	si, mine := signedIn(t, s, "acme")
	_, other := signedIn(t, s, "acme")
	for _, bad := range []string{"", "short", "elevenchars", strings.Repeat("x", 1025)} {
		if err := s.SetPassword(t.Context(), si, "", bad); core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("the password %q: got %v, want a fault", bad, err)
		}
	}
	if err := s.SetPassword(t.Context(), si, "", password); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignedIn(t.Context(), other, true)
	want(t, "another session after a new password", err, core.ErrSession)
	if _, err = s.SignedIn(t.Context(), mine, true); err != nil {
		t.Errorf("the session that set the password: %v", err)
	}
	secret, err := s.SignInByPassword(t.Context(), " acme ", password, from("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	si, _ = s.SignedIn(t.Context(), secret.Session, true)
	if !si.HasPassword || si.Session.ByLink || si.Account.ID != a.ID {
		t.Errorf("SignedIn: got %+v", si)
	}
	for _, w := range [][2]string{{"acme", password + " "}, {"acme", ""}, {"ACME", password}, {"nobody", password}, {"", ""}} {
		_, err = s.SignInByPassword(t.Context(), w[0], w[1], from("192.0.2.2"))
		want(t, fmt.Sprintf("%q", w), err, core.ErrSignIn)
	}
	const next = "another long password"
	if err := s.SetPassword(t.Context(), si, "wrong", next); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("a wrong current password: got %v, want a fault", err)
	}
	if err := s.SetPassword(t.Context(), si, password, next); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignInByPassword(t.Context(), "acme", password, from("192.0.2.3"))
	want(t, "the password before", err, core.ErrSignIn)
	late, _ := signedIn(t, s, "acme")
	now = now.Add(10 * time.Minute)
	if err := s.SetPassword(t.Context(), late, "", password); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("a link of ten minutes ago: got %v, want a fault", err)
	}
	byLink, _ := signedIn(t, s, "acme")
	if err := s.SetPassword(t.Context(), byLink, "", password); err != nil {
		t.Errorf("a forgotten password: %v", err)
	}
}

// A name and an address have ten wrong passwords in 15 minutes each, whether the account exists or
// not, in sequence or concurrently.
func TestWrongPasswordsAreBounded(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	s.OnHash(func() {}) // on a busy machine ten real hashes would take longer than maxWait
	_, _, _, _ = s.CreateAccount(t.Context(), "acme")
	si, _ := signedIn(t, s, "acme")
	if err := s.SetPassword(t.Context(), si, "", password); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"acme", "nobody"} {
		var wg sync.WaitGroup
		tried := make(chan error, 25)
		for i := range 25 {
			wg.Go(func() {
				_, err := s.SignInByPassword(t.Context(), name, "wrong password", from(fmt.Sprintf("198.51.100.%d", i)))
				tried <- err
			})
		}
		wg.Wait()
		close(tried)
		wrong := 0
		for err := range tried {
			if errors.Is(err, core.ErrSignIn) {
				wrong++
			} else if !errors.Is(err, core.ErrTooManyPasswords) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if wrong != core.WrongPasswords {
			t.Errorf("%s: got %d passwords tried, want %d", name, wrong, core.WrongPasswords)
		}
		_, err := s.SignInByPassword(t.Context(), name, password, from("203.0.113.1"))
		want(t, name+" with the right password after too many", err, core.ErrTooManyPasswords)
	}
	now = now.Add(15 * time.Minute)
	for i := range core.WrongPasswords + 2 { // right passwords do not count
		if _, err := s.SignInByPassword(t.Context(), "acme", password, from("2001:db8::1")); err != nil {
			t.Fatalf("right password %d: %v", i, err)
		}
	}
	for i := range core.WrongPasswords {
		_, err := s.SignInByPassword(t.Context(), fmt.Sprintf("nobody %d", i), "wrong password", from(fmt.Sprintf("2001:db8::%d", i)))
		want(t, "a wrong password", err, core.ErrSignIn)
	}
	_, err := s.SignInByPassword(t.Context(), "acme", password, from("2001:db8::ffff"))
	want(t, "an address of the same network", err, core.ErrTooManyPasswords)
	if _, err := s.SignInByPassword(t.Context(), "acme", password, from("2001:db8:0:1::1")); err != nil {
		t.Errorf("an address of another network: %v", err)
	}
}

// Promise 4: the stored Access contains no secret that signs in.
func TestAccessHoldsNoSecrets(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	store := newStore()
	s := core.NewService(store, core.Config{Clock: func() time.Time { return now }})
	a, _, _, _ := s.CreateAccount(t.Context(), "acme")
	_, link, _, _ := s.NewSignInLink(t.Context(), "acme")
	si, session := signedIn(t, s, "acme")
	if err := s.SetPassword(t.Context(), si, "", password); err != nil {
		t.Fatal(err)
	}
	_, unused, _, _ := s.NewSignInLink(t.Context(), "acme")
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
		if got := core.MaskSecrets("/dashboard/?x=" + secret); got != "/dashboard/?x=lk_***" {
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
	form := s.NewFormToken(si)
	for _, wrong := range []string{"", "x", form + "A", form[:len(form)-4], "AAAA" + form[4:], s.NewFormToken(other)} {
		want(t, "the form "+wrong, s.SpendFormToken(t.Context(), si, wrong), core.ErrFormToken)
	}
	if err := s.SpendFormToken(t.Context(), si, form); err != nil {
		t.Fatal(err)
	}
	want(t, "a form token that was used", s.SpendFormToken(t.Context(), si, form), core.ErrFormToken)
	old := s.NewFormToken(si)
	var spent []string
	for range 300 {
		now = now.Add(time.Second)
		spent = append(spent, s.NewFormToken(si))
		if err := s.SpendFormToken(t.Context(), si, spent[len(spent)-1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range append(spent, old) { // tokens that the session has dropped are refused, too
		want(t, "an earlier form token", s.SpendFormToken(t.Context(), si, f), core.ErrFormToken)
	}
	late := s.NewFormToken(si)
	for range 3 {
		now = now.Add(5 * time.Hour)
		if _, err := s.SignedIn(t.Context(), secret, true); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "a form token of twelve hours ago", s.SpendFormToken(t.Context(), si, late), core.ErrFormToken)
	fresh := s.NewFormToken(si)
	if err := s.SignOutEverywhere(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	want(t, "a form token of an ended session", s.SpendFormToken(t.Context(), si, fresh), core.ErrSession)
}
