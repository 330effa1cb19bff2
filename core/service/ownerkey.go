package service

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// MaxOwnerGrace is the longest grace of [Service.RegenerateOwnerKey].
const MaxOwnerGrace = 365 * 24 * time.Hour

// MaxOwnerKeys is the largest number of owner's keys of an account in force. Nodes on one Redis that create keys at the same time may
// exceed it by one each.
const MaxOwnerKeys = 100

// lastUsedResolution is the resolution of OwnerKey.LastUsedAt. It bounds the writes to one a minute
// for each owner's key.
const lastUsedResolution = time.Minute

// ErrInvalidOwnerKey means that the credential of an account is wrong, revoked or expired.
var ErrInvalidOwnerKey = &core.Error{Code: core.CodeInvalidAPIKey, Message: "Invalid API key"}

// errOwnerKeyForm means that a given owner's key cannot be one.
var errOwnerKeyForm = core.Invalid("key", "An owner's key is lk_ and 29 letters or digits")

func (s *Service) newOwnerKey(account string, spec core.OwnerKeySpec, secret string) *core.OwnerKey {
	return &core.OwnerKey{
		ID: secrets.NewID("okey_"), AccountID: account, Name: spec.Name, Role: spec.Role, ExpiresAt: spec.ExpiresAt,
		Digest: secrets.DigestOf(secret), Hint: secrets.HintOf(secret), CreatedAt: s.now(),
	}
}

// Authenticate returns the owner's key with the secret, or [ErrInvalidOwnerKey] if the secret is
// malformed, unknown, revoked or expired.
func (s *Service) Authenticate(ctx context.Context, secret string) (*core.OwnerKey, error) {
	if !secrets.WellFormedOwnerSecret(secret) {
		return nil, ErrInvalidOwnerKey
	}
	k, err := s.ownerKeys.get(ctx, secrets.DigestOf(secret))
	if errors.Is(err, core.ErrOwnerKeyNotFound) {
		return nil, ErrInvalidOwnerKey
	}
	if err != nil {
		return nil, err
	}
	if !k.InForce(s.now()) {
		return nil, ErrInvalidOwnerKey
	}
	s.recordUse(ctx, k)
	return k, nil
}

// recordUse stores the time of use of an owner's key, at most once a minute. If the store fails,
// the request is served all the same.
func (s *Service) recordUse(ctx context.Context, k *core.OwnerKey) {
	written, ok := s.lastUse.Load(k.Digest)
	if !ok {
		written, _ = s.lastUse.LoadOrStore(k.Digest, new(atomic.Int64))
	}
	now := s.now()
	before := written.(*atomic.Int64).Load()
	if now.Unix()-before < int64(lastUsedResolution/time.Second) || !written.(*atomic.Int64).CompareAndSwap(before, now.Unix()) {
		return
	}
	_, _ = s.store.UpdateOwnerKey(s.acting(ctx), k.AccountID, k.ID, func(k *core.OwnerKey) error {
		if k.LastUsedAt != nil && now.Sub(*k.LastUsedAt) < lastUsedResolution {
			return errUnchanged
		}
		k.LastUsedAt = &now
		return nil
	})
}

// errUnchanged makes an update store nothing.
var errUnchanged = errors.New("nothing to change")

// CreateOwnerKey creates another owner's key of the account and returns it with its secret, which
// is shown only once. It is a validation error if the account has MaxOwnerKeys in force.
func (s *Service) CreateOwnerKey(ctx context.Context, account string, spec core.OwnerKeySpec) (*core.OwnerKey, string, error) {
	spec, err := spec.Clean(s.now())
	if err != nil {
		return nil, "", err
	}
	return s.createOwnerKey(ctx, account, spec, MaxOwnerKeys)
}

// createOwnerKey is [Service.CreateOwnerKey] with checked members, for an account that has less than most keys in force.
func (s *Service) createOwnerKey(ctx context.Context, account string, spec core.OwnerKeySpec, most int) (*core.OwnerKey, string, error) {
	unlock, err := s.ownerKeyCreations.Lock(ctx, account)
	if err != nil {
		return nil, "", err
	}
	defer unlock()
	if err := s.checkOwnerKeys(ctx, account, most); err != nil {
		return nil, "", err
	}
	secret := secrets.NewOwnerSecret()
	k := s.newOwnerKey(account, spec, secret)
	if err := s.storeOwnerKey(ctx, k); err != nil {
		return nil, "", err
	}
	return k, secret, nil
}

// storeOwnerKey stores a new owner's key, and removes what the cache knows of its secret.
func (s *Service) storeOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	err := s.store.CreateOwnerKey(s.acting(ctx), k)
	s.ownerKeys.forget(k.Digest) // also after an error: see updateOwnerKey
	return err
}

// eachOwnerKey calls fn with all owner's keys of an account.
func (s *Service) eachOwnerKey(ctx context.Context, account string, fn func(*core.OwnerKey) error) error {
	return core.Each(ctx, core.ReadSize, func(p core.Page) ([]*core.OwnerKey, int, error) { return s.store.OwnerKeys(ctx, account, p) }, fn)
}

// checkOwnerKeys returns an error if the account has most owner's keys in force.
func (s *Service) checkOwnerKeys(ctx context.Context, account string, most int) error {
	n, now := 0, s.now()
	err := s.eachOwnerKey(ctx, account, func(k *core.OwnerKey) error {
		if k.InForce(now) {
			n++
		}
		return nil
	})
	if err == nil && n >= most {
		err = core.Invalid("name", fmt.Sprintf("An account has at most %d owner's keys in force: revoke one that you do not need", MaxOwnerKeys))
	}
	return err
}

// updateOwnerKey is [core.Store.UpdateOwnerKey], and removes the key from the cache. It does so after an error, too: the store may have
// stored a change that it answers with [core.ErrUnavailable].
func (s *Service) updateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (*core.OwnerKey, error) {
	var digest secrets.Digest
	k, err := s.store.UpdateOwnerKey(s.acting(ctx), account, id, func(k *core.OwnerKey) error {
		digest = k.Digest
		return fn(k)
	})
	s.ownerKeys.forget(digest)
	return k, err
}

// OwnerKeys returns a page of the owner's keys of the account, oldest first, including revoked
// ones, and their total.
func (s *Service) OwnerKeys(ctx context.Context, account string, p core.Page) ([]*core.OwnerKey, int, error) {
	return s.store.OwnerKeys(ctx, account, p)
}

// RevokeOwnerKey revokes an owner's key: the next request with it is refused. Revoking it again
// changes nothing. A missing key is [core.ErrOwnerKeyNotFound].
func (s *Service) RevokeOwnerKey(ctx context.Context, account, id string) (*core.OwnerKey, error) {
	k, err := s.updateOwnerKey(ctx, account, id, func(k *core.OwnerKey) error {
		if k.RevokedAt == nil {
			now := s.now()
			k.RevokedAt = &now
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.lastUse.Delete(k.Digest)
	return k, nil
}

// RegenerateOwnerKey creates an owner's key with the name, the role and the expiry of an old one, and returns it with its
// secret, which is shown only once. The old key works for the time grace: with 0 it is revoked at
// once, with a negative grace it works until it is revoked. A missing key is [core.ErrOwnerKeyNotFound],
// a key that no longer works [core.ErrOwnerKeyRevoked].
func (s *Service) RegenerateOwnerKey(ctx context.Context, account, id string, grace time.Duration) (*core.OwnerKey, string, error) {
	if grace > MaxOwnerGrace {
		return nil, "", core.Invalid("grace_seconds", "Grace seconds must be at most 31536000, a year")
	}
	old, err := s.OwnerKey(ctx, account, id)
	if err != nil {
		return nil, "", err
	}
	if !old.InForce(s.now()) {
		return nil, "", core.ErrOwnerKeyRevoked
	}
	most := MaxOwnerKeys
	if grace == 0 {
		most++ // the old key ends at once
	}
	spec := core.OwnerKeySpec{Name: old.Name, Role: old.ItsRole(), ExpiresAt: old.ExpiresAt}
	k, secret, err := s.createOwnerKey(ctx, account, spec, most) // before the old key ends, so that one key always works
	if err != nil || grace < 0 {
		return k, secret, err
	}
	if grace == 0 {
		_, err = s.RevokeOwnerKey(ctx, account, id)
		return s.revokeOnError(ctx, k, secret, err)
	}
	until := s.now().Add(grace)
	_, err = s.updateOwnerKey(ctx, account, id, func(k *core.OwnerKey) error {
		if k.ExpiresAt == nil || until.Before(*k.ExpiresAt) {
			k.ExpiresAt = &until
		}
		return nil
	})
	return s.revokeOnError(ctx, k, secret, err)
}

// revokeOnError revokes the new key k if ending the old key failed with err. Nobody has seen the
// secret of k.
func (s *Service) revokeOnError(ctx context.Context, k *core.OwnerKey, secret string, err error) (*core.OwnerKey, string, error) {
	if err == nil {
		return k, secret, nil
	}
	_, failed := s.RevokeOwnerKey(context.WithoutCancel(ctx), k.AccountID, k.ID)
	return nil, "", errors.Join(err, failed)
}

// OwnerKey returns an owner's key of the account, or [core.ErrOwnerKeyNotFound].
func (s *Service) OwnerKey(ctx context.Context, account, id string) (found *core.OwnerKey, err error) {
	err = s.eachOwnerKey(ctx, account, func(k *core.OwnerKey) error {
		if k.ID == id {
			found = k
		}
		return nil
	})
	if err == nil && found == nil {
		err = core.ErrOwnerKeyNotFound
	}
	return found, err
}
