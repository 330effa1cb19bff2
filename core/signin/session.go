package signin

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// SignedIn is the account, the session and the person of a request.
type SignedIn struct {
	Account     *core.Account
	Session     core.Session
	Person      core.Person // the account's own sign-in has no id and the role of an owner
	HasPassword bool        // the person, or the account's own sign-in, has a password

	secret string // of the session
}

// seesAll reports whether the person sees and ends all sessions of the account.
func (si *SignedIn) seesAll() bool { return si.Person.Role.May(core.PermitOwn) }

// sees reports whether the person sees and ends the sessions of another person, or its own.
func (si *SignedIn) sees(person string) bool { return si.seesAll() || person == si.Person.ID }

// ErrFormToken means that a form was already sent, has expired, or belongs to another session.
var ErrFormToken = core.Invalid("form", "This form was already sent or has expired: check whether the change is done, and fill in the form again if it is not")

// formNonce is the length of the nonce of a form token, in bytes: the time in nanoseconds, then random bytes.
const formNonce = 16

// SignedIn returns the session with the secret. An ended session is [ErrSession]. use says that a
// person made the request: automatic refreshes of an open page pass false, and do not keep the
// session alive.
func (s *Service) SignedIn(ctx context.Context, secret string, use bool) (*SignedIn, error) {
	account, ok := accountOfSecret(secret, sessionPrefix)
	if !ok {
		return nil, ErrSession
	}
	a, err := core.Usable(s.store.Account(ctx, account))
	var ac *core.Access
	if err == nil {
		ac, err = s.store.Access(ctx, account)
	}
	if errors.Is(err, core.ErrAccountNotFound) {
		return nil, ErrSession
	}
	if err != nil {
		return nil, err
	}
	now, d := s.now(), secrets.DigestOf(secret)
	se := ac.LiveSession(d, now)
	if se == nil {
		return nil, ErrSession
	}
	if use && now.Sub(se.SeenAt) >= seenResolution {
		ac, err = s.store.UpdateAccess(ctx, account, func(ac *core.Access) error {
			if se = ac.LiveSession(d, now); se == nil {
				return ErrSession
			}
			se.SeenAt = now
			if p := ac.Person(se.PersonID); p != nil {
				p.SeenAt = now
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	si := &SignedIn{Account: a, Session: *se, Person: core.Person{Role: core.RoleOwner}, HasPassword: *ac.PasswordOf(se.PersonID) != "", secret: secret}
	if se.PersonID != "" {
		si.Person = *ac.Person(se.PersonID)
	}
	return si, nil
}

// SignOut ends a session. A session that has already ended is no error.
func (s *Service) SignOut(ctx context.Context, si *SignedIn) error {
	return s.updateAccess(ctx, si, func(ac *core.Access) {
		ac.Sessions = slices.DeleteFunc(ac.Sessions, func(se core.Session) bool { return se.Digest == si.Session.Digest })
	})
}

// SignOutEverywhere ends all sessions that [Service.Sessions] lists, and forgets the browsers of the same people. It also ends the open invitations of those
// of them that have signed in before, and for an owner the links of the account.
func (s *Service) SignOutEverywhere(ctx context.Context, si *SignedIn) error {
	return s.updateAccess(ctx, si, func(ac *core.Access) {
		ac.EndSessions(si.sees)
		for i := range ac.People {
			if p := &ac.People[i]; si.sees(p.ID) && !p.SeenAt.IsZero() {
				p.Invitation = nil
			}
		}
		if si.seesAll() {
			ac.Links = nil
		}
	})
}

// PersonSession is a session with its person.
type PersonSession struct {
	core.Session
	Person *core.Person // nil: the account's own sign-in
}

// Sessions returns the sessions of the person, and for an owner all sessions of the account, the latest first.
func (s *Service) Sessions(ctx context.Context, si *SignedIn) (list []PersonSession, err error) {
	ac, err := s.store.Access(ctx, si.Account.ID)
	if err != nil {
		return nil, err
	}
	ac.DropExpired(s.now())
	slices.Reverse(ac.Sessions)
	for _, se := range ac.Sessions {
		if si.sees(se.PersonID) {
			list = append(list, PersonSession{se, ac.Person(se.PersonID)})
		}
	}
	return list, nil
}

// ErrNoSession means that [Service.Sessions] does not list the session to end.
var ErrNoSession = &core.Error{Code: core.CodeNotFound, Message: "There is no such session"}

// EndSession ends the session with a digest. A session that [Service.Sessions] does not list is [ErrNoSession].
func (s *Service) EndSession(ctx context.Context, si *SignedIn, d secrets.Digest) error {
	_, err := s.store.UpdateAccess(ctx, si.Account.ID, func(ac *core.Access) error {
		i := slices.IndexFunc(ac.Sessions, func(se core.Session) bool { return se.Digest.Equal(d) && si.sees(se.PersonID) })
		if i < 0 {
			return ErrNoSession
		}
		ac.Sessions = slices.Delete(ac.Sessions, i, i+1)
		return nil
	})
	return err
}

// AsksPassword reports whether [Service.SetPassword] requires the current password. A session that
// a link began does not need it until the link would have expired.
func (s *Service) AsksPassword(si *SignedIn) bool {
	return si.HasPassword && !(si.Session.ByLink && s.now().Before(si.Session.CreatedAt.Add(SignInLinkLife)))
}

// CheckPassword returns a validation error unless a new password is long enough.
func CheckPassword(password string) error {
	switch {
	case utf8.RuneCountInString(password) < MinPasswordLength:
		return core.Invalid("password", "A password has at least 12 characters")
	case len(password) > MaxPasswordLength:
		return core.Invalid("password", "A password has at most 1024 bytes")
	}
	return nil
}

// SetPassword sets the password of the person, or of the account's own sign-in. It ends all other sessions of the person and an open invitation, and for
// the account's own sign-in all links. If [Service.AsksPassword] returns true it checks the current password. A session may try
// [WrongPasswords] passwords in [WrongPasswordsIn].
func (s *Service) SetPassword(ctx context.Context, si *SignedIn, current, password string) (err error) {
	if err := CheckPassword(password); err != nil {
		return err
	}
	try, err := s.beginKnownAttempt(si.Account.ID, si.Session.Digest)
	if err != nil {
		return err
	}
	defer func() {
		if err != errCurrent {
			s.attempts.forget(try)
		}
	}()
	ac, err := s.store.Access(ctx, si.Account.ID)
	if err != nil {
		return err
	}
	stored := ac.PasswordOf(si.Person.ID)
	if stored == nil {
		return ErrSession
	}
	before := *stored
	if before != "" && s.AsksPassword(si) {
		right, err := s.hasher.matches(ctx, try.rank, before, current)
		if err != nil {
			return err
		}
		if !right {
			return errCurrent
		}
	}
	hash, err := s.hasher.hash(ctx, try.rank, password)
	if err != nil {
		return err
	}
	_, err = s.store.UpdateAccess(ctx, si.Account.ID, func(ac *core.Access) error {
		se := ac.LiveSession(si.Session.Digest, s.now())
		if se == nil || *ac.PasswordOf(si.Person.ID) != before {
			return ErrSession // the session has ended, or the password was changed
		}
		se.ByLink = false // from now on the password is required
		*ac.PasswordOf(si.Person.ID) = hash
		if p := ac.Person(si.Person.ID); p != nil {
			p.Invitation = nil
		} else {
			ac.Links = nil
		}
		ac.Sessions = slices.DeleteFunc(ac.Sessions, func(other core.Session) bool {
			return other.PersonID == si.Person.ID && !other.Digest.Equal(si.Session.Digest)
		})
		return nil
	})
	return err
}

func (s *Service) updateAccess(ctx context.Context, si *SignedIn, fn func(*core.Access)) error {
	_, err := s.store.UpdateAccess(ctx, si.Account.ID, func(ac *core.Access) error {
		fn(ac)
		return nil
	})
	return err
}

// NewFormToken returns a token for a form. A form with a token is accepted once, and only in the
// session that the token was made for. The session stores the used tokens, so that every node
// refuses a second use.
//
// A token is base64url of a nonce and its HMAC-SHA256 under the secret of the session.
func (s *Service) NewFormToken(si *SignedIn) string {
	nonce := make([]byte, formNonce, formNonce+sha256.Size)
	_, _ = rand.Read(nonce) // crypto/rand.Read never fails
	binary.BigEndian.PutUint64(nonce, uint64(s.clock().UnixNano()))
	return base64.RawURLEncoding.EncodeToString(si.seal(nonce))
}

// seal appends the HMAC of b under the secret of the session.
func (si *SignedIn) seal(b []byte) []byte {
	mac := hmac.New(sha256.New, []byte(si.secret))
	mac.Write(b)
	return mac.Sum(b)
}

// SpendFormToken marks a form token as used. A token that was already used, has expired or is
// invalid is [ErrFormToken].
func (s *Service) SpendFormToken(ctx context.Context, si *SignedIn, token string) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != formNonce+sha256.Size || !hmac.Equal(si.seal(slices.Clone(b[:formNonce])), b) {
		return ErrFormToken
	}
	form := core.FormToken{ID: base64.RawURLEncoding.EncodeToString(b[:formNonce]), At: time.Unix(0, int64(binary.BigEndian.Uint64(b))).UTC()}
	_, err = s.store.UpdateAccess(ctx, si.Account.ID, func(ac *core.Access) error {
		now := s.now()
		se := ac.LiveSession(si.Session.Digest, now)
		switch {
		case se == nil:
			return ErrSession
		case !form.At.After(se.FormsAfter), now.Sub(form.At) >= core.SessionIdle, slices.Contains(se.SpentForms, form):
			return ErrFormToken
		}
		se.SpentForms = append(se.SpentForms, form)
		if len(se.SpentForms) > core.MaxSpentForms {
			slices.SortFunc(se.SpentForms, func(a, b core.FormToken) int { return a.At.Compare(b.At) })
			se.FormsAfter = se.SpentForms[0].At
			se.SpentForms = slices.Delete(se.SpentForms, 0, 1)
		}
		return nil
	})
	return err
}
