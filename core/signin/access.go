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

// checkOpen returns the error closed if the account is missing or closed.
func (s *Service) checkOpen(ctx context.Context, account string, closed error) error {
	_, err := core.Usable(s.store.Account(ctx, account))
	if errors.Is(err, core.ErrAccountNotFound) {
		return closed
	}
	return err
}

// Client is a browser that asks to sign in.
type Client struct {
	Address   string // IP address
	Browser   string // Credentials.Browser of an earlier sign-in, "" for none
	UserAgent string // of the browser
}

// Login is the input of a sign-in by password. Email is "" for the account's own sign-in.
type Login struct{ Account, Email, Password string }

// Credentials are the secrets that a browser gets when it signs in.
type Credentials struct {
	Account string // the id of the account; not secret
	Session string
	Browser string // to be kept for [core.BrowserLife]; replaces an earlier one
}

// The errors of signing in.
var (
	// ErrSignIn means that the name, the email or the password is wrong, or that there is no password. The text does not say which.
	ErrSignIn = &core.Error{Code: core.CodeUnauthorized, Message: "The name, the email or the password is wrong"}
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
		addSession(ac, c, by, core.Session{ByLink: true}, now)
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

// ByPassword returns the credentials of a new session. A wrong name, email or password is [ErrSignIn], after the same work.
//
// Wrong passwords are bounded by [WrongPasswords] for each name with its email and each address, and by
// [WrongPasswordsNetwork] for each network. Above the bound the error is [ErrTooManyPasswords]. A
// browser that has signed in to the account before has a bound of its own instead. An attempt that
// ends with an error other than ErrSignIn does not count as wrong.
//
// The first attempt of an account's known browsers or sessions goes ahead of all strangers. After a
// wrong one in the last 15 minutes it queues like an unknown client. [ErrBusy] means that too many
// attempts wait.
func (s *Service) ByPassword(ctx context.Context, in Login, by Client) (c Credentials, err error) {
	in.Account, in.Email = strings.TrimSpace(in.Account), core.FoldEmail(strings.TrimSpace(in.Email))
	try, err := s.beginAttempt(ctx, in, by)
	if err != nil {
		return Credentials{}, err
	}
	defer func() {
		if !errors.Is(err, ErrSignIn) {
			s.attempts.forget(try)
		}
	}()
	account, person, hash, err := s.passwordOf(ctx, in)
	if err != nil {
		return Credentials{}, err
	}
	right, err := s.hasher.matches(ctx, try.rank, hash, in.Password)
	if err != nil {
		return Credentials{}, err
	}
	if !right {
		return Credentials{}, ErrSignIn
	}
	c = newCredentials(account)
	_, err = s.store.UpdateAccess(ctx, account, func(ac *core.Access) error {
		if now := ac.PasswordOf(person); now == nil || *now != hash { // the password was changed since passwordOf
			return ErrSignIn
		}
		now := s.now()
		ac.DropExpired(now)
		addSession(ac, c, by, core.Session{PersonID: person}, now)
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

// beginAttempt records that a client tries a password.
func (s *Service) beginAttempt(ctx context.Context, in Login, by Client) (*attempt, error) {
	account, err := s.accountKnowing(ctx, in, by.Browser)
	if err != nil {
		return nil, err
	}
	if account != "" {
		return s.beginKnownAttempt(account, secrets.DigestOf(by.Browser))
	}
	t, ok := s.attempts.begin(s.clock(), nameSubject(in), addressSubjects(by.Address)...)
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
// before as the same person, else "".
func (s *Service) accountKnowing(ctx context.Context, in Login, browser string) (account string, err error) {
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
	person, _, ok := personOf(ac, in.Email)
	if !ok || !slices.ContainsFunc(ac.Browsers, func(b core.Browser) bool { return b.Digest.Equal(d) && b.Known(now) && b.PersonID == person }) {
		return "", nil
	}
	a, err := core.Usable(s.store.Account(ctx, account))
	switch {
	case errors.Is(err, core.ErrAccountNotFound):
		return "", nil
	case err != nil || a.Name != in.Account:
		return "", err
	}
	return account, nil
}

// personOf returns the id and the password hash of the person with an email, or of the account's own sign-in for the email "". ok is false for an unknown
// email.
func personOf(ac *core.Access, email string) (person, hash string, ok bool) {
	if email == "" {
		return "", ac.Password, true
	}
	if p := ac.PersonByEmail(email); p != nil {
		return p.ID, p.Password, true
	}
	return "", "", false
}

// passwordOf returns the account, the person and the hash of the password of a login. Without such an account, person
// or password the hash is "". All cases take the same steps.
func (s *Service) passwordOf(ctx context.Context, in Login) (account, person, hash string, err error) {
	a, err := s.accountByName(ctx, in.Account)
	if errors.Is(err, core.ErrAccountNotFound) {
		a, err = &core.Account{}, nil
	}
	if err != nil {
		return "", "", "", err
	}
	ac, err := s.store.Access(ctx, a.ID)
	if errors.Is(err, core.ErrAccountNotFound) {
		return "", "", "", nil
	}
	if err != nil {
		return "", "", "", err
	}
	person, hash, _ = personOf(ac, in.Email)
	return a.ID, person, hash, nil
}

func newCredentials(account string) Credentials {
	return Credentials{account, newSignInSecret(sessionPrefix, account), newSignInSecret(browserPrefix, account)}
}

// addSession adds a session and a browser. The browser replaces the former entry of the same client. se has the person and how the person signed in;
// addSession sets the other members.
func addSession(ac *core.Access, c Credentials, by Client, se core.Session, now time.Time) {
	se.Digest, se.CreatedAt, se.SeenAt = secrets.DigestOf(c.Session), now, now
	se.Address, se.UserAgent = by.Address, core.CleanUserAgent(by.UserAgent)
	ac.AddSession(se)
	ac.AddBrowser(core.Browser{Digest: secrets.DigestOf(c.Browser), SeenAt: now, PersonID: se.PersonID}, secrets.DigestOf(by.Browser))
	if p := ac.Person(se.PersonID); p != nil {
		p.SeenAt = now
	}
}

// lastN returns the last n elements of a list.
func lastN[T any](list []T, n int) []T { return slices.Clone(list[max(0, len(list)-n):]) }
