package core

import (
	"context"
	"crypto/subtle"
	"errors"
	"slices"
	"strings"
	"time"
)

// The bounds of signing in.
const (
	SignInLinkLife = 10 * time.Minute // a link works once within this time
	SessionIdle    = 12 * time.Hour   // a session ends after this time without use

	MinPasswordLength = 12   // characters
	MaxPasswordLength = 1024 // bytes

	maxSessions = 20 // of an account; above it the session with the oldest use ends
	maxLinks    = 20 // unused links of an account

	// BrowserLife is how long a browser stays known after it signed in.
	BrowserLife = 180 * 24 * time.Hour
	maxBrowsers = 20 // of an account; above it the oldest entry is dropped

	seenResolution = 5 * time.Minute // resolution of Session.SeenAt
)

// Access holds the ways in which people sign in to an account.
type Access struct {
	Password string       `json:"password,omitempty"` // its argon2id hash in the PHC string format; "" for none
	Links    []SignInLink `json:"links,omitempty"`    // unused
	Sessions []Session    `json:"sessions,omitempty"`
	Browsers []Browser    `json:"browsers,omitempty"` // known browsers
}

// Browser is a browser that has signed in. Its secret does not sign in. The secret lets this
// browser try passwords after strangers have used up the bound of the account's name.
type Browser struct {
	Digest Digest    `json:"digest"`  // of the secret in the browser
	SeenAt time.Time `json:"seen_at"` // last sign-in
}

// Client is a browser that asks to sign in.
type Client struct {
	Address string // IP address
	Browser string // Credentials.Browser of an earlier sign-in, "" for none
}

// Credentials are the secrets that a browser gets when it signs in.
type Credentials struct {
	Account string // the id of the account; not secret
	Session string
	Browser string // to be kept for [BrowserLife]; replaces an earlier one
}

// SignInLink is a secret that may be used once in place of a password.
type SignInLink struct {
	Digest    Digest    `json:"digest"`
	ExpiresAt time.Time `json:"expires_at"`
}

// The errors of signing in.
var (
	// ErrSignIn means that the name or the password is wrong, or that the account has no password.
	// It does not say which.
	ErrSignIn = &Error{Code: CodeUnauthorized, Message: "The name or the password is wrong"}
	// ErrSignInLink means that a link was used, has expired or never existed.
	ErrSignInLink = &Error{Code: CodeUnauthorized, Message: "This link was used already, or is older than ten minutes"}
	// ErrSession means that a session has ended or never existed.
	ErrSession = &Error{Code: CodeUnauthorized, Message: "Please sign in"}
	// ErrTooManyPasswords means that too many wrong passwords were tried.
	ErrTooManyPasswords = &Error{Code: CodeRateLimitExceeded, Message: "Too many wrong passwords: try again in 15 minutes, or sign in by a link"}

	errCurrent = invalid("current", "This is not the current password")
)

// The prefixes of the secrets of signing in. The id of the account follows, and a dash.
const (
	linkPrefix    = "lk_link_"
	sessionPrefix = "lk_session_"
	browserPrefix = "lk_browser_"
	signInRandom  = 43 // letters or digits: more than 256 bits
)

// newSignInSecret returns a new secret for signing in to an account.
func newSignInSecret(prefix, account string) string {
	return prefix + account + "-" + random(signInRandom)
}

// accountOfSecret returns the account id in a secret, if the secret is well formed.
func accountOfSecret(secret, prefix string) (account string, ok bool) {
	rest, ok := strings.CutPrefix(secret, prefix)
	i := strings.LastIndexByte(rest, '-')
	if !ok || len(secret) > maxSecretLength || i <= 0 || len(rest)-i-1 != signInRandom || !ownerBytes.containsAll(rest[i+1:]) {
		return "", false
	}
	return rest[:i], true
}

// equal compares digests in constant time.
func (d Digest) equal(other Digest) bool { return subtle.ConstantTimeCompare(d[:], other[:]) == 1 }

// NewSignInLink returns the secret of a link that signs in once to the account with the name, and
// when it expires. An unknown name is [ErrAccountNotFound].
func (s *Service) NewSignInLink(ctx context.Context, name string) (a *Account, secret string, expires time.Time, err error) {
	if a, err = s.AccountByName(ctx, name); err != nil {
		return nil, "", time.Time{}, err
	}
	secret = newSignInSecret(linkPrefix, a.ID)
	now := s.now()
	expires = now.Add(SignInLinkLife)
	_, err = s.store.UpdateAccess(ctx, a.ID, func(ac *Access) error {
		ac.dropExpired(now)
		ac.Links = lastN(append(ac.Links, SignInLink{DigestOf(secret), expires}), maxLinks)
		return nil
	})
	return a, secret, expires, err
}

// SignInByLink uses up a link and returns the credentials of a new session. A link that does not
// work is [ErrSignInLink]. SignInByLink hashes no password, so that wrong passwords, however many,
// do not keep a link from working.
func (s *Service) SignInByLink(ctx context.Context, link string, by Client) (Credentials, error) {
	account, ok := accountOfSecret(link, linkPrefix)
	if !ok {
		return Credentials{}, ErrSignInLink
	}
	d := DigestOf(link)
	c := newCredentials(account)
	_, err := s.store.UpdateAccess(ctx, account, func(ac *Access) error {
		now := s.now()
		ac.dropExpired(now)
		i := slices.IndexFunc(ac.Links, func(l SignInLink) bool { return l.Digest.equal(d) })
		if i < 0 {
			return ErrSignInLink
		}
		ac.Links = slices.Delete(ac.Links, i, i+1)
		ac.signIn(c, by, true, now)
		return nil
	})
	if errors.Is(err, ErrAccountNotFound) {
		err = ErrSignInLink
	}
	if err != nil {
		return Credentials{}, err
	}
	return c, nil
}

// SignInByPassword returns the credentials of a new session for the account with the name. A wrong
// name or password is [ErrSignIn], after the same work.
//
// Wrong passwords are bounded by [WrongPasswords] for each name and each address, and by
// [WrongPasswordsNetwork] for each network. Above the bound the error is [ErrTooManyPasswords]. A
// browser that has signed in to the account before has a bound of its own instead. An attempt that
// ends with an error other than ErrSignIn does not count as wrong.
//
// The first attempt of an account's known browsers or sessions goes ahead of all strangers. After a
// wrong one in the last 15 minutes it queues like an unknown client. [ErrBusy] means that too many
// attempts wait.
func (s *Service) SignInByPassword(ctx context.Context, name, password string, by Client) (c Credentials, err error) {
	name = strings.TrimSpace(name)
	try, err := s.beginAttempt(ctx, name, by)
	if err != nil {
		return Credentials{}, err
	}
	defer func() {
		if !errors.Is(err, ErrSignIn) {
			s.attempts.forget(try)
		}
	}()
	account, hash, err := s.passwordOf(ctx, name)
	if err != nil {
		return Credentials{}, err
	}
	right, err := s.hasher.matches(ctx, try.rank, hash, password)
	if err != nil {
		return Credentials{}, err
	}
	if !right {
		return Credentials{}, ErrSignIn
	}
	c = newCredentials(account)
	_, err = s.store.UpdateAccess(ctx, account, func(ac *Access) error {
		if ac.Password != hash { // the password was changed since passwordOf
			return ErrSignIn
		}
		now := s.now()
		ac.dropExpired(now)
		ac.signIn(c, by, false, now)
		return nil
	})
	if err != nil {
		return Credentials{}, err
	}
	return c, nil
}

// beginAttempt records that a client tries a password for the account with the name.
func (s *Service) beginAttempt(ctx context.Context, name string, by Client) (*attempt, error) {
	account, err := s.accountKnowing(ctx, name, by.Browser)
	if err != nil {
		return nil, err
	}
	if account != "" {
		return s.beginKnownAttempt(account, DigestOf(by.Browser))
	}
	t, ok := s.attempts.begin(s.clock(), nameSubject(name), addressSubjects(by.Address)...)
	if !ok {
		return nil, ErrTooManyPasswords
	}
	return t, nil
}

// beginKnownAttempt records that a known browser or a session of an account tries a password. Only
// the first attempt of an account ranks ahead of strangers, so that one account cannot keep
// all others waiting.
func (s *Service) beginKnownAttempt(account string, browser Digest) (*attempt, error) {
	t, ok := s.attempts.begin(s.clock(), subject{browser, WrongPasswords}, subject{id: DigestOf("known " + account)})
	if !ok {
		return nil, ErrTooManyPasswords
	}
	t.rank += knownRank
	return t, nil
}

// accountKnowing returns the id of the account with the name if the browser has signed in to it
// before, else "".
func (s *Service) accountKnowing(ctx context.Context, name, browser string) (account string, err error) {
	account, ok := accountOfSecret(browser, browserPrefix)
	if !ok {
		return "", nil
	}
	ac, err := s.store.Access(ctx, account)
	if errors.Is(err, ErrAccountNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	d, now := DigestOf(browser), s.now()
	if !slices.ContainsFunc(ac.Browsers, func(b Browser) bool { return b.Digest.equal(d) && b.known(now) }) {
		return "", nil
	}
	a, err := s.Account(ctx, account)
	if err != nil || a.Name != name {
		return "", err
	}
	return account, nil
}

// passwordOf returns the account with a name and the hash of its password. Without such an account
// or password the hash is "". Both cases take the same steps.
func (s *Service) passwordOf(ctx context.Context, name string) (account, hash string, err error) {
	a, err := s.AccountByName(ctx, name)
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

func newCredentials(account string) Credentials {
	return Credentials{account, newSignInSecret(sessionPrefix, account), newSignInSecret(browserPrefix, account)}
}

// signIn adds a session and a browser. The browser replaces the former entry of the same client.
func (ac *Access) signIn(c Credentials, by Client, byLink bool, now time.Time) {
	if len(ac.Sessions) >= maxSessions {
		slices.SortStableFunc(ac.Sessions, func(a, b Session) int { return a.SeenAt.Compare(b.SeenAt) })
	}
	ac.Sessions = lastN(append(ac.Sessions, Session{Digest: DigestOf(c.Session), ByLink: byLink, CreatedAt: now, SeenAt: now}), maxSessions)
	before := DigestOf(by.Browser)
	ac.Browsers = slices.DeleteFunc(ac.Browsers, func(b Browser) bool { return b.Digest.equal(before) })
	ac.Browsers = lastN(append(ac.Browsers, Browser{DigestOf(c.Browser), now}), maxBrowsers)
}

func (b Browser) known(now time.Time) bool { return now.Before(b.SeenAt.Add(BrowserLife)) }

// dropExpired drops links, sessions and browsers that have expired.
func (ac *Access) dropExpired(now time.Time) {
	ac.Links = slices.DeleteFunc(ac.Links, func(l SignInLink) bool { return !now.Before(l.ExpiresAt) })
	ac.Sessions = slices.DeleteFunc(ac.Sessions, func(se Session) bool { return !se.alive(now) })
	ac.Browsers = slices.DeleteFunc(ac.Browsers, func(b Browser) bool { return !b.known(now) })
}

// lastN returns the last n elements of a list.
func lastN[T any](list []T, n int) []T { return slices.Clone(list[max(0, len(list)-n):]) }
