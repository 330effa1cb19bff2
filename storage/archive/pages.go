package archive

import (
	"cmp"
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// eachPlans calls fn with pages of the plans of an account.
func (e *export) eachPlans(ctx context.Context, account string, fn func([]*core.Plan) error) error {
	if e.live == nil {
		return eachOf(ctx, e.o.page, func(p core.Page) ([]*core.Plan, int, error) { return e.s.Plans(ctx, account, p) }, fn)
	}
	read := func(seq int64) ([]*core.Plan, error) { return e.live.PlansAfter(ctx, account, seq, e.o.page) }
	return eachAfter(ctx, e.live.last.Plan, read, func(p *core.Plan) int64 { return p.Seq }, fn)
}

// eachUsers calls fn with pages of the users of an account.
func (e *export) eachUsers(ctx context.Context, account string, fn func([]*core.User) error) error {
	if e.live == nil {
		return eachOf(ctx, e.o.page, func(p core.Page) ([]*core.User, int, error) { return e.s.Users(ctx, account, core.UserFilter{}, p) }, fn)
	}
	read := func(id int64) ([]*core.User, error) { return e.live.UsersAfter(ctx, account, id, e.o.page) }
	return eachAfter(ctx, e.live.last.User, read, func(u *core.User) int64 { return u.ID }, fn)
}

// eachKeys calls fn with pages of the keys of an account.
func (e *export) eachKeys(ctx context.Context, account string, fn func([]*core.Key) error) error {
	if e.live == nil {
		return eachOf(ctx, e.o.page, func(p core.Page) ([]*core.Key, int, error) { return e.s.Keys(ctx, account, core.KeyFilter{}, p) }, fn)
	}
	read := func(seq int64) ([]*core.Key, error) { return e.live.KeysAfter(ctx, account, seq, e.o.page) }
	return eachAfter(ctx, e.live.last.Key, read, func(k *core.Key) int64 { return k.Seq }, fn)
}

// list returns a page of a list, and the total of it.
type list[T any] func(core.Page) ([]T, int, error)

// eachOf calls fn with the pages of a list.
func eachOf[T any](ctx context.Context, size int, l list[*T], fn func([]*T) error) error {
	for p := (core.Page{Number: 1, Size: size}); ; p.Number++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		items, _, err := l(p)
		if err != nil {
			return err
		}
		if len(items) > 0 {
			if err := fn(items); err != nil {
				return err
			}
		}
		if len(items) < size {
			return nil
		}
	}
}

// eachAfter calls fn with pages of resources up to the number last. read returns the page that follows a number, and number returns
// the number of a resource. A page by its number would miss resources when earlier ones are deleted.
func eachAfter[T any](ctx context.Context, last int64, read func(after int64) ([]*T, error), number func(*T) int64, fn func([]*T) error) error {
	for after := int64(0); after < last; {
		items, err := read(after)
		if err = cmp.Or(ctx.Err(), err); err != nil || len(items) == 0 {
			return err
		}
		after = number(items[len(items)-1])
		if items = slices.DeleteFunc(items, func(item *T) bool { return number(item) > last }); len(items) > 0 {
			if err := fn(items); err != nil {
				return err
			}
		}
	}
	return nil
}
