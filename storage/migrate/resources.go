package migrate

import (
	"context"
	"slices"

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
	if err := m.freeMembers(ctx, account); err != nil {
		return err
	}
	return copyList(ctx, m, account, usersOf, core.Tx.PutUser, &m.progress.now.Users)
}

// freeMembers clears the email and the external id of each user of the target that has another one in the source by now.
// Otherwise the user that has taken it in the source could not be put.
func (m *migration) freeMembers(ctx context.Context, account string) error {
	var changed []*core.User
	err := pairs(ctx, m.o.page, usersOf(ctx, m.from, account), usersOf(ctx, m.to, account), idOfUser, func(x, y *core.User) error {
		if x != nil && y != nil && slices.ContainsFunc(y.UniqueFilters(), func(f core.UserFilter) bool { return !slices.Contains(x.UniqueFilters(), f) }) {
			y.Email, y.ExternalID = nil, ""
			changed = append(changed, y)
		}
		return nil
	})
	for some := range slices.Chunk(changed, m.o.page) {
		if err == nil {
			err = putAll(ctx, m, account, some, core.Tx.PutUser)
		}
	}
	return err
}

func (m *migration) copyKeys(ctx context.Context, account string) error {
	return copyList(ctx, m, account, keysOf, core.Tx.PutKey, &m.progress.now.Keys)
}

// copyList copies a list to the target, one page after the other. It skips each page that is the same in the target.
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
