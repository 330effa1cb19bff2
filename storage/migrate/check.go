package migrate

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// check returns ErrRefused unless the target is a copy of the source, or a part of a copy. It counts the resources to
// copy for the progress, and writes nothing.
func (m *migration) check(ctx context.Context) error {
	err := m.checkAccounts(ctx, func(a *core.Account) error {
		if err := m.checkOwnerKeys(ctx, a); err != nil {
			return err
		}
		return m.checkAccount(ctx, a)
	})
	if err != nil {
		return err
	}
	return m.eachAccount(ctx, func(a *core.Account) error { return m.plan(ctx, a.ID) })
}

// plan counts the resources of an account for the progress.
func (m *migration) plan(ctx context.Context, account string) error {
	owners, err := total(ownerKeysOf(ctx, m.from, account))
	if err != nil {
		return err
	}
	plans, err := total(plansOf(ctx, m.from, account))
	if err != nil {
		return err
	}
	users, err := total(usersOf(ctx, m.from, account))
	if err != nil {
		return err
	}
	keys, err := total(keysOf(ctx, m.from, account))
	m.progress.plan(owners, plans, users, keys)
	return err
}

// checkAccount returns ErrRefused if the target has a user, plan or key that the source does not have, or that was
// changed or used in the target. It notes leftover placeholders.
func (m *migration) checkAccount(ctx context.Context, a *core.Account) error {
	var left placeholders
	err := pairs(ctx, m.o.page, plansOf(ctx, m.from, a.ID), plansOf(ctx, m.to, a.ID), seqOfPlan, func(x, y *core.Plan) error {
		switch {
		case y == nil || x != nil && x.ID == y.ID && !y.UpdatedAt.After(x.UpdatedAt):
			return nil
		case isPlaceholderPlan(y):
			left.addPlan(y.ID)
			return nil
		}
		return m.foreign(a, "the plan "+y.ID, x != nil && x.ID == y.ID)
	})
	if err != nil {
		return err
	}
	if err := m.checkUsers(ctx, a, &left); err != nil {
		return err
	}
	err = m.checkKeys(ctx, a, &left)
	m.leftover[a.ID] = left
	return err
}

func (m *migration) checkUsers(ctx context.Context, a *core.Account, left *placeholders) error {
	used := m.newUsed(ctx, a)
	err := pairs(ctx, m.o.page, usersOf(ctx, m.from, a.ID), usersOf(ctx, m.to, a.ID), idOfUser, func(x, y *core.User) error {
		switch {
		case y == nil:
			return nil
		case isPlaceholderUser(y):
			left.addUser(y.ID)
			return nil
		case x == nil || y.UpdatedAt.After(x.UpdatedAt):
			return m.foreign(a, nameOfUser(y.ID), x != nil)
		}
		return used.add(ofUser(a.ID, y.ID))
	})
	if err != nil {
		return err
	}
	return used.check()
}

func (m *migration) checkKeys(ctx context.Context, a *core.Account, left *placeholders) error {
	used := m.newUsed(ctx, a)
	err := pairs(ctx, m.o.page, keysOf(ctx, m.from, a.ID), keysOf(ctx, m.to, a.ID), seqOfKey, func(x, y *core.Key) error {
		switch {
		case y == nil:
			return nil
		case isPlaceholderKey(y):
			left.addKey(y.ID)
			return nil
		case x == nil || x.ID != y.ID || y.UpdatedAt.After(x.UpdatedAt):
			return m.foreign(a, "the key "+y.ID, x != nil && x.ID == y.ID)
		}
		return used.add(ofKey(a.ID, y.ID))
	})
	if err != nil {
		return err
	}
	return used.check()
}

// foreign returns the error for a resource of the target that the source does not have, or that changed in the target.
func (m *migration) foreign(a *core.Account, what string, changed bool) error {
	if changed {
		return refused("%s of the account %q was changed there after it was changed in the source", what, a.Name)
	}
	return refused("the account %q has %s there, which the source does not have", a.Name, what)
}

// used looks for counters that were used in the target. A copy would overwrite their usage.
type used struct {
	m   *migration
	ctx context.Context
	a   *core.Account
	ids []core.CounterID
}

func (m *migration) newUsed(ctx context.Context, a *core.Account) *used {
	return &used{m: m, ctx: ctx, a: a}
}

func (u *used) add(id core.CounterID) error {
	u.ids = append(u.ids, id)
	if len(u.ids) < u.m.o.page {
		return nil
	}
	return u.check()
}

// check compares the added counters, and removes them from the list.
func (u *used) check() error {
	a, b, err := u.m.counters(u.ctx, u.ids)
	if err != nil {
		return err
	}
	for i, id := range u.ids {
		if b[i].LastUsedAt.After(a[i].LastUsedAt) {
			return refused("%s of the account %q was used there at %s, after it was used in the source", nameOf(id), u.a.Name,
				b[i].LastUsedAt.Format(time.RFC3339))
		}
	}
	u.ids = u.ids[:0]
	return nil
}
