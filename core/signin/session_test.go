package signin_test

import (
	"errors"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/signin"
)

// A person sees and ends its own sessions, an owner sees and ends all.
func TestEndSession(t *testing.T) {
	c := newCompany(t)
	ann, bob, eve := c.join("ann", core.RoleOwner), c.join("bob", core.RoleViewer), c.join("eve", core.RoleEditor)
	own, _ := signedIn(t, c.Service, "acme")
	count := func(si *signin.SignedIn) int {
		list, err := c.SignIn.Sessions(t.Context(), si)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for _, tc := range []struct {
		si   *signin.SignedIn
		want int
	}{{ann, 4}, {bob, 1}, {eve, 1}, {own, 4}} {
		if got := count(tc.si); got != tc.want {
			t.Errorf("%s sees %d sessions, want %d", tc.si.Person.Name, got, tc.want)
		}
	}
	want(t, "another person's session", c.SignIn.EndSession(t.Context(), eve, bob.Session.Digest), signin.ErrNoSession)
	if err := c.SignIn.EndSession(t.Context(), ann, bob.Session.Digest); err != nil {
		t.Error(err)
	}
	want(t, "an ended session", c.SignIn.EndSession(t.Context(), ann, bob.Session.Digest), signin.ErrNoSession)
	if err := c.SignIn.SignOutEverywhere(t.Context(), eve); err != nil || count(ann) != 2 {
		t.Errorf("after an editor signs out everywhere: got %d sessions, %v, want 2", count(ann), err)
	}
	if err := c.SignIn.SignOutEverywhere(t.Context(), ann); err != nil || count(own) != 0 {
		t.Errorf("after an owner signs out everywhere: got %d sessions, %v, want 0", count(own), err)
	}
}

// A new password ends the person's other sessions, and nobody else's.
func TestPasswordOfPerson(t *testing.T) {
	c := newCompany(t)
	ann, bob := c.join("ann", core.RoleOwner), c.join("bob", core.RoleViewer)
	in, err := c.login("bob@example.com", password+"bob", from("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	if !c.SignIn.AsksPassword(bob) {
		t.Error("the current password is not asked for")
	}
	if err := c.SignIn.SetPassword(t.Context(), bob, "wrong", password); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("a wrong current password: got %v", err)
	}
	if err := c.SignIn.SetPassword(t.Context(), bob, password+"bob", password+"new"); err != nil {
		t.Fatal(err)
	}
	_, err = c.SignIn.SignedIn(t.Context(), in.Session, true)
	want(t, "the other session", err, signin.ErrSession)
	if list, err := c.SignIn.Sessions(t.Context(), ann); err != nil || len(list) != 2 {
		t.Errorf("sessions: got %v, %v, want two", list, err)
	}
	if _, err := c.login("bob@example.com", password+"new", from("192.0.2.1")); err != nil {
		t.Error(err)
	}
	_, err = c.login("", password+"new", from("192.0.2.1"))
	if !errors.Is(err, signin.ErrSignIn) {
		t.Errorf("the password of a person without the email: got %v", err)
	}
}
