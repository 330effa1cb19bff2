package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// UpdateAccount sets the members that p names and returns the whole account. Keys with an earlier prefix go on working.
func (s *Service) UpdateAccount(ctx context.Context, id string, p core.AccountPatch) (*core.Account, error) {
	var before *core.Account // set if p changes nothing
	a, err := s.store.UpdateAccount(s.acting(ctx), id, func(a *core.Account) error {
		was, had, anyForm := a.KeyPrefix, len(a.KeyPrefixes), a.AnyKeyForm
		if err := p.Apply(a); err != nil {
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
	s.accounts.forget(id)
	return a, err
}

// CheckAccountPatch returns the error that [Service.UpdateAccount] would return for the account with the name, and writes
// nothing. An account that does not exist is checked as a new one.
func (s *Service) CheckAccountPatch(ctx context.Context, name string, p core.AccountPatch) error {
	a, err := s.AccountByName(ctx, name)
	if errors.Is(err, core.ErrAccountNotFound) {
		a, err = &core.Account{}, nil
	}
	if err != nil {
		return err
	}
	return p.Apply(a)
}

// cachedAccount returns an account from the cache, of which the key prefixes are current. A missing account is one without members.
func (s *Service) cachedAccount(ctx context.Context, id string) (*core.Account, error) {
	a, err := s.accounts.get(ctx, id)
	if errors.Is(err, core.ErrAccountNotFound) {
		return &core.Account{}, nil
	}
	return a, err
}

// WellFormedKey reports whether a secret has the form of the value of a key of an account: a prefix of the account, and at
// least one letter, digit, _, - or =, at most 256 bytes in all. An account with AnyKeyForm needs no prefix. WellFormedKey
// reads the prefixes from a cache, or on a miss from the store. A secret with the default prefix needs no look-up.
func (s *Service) WellFormedKey(ctx context.Context, account, secret string) (bool, error) {
	if strings.HasPrefix(secret, secrets.DefaultKeyPrefix) {
		return secrets.HasForm(secret, secrets.DefaultKeyPrefix), nil
	}
	if !secrets.HasKeyCharacters(secret) {
		return false, nil
	}
	a, err := s.cachedAccount(ctx, account)
	if err != nil {
		return false, err
	}
	return a.AnyKeyForm || slices.ContainsFunc(a.KeyPrefixes, func(p string) bool { return secrets.HasForm(secret, p) }), nil
}

// CheckRoom returns a validation error unless the account has room for more users and keys under max_users and max_keys.
func (s *Service) CheckRoom(ctx context.Context, account string, users, keys int) error {
	one := core.Page{Number: 1, Size: 1}
	_, hasUsers, err := s.store.Users(ctx, account, core.UserFilter{}, one)
	if err != nil {
		return err
	}
	_, hasKeys, err := s.store.Keys(ctx, account, core.KeyFilter{}, one)
	if err != nil {
		return err
	}
	return errors.Join(
		checkCap("user", s.tunables.Load().MaxUsers, hasUsers+users-1), // before the last one
		checkCap("key", s.tunables.Load().MaxKeys, hasKeys+keys-1))
}

// checkCap returns a validation error with the field kind+"s" if n has reached limit. Call it
// in the transaction that counted n.
func checkCap(kind string, limit, n int) error {
	if n < limit {
		return nil
	}
	return core.Invalid(kind+"s", "The account has reached its cap of "+countNoun(limit, kind)+
		"; the operator can raise it with the option max_"+kind+"s")
}

// countNoun puts a number before a noun: "1 key", "2 keys".
func countNoun(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// CreateAccount creates an account with a first owner's key. It returns both and the secret of the
// key, which is shown only once. A name that is taken is [core.ErrAccountExists].
func (s *Service) CreateAccount(ctx context.Context, name string) (*core.Account, *core.OwnerKey, string, error) {
	secret := secrets.NewOwnerSecret()
	a, k, err := s.createAccount(ctx, name, secret)
	return a, k, secret, err
}

func (s *Service) createAccount(ctx context.Context, name, secret string) (*core.Account, *core.OwnerKey, error) {
	name, err := core.CleanName("name", name)
	if err != nil {
		return nil, nil, err
	}
	a := &core.Account{ID: secrets.NewID("acct_"), Name: name, CreatedAt: s.now()}
	k := s.newOwnerKey(a.ID, core.OwnerKeySpec{Name: "default", Role: core.RoleOwner}, secret)
	err = s.store.CreateAccount(s.acting(ctx), a, k)
	s.ownerKeys.forget(k.Digest) // also after an error: see updateOwnerKey
	if err != nil {
		return nil, nil, err
	}
	return a, k, nil
}

// EnsureAccount creates the account with the name unless it exists, and makes secret one of its
// owner's keys. It may be called any number of times. A secret of another account is
// [core.ErrOwnerKeyExists]. A revoked secret remains revoked: EnsureAccount returns the account and
// [core.ErrOwnerKeyRevoked]. A disabled account stays disabled: EnsureAccount returns the account and [ErrAccountDisabled]. A former name of a
// renamed account is a [RenamedError].
func (s *Service) EnsureAccount(ctx context.Context, name, secret string) (*core.Account, error) {
	a, err := s.accountWithKey(ctx, name, secret)
	switch {
	case !errors.Is(err, core.ErrOwnerKeyNotFound):
		return a, err
	case a == nil:
		a, _, err = s.createAccount(ctx, name, secret)
		return a, err
	}
	return a, s.storeOwnerKey(ctx, s.newOwnerKey(a.ID, core.OwnerKeySpec{Name: "configured", Role: core.RoleOwner}, secret))
}

// CheckAccount returns the error that [Service.EnsureAccount] would return, and writes nothing.
func (s *Service) CheckAccount(ctx context.Context, name, secret string) error {
	_, err := s.accountWithKey(ctx, name, secret)
	if errors.Is(err, core.ErrOwnerKeyNotFound) {
		return nil
	}
	return err
}

// ErrAccountDisabled means that the configuration names a disabled account.
var ErrAccountDisabled = errors.New("the account is disabled: limitkeeper account enable brings it back")

// RenamedError means that the configuration names an account by its former name.
type RenamedError struct{ Before, Now string }

// Error implements error.
func (e *RenamedError) Error() string {
	return fmt.Sprintf("the account %q has been renamed to %q: change the name in the configuration. For a new account with the old name, run limitkeeper account create first", e.Before, e.Now)
}

// accountWithKey returns the account with the name, nil if it can be created. The error is nil if the secret is a key of the account that is in
// force, and [core.ErrOwnerKeyNotFound] if the secret can become one.
func (s *Service) accountWithKey(ctx context.Context, name, secret string) (*core.Account, error) {
	if !secrets.WellFormedOwnerSecret(secret) {
		return nil, errOwnerKeyForm
	}
	a, err := s.store.AccountByName(ctx, strings.TrimSpace(name))
	switch {
	case errors.Is(err, core.ErrAccountNotFound):
		if _, err = core.CleanName("name", name); err == nil {
			err = s.checkNotRenamed(ctx, name)
		}
	case err == nil && a.Disabled:
		return a, ErrAccountDisabled
	default:
		a, err = core.Usable(a, err)
	}
	if err != nil {
		return nil, err
	}
	k, err := s.store.OwnerKeyByDigest(ctx, secrets.DigestOf(secret))
	switch {
	case err != nil:
		return a, err
	case a == nil || k.AccountID != a.ID:
		return a, core.ErrOwnerKeyExists
	case !k.InForce(s.now()):
		return a, core.ErrOwnerKeyRevoked
	}
	return a, nil
}

// checkNotRenamed returns a [RenamedError] if the name is the former name of an account.
func (s *Service) checkNotRenamed(ctx context.Context, name string) error {
	a, err := s.RenamedAccount(ctx, name)
	if a != nil {
		err = &RenamedError{strings.TrimSpace(name), a.Name}
	}
	return err
}

// AccountByName returns the account with the name, without surrounding space, or
// [core.ErrAccountNotFound], also for a closed account. An account that is being imported is [core.ErrUnavailable].
func (s *Service) AccountByName(ctx context.Context, name string) (*core.Account, error) {
	return core.Usable(s.store.AccountByName(ctx, strings.TrimSpace(name)))
}

// loadOwnerKey reads an owner's key. The key of an account that is being imported is [core.ErrUnavailable], and the key of a closed account is
// [core.ErrOwnerKeyNotFound].
func (s *Service) loadOwnerKey(ctx context.Context, d secrets.Digest) (*core.OwnerKey, error) {
	k, err := s.store.OwnerKeyByDigest(ctx, d)
	if err != nil {
		return nil, err
	}
	_, err = s.Account(ctx, k.AccountID)
	switch {
	case errors.Is(err, core.ErrAccountNotFound):
		return nil, core.ErrOwnerKeyNotFound
	case err != nil:
		return nil, err
	}
	return k, nil
}

// Health returns nil while requests are counted, as far as the store knows. Else its error is an
// [core.Error] with the code [core.CodeUnavailable].
func (s *Service) Health(ctx context.Context) error {
	if h, ok := s.store.(core.HealthStore); ok {
		return h.Health(ctx)
	}
	_, err := s.store.AccountByName(ctx, "health")
	if errors.Is(err, core.ErrAccountNotFound) {
		return nil
	}
	return err
}

// Accounts returns a page of all accounts, oldest first, and their total.
func (s *Service) Accounts(ctx context.Context, p core.Page) ([]*core.Account, int, error) {
	return s.store.Accounts(ctx, p)
}

// EachAccount calls fn with each account, oldest first, until an error.
func (s *Service) EachAccount(ctx context.Context, fn func(*core.Account) error) error {
	return core.Each(ctx, core.ReadSize, func(p core.Page) ([]*core.Account, int, error) { return s.store.Accounts(ctx, p) }, fn)
}

// Account returns the account with the id, or [core.ErrAccountNotFound], also for a closed account. An account that is being imported is [core.ErrUnavailable].
func (s *Service) Account(ctx context.Context, id string) (*core.Account, error) {
	return core.Usable(s.store.Account(ctx, id))
}
