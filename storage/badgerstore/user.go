package badgerstore

import (
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// User implements [core.Store].
func (s *Store) User(_ context.Context, account string, id int64) (u *core.User, err error) {
	err = s.read(account, func(r snapshot) error {
		u, err = r.user(account, id)
		return err
	})
	return u, err
}

// Users implements [core.Store].
func (s *Store) Users(_ context.Context, account string, f core.UserFilter, p core.Page) (list []*core.User, total int, err error) {
	err = s.read(account, func(r snapshot) error {
		var numbers []int64
		if unique := uniquePath(account, f); unique != nil {
			numbers, total, err = r.onePage(unique, p)
		} else {
			numbers, total, err = r.page(userIndex(account, f), p)
		}
		if err != nil {
			return err
		}
		list, err = listed[core.User](r, numbers, func(id int64) path { return userPath(account, id) })
		return err
	})
	return list, total, err
}

// userIndex returns the index of the users that match a filter without a [uniquePath].
func userIndex(account string, f core.UserFilter) path {
	switch {
	case f.PlanID != "":
		return usersWithPlan(account, f.PlanID)
	case f.OnPlan != "":
		return usersOnPlan(account, f.OnPlan)
	case f.Anchored:
		return anchoredUsers(account)
	}
	return allUsers(account)
}

// page returns the numbers on a page of an index, and how many numbers the index has.
func (r snapshot) page(base path, p core.Page) (numbers []int64, total int, err error) {
	f, err := r.index(base)
	if err != nil {
		return nil, 0, err
	}
	numbers, err = f.Page(p.Offset(), p.Size)
	return numbers, f.Len(), err
}

// onePage returns page p of the list of the one user that the record at a path names. Without the record the list is
// empty.
func (r snapshot) onePage(unique path, p core.Page) (numbers []int64, total int, err error) {
	id, err := r.number(unique)
	if err != nil || id == 0 {
		return nil, 0, err
	}
	if p.Offset() == 0 {
		numbers = []int64{id}
	}
	return numbers, 1, nil
}

// User implements [core.Tx].
func (t *tx) User(id int64) (*core.User, error) {
	u, err := t.before.user(t.account, id)
	return u, fault(err)
}

// CountUsers implements [core.Tx].
func (t *tx) CountUsers(f core.UserFilter) (int, error) {
	unique := uniquePath(t.account, f)
	if unique == nil {
		return t.count(userIndex(t.account, f))
	}
	_, n, err := t.before.onePage(unique, core.Page{Number: 1, Size: 1})
	return n, fault(err)
}

// PutUser implements [core.Tx].
func (t *tx) PutUser(u *core.User) error {
	if err := t.writable(); err != nil {
		return err
	}
	var old *core.User
	isNew := u.ID == 0 // then it has no record to replace
	if !isNew {
		var err error
		if old, err = t.userNow(u.ID); err != nil {
			return t.keepError(err)
		}
	}
	if err := t.checkUnique(u); err != nil {
		return fault(err)
	}
	if err := t.assign(kindUser, &u.ID); err != nil {
		return t.keepError(err)
	}
	if isNew {
		t.newUsers[u.ID] = true
	}
	return t.keepError(firstOf(
		t.putJSON(userPath(t.account, u.ID), u),
		t.reindexUser(u.ID, old, u)))
}

// userNow returns a user including the writes of the transaction, nil when the user does not exist.
func (t *tx) userNow(id int64) (*core.User, error) {
	value, err := t.get(userPath(t.account, id))
	if err != nil || value == nil {
		return nil, err
	}
	return record.Decode[core.User](value)
}

// checkUnique returns an error when another user has the email or the external id.
func (t *tx) checkUnique(u *core.User) error {
	for _, f := range u.UniqueFilters() {
		id, err := t.userAt(uniquePath(t.account, f))
		if err != nil {
			return err
		}
		if id != 0 && id != u.ID {
			return f.Duplicate()
		}
	}
	return nil
}

// userAt returns the id of the user that the record at a path names, 0 without the record.
func (t *tx) userAt(unique path) (int64, error) {
	if id, ok := t.unique[string(unique)]; ok {
		return id, nil
	}
	return t.before.number(unique)
}

// reindexUser replaces the index entries of a user. from is nil for a new user, to is nil for a deletion.
func (t *tx) reindexUser(id int64, from, to *core.User) error {
	return firstOf(
		t.replaceUnique(id, from.UniqueFilters(), to.UniqueFilters()),
		t.reindex(userIndexes(t.account, from), userIndexes(t.account, to), id, id),
		t.addHolding(id, planOf(from), -1),
		t.addHolding(id, planOf(to), +1))
}

func planOf(u *core.User) string {
	if u == nil {
		return ""
	}
	return u.PlanID
}

// userIndexes returns the indexes of a user. addHolding maintains the indexes usersOnPlan.
func userIndexes(account string, u *core.User) (indexes []path) {
	for _, f := range u.Filters() {
		indexes = append(indexes, userIndex(account, f))
	}
	return indexes
}

// replaceUnique deletes the records of the filters in from, unless they name another user, and writes the records of the
// filters in to. A record of a filter in both lists stays.
func (t *tx) replaceUnique(id int64, from, to []core.UserFilter) error {
	for _, f := range from {
		if slices.Contains(to, f) {
			continue
		}
		holder, err := t.userAt(uniquePath(t.account, f))
		if err == nil && holder == id {
			err = t.setUnique(f, 0)
		}
		if err != nil {
			return err
		}
	}
	for _, f := range to {
		if slices.Contains(from, f) {
			continue
		}
		if err := t.setUnique(f, id); err != nil {
			return err
		}
	}
	return nil
}

// setUnique makes the record of a filter name a user, and deletes the record when the id is 0.
func (t *tx) setUnique(f core.UserFilter, id int64) error {
	p := uniquePath(t.account, f)
	t.unique[string(p)] = id
	if id == 0 {
		return t.put(p, nil)
	}
	return t.put(p, encodeNumber(id))
}

// DeleteUser implements [core.Tx].
func (t *tx) DeleteUser(id int64) error {
	u, err := t.userNow(id)
	if err == nil && u == nil {
		return core.ErrUserNotFound
	}
	if err != nil {
		return t.keepError(err)
	}
	return t.keepError(firstOf(
		t.deleteKeysOf(id),
		t.put(userPath(t.account, id), nil),
		t.reindexUser(id, u, nil),
		t.drop(kindUser, id)))
}

// deleteKeysOf deletes the keys of a user.
func (t *tx) deleteKeysOf(user int64) error {
	f, err := t.index(keyIndex(t.account, core.KeyFilter{UserID: user}))
	if err != nil {
		return err
	}
	for f.Len() > 0 {
		numbers, err := f.Page(0, 1000)
		if err != nil {
			return err
		}
		for _, n := range numbers {
			if err := t.deleteKeyAt(n); err != nil {
				return err
			}
		}
	}
	return nil
}
