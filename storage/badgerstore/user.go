package badgerstore

import (
	"context"

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
		if f.Email != "" {
			numbers, total, err = r.withEmail(account, f.Email, p)
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

// userIndex returns the index of the users that match a filter without an email.
func userIndex(account string, f core.UserFilter) path {
	switch {
	case f.PlanID != "":
		return usersWithPlan(account, f.PlanID)
	case f.OnPlan != "":
		return usersOnPlan(account, f.OnPlan)
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

// withEmail returns page p of the list of users with an email address. The list has one user at most.
func (r snapshot) withEmail(account, email string, p core.Page) (numbers []int64, total int, err error) {
	id, err := r.number(emailPath(account, core.FoldEmail(email)))
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
	if f.Email == "" {
		return t.count(userIndex(t.account, f))
	}
	_, n, err := t.before.withEmail(t.account, f.Email, core.Page{Number: 1, Size: 1})
	return n, fault(err)
}

// PutUser implements [core.Tx].
func (t *tx) PutUser(u *core.User) error {
	if err := t.writable(); err != nil {
		return err
	}
	old, err := t.userNow(u.ID)
	if err != nil {
		return t.keepError(err)
	}
	if err := t.checkEmail(u); err != nil {
		return fault(err)
	}
	if err := t.assign(kindUser, &u.ID); err != nil {
		return t.keepError(err)
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

// checkEmail returns core.ErrDuplicateEmail when another user has the email.
func (t *tx) checkEmail(u *core.User) error {
	email := u.FoldedEmail()
	if email == "" {
		return nil
	}
	id, err := t.userWith(email)
	if err == nil && id != 0 && id != u.ID {
		return core.ErrDuplicateEmail
	}
	return err
}

// userWith returns the id of the user with a folded email address, 0 without such a user.
func (t *tx) userWith(folded string) (int64, error) {
	if id, ok := t.emails[folded]; ok {
		return id, nil
	}
	return t.before.number(emailPath(t.account, folded))
}

// reindexUser replaces the index entries of a user. from is nil for a new user, to is nil for a deletion.
func (t *tx) reindexUser(id int64, from, to *core.User) error {
	return firstOf(
		t.replaceEmail(id, from.FoldedEmail(), to.FoldedEmail()),
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

func (t *tx) replaceEmail(id int64, from, to string) error {
	if from == to {
		return nil
	}
	if from != "" {
		owner, err := t.userWith(from)
		if err != nil {
			return err
		}
		if owner == id {
			t.emails[from] = 0
			if err := t.put(emailPath(t.account, from), nil); err != nil {
				return err
			}
		}
	}
	if to == "" {
		return nil
	}
	t.emails[to] = id
	return t.put(emailPath(t.account, to), encodeNumber(id))
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
