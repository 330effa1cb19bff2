package signin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// InvitationLife is how long an unused invitation works.
const InvitationLife = 7 * 24 * time.Hour

// invitationPrefix is the prefix of the secrets of invitations. The id of the account follows, and a dash.
const invitationPrefix = "lk_invite_"

// IsInvitation reports whether the secret of a link has the form of an invitation.
func IsInvitation(link string) bool {
	_, ok := accountOfSecret(link, invitationPrefix)
	return ok
}

// The errors of people.
var (
	// ErrPersonNotFound means that an account has no such person.
	ErrPersonNotFound = &core.Error{Code: core.CodeNotFound, Message: "There is no such person"}
	// ErrInvitation means that an invitation was used, has expired, was replaced or never existed.
	ErrInvitation = &core.Error{Code: core.CodeUnauthorized, Message: "This invitation was used already, is older than seven days, or was replaced by another one"}
	// ErrLastOwner means that after the change no one could sign in as an owner.
	ErrLastOwner = core.Invalid("role", "This is the last owner: make another person an owner first, who has signed in")

	// ErrUnknownPerson means that no person of the account has the email that the server has authenticated, or that the account is missing. The
	// text does not say which.
	ErrUnknownPerson = &core.Error{Code: core.CodeForbidden, Message: "You are signed in to this server, but this account has no person with your email: ask an owner of the account for an invitation"}

	errTwoPeople = core.Invalid("email", "A person with this email exists already")
	errMaxPeople = core.Invalid("email", fmt.Sprintf("An account has at most %d people: remove one who is no longer needed", core.MaxPeople))
)

// People returns the people of an account, in the order of their creation.
func (s *Service) People(ctx context.Context, account string) ([]core.Person, error) {
	ac, err := s.store.Access(ctx, account)
	if err != nil {
		return nil, err
	}
	ac.DropExpired(s.now())
	return ac.People, nil
}

// Invite adds a person to an account, and returns the secret of an invitation, which is shown only once. The secret sets the password of the person,
// once, within [InvitationLife].
func (s *Service) Invite(ctx context.Context, account string, spec core.PersonSpec) (p *core.Person, secret string, err error) {
	if spec, err = spec.Clean(); err != nil {
		return nil, "", err
	}
	id := secrets.NewID(core.PersonIDPrefix)
	return s.invite(ctx, account, id, func(ac *core.Access) error {
		switch {
		case ac.PersonByEmail(spec.Email) != nil:
			return errTwoPeople
		case len(ac.People) >= core.MaxPeople:
			return errMaxPeople
		}
		ac.People = append(ac.People, core.Person{ID: id, Name: spec.Name, Email: spec.Email, Role: spec.Role, CreatedAt: s.now()})
		return nil
	})
}

// InviteAgain returns a new invitation for a person, such as one that has forgotten the password. An earlier invitation no longer works.
func (s *Service) InviteAgain(ctx context.Context, account, person string) (p *core.Person, secret string, err error) {
	return s.invite(ctx, account, person, func(*core.Access) error { return nil })
}

// invite gives the person with an id an invitation. prepare runs first, in the same update.
func (s *Service) invite(ctx context.Context, account, person string, prepare func(*core.Access) error) (*core.Person, string, error) {
	secret := newSignInSecret(invitationPrefix, account)
	p, err := s.updatePerson(ctx, account, person, prepare, func(_ *core.Access, p *core.Person) error {
		p.Invitation = &core.SignInLink{Digest: secrets.DigestOf(secret), ExpiresAt: s.now().Add(InvitationLife)}
		return nil
	})
	return p, secret, err
}

// SetRole gives a person another role, which applies to the next request. The last owner stays one: [ErrLastOwner].
func (s *Service) SetRole(ctx context.Context, account, person string, role core.Role) (*core.Person, error) {
	if err := core.CheckRole(role, core.PersonRoles()); err != nil {
		return nil, err
	}
	return s.updatePerson(ctx, account, person, nil, func(ac *core.Access, p *core.Person) error {
		if role != core.RoleOwner && !ac.CanSpare(person) {
			return ErrLastOwner
		}
		p.Role = role
		return nil
	})
}

// RemovePerson removes a person. The sessions of the person end at once. The last owner stays: [ErrLastOwner].
func (s *Service) RemovePerson(ctx context.Context, account, person string) error {
	_, err := s.updatePerson(ctx, account, person, nil, func(ac *core.Access, p *core.Person) error {
		if !ac.CanSpare(person) {
			return ErrLastOwner
		}
		ac.EndSessions(func(of string) bool { return of == person })
		ac.People = slices.DeleteFunc(ac.People, func(p core.Person) bool { return p.ID == person })
		return nil
	})
	return err
}

// updatePerson runs fn on a person of an account, after prepare, which may be nil. It returns the person afterwards.
func (s *Service) updatePerson(ctx context.Context, account, person string, prepare func(*core.Access) error, fn func(*core.Access, *core.Person) error) (*core.Person, error) {
	if person == "" {
		return nil, ErrPersonNotFound
	}
	ac, err := s.store.UpdateAccess(ctx, account, func(ac *core.Access) error {
		ac.DropExpired(s.now())
		if prepare != nil {
			if err := prepare(ac); err != nil {
				return err
			}
		}
		p := ac.Person(person)
		if p == nil {
			return ErrPersonNotFound
		}
		return fn(ac, p)
	})
	if err != nil {
		return nil, err
	}
	return ac.Person(person), nil
}

// Invited returns the account and the person of an invitation that works, or [ErrInvitation].
func (s *Service) Invited(ctx context.Context, invitation string) (*core.Account, *core.Person, error) {
	account, ok := accountOfSecret(invitation, invitationPrefix)
	if !ok {
		return nil, nil, ErrInvitation
	}
	a, err := core.Usable(s.store.Account(ctx, account))
	var ac *core.Access
	if err == nil {
		ac, err = s.store.Access(ctx, account)
	}
	if errors.Is(err, core.ErrAccountNotFound) {
		return nil, nil, ErrInvitation
	}
	if err != nil {
		return nil, nil, err
	}
	p := invited(ac, secrets.DigestOf(invitation), s.now())
	if p == nil {
		return nil, nil, ErrInvitation
	}
	return a, p, nil
}

// invited returns the person of an invitation, nil for none.
func invited(ac *core.Access, d secrets.Digest, now time.Time) *core.Person {
	ac.DropExpired(now)
	for i := range ac.People {
		if in := ac.People[i].Invitation; in != nil && in.Digest.Equal(d) {
			return &ac.People[i]
		}
	}
	return nil
}

// ByInvitation uses up an invitation: it sets the password of its person, ends the earlier sessions of the person, and returns the credentials of
// a new session. An invitation that does not work is [ErrInvitation], and no password is hashed.
func (s *Service) ByInvitation(ctx context.Context, invitation, password string, by Client) (Credentials, error) {
	a, p, err := s.Invited(ctx, invitation)
	if err != nil {
		return Credentials{}, err
	}
	ctx = core.WithActor(ctx, core.Actor{Kind: core.ActorPerson, ID: p.ID, Name: p.Name, IP: by.Address})
	if err := CheckPassword(password); err != nil {
		return Credentials{}, err
	}
	d := secrets.DigestOf(invitation)
	try, err := s.beginKnownAttempt(a.ID, d)
	if err != nil {
		return Credentials{}, err
	}
	defer s.attempts.forget(try)
	hash, err := s.hasher.hash(ctx, try.rank, password)
	if err != nil {
		return Credentials{}, err
	}
	c := newCredentials(a.ID)
	_, err = s.store.UpdateAccess(ctx, a.ID, func(ac *core.Access) error {
		now := s.now()
		p := invited(ac, d, now)
		if p == nil {
			return ErrInvitation
		}
		p.Password, p.Invitation = hash, nil
		ac.EndSessions(func(of string) bool { return of == p.ID })
		addSession(ac, c, by, core.Session{PersonID: p.ID}, now)
		return nil
	})
	if errors.Is(err, core.ErrAccountNotFound) { // deleted since Invited
		err = ErrInvitation
	}
	if err != nil {
		return Credentials{}, err
	}
	return c, nil
}

// ByServer returns the credentials of a new session for the person whose email the server has authenticated. An open invitation of the
// person no longer works. An unknown account or email is [ErrUnknownPerson].
func (s *Service) ByServer(ctx context.Context, account, email string, by Client) (Credentials, error) {
	a, err := s.accountByName(ctx, account)
	if errors.Is(err, core.ErrAccountNotFound) {
		return Credentials{}, ErrUnknownPerson
	}
	if err != nil {
		return Credentials{}, err
	}
	c := newCredentials(a.ID)
	_, err = s.store.UpdateAccess(ctx, a.ID, func(ac *core.Access) error {
		p := ac.PersonByEmail(email)
		if p == nil {
			return ErrUnknownPerson
		}
		now := s.now()
		ac.DropExpired(now)
		p.Invitation = nil
		addSession(ac, c, by, core.Session{PersonID: p.ID, ByServer: true}, now)
		return nil
	})
	if errors.Is(err, core.ErrAccountNotFound) { // deleted meanwhile
		err = ErrUnknownPerson
	}
	if err != nil {
		return Credentials{}, err
	}
	return c, nil
}

// Continues reports whether the session goes on with a request. email is the email that the server has authenticated for the request, "" for none: a session
// by the server continues only with the email of its person.
func (si *SignedIn) Continues(email string) bool {
	return !si.Session.ByServer || email != "" && core.FoldEmail(strings.TrimSpace(email)) == core.FoldEmail(si.Person.Email)
}
