package memstore

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
)

// CreateAccount implements [core.Store].
func (s *Store) CreateAccount(_ context.Context, a *core.Account, k *core.OwnerKey) error {
	return s.locked(func() error {
		if s.accountLocked(a.Name) != nil {
			return core.ErrAccountExists
		}
		if s.ownerKeyLocked(k.Digest) != nil {
			return core.ErrOwnerKeyExists
		}
		s.accounts = append(s.accounts, copyOf(a))
		s.ownerKeys = append(s.ownerKeys, copyOf(k))
		s.resources[a.ID] = &resources{
			users: map[int64]*core.User{}, plans: map[string]*core.Plan{}, keys: map[string]*core.Key{},
		}
		return nil
	})
}

// AccountByName implements [core.Store].
func (s *Store) AccountByName(_ context.Context, name string) (found *core.Account, err error) {
	err = s.locked(func() error {
		a := s.accountLocked(name)
		if a == nil {
			return core.ErrAccountNotFound
		}
		found = copyOf(a)
		return nil
	})
	return found, err
}

// Account implements [core.Store].
func (s *Store) Account(_ context.Context, id string) (found *core.Account, err error) {
	err = s.locked(func() error {
		for _, a := range s.accounts {
			if a.ID == id {
				found = copyOf(a)
				return nil
			}
		}
		return core.ErrAccountNotFound
	})
	return found, err
}

// Accounts implements [core.Store].
func (s *Store) Accounts(_ context.Context, p core.Page) (list []*core.Account, total int, err error) {
	err = s.locked(func() error {
		list, total = page(s.accounts, p, copyOf), len(s.accounts)
		return nil
	})
	return list, total, err
}

// UpdateAccount implements [core.Store].
func (s *Store) UpdateAccount(_ context.Context, id string, fn func(*core.Account) error) (updated *core.Account, err error) {
	err = s.locked(func() error {
		for i, a := range s.accounts {
			if a.ID != id {
				continue
			}
			a = copyOf(a)
			if err := fn(a); err != nil {
				return err
			}
			s.accounts[i], updated = copyOf(a), copyOf(a)
			return nil
		}
		return core.ErrAccountNotFound
	})
	return updated, err
}

// CreateOwnerKey implements [core.Store].
func (s *Store) CreateOwnerKey(_ context.Context, k *core.OwnerKey) error {
	return s.locked(func() error {
		if s.resources[k.AccountID] == nil {
			return core.ErrAccountNotFound
		}
		if s.ownerKeyLocked(k.Digest) != nil {
			return core.ErrOwnerKeyExists
		}
		s.ownerKeys = append(s.ownerKeys, copyOf(k))
		return nil
	})
}

// OwnerKeyByDigest implements [core.Store].
func (s *Store) OwnerKeyByDigest(_ context.Context, d core.Digest) (found *core.OwnerKey, err error) {
	err = s.locked(func() error {
		k := s.ownerKeyLocked(d)
		if k == nil {
			return core.ErrOwnerKeyNotFound
		}
		found = copyOf(k)
		return nil
	})
	return found, err
}

// OwnerKeys implements [core.Store].
func (s *Store) OwnerKeys(_ context.Context, account string, p core.Page) (list []*core.OwnerKey, total int, err error) {
	err = s.locked(func() error {
		var all []*core.OwnerKey
		for _, k := range s.ownerKeys {
			if k.AccountID == account {
				all = append(all, k)
			}
		}
		list, total = page(all, p, copyOf), len(all)
		return nil
	})
	return list, total, err
}

// UpdateOwnerKey implements [core.Store].
func (s *Store) UpdateOwnerKey(_ context.Context, account, id string, fn func(*core.OwnerKey) error) (updated *core.OwnerKey, err error) {
	err = s.locked(func() error {
		for i, k := range s.ownerKeys {
			if k.AccountID != account || k.ID != id {
				continue
			}
			k = copyOf(k)
			if err := fn(k); err != nil {
				return err
			}
			s.ownerKeys[i], updated = copyOf(k), copyOf(k)
			return nil
		}
		return core.ErrOwnerKeyNotFound
	})
	return updated, err
}

// accountLocked returns the account with the name, or nil.
func (s *Store) accountLocked(name string) *core.Account {
	for _, a := range s.accounts {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// ownerKeyLocked returns the owner's key with the digest, or nil.
func (s *Store) ownerKeyLocked(d core.Digest) *core.OwnerKey {
	for _, k := range s.ownerKeys {
		if k.Digest == d {
			return k
		}
	}
	return nil
}
