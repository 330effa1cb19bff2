package core

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"
)

// Account is a company that sells an API: the tenant. Accounts cannot see or affect each other.
type Account struct {
	ID        string    `json:"id"` // acct_…
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
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
	if err := s.store.CreateAccount(ctx, a, k); err != nil {
		return nil, nil, err
	}
	s.ownerKeys.forget(k.Digest)
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
// [ErrAccountNotFound].
func (s *Service) AccountByName(ctx context.Context, name string) (*Account, error) {
	return s.store.AccountByName(ctx, strings.TrimSpace(name))
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

// Account returns the account with the id, or [ErrAccountNotFound].
func (s *Service) Account(ctx context.Context, id string) (*Account, error) {
	return s.store.Account(ctx, id)
}
