package migrate

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// checkAccounts calls fn with each account of the target. It returns ErrRefused unless these are the oldest accounts of
// the source.
func (m *migration) checkAccounts(ctx context.Context, fn func(*core.Account) error) error {
	source := newReading(m.o.page, accountsOf(ctx, m.from))
	return each(ctx, m.o.page, accountsOf(ctx, m.to), func(b *core.Account) error {
		a, ok, err := source.next()
		switch {
		case err != nil:
			return err
		case ok && a.ID == b.ID && a.Name == b.Name:
			return fn(b)
		}
		return m.strange(ctx, b)
	})
}

// strange returns the error for an account of the target that is not the next one of the source.
func (m *migration) strange(ctx context.Context, b *core.Account) error {
	a, err := m.from.AccountByName(ctx, b.Name)
	switch {
	case err == nil && a.ID == b.ID:
		return refused("it has the account %q, and not one that is older", b.Name)
	case err == nil:
		return refused("its account %q is another one than that of the source: its ID is %s, and that of the source %s", b.Name, b.ID, a.ID)
	}
	return refused("it has the account %q (%s), which the source does not have", b.Name, b.ID)
}

// checkOwnerKeys returns ErrRefused if the target has owner's keys that the source does not have.
func (m *migration) checkOwnerKeys(ctx context.Context, a *core.Account) error {
	source := newReading(m.o.page, ownerKeysOf(ctx, m.from, a.ID))
	return each(ctx, m.o.page, ownerKeysOf(ctx, m.to, a.ID), func(b *core.OwnerKey) error {
		k, ok, err := source.next()
		if err == nil && (!ok || k.ID != b.ID || k.Digest != b.Digest) {
			err = refused("the account %q has the owner's key %s there, which the source does not have", a.Name, b.ID)
		}
		return err
	})
}

// copyAccounts creates the accounts that the target does not have, in the order of creation, and updates the others if they
// differ.
func (m *migration) copyAccounts(ctx context.Context) error {
	target := newReading(m.o.page, accountsOf(ctx, m.to))
	return m.eachAccount(ctx, func(a *core.Account) error {
		defer m.progress.done(&m.progress.now.Accounts, 1)
		had, ok, err := target.next()
		switch {
		case err != nil:
			return err
		case ok && same(a, had):
			return nil
		case ok:
			_, err = m.to.UpdateAccount(ctx, a.ID, func(to *core.Account) error {
				*to = *a
				return nil
			})
			return err
		}
		first, _, err := m.from.OwnerKeys(ctx, a.ID, core.Page{Number: 1, Size: 1})
		if err != nil {
			return err
		}
		if len(first) == 0 {
			return fmt.Errorf("account %q has no owner's key", a.Name)
		}
		if err := m.to.CreateAccount(ctx, a, first[0]); err != nil {
			return fmt.Errorf("account %q: %w", a.Name, err)
		}
		return nil
	})
}

// copyOwnerKeys creates the missing owner's keys of an account, and updates the others if they differ.
func (m *migration) copyOwnerKeys(ctx context.Context, account string) error {
	target := newReading(m.o.page, ownerKeysOf(ctx, m.to, account))
	return each(ctx, m.o.page, ownerKeysOf(ctx, m.from, account), func(k *core.OwnerKey) error {
		defer m.progress.done(&m.progress.now.OwnerKeys, 1)
		had, ok, err := target.next()
		switch {
		case err != nil:
			return err
		case ok && same(k, had):
			return nil
		case ok && k.ID == had.ID:
			_, err = m.to.UpdateOwnerKey(ctx, account, k.ID, func(to *core.OwnerKey) error {
				*to = *k
				return nil
			})
		default:
			err = m.to.CreateOwnerKey(ctx, k)
		}
		if err != nil {
			return fmt.Errorf("owner's key %s: %w", k.ID, err)
		}
		return nil
	})
}

// copyAccess copies the sign-in data of an account.
func (m *migration) copyAccess(ctx context.Context, account string) error {
	from, to, err := m.access(ctx, account)
	if err != nil || same(from, to) {
		return err
	}
	_, err = m.to.UpdateAccess(ctx, account, func(to *core.Access) error {
		*to = *from
		return nil
	})
	if err != nil {
		return fmt.Errorf("how account %s is signed in to: %w", account, err)
	}
	return nil
}

// access reads the sign-in data of an account from both stores.
func (m *migration) access(ctx context.Context, account string) (from, to *core.Access, err error) {
	if from, err = m.from.Access(ctx, account); err != nil {
		return nil, nil, err
	}
	to, err = m.to.Access(ctx, account)
	return from, to, err
}
