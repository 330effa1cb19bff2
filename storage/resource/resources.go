package resource

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Resources are the methods of [core.Store] for accounts, owner's keys, users, plans, keys and prices, but for KeyByDigest, and the numbers of
// [core.Importer]. A store embeds them.
type Resources struct{ db Database }

// New returns the resources in a database.
func New(db Database) Resources { return Resources{db} }

// View implements [core.Store].
func (r Resources) View(ctx context.Context, account string, fn func(core.View) error) error {
	return r.db.View(ctx, Scope{Account: account}, func(rd Reader) error { return fn(accountView{rd}) })
}

// accountView is a [core.View].
type accountView struct{ Reader }

func (v accountView) User(id int64) (*core.User, error)  { return read(v.Reader, users, userID(id)) }
func (v accountView) Plan(id string) (*core.Plan, error) { return read(v.Reader, plans, id) }
func (v accountView) Key(id string) (*core.Key, error)   { return read(v.Reader, keys, id) }
func (v accountView) Keys(f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	return readPage(v.Reader, keys, KeySet(f), p)
}

// User implements [core.Store].
func (r Resources) User(ctx context.Context, account string, id int64) (*core.User, error) {
	return get(ctx, r.db, Scope{Account: account}, users, userID(id))
}

// Plan implements [core.Store].
func (r Resources) Plan(ctx context.Context, account, id string) (*core.Plan, error) {
	return get(ctx, r.db, Scope{Account: account}, plans, id)
}

// Key implements [core.Store].
func (r Resources) Key(ctx context.Context, account, id string) (*core.Key, error) {
	return get(ctx, r.db, Scope{Account: account}, keys, id)
}

// Users implements [core.Store].
func (r Resources) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	u, single := uniqueOf(f)
	if !single {
		return list(ctx, r.db, Scope{Account: account}, users, UserSet(f), p)
	}
	v, err := find(ctx, r.db, Scope{Account: account}, users, u)
	switch {
	case err == core.ErrUserNotFound:
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	case p.Offset() > 0 || p.Size == 0:
		return nil, 1, nil
	}
	return []*core.User{v}, 1, nil
}

// Plans implements [core.Store].
func (r Resources) Plans(ctx context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	return list(ctx, r.db, Scope{Account: account}, plans, PlanSet, p)
}

// Keys implements [core.Store].
func (r Resources) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	return list(ctx, r.db, Scope{Account: account}, keys, KeySet(f), p)
}

// Prices implements [core.Store].
func (r Resources) Prices(ctx context.Context, account string) (*core.Prices, error) {
	return view(ctx, r.db, Scope{Account: account}, func(rd Reader) (*core.Prices, error) { return newTx(rd).Prices() })
}

// Update implements [core.Store].
func (r Resources) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return r.change(ctx, Scope{Account: account}, func(t *tx) error { return fn(t) })
}

// LastNumbers implements [core.Importer].
func (r Resources) LastNumbers(ctx context.Context, account string) (core.Numbers, error) {
	return view(ctx, r.db, Scope{Account: account}, func(rd Reader) (n core.Numbers, err error) {
		for kind, to := range map[Kind]*int64{User: &n.User, Plan: &n.Plan, Key: &n.Key} {
			if *to, err = rd.Last(kind); err != nil {
				return n, err
			}
		}
		return n, nil
	})
}

// view returns what fn reads.
func view[V any](ctx context.Context, db Database, in Scope, fn func(Reader) (V, error)) (v V, err error) {
	err = db.View(ctx, in, func(r Reader) error {
		v, err = fn(r)
		return err
	})
	return v, err
}

// RaiseNumbers implements [core.Importer].
func (r Resources) RaiseNumbers(ctx context.Context, account string, n core.Numbers) error {
	return r.change(ctx, Scope{Account: account}, func(t *tx) error {
		if err := t.checkAccount(); err != nil {
			return err
		}
		for kind, number := range map[Kind]int64{User: n.User, Plan: n.Plan, Key: n.Key} {
			last, err := t.lastOf(kind)
			if err != nil {
				return err
			}
			if number > last {
				t.last[kind] = number
			}
		}
		return nil
	})
}

// change runs a transaction.
func (r Resources) change(ctx context.Context, in Scope, fn func(*tx) error) error {
	return r.db.Change(ctx, in, func(rd Reader) (*Changes, error) {
		t := newTx(rd)
		t.auditing = core.NewAuditing(ctx, in.Account)
		err := fn(t)
		if t.err != nil { // fn may have ignored it
			return nil, t.err
		}
		if err != nil {
			return nil, err
		}
		return t.changes()
	})
}

// get returns a resource, or the error of a missing one.
func get[T any](ctx context.Context, db Database, in Scope, d *description[T], id string) (*T, error) {
	return view(ctx, db, in, func(r Reader) (*T, error) { return read(r, d, id) })
}

func read[T any](r Reader, d *description[T], id string) (*T, error) {
	records, err := r.Records(d.kind, id)
	if err != nil {
		return nil, err
	}
	if records[0] == nil {
		return nil, d.missing
	}
	return decode[T](records[0])
}

// list returns a page of a set, and the size of the set.
func list[T any](ctx context.Context, db Database, in Scope, d *description[T], set string, p core.Page) (page []*T, total int, err error) {
	err = db.View(ctx, in, func(r Reader) error {
		page, total, err = readPage(r, d, set, p)
		return err
	})
	return page, total, err
}

func readPage[T any](r Reader, d *description[T], set string, p core.Page) ([]*T, int, error) {
	records, size, err := r.Page(d.kind, set, p.Offset(), p.Size)
	if err != nil {
		return nil, 0, err
	}
	page, err := Decode[T](records)
	return page, size, err
}

// Decode decodes records. It leaves out missing ones: of resources that were deleted after their set was read.
func Decode[T any](records [][]byte) ([]*T, error) {
	page := make([]*T, 0, len(records))
	for _, b := range records {
		if b == nil {
			continue
		}
		v, err := decode[T](b)
		if err != nil {
			return nil, err
		}
		page = append(page, v)
	}
	return page, nil
}

// decode decodes a record. One that is damaged is [core.ErrUnavailable].
func decode[T any](b []byte) (*T, error) {
	v, err := record.Decode[T](b)
	if err != nil {
		return nil, core.Unavailable(err)
	}
	return v, nil
}
