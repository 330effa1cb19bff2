package core

import (
	"context"
	"crypto/subtle"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The bounds of signing in.
const (
	SignInLinkLife = 10 * time.Minute // a link works once, and no longer than this
	SessionIdle    = 12 * time.Hour   // a session ends when it was not used for so long

	MinPasswordLength = 12   // characters
	MaxPasswordLength = 1024 // bytes

	maxSessions = 20 // of an account; the one that was not used the longest ends
	maxLinks    = 20 // of an account that were not used

	seenEvery = 5 * time.Minute // how exactly it is kept when a session was used
)

// Access is how people sign in to an account.
type Access struct {
	Password string       `json:"password,omitempty"` // its argon2id hash in the PHC string format; "" for none
	Links    []SignInLink `json:"links,omitempty"`    // that were not used
	Sessions []Session    `json:"sessions,omitempty"`
}

// SignInLink is a secret that may be used once in place of a password.
type SignInLink struct {
	Digest    Digest    `json:"digest"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Session is a browser that is signed in.
type Session struct {
	Digest    Digest    `json:"digest"` // of the secret that the browser has
	ByLink    bool      `json:"by_link,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	SeenAt    time.Time `json:"seen_at"` // the last use, about

	Spent     []Form    `json:"spent,omitempty"`     // the forms that were sent, see [Service.SpendForm]
	FormsFrom time.Time `json:"forms_from,omitzero"` // older ones are not taken
}

// Form is a form that was sent.
type Form struct {
	ID string    `json:"id"`
	At time.Time `json:"at"` // when it was given out
}

// SignedIn is who makes a request with a session.
type SignedIn struct {
	Account     *Account
	Session     Session
	HasPassword bool // the account has one

	secret string // of the session
}

// The faults of signing in.
var (
	// ErrSignIn means that nobody is let in: the name or the password is wrong, or the
	// account has no password. It does not say which.
	ErrSignIn = &Error{Code: CodeUnauthorized, Message: "The name or the password is wrong"}
	// ErrSignInLink means that a link was used, is too old or never was.
	ErrSignInLink = &Error{Code: CodeUnauthorized, Message: "This link was used already, or is older than ten minutes"}
	// ErrSession means that a session has ended or never was.
	ErrSession = &Error{Code: CodeUnauthorized, Message: "Please sign in"}
	// ErrManyPasswords means that too many wrong passwords were tried.
	ErrManyPasswords = &Error{Code: CodeRateLimitExceeded, Message: "Too many wrong passwords: try again in 15 minutes, or sign in by a link"}
)

// The prefixes of the secrets of signing in. The id of the account follows, and a dash.
const (
	linkPrefix    = "lk_link_"
	sessionPrefix = "lk_session_"
	signInRandom  = 43 // letters or digits: more than 256 bits
)

// newSignInSecret returns a secret of an account.
func newSignInSecret(prefix, account string) string {
	return prefix + account + "-" + random(signInRandom)
}

// accountIn returns the account whose secret it is, if it has the form of one.
func accountIn(secret, prefix string) (account string, ok bool) {
	rest, ok := strings.CutPrefix(secret, prefix)
	i := strings.LastIndexByte(rest, '-')
	if !ok || len(secret) > maxSecretLength || i <= 0 || len(rest)-i-1 != signInRandom || !ownerBytes.hold(rest[i+1:]) {
		return "", false
	}
	return rest[:i], true
}

// same compares digests in a time that does not depend on them.
func (d Digest) same(other Digest) bool { return subtle.ConstantTimeCompare(d[:], other[:]) == 1 }

// NewSignInLink returns the secret of a link that signs in to the account with the name,
// once, until a time. A name that no account has is [ErrAccountNotFound].
func (s *Service) NewSignInLink(ctx context.Context, name string) (a *Account, secret string, expires time.Time, err error) {
	if a, err = s.AccountByName(ctx, name); err != nil {
		return nil, "", time.Time{}, err
	}
	secret = newSignInSecret(linkPrefix, a.ID)
	now := s.now()
	expires = now.Add(SignInLinkLife)
	_, err = s.store.UpdateAccess(ctx, a.ID, func(ac *Access) error {
		ac.forgetEnded(now)
		ac.Links = newest(append(ac.Links, SignInLink{DigestOf(secret), expires}), maxLinks)
		return nil
	})
	return a, secret, expires, err
}

// SignInByLink uses a link up and returns the secret of a new session. A link that does
// not work is [ErrSignInLink].
func (s *Service) SignInByLink(ctx context.Context, link string) (secret string, err error) {
	account, ok := accountIn(link, linkPrefix)
	if !ok {
		return "", ErrSignInLink
	}
	d := DigestOf(link)
	secret = newSignInSecret(sessionPrefix, account)
	_, err = s.store.UpdateAccess(ctx, account, func(ac *Access) error {
		now := s.now()
		ac.forgetEnded(now)
		i := slices.IndexFunc(ac.Links, func(l SignInLink) bool { return l.Digest.same(d) })
		if i < 0 {
			return ErrSignInLink
		}
		ac.Links = slices.Delete(ac.Links, i, i+1)
		ac.addSession(Session{Digest: DigestOf(secret), ByLink: true, CreatedAt: now, SeenAt: now})
		return nil
	})
	if errors.Is(err, ErrAccountNotFound) {
		err = ErrSignInLink
	}
	if err != nil {
		return "", err
	}
	return secret, nil
}

// SignInByPassword returns the secret of a new session for the account with the name. A
// wrong name or password is [ErrSignIn], after the same work. Of wrong ones at most
// [WrongPasswords] are tried in [WrongPasswordsIn] for one name, and for one address: then
// it is [ErrManyPasswords]. When ctx ends first nothing was tried.
func (s *Service) SignInByPassword(ctx context.Context, name, password, address string) (secret string, err error) {
	name = strings.TrimSpace(name)
	attempt, ok := s.wrong.begin(s.clock(), nameAttempt(name), addressAttempt(address))
	if !ok {
		return "", ErrManyPasswords
	}
	defer func() {
		if !errors.Is(err, ErrSignIn) {
			attempt.forget()
		}
	}()
	account, hash, err := s.passwordOf(ctx, name)
	if err != nil {
		return "", err
	}
	right, err := s.hashing.matches(ctx, hash, password)
	if err != nil {
		return "", err
	}
	if !right {
		return "", ErrSignIn
	}
	secret = newSignInSecret(sessionPrefix, account)
	_, err = s.store.UpdateAccess(ctx, account, func(ac *Access) error {
		if ac.Password != hash { // it was changed meanwhile
			return ErrSignIn
		}
		now := s.now()
		ac.forgetEnded(now)
		ac.addSession(Session{Digest: DigestOf(secret), CreatedAt: now, SeenAt: now})
		return nil
	})
	if err != nil {
		return "", err
	}
	return secret, nil
}

// passwordOf returns the account with a name and the hash of its password, "" when there
// is no such account or password. Both take the same steps.
func (s *Service) passwordOf(ctx context.Context, name string) (account, hash string, err error) {
	a, err := s.store.AccountByName(ctx, name)
	if errors.Is(err, ErrAccountNotFound) {
		a, err = &Account{}, nil
	}
	if err != nil {
		return "", "", err
	}
	ac, err := s.store.Access(ctx, a.ID)
	if errors.Is(err, ErrAccountNotFound) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	return a.ID, ac.Password, nil
}

// SignedIn returns who has a session. With use it was used by a person: a page that is open
// and asks by itself keeps no session alive. One that has ended is [ErrSession].
func (s *Service) SignedIn(ctx context.Context, secret string, use bool) (*SignedIn, error) {
	account, ok := accountIn(secret, sessionPrefix)
	if !ok {
		return nil, ErrSession
	}
	ac, err := s.store.Access(ctx, account)
	if errors.Is(err, ErrAccountNotFound) {
		return nil, ErrSession
	}
	if err != nil {
		return nil, err
	}
	now, d := s.now(), DigestOf(secret)
	se := ac.session(d, now)
	if se == nil {
		return nil, ErrSession
	}
	if use && now.Sub(se.SeenAt) >= seenEvery {
		ac, err = s.store.UpdateAccess(ctx, account, func(ac *Access) error {
			if se = ac.session(d, now); se == nil {
				return ErrSession
			}
			se.SeenAt = now
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	a, err := s.store.Account(ctx, account)
	if err != nil {
		return nil, err
	}
	return &SignedIn{Account: a, Session: *se, HasPassword: ac.Password != "", secret: secret}, nil
}

// SignOut ends a session. One that has ended already is no error.
func (s *Service) SignOut(ctx context.Context, who *SignedIn) error {
	return s.updateAccess(ctx, who, func(ac *Access) {
		ac.Sessions = slices.DeleteFunc(ac.Sessions, func(se Session) bool { return se.Digest == who.Session.Digest })
	})
}

// SignOutEverywhere ends all sessions of the account, and its links.
func (s *Service) SignOutEverywhere(ctx context.Context, who *SignedIn) error {
	return s.updateAccess(ctx, who, func(ac *Access) { ac.Sessions, ac.Links = nil, nil })
}

// Sessions returns the sessions of the account, the latest first.
func (s *Service) Sessions(ctx context.Context, who *SignedIn) ([]Session, error) {
	ac, err := s.store.Access(ctx, who.Account.ID)
	if err != nil {
		return nil, err
	}
	ac.forgetEnded(s.now())
	slices.Reverse(ac.Sessions)
	return ac.Sessions, nil
}

// AsksPassword reports whether the current password is needed to set another: a link stands
// for it as long as it could have been used.
func (s *Service) AsksPassword(who *SignedIn) bool {
	return who.HasPassword && !(who.Session.ByLink && s.now().Before(who.Session.CreatedAt.Add(SignInLinkLife)))
}

// SetPassword sets the password of the account and ends its links and all sessions but
// this one. Where [Service.AsksPassword] says so it takes the current one, which is tried as
// often as in [Service.SignInByPassword].
func (s *Service) SetPassword(ctx context.Context, who *SignedIn, current, password, address string) error {
	switch {
	case utf8.RuneCountInString(password) < MinPasswordLength:
		return invalid("password", "A password has at least 12 characters")
	case len(password) > MaxPasswordLength:
		return invalid("password", "A password has at most 1024 bytes")
	}
	ac, err := s.store.Access(ctx, who.Account.ID)
	if err != nil {
		return err
	}
	before := ac.Password
	if before != "" && s.AsksPassword(who) {
		if err := s.checkCurrent(ctx, who, before, current, address); err != nil {
			return err
		}
	}
	hash, err := s.hashing.hash(ctx, password)
	if err != nil {
		return err
	}
	_, err = s.store.UpdateAccess(ctx, who.Account.ID, func(ac *Access) error {
		se := ac.session(who.Session.Digest, s.now())
		if se == nil || ac.Password != before {
			return ErrSession // signed out meanwhile, or by another password
		}
		se.ByLink = false // the password has taken its place
		ac.Password, ac.Links, ac.Sessions = hash, nil, []Session{*se}
		return nil
	})
	return err
}

func (s *Service) checkCurrent(ctx context.Context, who *SignedIn, hash, current, address string) error {
	attempt, ok := s.wrong.begin(s.clock(), nameAttempt(who.Account.Name), addressAttempt(address))
	if !ok {
		return ErrManyPasswords
	}
	right, err := s.hashing.matches(ctx, hash, current)
	if right || err != nil {
		attempt.forget()
		return err
	}
	return invalid("current", "This is not the current password")
}

func (s *Service) updateAccess(ctx context.Context, who *SignedIn, fn func(*Access)) error {
	_, err := s.store.UpdateAccess(ctx, who.Account.ID, func(ac *Access) error {
		fn(ac)
		return nil
	})
	return err
}

// session returns the session with a digest that is alive at the time now, nil when there
// is none.
func (ac *Access) session(d Digest, now time.Time) *Session {
	for i := range ac.Sessions {
		if se := &ac.Sessions[i]; se.Digest.same(d) && se.alive(now) {
			return se
		}
	}
	return nil
}

func (se *Session) alive(now time.Time) bool { return now.Before(se.SeenAt.Add(SessionIdle)) }

func (ac *Access) addSession(se Session) {
	if len(ac.Sessions) >= maxSessions {
		slices.SortStableFunc(ac.Sessions, func(a, b Session) int { return a.SeenAt.Compare(b.SeenAt) })
	}
	ac.Sessions = newest(append(ac.Sessions, se), maxSessions)
}

// forgetEnded drops the links and sessions that do not work any more.
func (ac *Access) forgetEnded(now time.Time) {
	ac.Links = slices.DeleteFunc(ac.Links, func(l SignInLink) bool { return !now.Before(l.ExpiresAt) })
	ac.Sessions = slices.DeleteFunc(ac.Sessions, func(se Session) bool { return !se.alive(now) })
}

// newest returns the last n of a list.
func newest[T any](list []T, n int) []T { return slices.Clone(list[max(0, len(list)-n):]) }
