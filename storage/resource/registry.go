package resource

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

var accesses = &description[core.Access]{kind: Access, missing: core.ErrAccountNotFound, audit: (*core.Auditing).Access}

var registry = Scope{Registry: true}

// CreateAccount implements [core.Store].
func (r Resources) CreateAccount(ctx context.Context, a *core.Account, k *core.OwnerKey) error {
	return r.change(ctx, registry, func(t *tx) error {
		if err := create(t, &t.accounts, a); err != nil {
			return err
		}
		return create(t, &t.ownerKeys, k)
	})
}

// AccountByName implements [core.Store].
func (r Resources) AccountByName(ctx context.Context, name string) (*core.Account, error) {
	return find(ctx, r.db, registry, accounts, nameOf(name))
}

// Account implements [core.Store].
func (r Resources) Account(ctx context.Context, id string) (*core.Account, error) {
	return get(ctx, r.db, registry, accounts, id)
}

// Accounts implements [core.Store].
func (r Resources) Accounts(ctx context.Context, p core.Page) ([]*core.Account, int, error) {
	return list(ctx, r.db, registry, accounts, accountSet, p)
}

// UpdateAccount implements [core.Store]. Another name, or none, needs a transaction that excludes other changes of names.
func (r Resources) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (*core.Account, error) {
	change := func(in Scope) (*core.Account, error) {
		return update(ctx, r, in, id, func(t *tx) *table[core.Account] { return &t.accounts }, func(a *core.Account) error {
			if a.Deleting {
				return core.ErrAccountNotFound
			}
			return fn(a)
		})
	}
	a, err := change(Scope{Account: id, Registry: true})
	if err == errNames {
		return change(Scope{Account: id, Registry: true, Names: true})
	}
	return a, err
}

// errNames means that a change needs [Scope.Names].
var errNames = errors.New("the account gets another name")

// CreateOwnerKey implements [core.Store].
func (r Resources) CreateOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	return r.change(ctx, registry, func(t *tx) error {
		if c, err := loadOne(t, &t.accounts, k.AccountID); err != nil || c.Before == nil || c.Before.Deleting {
			return cmp.Or[error](t.keep(err), core.ErrAccountNotFound)
		}
		return create(t, &t.ownerKeys, k)
	})
}

// create stores a resource of the registry, unless there is one with its id or its unique value.
func create[T any](t *tx, in *table[T], v *T) error {
	if c, err := loadOne(t, in, in.id(v)); err != nil || c.Before != nil {
		return cmp.Or[error](t.keep(err), in.duplicate(Unique{}))
	}
	return put(t, in, v)
}

// OwnerKeyByDigest implements [core.Store].
func (r Resources) OwnerKeyByDigest(ctx context.Context, d secrets.Digest) (*core.OwnerKey, error) {
	return find(ctx, r.db, registry, ownerKeys, ownerDigest(d))
}

// OwnerKeys implements [core.Store].
func (r Resources) OwnerKeys(ctx context.Context, account string, p core.Page) ([]*core.OwnerKey, int, error) {
	return list(ctx, r.db, registry, ownerKeys, ownerKeySet(account), p)
}

// UpdateOwnerKey implements [core.Store].
func (r Resources) UpdateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (*core.OwnerKey, error) {
	return update(ctx, r, Scope{Account: account, Registry: true}, ownerKeyID(account, id), func(t *tx) *table[core.OwnerKey] { return &t.ownerKeys }, fn)
}

// Access implements [core.Store].
func (r Resources) Access(ctx context.Context, account string) (*core.Access, error) {
	return view(ctx, r.db, registry, func(rd Reader) (*core.Access, error) {
		t := newTx(rd)
		if err := t.loadAccess(account); err != nil {
			return nil, err
		}
		return before(t, &t.accesses, account)
	})
}

// UpdateAccess implements [core.Store].
func (r Resources) UpdateAccess(ctx context.Context, account string, fn func(*core.Access) error) (*core.Access, error) {
	return update(ctx, r, Scope{Account: account, Registry: true}, account, func(t *tx) *table[core.Access] {
		_ = t.loadAccess(account) // t keeps the error
		return &t.accesses
	}, fn)
}

// loadAccess reads the Access of an account. That of an account that nobody has set up is the zero Access. An account that is being removed gets no
// Access.
func (t *tx) loadAccess(account string) error {
	c, err := loadOne(t, &t.accesses, account)
	if err != nil || c.Before != nil {
		return err
	}
	a, err := loadOne(t, &t.accounts, account)
	if err == nil && a.Before != nil && !a.Before.Deleting {
		c.Before, c.record = new(core.Access), []byte("{}")
	}
	return err
}

// find returns the resource with a unique value, or the error of a missing one.
func find[T any](ctx context.Context, db Database, in Scope, d *description[T], u Unique) (*T, error) {
	return view(ctx, db, in, func(r Reader) (*T, error) {
		for range 2 { // once more if the value has moved to another resource after its holder was read
			id, err := r.Holder(u)
			if err != nil {
				return nil, err
			}
			if id == "" {
				break
			}
			v, err := read(r, d, id)
			switch {
			case err != nil && err != d.missing:
				return nil, err
			case err == nil && slices.Contains(d.unique(v), u):
				return v, nil
			}
		}
		return nil, d.missing
	})
}

// update runs fn on a resource of the registry, and stores the result.
func update[T any](ctx context.Context, r Resources, in Scope, id string, tableOf func(*tx) *table[T], fn func(*T) error) (v *T, err error) {
	err = r.change(ctx, in, func(t *tx) error {
		table := tableOf(t)
		v, err = before(t, table, id)
		if err != nil {
			return err
		}
		if err = fn(v); err != nil {
			return err
		}
		if !slices.Equal(of(table.unique, table.changes[id].Before), of(table.unique, v)) {
			if !in.Names {
				return errNames
			}
			if err = checkUnique(t, table, id, v); err != nil {
				return err
			}
		}
		if err = write(t, table, id, v); err != nil {
			return err
		}
		v, err = record.Decode[T](table.changes[id].value) // a copy, because fn may keep its argument
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}
