package badgerstore

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Accounts and owner's keys are never deleted. Their numbers have no gaps, so the last number is also the total.

// CreateAccount implements [core.Store].
func (s *Store) CreateAccount(ctx context.Context, a *core.Account, k *core.OwnerKey) error {
	return s.createInRegistry(ctx, a.ID, func(r snapshot, w *writes) error {
		if taken, err := anyOf(r, accountNamePath(a.Name), accountIDPath(a.ID)); err != nil || taken {
			return firstOf(err, core.ErrAccountExists)
		}
		n, err := r.number(lastPath("", kindAccount))
		if err != nil {
			return err
		}
		n++
		record, err := record.Encode(a)
		if err != nil {
			return err
		}
		w.put(accountPath(n), record)
		w.put(accountIDPath(a.ID), encodeNumber(n))
		w.put(accountNamePath(a.Name), encodeNumber(n))
		w.put(lastPath("", kindAccount), encodeNumber(n))
		return s.putOwnerKey(r, w, a.ID, k)
	})
}

// AccountByName implements [core.Store].
func (s *Store) AccountByName(_ context.Context, name string) (a *core.Account, err error) {
	err = s.read("", func(r snapshot) error {
		n, err := r.number(accountNamePath(name))
		if err != nil || n == 0 {
			return firstOf(err, core.ErrAccountNotFound)
		}
		a, err = named[core.Account](r, accountPath(n))
		return err
	})
	return a, err
}

// Account implements [core.Store].
func (s *Store) Account(_ context.Context, id string) (a *core.Account, err error) {
	err = s.read("", func(r snapshot) error {
		n, err := r.accountNumber(id)
		if err != nil {
			return err
		}
		a, err = named[core.Account](r, accountPath(n))
		return err
	})
	return a, err
}

// accountNumber returns the number of an account, or core.ErrAccountNotFound.
func (r snapshot) accountNumber(id string) (int64, error) {
	n, err := r.number(accountIDPath(id))
	if err != nil || n == 0 {
		return 0, firstOf(err, core.ErrAccountNotFound)
	}
	return n, nil
}

// Accounts implements [core.Store].
func (s *Store) Accounts(_ context.Context, p core.Page) (list []*core.Account, total int, err error) {
	err = s.read("", func(r snapshot) error {
		n, err := r.number(lastPath("", kindAccount))
		if err != nil {
			return err
		}
		total = int(n)
		list, err = listed[core.Account](r, consecutive(p, total), accountPath)
		return err
	})
	return list, total, err
}

// UpdateAccount implements [core.Store].
func (s *Store) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (a *core.Account, err error) {
	var refused error // the error of fn, returned unchanged
	err = s.updateRegistry(ctx, id, func(r snapshot, w *writes) error {
		n, err := r.accountNumber(id)
		if err != nil {
			return err
		}
		if a, err = named[core.Account](r, accountPath(n)); err != nil {
			return err
		}
		if refused = fn(a); refused != nil {
			return refused
		}
		value, err := record.Encode(a)
		if err != nil {
			return err
		}
		w.put(accountPath(n), value)
		a, err = record.Decode[core.Account](value) // a copy, because fn may keep its argument
		return err
	})
	if err = firstOf(refused, err); err != nil {
		return nil, err
	}
	return a, nil
}

// CreateOwnerKey implements [core.Store].
func (s *Store) CreateOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	return s.createInRegistry(ctx, k.AccountID, func(r snapshot, w *writes) error {
		if _, err := r.accountNumber(k.AccountID); err != nil {
			return err
		}
		return s.putOwnerKey(r, w, k.AccountID, k)
	})
}

// putOwnerKey stores a new owner's key.
func (s *Store) putOwnerKey(r snapshot, w *writes, account string, k *core.OwnerKey) error {
	if err := s.requireSpace(); err != nil {
		return err
	}
	if taken, err := anyOf(r, ownerDigestPath(k.Digest)); err != nil || taken {
		return firstOf(err, core.ErrOwnerKeyExists)
	}
	n, err := r.number(lastPath(account, kindOwnerKey))
	if err != nil {
		return err
	}
	n++
	record, err := record.Encode(k)
	if err != nil {
		return err
	}
	w.put(ownerKeyPath(account, n), record)
	w.put(ownerKeyIDPath(account, k.ID), encodeNumber(n))
	w.put(ownerDigestPath(k.Digest), encodeRef(account, n))
	w.put(lastPath(account, kindOwnerKey), encodeNumber(n))
	return nil
}

// OwnerKeyByDigest implements [core.Store].
func (s *Store) OwnerKeyByDigest(_ context.Context, d core.Digest) (k *core.OwnerKey, err error) {
	err = s.read("", func(r snapshot) error {
		ref, err := r.get(ownerDigestPath(d))
		if err != nil || ref == nil {
			return firstOf(err, core.ErrOwnerKeyNotFound)
		}
		account, n, err := decodeRef(ref)
		if err != nil {
			return err
		}
		k, err = named[core.OwnerKey](r, ownerKeyPath(account, n))
		return err
	})
	return k, err
}

// OwnerKeys implements [core.Store].
func (s *Store) OwnerKeys(_ context.Context, account string, p core.Page) (list []*core.OwnerKey, total int, err error) {
	err = s.read("", func(r snapshot) error {
		n, err := r.number(lastPath(account, kindOwnerKey))
		if err != nil {
			return err
		}
		total = int(n)
		list, err = listed[core.OwnerKey](r, consecutive(p, total), func(n int64) path { return ownerKeyPath(account, n) })
		return err
	})
	return list, total, err
}

// UpdateOwnerKey implements [core.Store].
func (s *Store) UpdateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (k *core.OwnerKey, err error) {
	var refused error // the error of fn, returned unchanged
	err = s.updateRegistry(ctx, account, func(r snapshot, w *writes) error {
		n, err := r.number(ownerKeyIDPath(account, id))
		if err != nil || n == 0 {
			return firstOf(err, core.ErrOwnerKeyNotFound)
		}
		k, err = named[core.OwnerKey](r, ownerKeyPath(account, n))
		if err != nil {
			return err
		}
		if refused = fn(k); refused != nil {
			return refused
		}
		record, err := record.Encode(k)
		w.put(ownerKeyPath(account, n), record)
		return err
	})
	if err = firstOf(refused, err); err != nil {
		return nil, err
	}
	record.InUTC(k)
	return k, nil
}

// createInRegistry is [Store.updateRegistry] for a new account or owner's key. One call runs at a time: names and digests are unique over all
// accounts.
func (s *Store) createInRegistry(ctx context.Context, account string, fn func(snapshot, *writes) error) error {
	return s.lockRegistry(ctx, fn, account, "") // in this order: a creation that waits for its account does not hold the lock of all
}

// updateRegistry runs fn on a snapshot and stores the writes of fn. The calls for one account run one at a time.
func (s *Store) updateRegistry(ctx context.Context, account string, fn func(snapshot, *writes) error) error {
	return s.lockRegistry(ctx, fn, account)
}

// lockRegistry is updateRegistry with the locks of the names.
func (s *Store) lockRegistry(ctx context.Context, fn func(snapshot, *writes) error, names ...string) error {
	if err := s.enterToChange(); err != nil {
		return err
	}
	defer s.leave()
	for _, name := range names {
		unlock, err := s.registry.Lock(ctx, name)
		if err != nil {
			return fault(err)
		}
		defer unlock()
	}
	return s.readEntered("", func(r snapshot) error {
		w := newWrites()
		if err := fn(r, w); err != nil {
			return err
		}
		return s.store(w)
	})
}

// anyOf reports whether there is a record at any of the paths.
func anyOf(r snapshot, paths ...path) (bool, error) {
	for _, p := range paths {
		if value, err := r.get(p); err != nil || value != nil {
			return value != nil, err
		}
	}
	return false, nil
}

// firstOf returns the first error that is not nil.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// consecutive returns the numbers on page p of the list from 1 to total.
func consecutive(p core.Page, total int) []int64 {
	first := min(p.Offset(), total)
	last := first + min(p.Size, total-first)
	numbers := make([]int64, 0, last-first)
	for n := first + 1; n <= last; n++ {
		numbers = append(numbers, int64(n))
	}
	return numbers
}

// Access implements [core.Store].
func (s *Store) Access(_ context.Context, account string) (ac *core.Access, err error) {
	err = s.read("", func(r snapshot) error {
		ac, err = r.access(account)
		return err
	})
	return ac, err
}

// access returns the stored ways to sign in to an account.
func (r snapshot) access(account string) (*core.Access, error) {
	if _, err := r.accountNumber(account); err != nil {
		return nil, err
	}
	value, err := r.get(accessPath(account))
	if err != nil || value == nil {
		return new(core.Access), err
	}
	return record.Decode[core.Access](value)
}

// UpdateAccess implements [core.Store].
func (s *Store) UpdateAccess(ctx context.Context, account string, fn func(*core.Access) error) (ac *core.Access, err error) {
	var refused error // the error of fn, returned unchanged
	err = s.updateRegistry(ctx, account, func(r snapshot, w *writes) error {
		if ac, err = r.access(account); err != nil {
			return err
		}
		if refused = fn(ac); refused != nil {
			return refused
		}
		value, err := record.Encode(ac)
		if err != nil {
			return err
		}
		w.put(accessPath(account), value)
		ac, err = record.Decode[core.Access](value) // a copy, because fn may keep its argument
		return err
	})
	if err = firstOf(refused, err); err != nil {
		return nil, err
	}
	return ac, nil
}
