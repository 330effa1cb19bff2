package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// update runs a transaction on an account of the target.
func (m *migration) update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return m.to.Update(ctx, account, fn)
}

func (m *migration) copyPlans(ctx context.Context, account string) error {
	return copyList(ctx, m, account, plansOf, core.Tx.PutPlan, &m.progress.now.Plans)
}

func (m *migration) copyUsers(ctx context.Context, account string) error {
	return copyList(ctx, m, account, usersOf, core.Tx.PutUser, &m.progress.now.Users)
}

func (m *migration) copyKeys(ctx context.Context, account string) error {
	return copyList(ctx, m, account, keysOf, core.Tx.PutKey, &m.progress.now.Keys)
}

// copyList puts what is in a list of the source, a page at a time. A page that the target
// has already is left alone; where only a part of it is the same, all is put again.
func copyList[T any](ctx context.Context, m *migration, account string,
	of func(context.Context, core.Store, string) list[*T], put func(core.Tx, *T) error, count *Count) error {
	page := core.Page{Size: m.o.page}
	target := of(ctx, m.to, account)
	return eachPage(ctx, m.o.page, of(ctx, m.from, account), func(items []*T) error {
		page.Number++
		had, _, err := target(page)
		if err != nil {
			return err
		}
		if !same(items, had) {
			if err := putAll(ctx, m, account, items, put); err != nil {
				return err
			}
		}
		m.progress.done(count, len(items))
		return nil
	})
}

// putAll puts users, plans or keys under the numbers that they have.
func putAll[T any](ctx context.Context, m *migration, account string, items []*T, put func(core.Tx, *T) error) error {
	return m.update(ctx, account, func(tx core.Tx) error {
		for _, item := range items {
			copied := *item // the store may write into it
			if err := put(tx, &copied); err != nil {
				return err
			}
		}
		return nil
	})
}

// numbers are the largest ones that were ever given in an account.
type numbers struct{ user, plan, key int64 }

// errLook ends a transaction that is to change nothing.
var errLook = errors.New("nothing is to be changed")

// lastNumbers finds out which numbers would be given next.
func lastNumbers(ctx context.Context, s core.Store, account string) (n numbers, err error) {
	err = s.Update(ctx, account, func(tx core.Tx) error {
		u, p, k := stubUser(account, 0), stubPlan(account, 0), stubKey(account, stubID("key_", 0), 0, 0)
		if err := tx.PutUser(u); err != nil {
			return err
		}
		k.UserID = u.ID
		if err := errors.Join(tx.PutPlan(p), tx.PutKey(k)); err != nil {
			return err
		}
		n = numbers{user: u.ID - 1, plan: p.Seq - 1, key: k.Seq - 1}
		return errLook
	})
	if errors.Is(err, errLook) {
		return n, nil
	}
	return numbers{}, fmt.Errorf("the numbers of account %s: %w", account, err)
}

// giveNumbers makes sure that the target gives no number again that the source has given:
// that of something that was deleted since.
func (m *migration) giveNumbers(ctx context.Context, account string) error {
	want, err := lastNumbers(ctx, m.from, account)
	if err != nil {
		return err
	}
	have, err := lastNumbers(ctx, m.to, account)
	if err != nil {
		return err
	}
	if have.user >= want.user && have.plan >= want.plan && have.key >= want.key {
		return nil
	}
	var left stubs
	user, plan, key := stubUser(account, want.user), stubPlan(account, want.plan), stubKey(account, stubID("key_", want.key), want.key, want.user)
	_, err = m.from.User(ctx, account, want.user)
	if err != nil && !errors.Is(err, core.ErrUserNotFound) {
		return err
	}
	if err != nil && want.user > 0 { // whom the key is put with, too
		left.users = append(left.users, user.ID)
	}
	if have.plan < want.plan {
		left.plans = append(left.plans, plan.ID)
	}
	if have.key < want.key {
		left.keys = append(left.keys, key.ID)
	}
	err = m.update(ctx, account, func(tx core.Tx) error {
		for range left.users {
			if err := tx.PutUser(user); err != nil {
				return err
			}
		}
		for range left.plans {
			if err := tx.PutPlan(plan); err != nil {
				return err
			}
		}
		for range left.keys {
			if err := tx.PutKey(key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the numbers of account %s: %w", account, err)
	}
	return m.deleteStubs(ctx, account, &left)
}
