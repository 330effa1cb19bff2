package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/limitkeeper/limitkeeper/core"
)

// list returns a page of a list, and the total of it.
type list[T any] func(core.Page) ([]T, int, error)

func accountsOf(ctx context.Context, s core.Store) list[*core.Account] {
	return func(p core.Page) ([]*core.Account, int, error) { return s.Accounts(ctx, p) }
}

func ownerKeysOf(ctx context.Context, s core.Store, account string) list[*core.OwnerKey] {
	return func(p core.Page) ([]*core.OwnerKey, int, error) { return s.OwnerKeys(ctx, account, p) }
}

func plansOf(ctx context.Context, s core.Store, account string) list[*core.Plan] {
	return func(p core.Page) ([]*core.Plan, int, error) { return s.Plans(ctx, account, p) }
}

func usersOf(ctx context.Context, s core.Store, account string) list[*core.User] {
	return func(p core.Page) ([]*core.User, int, error) { return s.Users(ctx, account, core.UserFilter{}, p) }
}

func keysOf(ctx context.Context, s core.Store, account string) list[*core.Key] {
	return func(p core.Page) ([]*core.Key, int, error) { return s.Keys(ctx, account, core.KeyFilter{}, p) }
}

func idOfUser(u *core.User) int64  { return u.ID }
func seqOfPlan(p *core.Plan) int64 { return p.Seq }
func seqOfKey(k *core.Key) int64   { return k.Seq }

func ofUser(account string, id int64) core.CounterID {
	return core.CounterID{Account: account, UserID: id}
}

func ofKey(account, id string) core.CounterID { return core.CounterID{Account: account, KeyID: id} }

// total returns the number of items in a list.
func total[T any](l list[T]) (int, error) {
	_, n, err := l(core.Page{Number: 1, Size: 1})
	return n, err
}

// each calls fn with each item of a list, and reads the list by pages.
func each[T any](ctx context.Context, size int, l list[T], fn func(T) error) error {
	return eachPage(ctx, size, l, func(items []T) error {
		for _, item := range items {
			if err := fn(item); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachPage calls fn with the pages of a list.
func eachPage[T any](ctx context.Context, size int, l list[T], fn func([]T) error) error {
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

// reading is a cursor on a list.
type reading[T any] struct {
	list list[T]
	page core.Page
	here []T
	end  bool
}

func newReading[T any](size int, l list[T]) *reading[T] {
	return &reading[T]{list: l, page: core.Page{Size: size}}
}

// next returns the next item, or false at the end.
func (r *reading[T]) next() (next T, ok bool, err error) {
	if len(r.here) == 0 && !r.end {
		r.page.Number++
		if r.here, _, err = r.list(r.page); err != nil {
			return next, false, err
		}
		r.end = len(r.here) < r.page.Size
	}
	if len(r.here) == 0 {
		return next, false, nil
	}
	next, r.here = r.here[0], r.here[1:]
	return next, true, nil
}

// pairs merges two lists that are sorted by a number. It calls fn with the items of each number, nil if a list has none.
func pairs[T any](ctx context.Context, size int, from, to list[*T], number func(*T) int64, fn func(a, b *T) error) error {
	left, right := newReading(size, from), newReading(size, to)
	a, _, err := left.next()
	if err != nil {
		return err
	}
	b, _, err := right.next()
	for err == nil && (a != nil || b != nil) {
		if err := ctx.Err(); err != nil {
			return err
		}
		x, y := a, b
		if x != nil && y != nil {
			switch n, k := number(x), number(y); {
			case n < k:
				y = nil
			case n > k:
				x = nil
			}
		}
		if err := fn(x, y); err != nil {
			return err
		}
		if x != nil {
			a, _, err = left.next()
		}
		if y != nil && err == nil {
			b, _, err = right.next()
		}
	}
	return err
}

// same reports whether two resources have the same JSON.
func same(a, b any) bool {
	x, err := json.Marshal(a)
	if err != nil {
		return false
	}
	y, err := json.Marshal(b)
	return err == nil && bytes.Equal(x, y)
}

// sameEntry reports whether two entries are equal.
func sameEntry(a, b *core.Entry) bool {
	x := *a
	x.At = b.At
	return a.At.Equal(b.At) && reflect.DeepEqual(x, *b)
}

// refused returns an ErrRefused with a reason.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// differs returns an ErrDiffers that names the difference.
func differs(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDiffers, fmt.Sprintf(format, args...))
}
