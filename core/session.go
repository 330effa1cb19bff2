package core

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
)

// Session is a browser that is signed in.
type Session struct {
	Digest    Digest    `json:"digest"` // of the secret that the browser has
	ByLink    bool      `json:"by_link,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	SeenAt    time.Time `json:"seen_at"` // the last use, about

	SpentForms []FormToken `json:"spent,omitempty"`     // the forms that were sent, see [Service.SpendForm]
	FormsAfter time.Time   `json:"forms_from,omitzero"` // older ones are not taken
}

// FormToken is a form that was sent.
type FormToken struct {
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

// ErrFormToken means that a form was sent already, is too old, or is not one of this session.
var ErrFormToken = invalid("form", "This form was sent already, or is too old: see whether what it is for is done, and fill it in once more if not")

const (
	formNonce = 16 // bytes: the time in nanoseconds, then random ones
	maxSpent  = 50 // forms that a session remembers; older ones are not taken any more
)

// SignedIn returns who has a session. With use it was used by a person: a page that is open
// and asks by itself keeps no session alive. One that has ended is [ErrSession].
func (s *Service) SignedIn(ctx context.Context, secret string, use bool) (*SignedIn, error) {
	account, ok := accountOfSecret(secret, sessionPrefix)
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
	if use && now.Sub(se.SeenAt) >= seenResolution {
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
func (s *Service) SignOut(ctx context.Context, si *SignedIn) error {
	return s.updateAccess(ctx, si, func(ac *Access) {
		ac.Sessions = slices.DeleteFunc(ac.Sessions, func(se Session) bool { return se.Digest == si.Session.Digest })
	})
}

// SignOutEverywhere ends all sessions of the account and its links, and forgets its browsers.
func (s *Service) SignOutEverywhere(ctx context.Context, si *SignedIn) error {
	return s.updateAccess(ctx, si, func(ac *Access) { ac.Sessions, ac.Links, ac.Browsers = nil, nil, nil })
}

// Sessions returns the sessions of the account, the latest first.
func (s *Service) Sessions(ctx context.Context, si *SignedIn) ([]Session, error) {
	ac, err := s.store.Access(ctx, si.Account.ID)
	if err != nil {
		return nil, err
	}
	ac.dropExpired(s.now())
	slices.Reverse(ac.Sessions)
	return ac.Sessions, nil
}

// AsksPassword reports whether the current password is needed to set another: a link stands
// for it as long as it could have been used.
func (s *Service) AsksPassword(si *SignedIn) bool {
	return si.HasPassword && !(si.Session.ByLink && s.now().Before(si.Session.CreatedAt.Add(SignInLinkLife)))
}

// SetPassword sets the password of the account and ends its links and all sessions but
// this one. Where [Service.AsksPassword] says so it takes the current one, which a session
// may try [WrongPasswords] times in [WrongPasswordsIn].
func (s *Service) SetPassword(ctx context.Context, si *SignedIn, current, password string) (err error) {
	switch {
	case utf8.RuneCountInString(password) < MinPasswordLength:
		return invalid("password", "A password has at least 12 characters")
	case len(password) > MaxPasswordLength:
		return invalid("password", "A password has at most 1024 bytes")
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
	before := ac.Password
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
	_, err = s.store.UpdateAccess(ctx, si.Account.ID, func(ac *Access) error {
		se := ac.session(si.Session.Digest, s.now())
		if se == nil || ac.Password != before {
			return ErrSession // signed out meanwhile, or by another password
		}
		se.ByLink = false // the password has taken its place
		ac.Password, ac.Links, ac.Sessions = hash, nil, []Session{*se}
		return nil
	})
	return err
}

func (s *Service) updateAccess(ctx context.Context, si *SignedIn, fn func(*Access)) error {
	_, err := s.store.UpdateAccess(ctx, si.Account.ID, func(ac *Access) error {
		fn(ac)
		return nil
	})
	return err
}

// session returns the session with a digest that is alive at the time now, nil when there
// is none.
func (ac *Access) session(d Digest, now time.Time) *Session {
	for i := range ac.Sessions {
		if se := &ac.Sessions[i]; se.Digest.equal(d) && se.alive(now) {
			return se
		}
	}
	return nil
}

func (se *Session) alive(now time.Time) bool { return now.Before(se.SeenAt.Add(SessionIdle)) }

// A form is given out with a token that its session alone has, and is taken once: sent
// again it changes nothing. What was taken is noted in the session, so that every node
// knows.

// NewFormToken returns the token of a form.
func (s *Service) NewFormToken(si *SignedIn) string {
	nonce := make([]byte, formNonce, formNonce+sha256.Size)
	_, _ = rand.Read(nonce) // crypto/rand.Read never fails
	binary.BigEndian.PutUint64(nonce, uint64(s.clock().UnixNano()))
	return base64.RawURLEncoding.EncodeToString(si.seal(nonce))
}

// seal appends what only who has the session can make of b.
func (si *SignedIn) seal(b []byte) []byte {
	mac := hmac.New(sha256.New, []byte(si.secret))
	mac.Write(b)
	return mac.Sum(b)
}

// SpendFormToken takes a form by its token. One that was taken is [ErrFormToken].
func (s *Service) SpendFormToken(ctx context.Context, si *SignedIn, token string) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != formNonce+sha256.Size || !hmac.Equal(si.seal(slices.Clone(b[:formNonce])), b) {
		return ErrFormToken
	}
	form := FormToken{ID: base64.RawURLEncoding.EncodeToString(b[:formNonce]), At: time.Unix(0, int64(binary.BigEndian.Uint64(b))).UTC()}
	_, err = s.store.UpdateAccess(ctx, si.Account.ID, func(ac *Access) error {
		now := s.now()
		se := ac.session(si.Session.Digest, now)
		switch {
		case se == nil:
			return ErrSession
		case !form.At.After(se.FormsAfter), now.Sub(form.At) >= SessionIdle, slices.Contains(se.SpentForms, form):
			return ErrFormToken
		}
		se.SpentForms = append(se.SpentForms, form)
		if len(se.SpentForms) > maxSpent {
			slices.SortFunc(se.SpentForms, func(a, b FormToken) int { return a.At.Compare(b.At) })
			se.FormsAfter = se.SpentForms[0].At
			se.SpentForms = slices.Delete(se.SpentForms, 0, 1)
		}
		return nil
	})
	return err
}
