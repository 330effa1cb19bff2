package signin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The bounds of signing in.
const (
	SignInLinkLife = 10 * time.Minute // a link works once within this time

	MinPasswordLength = 12   // characters
	MaxPasswordLength = 1024 // bytes

	seenResolution = 5 * time.Minute // resolution of Session.SeenAt
)

// Service signs people in to their accounts over a [core.Store]. It is safe for concurrent use.
type Service struct {
	store    core.Store
	clock    func() time.Time
	attempts *attempts // passwords that were tried
	hasher   *hasher
}

// New returns a sign-in over the store. Each password that is hashed holds one of the processors.
func New(store core.Store, clock func() time.Time, processors *semaphore.Weighted) *Service {
	return &Service{store: store, clock: clock, attempts: newAttempts(), hasher: newHasher(processors)}
}

// now returns the time as it is stored and shown: in UTC, in milliseconds.
func (s *Service) now() time.Time { return s.clock().UTC().Truncate(time.Millisecond) }

// accountByName returns the account with the name, without surrounding space, or [core.ErrAccountNotFound].
func (s *Service) accountByName(ctx context.Context, name string) (*core.Account, error) {
	return core.Usable(s.store.AccountByName(ctx, strings.TrimSpace(name)))
}

// checkOpen returns closed, an error of the package, if the account does not exist or is closed.
func (s *Service) checkOpen(ctx context.Context, account string, closed error) error {
	_, err := core.Usable(s.store.Account(ctx, account))
	if errors.Is(err, core.ErrAccountNotFound) {
		return closed
	}
	return err
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
	Browser string // to be kept for [core.BrowserLife]; replaces an earlier one
}

// The errors of signing in.
var (
	// ErrSignIn means that the name or the password is wrong, or that the account has no password.
	// It does not say which.
	ErrSignIn = &core.Error{Code: core.CodeUnauthorized, Message: "The name or the password is wrong"}
	// ErrSignInLink means that a link was used, has expired or never existed.
	ErrSignInLink = &core.Error{Code: core.CodeUnauthorized, Message: "This link was used already, or is older than ten minutes"}
	// ErrSession means that a session has ended or never existed.
	ErrSession = &core.Error{Code: core.CodeUnauthorized, Message: "Please sign in"}
	// ErrTooManyPasswords means that too many wrong passwords were tried.
	ErrTooManyPasswords = &core.Error{Code: core.CodeRateLimitExceeded, Message: "Too many wrong passwords: try again in 15 minutes, or sign in by a link"}

	errCurrent = core.Invalid("current", "This is not the current password")
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
	return prefix + account + "-" + secrets.Random(signInRandom)
}

// accountOfSecret returns the account id in a secret, if the secret is well formed.
func accountOfSecret(secret, prefix string) (account string, ok bool) {
	rest, ok := strings.CutPrefix(secret, prefix)
	i := strings.LastIndexByte(rest, '-')
	if !ok || len(secret) > secrets.MaxLength || i <= 0 || len(rest)-i-1 != signInRandom || !secrets.IsRandom(rest[i+1:]) {
		return "", false
	}
	return rest[:i], true
}

// NewLink returns the secret of a link that signs in once to the account with the name, and
// when it expires. An unknown name is [core.ErrAccountNotFound].
func (s *Service) NewLink(ctx context.Context, name string) (a *core.Account, secret string, expires time.Time, err error) {
	if a, err = s.accountByName(ctx, name); err != nil {
		return nil, "", time.Time{}, err
	}
	secret = newSignInSecret(linkPrefix, a.ID)
	now := s.now()
	expires = now.Add(SignInLinkLife)
	_, err = s.store.UpdateAccess(ctx, a.ID, func(ac *core.Access) error {
		ac.DropExpired(now)
		ac.Links = lastN(append(ac.Links, core.SignInLink{Digest: secrets.DigestOf(secret), ExpiresAt: expires}), core.MaxLinks)
		return nil
	})
	return a, secret, expires, err
}

// ByLink uses up a link and returns the credentials of a new session. A link that does not
// work is [ErrSignInLink]. ByLink hashes no password, so that wrong passwords, however many,
// do not keep a link from working.
func (s *Service) ByLink(ctx context.Context, link string, by Client) (Credentials, error) {
	account, ok := accountOfSecret(link, linkPrefix)
	if !ok {
		return Credentials{}, ErrSignInLink
	}
	if err := s.checkOpen(ctx, account, ErrSignInLink); err != nil {
		return Credentials{}, err
	}
	d := secrets.DigestOf(link)
	c := newCredentials(account)
	_, err := s.store.UpdateAccess(ctx, account, func(ac *core.Access) error {
		now := s.now()
		ac.DropExpired(now)
		i := slices.IndexFunc(ac.Links, func(l core.SignInLink) bool { return l.Digest.Equal(d) })
		if i < 0 {
			return ErrSignInLink
		}
		ac.Links = slices.Delete(ac.Links, i, i+1)
		addSession(ac, c, by, true, now)
		return nil
	})
	if errors.Is(err, core.ErrAccountNotFound) {
		err = ErrSignInLink
	}
	if err != nil {
		return Credentials{}, err
	}
	return c, nil
}

// ByPassword returns the credentials of a new session for the account with the name. A wrong
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
func (s *Service) ByPassword(ctx context.Context, name, password string, by Client) (c Credentials, err error) {
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
	_, err = s.store.UpdateAccess(ctx, account, func(ac *core.Access) error {
		if ac.Password != hash { // the password was changed since passwordOf
			return ErrSignIn
		}
		now := s.now()
		ac.DropExpired(now)
		addSession(ac, c, by, false, now)
		return nil
	})
	if errors.Is(err, core.ErrAccountNotFound) { // deleted since passwordOf
		err = ErrSignIn
	}
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
		return s.beginKnownAttempt(account, secrets.DigestOf(by.Browser))
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
func (s *Service) beginKnownAttempt(account string, browser secrets.Digest) (*attempt, error) {
	t, ok := s.attempts.begin(s.clock(), subject{browser, WrongPasswords}, subject{id: secrets.DigestOf("known " + account)})
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
	if errors.Is(err, core.ErrAccountNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	d, now := secrets.DigestOf(browser), s.now()
	if !slices.ContainsFunc(ac.Browsers, func(b core.Browser) bool { return b.Digest.Equal(d) && b.Known(now) }) {
		return "", nil
	}
	a, err := core.Usable(s.store.Account(ctx, account))
	switch {
	case errors.Is(err, core.ErrAccountNotFound):
		return "", nil
	case err != nil || a.Name != name:
		return "", err
	}
	return account, nil
}

// passwordOf returns the account with a name and the hash of its password. Without such an account
// or password the hash is "". Both cases take the same steps.
func (s *Service) passwordOf(ctx context.Context, name string) (account, hash string, err error) {
	a, err := s.accountByName(ctx, name)
	if errors.Is(err, core.ErrAccountNotFound) {
		a, err = &core.Account{}, nil
	}
	if err != nil {
		return "", "", err
	}
	ac, err := s.store.Access(ctx, a.ID)
	if errors.Is(err, core.ErrAccountNotFound) {
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

// addSession adds a session and a browser. The browser replaces the former entry of the same client.
func addSession(ac *core.Access, c Credentials, by Client, byLink bool, now time.Time) {
	if len(ac.Sessions) >= core.MaxSessions {
		slices.SortStableFunc(ac.Sessions, func(a, b core.Session) int { return a.SeenAt.Compare(b.SeenAt) })
	}
	ac.Sessions = lastN(append(ac.Sessions, core.Session{Digest: secrets.DigestOf(c.Session), ByLink: byLink, CreatedAt: now, SeenAt: now}), core.MaxSessions)
	before := secrets.DigestOf(by.Browser)
	ac.Browsers = slices.DeleteFunc(ac.Browsers, func(b core.Browser) bool { return b.Digest.Equal(before) })
	ac.Browsers = lastN(append(ac.Browsers, core.Browser{Digest: secrets.DigestOf(c.Browser), SeenAt: now}), core.MaxBrowsers)
}

// lastN returns the last n elements of a list.
func lastN[T any](list []T, n int) []T { return slices.Clone(list[max(0, len(list)-n):]) }
