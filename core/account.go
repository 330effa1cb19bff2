package core

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Account is a company that sells an API: the tenant. Nothing of one account can
// be seen or felt by another.
type Account struct {
	ID        string    `json:"id"` // acct_…
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
}

// OwnerKey is a credential of an account for the REST API.
type OwnerKey struct {
	ID        string     `json:"id"` // okey_…
	AccountID string     `json:"account_id"`
	Name      string     `json:"name"`
	Digest    Digest     `json:"digest"`
	Hint      string     `json:"hint"` // lk_…wxyz
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"` // nil: never
	RevokedAt *time.Time `json:"revoked_at,omitempty"` // nil: in force
}

// InForce reports whether the key opens its account at the time now.
func (k *OwnerKey) InForce(now time.Time) bool {
	return k.RevokedAt == nil && (k.ExpiresAt == nil || now.Before(*k.ExpiresAt))
}

// CreateAccount makes an account with a first owner's key and returns both and
// the key's secret, which is shown this once. A name that is taken is
// [ErrAccountExists].
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

func (s *Service) newOwnerKey(account, name, secret string) *OwnerKey {
	return &OwnerKey{
		ID: newID("okey_"), AccountID: account, Name: name,
		Digest: DigestOf(secret), Hint: HintOf(secret), CreatedAt: s.now(),
	}
}

// EnsureAccount makes sure that an account with the name exists and that secret
// is one of its owner's keys. It may be called any number of times. A secret of
// another account is [ErrOwnerKeyExists]; one that was revoked stays revoked, and
// is [ErrOwnerKeyRevoked] beside the account.
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

// CheckAccount returns the error that [Service.EnsureAccount] would return, and
// writes nothing.
func (s *Service) CheckAccount(ctx context.Context, name, secret string) error {
	if !WellFormedOwnerSecret(secret) {
		return errOwnerKeyForm
	}
	a, err := s.AccountByName(ctx, name)
	if errors.Is(err, ErrAccountNotFound) {
		a = &Account{} // whose every key is another's
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

// checkOwnerKey returns whether the secret is a key of the account that is in
// force: nil, or what is in the way.
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

// AccountByName returns the account with the name, or [ErrAccountNotFound]. Space
// around the name does not count, as when it was made.
func (s *Service) AccountByName(ctx context.Context, name string) (*Account, error) {
	return s.store.AccountByName(ctx, strings.TrimSpace(name))
}

// Accounts returns a page of all accounts, oldest first, and how many there are.
func (s *Service) Accounts(ctx context.Context, p Page) ([]*Account, int, error) {
	return s.store.Accounts(ctx, p)
}

// Authenticate returns the owner's key that is the credential of a request, or
// [ErrInvalidOwnerKey] when it is malformed, unknown, revoked or expired.
func (s *Service) Authenticate(ctx context.Context, secret string) (*OwnerKey, error) {
	if !WellFormedOwnerSecret(secret) {
		return nil, ErrInvalidOwnerKey
	}
	k, err := s.ownerKeys.get(ctx, DigestOf(secret))
	if errors.Is(err, ErrOwnerKeyNotFound) {
		return nil, ErrInvalidOwnerKey
	}
	if err != nil {
		return nil, err
	}
	if k.RevokedAt == nil && k.ExpiresAt == nil {
		return k, nil // whatever the time is
	}
	if !k.InForce(s.now()) {
		return nil, ErrInvalidOwnerKey
	}
	return k, nil
}

// CreateOwnerKey makes another owner's key of the account and returns it with its
// secret, which is shown this once.
func (s *Service) CreateOwnerKey(ctx context.Context, account, name string) (*OwnerKey, string, error) {
	name, err := cleanName("name", name)
	if err != nil {
		return nil, "", err
	}
	secret := NewOwnerSecret()
	k := s.newOwnerKey(account, name, secret)
	if err := s.store.CreateOwnerKey(ctx, k); err != nil {
		return nil, "", err
	}
	s.ownerKeys.forget(k.Digest)
	return k, secret, nil
}

// OwnerKeys returns a page of the account's owner's keys, oldest first, revoked
// ones included, and how many there are.
func (s *Service) OwnerKeys(ctx context.Context, account string, p Page) ([]*OwnerKey, int, error) {
	return s.store.OwnerKeys(ctx, account, p)
}

// RevokeOwnerKey ends an owner's key: the next request with it is refused.
// Revoking it again changes nothing. A key that the account does not have is
// [ErrOwnerKeyNotFound].
func (s *Service) RevokeOwnerKey(ctx context.Context, account, id string) (*OwnerKey, error) {
	k, err := s.store.UpdateOwnerKey(ctx, account, id, func(k *OwnerKey) error {
		if k.RevokedAt == nil {
			now := s.now()
			k.RevokedAt = &now
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.ownerKeys.forget(k.Digest)
	return k, nil
}
