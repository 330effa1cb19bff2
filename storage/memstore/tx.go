package memstore

import "github.com/limitkeeper/limitkeeper/core"

// tx is a [core.Tx]. It reads from before and writes to after.
type tx struct {
	account       string
	missing       bool // the account does not exist
	before, after *resources
	deleted       []core.CounterID // counters to delete with their histories, days and request ids
}

// User implements [core.Tx].
func (t *tx) User(id int64) (*core.User, error) { return t.before.user(id) }

// Plan implements [core.Tx].
func (t *tx) Plan(id string) (*core.Plan, error) { return t.before.plan(id) }

// Key implements [core.Tx].
func (t *tx) Key(id string) (*core.Key, error) { return t.before.key(id) }

// CountUsers implements [core.Tx].
func (t *tx) CountUsers(f core.UserFilter) (int, error) { return len(t.before.matchingUsers(f)), nil }

// CountKeys implements [core.Tx].
func (t *tx) CountKeys(f core.KeyFilter) (int, error) { return len(t.before.matchingKeys(f)), nil }

// Plans implements [core.Tx].
func (t *tx) Plans(p core.Page) ([]*core.Plan, int, error) {
	list, total := t.before.listPlans(p)
	return list, total, nil
}

// assign gives a new resource the number after last. It marks the number of another resource as used.
func assign(last, number *int64) {
	if *number == 0 {
		*number = *last + 1
	}
	*last = max(*last, *number)
}

// PutUser implements [core.Tx].
func (t *tx) PutUser(u *core.User) error {
	if t.missing {
		return core.ErrAccountNotFound
	}
	for _, f := range u.UniqueFilters() {
		for _, other := range t.after.matchingUsers(f) {
			if other.ID != u.ID {
				return f.Duplicate()
			}
		}
	}
	assign(&t.after.lastUser, &u.ID)
	t.after.users[u.ID] = copyOf(u)
	return nil
}

// PutPlan implements [core.Tx].
func (t *tx) PutPlan(p *core.Plan) error {
	if t.missing {
		return core.ErrAccountNotFound
	}
	assign(&t.after.lastPlan, &p.Seq)
	t.after.plans[p.ID] = copyOf(p)
	return nil
}

// PutKey implements [core.Tx].
func (t *tx) PutKey(k *core.Key) error {
	if t.missing {
		return core.ErrAccountNotFound
	}
	assign(&t.after.lastKey, &k.Seq)
	t.after.keys[k.ID] = copyOf(k)
	return nil
}

// DeleteUser implements [core.Tx].
func (t *tx) DeleteUser(id int64) error {
	if t.after.users[id] == nil {
		return core.ErrUserNotFound
	}
	for _, k := range t.after.matchingKeys(core.KeyFilter{UserID: id}) {
		t.dropKey(k.ID)
	}
	delete(t.after.users, id)
	t.deleted = append(t.deleted, core.CounterID{Account: t.account, UserID: id})
	return nil
}

// DeletePlan implements [core.Tx].
func (t *tx) DeletePlan(id string) error {
	if t.after.plans[id] == nil {
		return core.ErrPlanNotFound
	}
	delete(t.after.plans, id)
	return nil
}

// DeleteKey implements [core.Tx].
func (t *tx) DeleteKey(id string) error {
	if t.after.keys[id] == nil {
		return core.ErrKeyNotFound
	}
	t.dropKey(id)
	return nil
}

func (t *tx) dropKey(id string) {
	delete(t.after.keys, id)
	t.deleted = append(t.deleted, core.CounterID{Account: t.account, KeyID: id})
}

var _ core.Tx = (*tx)(nil)
