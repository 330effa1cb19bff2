package memstore

import (
	"context"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// CreateAccount implements [core.Store].
func (s *Store) CreateAccount(ctx context.Context, a *core.Account, k *core.OwnerKey) error {
	return s.locked(func() error {
		if s.account(a.Name) != nil {
			return core.ErrAccountExists
		}
		if s.ownerKey(k.Digest) != nil {
			return core.ErrOwnerKeyExists
		}
		s.accounts = append(s.accounts, copyOf(a))
		s.ownerKeys = append(s.ownerKeys, copyOf(k))
		s.resources[a.ID] = newResources()
		s.resources[a.ID].access = &core.Access{}
		s.append(core.NewAuditing(ctx, a.ID), true, func(audit *core.Auditing) {
			audit.Account(nil, copyOf(a))
			audit.OwnerKey(nil, copyOf(k))
		})
		return nil
	})
}

// AccountByName implements [core.Store].
func (s *Store) AccountByName(_ context.Context, name string) (*core.Account, error) {
	return get(s, core.ErrAccountNotFound, func() *core.Account { return s.account(name) })
}

// Account implements [core.Store].
func (s *Store) Account(_ context.Context, id string) (*core.Account, error) {
	return get(s, core.ErrAccountNotFound, func() *core.Account { return find(s.accounts, hasID(id)) })
}

// Accounts implements [core.Store].
func (s *Store) Accounts(_ context.Context, p core.Page) ([]*core.Account, int, error) {
	return list(s, p, func() []*core.Account { return s.accounts })
}

// UpdateAccount implements [core.Store].
func (s *Store) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (*core.Account, error) {
	return update(s, core.ErrAccountNotFound, func() *core.Account { return find(s.accounts, hasID(id)) }, func(a *core.Account) error {
		before := a.Name
		if a.Deleting {
			return core.ErrAccountNotFound
		}
		if err := fn(a); err != nil {
			return err
		}
		if a.Name != before && s.account(a.Name) != nil {
			return core.ErrAccountExists
		}
		return nil
	}, core.NewAuditing(ctx, id), (*core.Auditing).Account)
}

// CreateOwnerKey implements [core.Store].
func (s *Store) CreateOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	return s.locked(func() error {
		if s.isMissing(k.AccountID) {
			return core.ErrAccountNotFound
		}
		if s.ownerKey(k.Digest) != nil {
			return core.ErrOwnerKeyExists
		}
		s.ownerKeys = append(s.ownerKeys, copyOf(k))
		s.append(core.NewAuditing(ctx, k.AccountID), true, func(audit *core.Auditing) { audit.OwnerKey(nil, copyOf(k)) })
		return nil
	})
}

// OwnerKeyByDigest implements [core.Store].
func (s *Store) OwnerKeyByDigest(_ context.Context, d secrets.Digest) (*core.OwnerKey, error) {
	return get(s, core.ErrOwnerKeyNotFound, func() *core.OwnerKey { return s.ownerKey(d) })
}

// OwnerKeys implements [core.Store].
func (s *Store) OwnerKeys(_ context.Context, account string, p core.Page) ([]*core.OwnerKey, int, error) {
	return list(s, p, func() []*core.OwnerKey {
		return filter(slices.Values(s.ownerKeys), func(k *core.OwnerKey) bool { return k.AccountID == account })
	})
}

// UpdateOwnerKey implements [core.Store].
func (s *Store) UpdateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (*core.OwnerKey, error) {
	is := func(k *core.OwnerKey) bool { return k.AccountID == account && k.ID == id }
	return update(s, core.ErrOwnerKeyNotFound, func() *core.OwnerKey { return find(s.ownerKeys, is) }, fn, core.NewAuditing(ctx, account), (*core.Auditing).OwnerKey)
}

// Access implements [core.Store].
func (s *Store) Access(_ context.Context, account string) (*core.Access, error) {
	return get(s, core.ErrAccountNotFound, func() *core.Access { return s.of(account).access })
}

// UpdateAccess implements [core.Store].
func (s *Store) UpdateAccess(ctx context.Context, account string, fn func(*core.Access) error) (*core.Access, error) {
	return update(s, core.ErrAccountNotFound, func() *core.Access {
		if s.isMissing(account) {
			return nil
		}
		return s.of(account).access
	}, fn, core.NewAuditing(ctx, account), (*core.Auditing).Access)
}

// account returns the account with the name, or nil. The caller holds the lock.
func (s *Store) account(name string) *core.Account {
	return find(s.accounts, func(a *core.Account) bool { return a.Name == name && !a.Deleting })
}

// isMissing reports whether an account takes no writes, because it is missing or being removed.
func (s *Store) isMissing(id string) bool {
	a := find(s.accounts, hasID(id))
	return a == nil || a.Deleting
}

// PurgeAccount implements [core.Store]. It removes everything at once.
func (s *Store) PurgeAccount(_ context.Context, id string) (bool, error) {
	return false, s.locked(func() error {
		a := find(s.accounts, hasID(id))
		switch {
		case a == nil:
			return nil
		case !a.Deleting:
			return core.ErrAccountNotFound
		}
		s.accounts = slices.DeleteFunc(s.accounts, hasID(id))
		s.ownerKeys = slices.DeleteFunc(s.ownerKeys, func(k *core.OwnerKey) bool { return k.AccountID == id })
		maps.DeleteFunc(s.usages, func(of core.CounterID, _ *usage) bool { return of.Account == id })
		delete(s.resources, id)
		delete(s.holds, id)
		s.rankings.Remove(id)
		maps.DeleteFunc(s.audits, func(of auditName, _ *auditLog) bool { return of.account == id })
		return nil
	})
}

func hasID(id string) func(*core.Account) bool {
	return func(a *core.Account) bool { return a.ID == id }
}

// ownerKey returns the owner's key with the digest, or nil. The caller holds the lock.
func (s *Store) ownerKey(d secrets.Digest) *core.OwnerKey {
	return find(s.ownerKeys, func(k *core.OwnerKey) bool { return k.Digest == d })
}
