package archive

import (
	"cmp"
	"context"

	"github.com/limitkeeper/limitkeeper/core"
)

func (e *export) eachPlan(ctx context.Context, account string, fn func(*core.Plan) error) error {
	if e.live == nil {
		return eachOf(ctx, e.o.page, func(p core.Page) ([]*core.Plan, int, error) { return e.s.Plans(ctx, account, p) }, fn)
	}
	read := func(seq int64) ([]*core.Plan, error) { return e.live.PlansAfter(ctx, account, seq, e.o.page) }
	return eachAfter(ctx, e.live.last.Plan, read, func(p *core.Plan) int64 { return p.Seq }, fn)
}

func (e *export) eachUser(ctx context.Context, account string, fn func(*core.User) error) error {
	if e.live == nil {
		return eachOf(ctx, e.o.page, func(p core.Page) ([]*core.User, int, error) { return e.s.Users(ctx, account, core.UserFilter{}, p) }, fn)
	}
	read := func(id int64) ([]*core.User, error) { return e.live.UsersAfter(ctx, account, id, e.o.page) }
	return eachAfter(ctx, e.live.last.User, read, func(u *core.User) int64 { return u.ID }, fn)
}

func (e *export) eachKey(ctx context.Context, account string, fn func(*core.Key) error) error {
	if e.live == nil {
		return eachOf(ctx, e.o.page, func(p core.Page) ([]*core.Key, int, error) { return e.s.Keys(ctx, account, core.KeyFilter{}, p) }, fn)
	}
	read := func(seq int64) ([]*core.Key, error) { return e.live.KeysAfter(ctx, account, seq, e.o.page) }
	return eachAfter(ctx, e.live.last.Key, read, func(k *core.Key) int64 { return k.Seq }, fn)
}

// eachOf calls fn with each item of a list.
func eachOf[T any](ctx context.Context, size int, list func(core.Page) ([]T, int, error), fn func(T) error) error {
	for p := (core.Page{Number: 1, Size: size}); ; p.Number++ {
		items, _, err := list(p)
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		for _, item := range items {
			if err := fn(item); err != nil {
				return err
			}
		}
		if len(items) < size {
			return nil
		}
	}
}

// eachAfter calls fn with each resource up to the number last. read returns the page that follows a number, and number returns
// the number of a resource. A page by its number would miss resources when earlier ones are deleted.
func eachAfter[T any](ctx context.Context, last int64, read func(after int64) ([]T, error), number func(T) int64, fn func(T) error) error {
	for after := int64(0); after < last; {
		items, err := read(after)
		if err = cmp.Or(ctx.Err(), err); err != nil || len(items) == 0 {
			return err
		}
		for _, item := range items {
			if after = number(item); after > last {
				return nil
			}
			if err := fn(item); err != nil {
				return err
			}
		}
	}
	return nil
}
