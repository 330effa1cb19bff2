package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Account is a company that sells an API: the tenant. Accounts cannot see or affect each other.
type Account struct {
	ID        string    `json:"id"` // acct_…
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`

	KeyPrefix   string   `json:"key_prefix,omitempty"`   // of new keys; "": DefaultKeyPrefix
	KeyPrefixes []string `json:"key_prefixes,omitempty"` // of new and of earlier keys, besides DefaultKeyPrefix
	AnyKeyForm  bool     `json:"any_key_form,omitempty"` // keys need no prefix: each value of key characters is looked up

	Meters []string `json:"meters,omitempty"` // that a plan names or has named, besides requests

	Import *AccountImport `json:"import,omitempty"` // the import that has created the account; nil for none
}

// AccountImport is an import that has created an account. Until it is complete the account lacks records, and the service
// refuses the account.
type AccountImport struct {
	SHA256   string `json:"sha256"` // of the imported records, in hexadecimal digits
	Complete bool   `json:"complete"`
	Run      string `json:"run,omitempty"` // the run of the import that writes the account; other runs have ended
}

// Incomplete reports whether an account lacks records, because its import has not finished.
func (a *Account) Incomplete() bool { return a.Import != nil && !a.Import.Complete }

// The bounds of key prefixes.
const (
	minKeyPrefixLetters = 4  // ordinary words do not begin with the prefix
	maxKeyPrefix        = 32 // bytes
	MaxKeyPrefixes      = 16 // of an account, besides DefaultKeyPrefix
)

// idPrefixes are the prefixes of ids. Ids must not be masked as secrets.
var idPrefixes = []string{"key_", "acct_", "okey_", "plan_", "hold_"} // hold_ is reserved

// CheckKeyPrefix returns an error unless the prefix is valid: [DefaultKeyPrefix], or up to 32 characters of a to z, 0 to 9 and _,
// at least 4 of them letters. It begins with a letter, not with lk_, and ends with _. It is not a suffix of a prefix of ids.
func CheckKeyPrefix(prefix string) error {
	const field, allowed = "key_prefix", "abcdefghijklmnopqrstuvwxyz0123456789_"
	wrong := strings.Trim(prefix, allowed)
	letters := strings.Map(func(r rune) rune {
		if r < 'a' || r > 'z' {
			return -1
		}
		return r
	}, prefix)
	id := slices.IndexFunc(idPrefixes, func(id string) bool { return strings.HasSuffix(id, prefix) })
	switch {
	case prefix == DefaultKeyPrefix:
		return nil
	case prefix == "" || len(prefix) > maxKeyPrefix:
		return invalid(field, fmt.Sprintf("A key prefix has 1 to %d characters, and not %d", maxKeyPrefix, len(prefix)))
	case wrong != "":
		r, _ := utf8.DecodeRuneInString(wrong)
		return invalid(field, fmt.Sprintf("A key prefix has letters a to z, digits and _ only, and not %q", r))
	case prefix[0] < 'a' || prefix[0] > 'z':
		return invalid(field, fmt.Sprintf("A key prefix begins with a letter, and not with %q", prefix[0]))
	case !strings.HasSuffix(prefix, "_"):
		return invalid(field, "A key prefix ends with _, as in acme_live_")
	case len(letters) < minKeyPrefixLetters:
		return invalid(field, fmt.Sprintf("A key prefix has at least %d letters, as in acme_, and not %d", minKeyPrefixLetters, len(letters)))
	case strings.HasPrefix(prefix, ownerPrefix):
		return invalid(field, "A key prefix does not begin with lk_, which is kept for Limitkeeper; only lk_user_ does")
	case id >= 0:
		return invalid(field, fmt.Sprintf("The key prefix %s is the end of the id prefix %s: choose a longer one", prefix, idPrefixes[id]))
	}
	return nil
}

// AccountPatch holds the members of an account to set. A nil pointer leaves the member alone.
type AccountPatch struct {
	KeyPrefix *string // of the keys that are created from now on, see CheckKeyPrefix

	Accept     []string // prefixes of imported keys, to add to KeyPrefixes
	AnyKeyForm *bool    // see [Account]
}

// apply checks and sets the members.
func (p AccountPatch) apply(a *Account) error {
	if p.AnyKeyForm != nil {
		a.AnyKeyForm = *p.AnyKeyForm
	}
	for _, prefix := range p.Accept {
		if err := a.accept(prefix); err != nil {
			return err
		}
	}
	if p.KeyPrefix == nil {
		return nil
	}
	if err := a.accept(*p.KeyPrefix); err != nil {
		return err
	}
	if a.KeyPrefix = *p.KeyPrefix; a.KeyPrefix == DefaultKeyPrefix {
		a.KeyPrefix = ""
	}
	return nil
}

// accept adds a prefix to the key prefixes of the account.
func (a *Account) accept(prefix string) error {
	if err := CheckKeyPrefix(prefix); err != nil {
		return err
	}
	if prefix == DefaultKeyPrefix || slices.Contains(a.KeyPrefixes, prefix) {
		return nil
	}
	if len(a.KeyPrefixes) >= MaxKeyPrefixes {
		return invalid("key_prefix", fmt.Sprintf("An account has at most %d key prefixes besides %s. Choose one that the account has: %s",
			MaxKeyPrefixes, DefaultKeyPrefix, strings.Join(a.KeyPrefixes, " ")))
	}
	a.KeyPrefixes = append(a.KeyPrefixes, prefix)
	return nil
}

// PrefixOfNewKeys returns the prefix of the keys that the account creates.
func (a *Account) PrefixOfNewKeys() string { return cmp.Or(a.KeyPrefix, DefaultKeyPrefix) }

// UpdateAccount sets the members that p names and returns the whole account. Keys with an earlier prefix go on working.
func (s *Service) UpdateAccount(ctx context.Context, id string, p AccountPatch) (*Account, error) {
	var before *Account // set if p changes nothing
	a, err := s.store.UpdateAccount(ctx, id, func(a *Account) error {
		was, had, anyForm := a.KeyPrefix, len(a.KeyPrefixes), a.AnyKeyForm
		if err := p.apply(a); err != nil {
			return err
		}
		if before = nil; a.KeyPrefix == was && len(a.KeyPrefixes) == had && a.AnyKeyForm == anyForm {
			before = a
			return errUnchanged
		}
		return nil
	})
	if errors.Is(err, errUnchanged) {
		return before, nil
	}
	s.prefixes.forget(id)
	return a, err
}

// CheckAccountPatch returns the error that [Service.UpdateAccount] would return for the account with the name, and writes
// nothing. An account that does not exist is checked as a new one.
func (s *Service) CheckAccountPatch(ctx context.Context, name string, p AccountPatch) error {
	a, err := s.AccountByName(ctx, name)
	if errors.Is(err, ErrAccountNotFound) {
		a, err = &Account{}, nil
	}
	if err != nil {
		return err
	}
	return p.apply(a)
}

// accountPrefixes are the key prefixes of an account, in the cache.
type accountPrefixes struct {
	ofNewKeys string
	accepted  []string // besides DefaultKeyPrefix
	anyForm   bool     // see [Account.AnyKeyForm]
}

// loadPrefixes reads the key prefixes of an account.
func (s *Service) loadPrefixes(ctx context.Context, account string) (*accountPrefixes, error) {
	a, err := s.Account(ctx, account)
	if err != nil {
		return nil, err
	}
	return &accountPrefixes{a.PrefixOfNewKeys(), a.KeyPrefixes, a.AnyKeyForm}, nil
}

// prefixOfNewKeys returns the prefix of the new keys of an account, the default prefix for a missing account.
func (s *Service) prefixOfNewKeys(ctx context.Context, account string) (string, error) {
	prefixes, err := s.prefixes.get(ctx, account)
	if errors.Is(err, ErrAccountNotFound) {
		return DefaultKeyPrefix, nil
	}
	if err != nil {
		return "", err
	}
	return prefixes.ofNewKeys, nil
}

// WellFormedKey reports whether a secret has the form of the value of a key of an account: a prefix of the account, and at
// least one letter, digit, _, - or =, at most 256 bytes in all. An account with AnyKeyForm needs no prefix. WellFormedKey
// reads the prefixes from a cache, or on a miss from the store. A secret with the default prefix needs no look-up.
func (s *Service) WellFormedKey(ctx context.Context, account, secret string) (bool, error) {
	if strings.HasPrefix(secret, DefaultKeyPrefix) {
		return hasKeyForm(secret, DefaultKeyPrefix), nil
	}
	if !HasKeyCharacters(secret) {
		return false, nil
	}
	prefixes, err := s.prefixes.get(ctx, account)
	if errors.Is(err, ErrAccountNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return prefixes.anyForm || slices.ContainsFunc(prefixes.accepted, func(p string) bool { return hasKeyForm(secret, p) }), nil
}

// The default caps of an account. They keep one account from filling the disk and memory
// that all accounts share.
const (
	DefaultMaxUsers = 1_000_000
	DefaultMaxKeys  = 1_000_000
	DefaultMaxPlans = 10_000
)

// caps holds the maximum numbers of users, keys and plans of an account.
type caps struct{ users, keys, plans atomic.Int64 }

func (c *caps) set(t Tunables) {
	c.users.Store(int64(cmp.Or(max(t.MaxUsers, 0), DefaultMaxUsers)))
	c.keys.Store(int64(cmp.Or(max(t.MaxKeys, 0), DefaultMaxKeys)))
	c.plans.Store(int64(cmp.Or(max(t.MaxPlans, 0), DefaultMaxPlans)))
}

// CheckRoom returns a validation error unless the account has room for more users and keys under max_users and max_keys.
func (s *Service) CheckRoom(ctx context.Context, account string, users, keys int) error {
	one := Page{Number: 1, Size: 1}
	_, hasUsers, err := s.store.Users(ctx, account, UserFilter{}, one)
	if err != nil {
		return err
	}
	_, hasKeys, err := s.store.Keys(ctx, account, KeyFilter{}, one)
	if err != nil {
		return err
	}
	return errors.Join(
		checkCap("user", s.caps.users.Load(), hasUsers+users-1), // before the last one
		checkCap("key", s.caps.keys.Load(), hasKeys+keys-1))
}

// checkCap returns a validation error with the field kind+"s" if n has reached limit. Call it
// in the transaction that counted n.
func checkCap(kind string, limit int64, n int) error {
	if int64(n) < limit {
		return nil
	}
	return invalid(kind+"s", "The account has reached its cap of "+countNoun(int(limit), kind)+
		"; the operator can raise it with the option max_"+kind+"s")
}

// CreateAccount creates an account with a first owner's key. It returns both and the secret of the
// key, which is shown only once. A name that is taken is [ErrAccountExists].
func (s *Service) CreateAccount(ctx context.Context, name string) (*Account, *OwnerKey, string, error) {
	secret := NewOwnerSecret()
	a, k, err := s.createAccount(ctx, name, secret)
	return a, k, secret, err
}

func (s *Service) createAccount(ctx context.Context, name, secret string) (*Account, *OwnerKey, error) {
	name, err := cleanName("name", name)
	if err != nil {
		return nil, nil, err
	}
	a := &Account{ID: newID("acct_"), Name: name, CreatedAt: s.now()}
	k := s.newOwnerKey(a.ID, "default", secret)
	err = s.store.CreateAccount(ctx, a, k)
	s.ownerKeys.forget(k.Digest) // also after an error: see updateOwnerKey
	if err != nil {
		return nil, nil, err
	}
	return a, k, nil
}

// EnsureAccount creates the account with the name unless it exists, and makes secret one of its
// owner's keys. It may be called any number of times. A secret of another account is
// [ErrOwnerKeyExists]. A revoked secret remains revoked: EnsureAccount returns the account and
// [ErrOwnerKeyRevoked].
func (s *Service) EnsureAccount(ctx context.Context, name, secret string) (*Account, error) {
	if !WellFormedOwnerSecret(secret) {
		return nil, errOwnerKeyForm
	}
	a, err := s.AccountByName(ctx, name)
	if errors.Is(err, ErrAccountNotFound) {
		a, _, err = s.createAccount(ctx, name, secret)
		return a, err
	}
	if err != nil {
		return nil, err
	}
	return a, s.ensureOwnerKey(ctx, a, secret)
}

func (s *Service) ensureOwnerKey(ctx context.Context, a *Account, secret string) error {
	err := s.checkOwnerKey(ctx, a.ID, secret)
	if !errors.Is(err, ErrOwnerKeyNotFound) {
		return err
	}
	k := s.newOwnerKey(a.ID, "configured", secret)
	err = s.store.CreateOwnerKey(ctx, k)
	s.ownerKeys.forget(k.Digest)
	return err
}

// CheckAccount returns the error that [Service.EnsureAccount] would return, and writes nothing.
func (s *Service) CheckAccount(ctx context.Context, name, secret string) error {
	if !WellFormedOwnerSecret(secret) {
		return errOwnerKeyForm
	}
	a, err := s.AccountByName(ctx, name)
	if errors.Is(err, ErrAccountNotFound) {
		a = &Account{} // an existing key belongs to another account
		_, err = cleanName("name", name)
	}
	if err != nil {
		return err
	}
	if err = s.checkOwnerKey(ctx, a.ID, secret); errors.Is(err, ErrOwnerKeyNotFound) {
		return nil
	}
	return err
}

// checkOwnerKey returns nil if the secret is a key of the account that is in force, and else the
// reason.
func (s *Service) checkOwnerKey(ctx context.Context, account, secret string) error {
	k, err := s.store.OwnerKeyByDigest(ctx, DigestOf(secret))
	switch {
	case err != nil:
		return err
	case k.AccountID != account:
		return ErrOwnerKeyExists
	case !k.InForce(s.now()):
		return ErrOwnerKeyRevoked
	}
	return nil
}

// AccountByName returns the account with the name, without surrounding space, or
// [ErrAccountNotFound]. An account that is being imported is [ErrUnavailable].
func (s *Service) AccountByName(ctx context.Context, name string) (*Account, error) {
	return usable(s.store.AccountByName(ctx, strings.TrimSpace(name)))
}

// usable returns an account and its error unless an import of the account has not finished.
func usable(a *Account, err error) (*Account, error) {
	if err != nil {
		return nil, err
	}
	if a.Incomplete() {
		return nil, Unavailable(fmt.Errorf("the account %q is incomplete: its import has not finished. If no import runs, import the same file again", a.Name))
	}
	return a, nil
}

// loadOwnerKey reads an owner's key. The key of an account that is being imported is [ErrUnavailable].
func (s *Service) loadOwnerKey(ctx context.Context, d Digest) (*OwnerKey, error) {
	k, err := s.store.OwnerKeyByDigest(ctx, d)
	if err != nil {
		return nil, err
	}
	if _, err := s.Account(ctx, k.AccountID); err != nil {
		return nil, err
	}
	return k, nil
}

// Health returns nil while requests are counted, as far as the store knows. Else its error is an
// [Error] with the code [CodeUnavailable].
func (s *Service) Health(ctx context.Context) error {
	if h, ok := s.store.(HealthStore); ok {
		return h.Health(ctx)
	}
	_, err := s.store.AccountByName(ctx, "health")
	if errors.Is(err, ErrAccountNotFound) {
		return nil
	}
	return err
}

// Accounts returns a page of all accounts, oldest first, and their total.
func (s *Service) Accounts(ctx context.Context, p Page) ([]*Account, int, error) {
	return s.store.Accounts(ctx, p)
}

// Account returns the account with the id, or [ErrAccountNotFound]. An account that is being imported is [ErrUnavailable].
func (s *Service) Account(ctx context.Context, id string) (*Account, error) {
	return usable(s.store.Account(ctx, id))
}
