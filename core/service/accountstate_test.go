package service_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/core/signin"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// doors is an account with a credential for each of its doors.
type doors struct {
	*testing.T
	s                            *service.Service
	account                      string
	owner, key, session, browser string
	hold, invitation             string
}

const doorName, doorPassword, doorUser, doorEmail = "acme", "correct horse battery", "cus_1", "ann@example.com"

// newDoors creates an account with a plan, a user, a key, a password, a session and an open hold.
func newDoors(t *testing.T, s *service.Service) *doors {
	t.Helper()
	d := &doors{T: t, s: s}
	a, _, owner, err := s.CreateAccount(t.Context(), doorName)
	d.ok(err)
	d.account, d.owner = a.ID, owner
	pl, err := s.CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("p"), Limit: core.Some(int64(1000)), Period: new("day")})
	d.ok(err)
	_, err = s.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("u"), ExternalID: core.Some(doorUser), PlanID: core.Some(pl.ID)})
	d.ok(err)
	_, d.key, err = s.CreateKey(t.Context(), a.ID, core.KeyPatch{Name: new("k"), UserID: new(int64(1))})
	d.ok(err)
	si, err := s.SignIn.SignedIn(t.Context(), d.signInByLink(d.link()).Session, true)
	d.ok(err)
	d.ok(s.SignIn.SetPassword(t.Context(), si, "", doorPassword))
	c, err := s.SignIn.ByPassword(t.Context(), signin.Login{Account: doorName, Password: doorPassword}, signin.Client{})
	d.ok(err)
	d.session, d.browser = c.Session, c.Browser
	_, d.invitation, err = s.SignIn.Invite(t.Context(), a.ID, core.PersonSpec{Name: "Bob", Email: "bob@example.com", Role: core.RoleViewer})
	d.ok(err)
	_, _, err = s.SignIn.Invite(t.Context(), a.ID, core.PersonSpec{Name: "Ann", Email: doorEmail, Role: core.RoleOwner})
	d.ok(err)
	v, err := s.Validate(t.Context(), a.ID, service.Request{Secret: d.key, Cost: 1, HoldFor: time.Hour})
	d.ok(err)
	if d.hold = v.HoldID; d.hold == "" {
		t.Fatalf("no hold was opened: %+v", v)
	}
	return d
}

func (d *doors) ok(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *doors) link() string {
	d.Helper()
	_, link, _, err := d.s.SignIn.NewLink(d.Context(), doorName)
	d.ok(err)
	return link
}

func (d *doors) signInByLink(link string) signin.Credentials {
	d.Helper()
	c, err := d.s.SignIn.ByLink(d.Context(), link, signin.Client{})
	d.ok(err)
	return c
}

// answers returns the answer of each door: an error, or the outcome of a decision. unknown says whether the credentials are replaced by
// credentials that never existed.
func (d *doors) answers(link string, unknown bool) map[string]string {
	ctx, account, name, invitation, email := d.Context(), d.account, doorName, d.invitation, doorEmail
	owner, key, session, browser, external := d.owner, d.key, d.session, d.browser, doorUser
	if unknown {
		account, name, owner, key = "acct_AAAAAAAAAAAAAAAAAAAA", "nobody", secrets.NewOwnerSecret(), secrets.NewUserSecret(secrets.DefaultKeyPrefix)
		const random = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
		invitation, email = strings.Replace(invitation, d.account, account, 1), "nobody@example.com"
		link, session, browser, external = "lk_link_"+account+"-"+random, "lk_session_"+account+"-"+random, "lk_browser_"+account+"-"+random, "cus_none"
	}
	errorOf := func(err error) string {
		if err == nil {
			return "open"
		}
		e, _ := errors.AsType[*core.Error](err)
		return e.Error()
	}
	_, byOwner := d.s.Authenticate(ctx, owner)
	decide := func(r service.Request) string {
		v, err := d.s.Validate(ctx, account, r)
		if err != nil {
			return errorOf(err)
		}
		if v.Allowed() {
			return "open"
		}
		return string(v.Outcome) + " " + v.Refusal().Error()
	}
	_, byPassword := d.s.SignIn.ByPassword(ctx, signin.Login{Account: name, Password: doorPassword}, signin.Client{Address: "192.0.2.1", Browser: browser})
	_, byStranger := d.s.SignIn.ByPassword(ctx, signin.Login{Account: name, Password: doorPassword}, signin.Client{Address: "192.0.2.2"})
	_, byLink := d.s.SignIn.ByLink(ctx, link, signin.Client{})
	_, _, byInvitation := d.s.SignIn.Invited(ctx, invitation)
	_, byServer := d.s.SignIn.ByServer(ctx, name, email, signin.Client{})
	_, bySession := d.s.SignIn.SignedIn(ctx, session, true)
	_, byName := d.s.AccountByName(ctx, name)
	_, byID := d.s.Account(ctx, account)
	look, lookErr := d.s.Look(ctx, account, service.Request{Secret: key})
	looks := errorOf(lookErr)
	if look == nil && lookErr == nil {
		looks = "nothing"
	}
	return map[string]string{
		"owner's key":                errorOf(byOwner),
		"key":                        decide(service.Request{Secret: key, Cost: 1}),
		"key without its prefix":     decide(service.Request{Secret: "x" + key, Cost: 1}),
		"user by its external id":    decide(service.Request{External: external, Cost: 1}),
		"password, known browser":    errorOf(byPassword),
		"password":                   errorOf(byStranger),
		"link":                       errorOf(byLink),
		"session":                    errorOf(bySession),
		"invitation":                 errorOf(byInvitation),
		"person known to the server": errorOf(byServer),
		"name":                       errorOf(byName),
		"id":                         errorOf(byID),
		"usage of the caller":        looks,
		"user that a gateway makes":  decide(service.Request{External: "cus_new", PlanName: "p", Cost: 1}),
	}
}

// Everything of a closed account answers like something that does not exist, beginning with the next request, and nothing is lost.
func TestDisabledAccount(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	store := memstore.New()
	s := service.New(store, service.Config{Clock: func() time.Time { return now }})
	d := newDoors(t, s)
	link := d.link()
	before := d.answers(d.link(), false)
	if before["key without its prefix"] == "open" {
		t.Fatal("a key with another prefix is accepted")
	}
	for _, door := range []string{"owner's key", "key", "user by its external id", "password", "link", "session", "invitation", "person known to the server", "user that a gateway makes"} {
		if before[door] != "open" {
			t.Fatalf("%s before: got %q, want open", door, before[door])
		}
	}
	unknown := d.answers("", true)
	_, users, err := store.Users(t.Context(), d.account, core.UserFilter{}, core.Page{Number: 1, Size: 1})
	d.ok(err)

	a, err := s.SetAccountDisabled(t.Context(), d.account, true)
	d.ok(err)
	if !a.Disabled || a.Status() != "disabled" {
		t.Errorf("got %+v, want a disabled account", a)
	}
	got := d.answers(link, false)
	for door, want := range unknown {
		if got[door] != want {
			t.Errorf("%s of a disabled account: got %q, an unknown one answers %q", door, got[door], want)
		}
	}
	if _, n, _ := store.Users(t.Context(), d.account, core.UserFilter{}, core.Page{Number: 1, Size: 1}); n != users {
		t.Errorf("users: got %d, want %d: a gateway has made one in a disabled account", n, users)
	}
	if _, err := s.Settle(t.Context(), d.account, d.hold, &service.Final{Requests: new(int64(5))}); err != nil {
		t.Errorf("the end of a request that was in flight: got %v", err)
	}
	if _, err := s.SetAccountDisabled(t.Context(), d.account, true); err != nil {
		t.Errorf("disabled again: got %v", err)
	}

	_, err = s.SetAccountDisabled(t.Context(), d.account, false)
	d.ok(err)
	got = d.answers(link, false)
	for door, want := range before {
		if got[door] != want {
			t.Errorf("%s after the account was enabled: got %q, want %q", door, got[door], want)
		}
	}
}

// Promise 3: another node learns of it by the report of the store.
func TestDisabledElsewhere(t *testing.T) {
	w := newWatched(t)
	w.store.watcher.RenewLease(time.Hour)
	if got := w.outcome(); got != service.Allowed {
		t.Fatalf("before: got %v", got)
	}
	if _, err := w.here.Authenticate(t.Context(), w.owner); err != nil {
		t.Fatal(err)
	}
	for _, disabled := range []bool{true, false, true} {
		_, err := w.there.SetAccountDisabled(t.Context(), w.account, disabled)
		w.ok(err)
		w.store.watcher.Changed(core.Change{Account: w.account, State: true})
		want := map[bool]service.Outcome{true: service.Unknown, false: service.Allowed}[disabled]
		if got := w.outcome(); got != want {
			t.Errorf("disabled %t: got %v, want %v", disabled, got, want)
		}
		if _, err := w.here.Authenticate(t.Context(), w.owner); (err != nil) != disabled {
			t.Errorf("disabled %t: the owner's key got %v", disabled, err)
		}
	}
}

// A name is unique and cleaned, and a former name is free. The configuration makes no account with it.
func TestRenameAccount(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	ctx := t.Context()
	ensure := func(name, secret string) error { _, err := s.EnsureAccount(ctx, name, secret); return err }
	a, _, owner, err := s.CreateAccount(ctx, "acme")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := s.CreateAccount(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"other": core.ErrAccountExists, " ": nil, "a\nb": nil, longer(255): nil} {
		_, err := s.RenameAccount(ctx, a.ID, name)
		if want != nil && !errors.Is(err, want) || core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("rename to %q: got %v, want a validation error", name, err)
		}
	}
	if _, err := s.RenameAccount(ctx, "acct_none", "new"); !errors.Is(err, core.ErrAccountNotFound) {
		t.Errorf("a missing account: got %v", err)
	}
	renamed, err := s.RenameAccount(ctx, a.ID, "  acme europe ")
	if err != nil || renamed.Name != "acme europe" || renamed.ID != a.ID || !renamed.HadName("acme") {
		t.Fatalf("got %+v, %v", renamed, err)
	}
	if again, err := s.RenameAccount(ctx, a.ID, "acme europe"); err != nil || again.Name != "acme europe" || len(again.FormerNames) != 1 {
		t.Errorf("the same name again: got %+v, %v", again, err)
	}
	if k, err := s.Authenticate(ctx, owner); err != nil || k.AccountID != a.ID {
		t.Errorf("the owner's key: got %+v, %v", k, err)
	}
	for _, secret := range []string{owner, secrets.NewOwnerSecret()} {
		for _, err := range []error{ensure("acme", secret), s.CheckAccount(ctx, "acme", secret)} {
			if e, ok := errors.AsType[*service.RenamedError](err); !ok || e.Now != "acme europe" {
				t.Errorf("the configuration has the former name: got %v, want an error that names the present one", err)
			}
		}
	}
	if err := ensure("acme europe", owner); err != nil {
		t.Errorf("the configuration has the new name: %v", err)
	}
	if _, err := s.OperatorAccount(ctx, "acme"); !errors.Is(err, core.ErrAccountNotFound) || err.Error() == core.ErrAccountNotFound.Error() {
		t.Errorf("the operator uses the former name: got %v, want the present name in the error", err)
	}
	second, _, _, err := s.CreateAccount(ctx, "acme")
	if err != nil {
		t.Fatalf("a new account with the former name: %v", err)
	}
	if err := ensure("acme", secrets.NewOwnerSecret()); err != nil {
		t.Errorf("the configuration names the new account: %v", err)
	}
	if _, err := s.RenameAccount(ctx, a.ID, "acme"); !errors.Is(err, core.ErrAccountExists) {
		t.Errorf("back to a name that is in use again: got %v", err)
	}
	if _, err := s.RenameAccount(ctx, second.ID, "acme 2"); err != nil {
		t.Fatal(err)
	}
	if back, err := s.RenameAccount(ctx, a.ID, "acme"); err != nil || back.HadName("acme") || !back.HadName("acme europe") {
		t.Errorf("back to the first name: got %+v, %v", back, err)
	}
	for i := range 2 * core.MaxFormerNames {
		if renamed, err = s.RenameAccount(ctx, a.ID, string(rune('a'+i))); err != nil {
			t.Fatal(err)
		}
	}
	if len(renamed.FormerNames) != core.MaxFormerNames || renamed.Check() != nil {
		t.Errorf("former names: got %q (%v), want the last %d", renamed.FormerNames, renamed.Check(), core.MaxFormerNames)
	}
}

// The configuration leaves a disabled account disabled, and the server starts.
func TestEnsureDisabledAccount(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	secret := secrets.NewOwnerSecret()
	a, err := s.EnsureAccount(t.Context(), "acme", secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetAccountDisabled(t.Context(), a.ID, true); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{secret, secrets.NewOwnerSecret()} {
		if err := s.CheckAccount(context.Background(), "acme", key); !errors.Is(err, service.ErrAccountDisabled) {
			t.Errorf("CheckAccount: got %v, want %v", err, service.ErrAccountDisabled)
		}
		if made, err := s.EnsureAccount(t.Context(), "acme", key); !errors.Is(err, service.ErrAccountDisabled) || made.ID != a.ID {
			t.Errorf("EnsureAccount: got %+v, %v, want %v", made, err, service.ErrAccountDisabled)
		}
	}
	if _, n, _ := s.OwnerKeys(t.Context(), a.ID, first); n != 1 {
		t.Errorf("owner's keys: got %d, want 1", n)
	}
}
