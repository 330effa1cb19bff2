package signin_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/core/signin"
)

// company is an account with people.
type company struct {
	*testing.T
	*service.Service
	account string
	now     *time.Time
}

func newCompany(t *testing.T) *company {
	t.Helper()
	c := &company{T: t, now: new(at("2026-03-05T10:00:00Z"))}
	c.Service = newService(c.now)
	c.SignIn.OnHash(func() {})
	a, _, _, err := c.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	c.account = a.ID
	return c
}

// invite invites a person, whose email is name@example.com.
func (c *company) invite(name string, role core.Role) (*core.Person, string) {
	c.Helper()
	p, link, err := c.SignIn.Invite(c.Context(), c.account, core.PersonSpec{Name: name, Email: name + "@example.com", Role: role})
	if err != nil {
		c.Fatal(err)
	}
	return p, link
}

// join invites a person, and sets the password of the person.
func (c *company) join(name string, role core.Role) *signin.SignedIn {
	c.Helper()
	_, link := c.invite(name, role)
	in, err := c.SignIn.ByInvitation(c.Context(), link, password+name, from("192.0.2.1"))
	if err != nil {
		c.Fatal(err)
	}
	return c.session(in)
}

func (c *company) session(in signin.Credentials) *signin.SignedIn {
	c.Helper()
	si, err := c.SignIn.SignedIn(c.Context(), in.Session, true)
	if err != nil {
		c.Fatal(err)
	}
	return si
}

// login signs in by email and password.
func (c *company) login(email, password string, by signin.Client) (signin.Credentials, error) {
	return c.SignIn.ByPassword(c.Context(), signin.Login{Account: "acme", Email: email, Password: password}, by)
}

// An invitation sets the password of its person, once, within seven days, and a later one replaces it.
func TestInvitation(t *testing.T) {
	c := newCompany(t)
	p, link := c.invite("ann", core.RoleEditor)
	a, got, err := c.SignIn.Invited(t.Context(), link)
	if err != nil || a.Name != "acme" || got.Email != "ann@example.com" {
		t.Fatalf("Invited: got %v, %v, %v", a, got, err)
	}
	_, err = c.login("ann@example.com", "", from("192.0.2.1"))
	want(t, "before the invitation was used", err, signin.ErrSignIn)
	_, err = c.SignIn.ByInvitation(t.Context(), link, "short", from("192.0.2.1"))
	if core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("a short password: got %v", err)
	}
	in, err := c.SignIn.ByInvitation(t.Context(), link, password, signin.Client{Address: "192.0.2.1", UserAgent: "Mozilla/5.0 (X11; Linux) <b>Firefox/1"})
	if err != nil {
		t.Fatal(err)
	}
	si := c.session(in)
	if si.Person.ID != p.ID || si.Person.Role != core.RoleEditor || !si.HasPassword || si.Session.Address != "192.0.2.1" || si.Session.UserAgent != "Mozilla/5.0 (X11; Linux) bFirefox/1" {
		t.Errorf("SignedIn: got %+v", si)
	}
	_, err = c.SignIn.ByInvitation(t.Context(), link, password, from("192.0.2.1"))
	want(t, "a used invitation", err, signin.ErrInvitation)
	if _, err := c.login(" ANN@example.com ", password, from("192.0.2.1")); err != nil {
		t.Errorf("by password, with the email in another case: got %v", err)
	}

	_, old, err := c.SignIn.InviteAgain(t.Context(), c.account, p.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, again, err := c.SignIn.InviteAgain(t.Context(), c.account, p.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.SignIn.ByInvitation(t.Context(), old, password+"2", from("192.0.2.1"))
	want(t, "a replaced invitation", err, signin.ErrInvitation)
	if _, err = c.SignIn.ByInvitation(t.Context(), again, password+"2", from("192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	_, err = c.SignIn.SignedIn(t.Context(), in.Session, true)
	want(t, "the session before a new password by link", err, signin.ErrSession)

	_, late := c.invite("bob", core.RoleViewer)
	*c.now = c.now.Add(signin.InvitationLife)
	_, err = c.SignIn.ByInvitation(t.Context(), late, password, from("192.0.2.1"))
	want(t, "after seven days", err, signin.ErrInvitation)
	for _, wrong := range []string{"", "lk_invite_", again + "x", "lk_link_" + again[len("lk_invite_"):]} {
		_, err = c.SignIn.ByInvitation(t.Context(), wrong, password, from("192.0.2.1"))
		want(t, fmt.Sprintf("the invitation %q", wrong), err, signin.ErrInvitation)
	}
	_, err = c.SignIn.ByLink(t.Context(), again, signin.Client{})
	want(t, "an invitation as a link", err, signin.ErrSignInLink)
}

// Of concurrent uses of one invitation exactly one sets a password.
func TestInvitationAtOnce(t *testing.T) {
	c := newCompany(t)
	_, link := c.invite("ann", core.RoleEditor)
	var mu sync.Mutex
	var worked []string
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			mine := fmt.Sprintf("a password of number %d", i)
			if _, err := c.SignIn.ByInvitation(t.Context(), link, mine, from("192.0.2.1")); err == nil {
				mu.Lock()
				worked = append(worked, mine)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(worked) != 1 {
		t.Fatalf("got %d uses, want 1", len(worked))
	}
	if _, err := c.login("ann@example.com", worked[0], from("192.0.2.1")); err != nil {
		t.Error(err)
	}
}

// Two people have different emails, in any case, and an account has a bounded number of people.
func TestInviteRules(t *testing.T) {
	c := newCompany(t)
	p, _ := c.invite("ann", core.RoleEditor)
	for name, spec := range map[string]core.PersonSpec{
		"a taken email": {Name: "x", Email: "Ann@Example.com", Role: core.RoleViewer},
		"no email":      {Name: "x", Role: core.RoleViewer},
		"no name":       {Email: "x@example.com", Role: core.RoleViewer},
		"no role":       {Name: "x", Email: "x@example.com"},
		"a validator":   {Name: "x", Email: "x@example.com", Role: core.RoleValidator},
	} {
		if _, _, err := c.SignIn.Invite(t.Context(), c.account, spec); core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("%s: got %v, want a validation error", name, err)
		}
	}
	for i := range core.MaxPeople - 1 {
		c.invite(fmt.Sprint("p", i), core.RoleViewer)
	}
	if _, _, err := c.SignIn.Invite(t.Context(), c.account, core.PersonSpec{Name: "x", Email: "x@example.com", Role: core.RoleViewer}); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("one too many: got %v", err)
	}
	other, _, _, _ := c.CreateAccount(t.Context(), "other")
	_, _, err := c.SignIn.InviteAgain(t.Context(), other.ID, p.ID)
	want(t, "a link for a person of another account", err, signin.ErrPersonNotFound)
	_, err = c.SignIn.SetRole(t.Context(), other.ID, p.ID, core.RoleOwner)
	want(t, "the role of a person of another account", err, signin.ErrPersonNotFound)
	want(t, "removing a person of another account", c.SignIn.RemovePerson(t.Context(), other.ID, p.ID), signin.ErrPersonNotFound)
	want(t, "removing nobody", c.SignIn.RemovePerson(t.Context(), c.account, ""), signin.ErrPersonNotFound)
}

// Another role applies to the next request. A removed person is signed out at once, and does not sign in again.
func TestRoleAndRemoval(t *testing.T) {
	c := newCompany(t)
	ann, bob := c.join("ann", core.RoleOwner), c.join("bob", core.RoleViewer)
	in, err := c.login("bob@example.com", password+"bob", from("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.SignIn.SetRole(t.Context(), c.account, bob.Person.ID, core.RoleEditor); err != nil {
		t.Fatal(err)
	}
	if got := c.session(in).Person.Role; got != core.RoleEditor {
		t.Errorf("role: got %s, want editor", got)
	}
	if err := c.SignIn.RemovePerson(t.Context(), c.account, bob.Person.ID); err != nil {
		t.Fatal(err)
	}
	_, err = c.SignIn.SignedIn(t.Context(), in.Session, true)
	want(t, "the session of a removed person", err, signin.ErrSession)
	_, err = c.login("bob@example.com", password+"bob", signin.Client{Browser: in.Browser})
	want(t, "the password of a removed person", err, signin.ErrSignIn)
	if list, err := c.SignIn.Sessions(t.Context(), ann); err != nil || len(list) != 1 {
		t.Errorf("sessions: got %v, %v, want the owner's", list, err)
	}
}

// The last owner that has signed in is neither removed nor demoted, unless the account has a password of its own.
func TestLastOwner(t *testing.T) {
	c := newCompany(t)
	ann := c.join("ann", core.RoleOwner)
	c.join("eve", core.RoleEditor)
	bob, link := c.invite("bob", core.RoleOwner) // has not signed in
	demote := func(person string) error {
		_, err := c.SignIn.SetRole(t.Context(), c.account, person, core.RoleEditor)
		return err
	}
	want(t, "removing the last owner", c.SignIn.RemovePerson(t.Context(), c.account, ann.Person.ID), signin.ErrLastOwner)
	want(t, "demoting the last owner", demote(ann.Person.ID), signin.ErrLastOwner)
	if err := demote(bob.ID); err != nil {
		t.Errorf("demoting an owner who has never signed in: got %v", err)
	}
	if _, err := c.SignIn.SetRole(t.Context(), c.account, bob.ID, core.RoleOwner); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SignIn.ByInvitation(t.Context(), link, password, from("192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	if err := demote(ann.Person.ID); err != nil {
		t.Errorf("demoting one of two owners: got %v", err)
	}
	want(t, "removing the owner who is left", c.SignIn.RemovePerson(t.Context(), c.account, bob.ID), signin.ErrLastOwner)
	own, _ := signedIn(t, c.Service, "acme")
	if err := c.SignIn.SetPassword(t.Context(), own, "", password); err != nil {
		t.Fatal(err)
	}
	if err := c.SignIn.RemovePerson(t.Context(), c.account, bob.ID); err != nil {
		t.Errorf("removing the last person who is an owner of an account with a password: got %v", err)
	}
}

// When two owners remove each other at the same time, one of them stays.
func TestLastOwnerAtOnce(t *testing.T) {
	for range 20 {
		c := newCompany(t)
		ann, bob := c.join("ann", core.RoleOwner), c.join("bob", core.RoleOwner)
		var wg sync.WaitGroup
		for _, si := range []*signin.SignedIn{ann, bob} {
			wg.Go(func() { _ = c.SignIn.RemovePerson(t.Context(), c.account, si.Person.ID) })
		}
		wg.Wait()
		if people, err := c.SignIn.People(t.Context(), c.account); err != nil || len(people) != 1 {
			t.Fatalf("people: got %v, %v, want one", people, err)
		}
	}
}

// Passwords of people are bounded each for itself, alike for emails that exist and that do not.
func TestNoOracleForEmails(t *testing.T) {
	c := newCompany(t)
	c.join("ann", core.RoleOwner)
	for _, email := range []string{"ann@example.com", "nobody@example.com", ""} {
		for i := range signin.WrongPasswords {
			_, err := c.login(email, "wrong", from(fmt.Sprintf("198.51.%d.%d", 100+len(email), i)))
			want(t, "a wrong password of "+email, err, signin.ErrSignIn)
		}
		_, err := c.login(email, "wrong", from(fmt.Sprintf("203.0.%d.1", len(email))))
		want(t, "one more of "+email, err, signin.ErrTooManyPasswords)
	}
	var hashed int
	c = newCompany(t)
	c.join("ann", core.RoleOwner)
	c.SignIn.OnHash(func() { hashed++ })
	for i, email := range []string{"ann@example.com", "nobody@example.com", ""} {
		hashed = 0
		_, err := c.login(email, "wrong", from(fmt.Sprintf("203.0.113.%d", i)))
		if want(t, email, err, signin.ErrSignIn); hashed != 1 {
			t.Errorf("%q: %d passwords were hashed, want 1", email, hashed)
		}
	}
}

// A browser is known for its own person only: it gives no attempts at the password of another one.
func TestKnownBrowserOfPerson(t *testing.T) {
	c := newCompany(t)
	c.join("ann", core.RoleOwner)
	c.join("bob", core.RoleViewer)
	in, err := c.login("bob@example.com", password+"bob", from("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range signin.WrongPasswords {
		for _, name := range []string{"ann", "bob"} {
			_, err = c.login(name+"@example.com", "wrong", from(fmt.Sprintf("198.51.%d.1", i*2+len(name)%2)))
			want(t, "a stranger", err, signin.ErrSignIn)
		}
	}
	known := signin.Client{Address: "203.0.113.1", Browser: in.Browser}
	_, err = c.login("ann@example.com", password+"ann", known)
	want(t, "the browser of another person", err, signin.ErrTooManyPasswords)
	if _, err = c.login("bob@example.com", password+"bob", known); err != nil {
		t.Errorf("the own browser: got %v", err)
	}
}

// Each change of the people leaves an entry in the audit log, with its actor and without secrets. Signing in leaves no entry.
func TestPeopleAreAudited(t *testing.T) {
	c := newCompany(t)
	ann := c.join("ann", core.RoleOwner)
	ctx := core.WithActor(t.Context(), core.Actor{Kind: core.ActorPerson, ID: ann.Person.ID, Name: "ann", IP: "192.0.2.1"})
	bob, link, err := c.SignIn.Invite(ctx, c.account, core.PersonSpec{Name: "bob", Email: "bob@example.com", Role: core.RoleViewer})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.SignIn.ByInvitation(t.Context(), link, password, from("192.0.2.2")); err != nil {
		t.Fatal(err)
	}
	in, err := c.login("bob@example.com", password, from("192.0.2.2"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SignIn.EndSession(ctx, ann, secrets.DigestOf(in.Session)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SignIn.SetRole(ctx, c.account, bob.ID, core.RoleEditor); err != nil {
		t.Fatal(err)
	}
	_, again, err := c.SignIn.InviteAgain(ctx, c.account, bob.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SignIn.RemovePerson(ctx, c.account, bob.ID); err != nil {
		t.Fatal(err)
	}
	page, err := c.Audit(t.Context(), c.account, service.AuditFilter{Target: bob.ID}, core.Page{Number: 1, Size: 50})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := len(page.Entries) - 1; i >= 0; i-- {
		e := page.Entries[i]
		got = append(got, fmt.Sprintf("%s by %q: %s -> %s", e.Action, e.Actor.Name, e.Before, e.After))
		for _, secret := range []string{link, again, password, "argon2id"} {
			if strings.Contains(got[len(got)-1], secret) {
				t.Errorf("%s: a secret is in the log", got[len(got)-1])
			}
		}
	}
	expires := func(d time.Duration) string { return c.now.Add(d).Format(time.RFC3339) }
	want := []string{
		`person.create by "ann":  -> {"name":"bob","email":"bob@example.com","role":"viewer"}`,
		`person.password by "bob": {"has_password":false} -> {"has_password":true}`,
		`person.end_sessions by "ann":  -> {"ended":1}`,
		`person.update by "ann": {"role":"viewer"} -> {"role":"editor"}`,
		`person.link by "ann":  -> {"expires_at":"` + expires(signin.InvitationLife) + `"}`,
		`person.delete by "ann": {"name":"bob","email":"bob@example.com","role":"editor"} -> `,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A new password, and signing out everywhere, end the link that would replace the password. The first invitation of somebody else stays.
func TestOpenLinkOfPerson(t *testing.T) {
	c := newCompany(t)
	ann, bob := c.join("ann", core.RoleOwner), c.join("bob", core.RoleViewer)
	_, first := c.invite("eve", core.RoleViewer)
	again := func(si *signin.SignedIn) string {
		_, link, err := c.SignIn.InviteAgain(t.Context(), c.account, si.Person.ID)
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	ended := func(what, link string) {
		t.Helper()
		_, _, err := c.SignIn.Invited(t.Context(), link)
		want(t, what, err, signin.ErrInvitation)
	}
	link := again(bob)
	if err := c.SignIn.SetPassword(t.Context(), bob, password+"bob", password+"new"); err != nil {
		t.Fatal(err)
	}
	ended("after a new password", link)

	link, ofAnn := again(bob), again(ann)
	if err := c.SignIn.SignOutEverywhere(t.Context(), bob); err != nil {
		t.Fatal(err)
	}
	ended("after the person has signed out everywhere", link)
	if _, _, err := c.SignIn.Invited(t.Context(), ofAnn); err != nil {
		t.Errorf("the link of another person: got %v", err)
	}
	link = again(bob)
	if err := c.SignIn.SignOutEverywhere(t.Context(), ann); err != nil {
		t.Fatal(err)
	}
	ended("after an owner has signed out everywhere", link)
	ended("the link of the owner", ofAnn)
	if _, _, err := c.SignIn.Invited(t.Context(), first); err != nil {
		t.Errorf("the first invitation of a person: got %v", err)
	}
}

// An address with a letter that only looks like k or i, or has it as its lower case, is another address: its owner is not the person.
func TestEmailOfSomebodyElse(t *testing.T) {
	c := newCompany(t)
	c.invite("mike", core.RoleOwner)
	in, err := c.SignIn.ByServer(t.Context(), "acme", "MIKE@example.com", from("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, email := range []string{"mi\u212ae@example.com", "m\u0130ke@example.com", "m\u0131ke@example.com", "mike\u200b@example.com", ""} {
		_, err := c.SignIn.ByServer(t.Context(), "acme", email, from("192.0.2.1"))
		want(t, fmt.Sprintf("%+q", email), err, signin.ErrUnknownPerson)
		if c.session(in).Continues(email) {
			t.Errorf("%+q continues the session of mike", email)
		}
	}
}
