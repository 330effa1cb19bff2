package redisstore

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// User implements [core.Store].
func (s *Store) User(ctx context.Context, account string, id int64) (*core.User, error) {
	return get[core.User](ctx, s, s.o.account(account).user(id), core.ErrUserNotFound)
}

// get returns a resource, or notFound.
func get[T any](ctx context.Context, s *Store, key string, notFound error) (*T, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	return fetch[T](ctx, s, key, notFound)
}

// fetch is get for callers that have called begin.
func fetch[T any](ctx context.Context, s *Store, key string, notFound error) (*T, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	r := s.do(ctx, s.client.B().Get().Key(key).Build())
	if err := unavailable(r.Error()); err != nil {
		return nil, err
	}
	b, err := r.AsBytes()
	if err != nil {
		return nil, notFound
	}
	return record.Decode[T](b)
}

// Users implements [core.Store].
func (s *Store) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	n := s.o.account(account)
	if m, ok := n.unique(f); ok {
		return s.usersByMember(ctx, n, m, p)
	}
	return list[core.User](ctx, s, n.users(f), n.key("u:"), p)
}

// UsersAfter implements [core.LiveStore].
func (s *Store) UsersAfter(ctx context.Context, account string, id int64, n int) ([]*core.User, error) {
	of := s.o.account(account)
	return listAfter[core.User](ctx, s, of.key("users"), of.key("u:"), id, n)
}

// usersByMember returns the user with an email or external id, if any.
func (s *Store) usersByMember(ctx context.Context, n keySlot, m uniqueMember, p core.Page) ([]*core.User, int, error) {
	if err := s.begin(); err != nil {
		return nil, 0, err
	}
	defer s.end()
	calls, cancel := s.withTimeout(ctx)
	defer cancel()
	r := s.do(calls, s.client.B().Hget().Key(m.hash).Field(m.field).Build())
	if err := unavailable(r.Error()); err != nil {
		return nil, 0, err
	}
	id, err := r.AsInt64()
	if err != nil {
		return nil, 0, nil
	}
	u, err := fetch[core.User](ctx, s, n.user(id), core.ErrUserNotFound)
	switch {
	case err == core.ErrUserNotFound: // deleted after its ID was read
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	case p.Offset() > 0:
		return nil, 1, nil
	}
	return []*core.User{u}, 1, nil
}

// list returns a page of the resources in an index. records is the key prefix of their records.
func list[T any](ctx context.Context, s *Store, index, records string, p core.Page) ([]*T, int, error) {
	if err := s.begin(); err != nil {
		return nil, 0, err
	}
	defer s.end()
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	all, err := readPageScript.read(ctx, s, []string{index}, []string{records, strconv.Itoa(p.Offset()), strconv.Itoa(p.Size)}).ToArray()
	if err != nil {
		return nil, 0, unavailable(err)
	}
	page, err := decodeRecords[T](all[1:])
	return page, int(number(all[0])), err
}

// listAfter returns at most n of the resources in an index that follow a number. records is the key prefix of their records.
func listAfter[T any](ctx context.Context, s *Store, index, records string, number int64, n int) ([]*T, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	all, err := readAfterScript.read(ctx, s, []string{index}, []string{records, strconv.FormatInt(number, 10), strconv.Itoa(n)}).ToArray()
	if err != nil {
		return nil, unavailable(err)
	}
	return decodeRecords[T](all)
}

// decodeRecords decodes records, and skips missing ones.
func decodeRecords[T any](all []rueidis.RedisMessage) ([]*T, error) {
	list := make([]*T, 0, len(all))
	for _, m := range all {
		if m.IsNil() {
			continue
		}
		r, err := m.AsBytes()
		if err != nil {
			return nil, unavailable(err)
		}
		item, err := record.Decode[T](r)
		if err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	return list, nil
}

// user returns the change of a user.
func (t *tx) user(id int64) (*change[core.User], error) {
	return loadChange(t, t.users, id, t.slot.user(id))
}

// User implements [core.Tx].
func (t *tx) User(id int64) (*core.User, error) {
	c, err := t.user(id)
	if err != nil {
		return nil, err
	}
	if c.before == nil {
		return nil, core.ErrUserNotFound
	}
	return clone(c.before)
}

// clone returns a deep copy.
func clone[T any](resource *T) (*T, error) {
	r, err := record.Encode(resource)
	if err != nil {
		return nil, err
	}
	return record.Decode[T](r)
}

// CountUsers implements [core.Tx].
func (t *tx) CountUsers(f core.UserFilter) (int, error) {
	if m, ok := t.slot.unique(f); ok {
		return t.countIndex("HEXISTS", m.hash, m.field)
	}
	return t.countIndex("ZCARD", t.slot.users(f))
}

// PutUser implements [core.Tx].
func (t *tx) PutUser(u *core.User) (err error) {
	if t.noAccount {
		return core.ErrAccountNotFound
	}
	c := &change[core.User]{}
	if u.ID != 0 {
		if c, err = t.user(u.ID); err != nil {
			return err
		}
	}
	if err := t.checkUnique(u); err != nil {
		return err
	}
	preset, err := t.assign("user", &u.ID)
	if err != nil {
		return err
	}
	c.preset = c.preset || preset
	after, err := clone(u)
	if err != nil {
		return err
	}
	t.setUnique(c.current(), 0)
	t.setUnique(u, u.ID)
	c.write(after)
	t.users[u.ID] = c
	return nil
}

// checkUnique returns an error when another user has the email or the external id.
func (t *tx) checkUnique(u *core.User) error {
	for _, f := range u.UniqueFilters() {
		m, _ := t.slot.unique(f)
		holder, known := t.unique[m]
		if !known {
			b := newBatch(t.slot)
			b.add("HGET", m.hash, m.field)
			answers := t.readBatch(b)
			if answers == nil {
				return t.readErr
			}
			holder = number(answers[0])
		}
		if holder != 0 && holder != u.ID {
			return f.Duplicate()
		}
	}
	return nil
}

// setUnique records the user that has the unique members of u after the commit; 0 frees them.
func (t *tx) setUnique(u *core.User, id int64) {
	for _, f := range u.UniqueFilters() {
		m, _ := t.slot.unique(f)
		t.unique[m] = id
	}
}

// DeleteUser implements [core.Tx].
func (t *tx) DeleteUser(id int64) error {
	c, err := t.user(id)
	if err != nil {
		return err
	}
	if c.current() == nil {
		return core.ErrUserNotFound
	}
	many, err := t.hasManyKeys(id)
	if err != nil {
		return err
	}
	if many {
		t.deferred[id], err = t.indexIDs(t.slot.key("plans"), 0, -1)
	} else {
		err = t.loadKeys(id)
	}
	if err != nil {
		return err
	}
	for _, k := range t.keys {
		if held := k.current(); held != nil && held.UserID == id {
			k.write(nil)
		}
	}
	t.setUnique(c.current(), 0)
	c.write(nil)
	return nil
}
