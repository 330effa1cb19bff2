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
func (t *tx) User(id int64) (*core.User, error) { return t.before.users.get(id) }

// Plan implements [core.Tx].
func (t *tx) Plan(id string) (*core.Plan, error) { return t.before.plans.get(id) }

// Key implements [core.Tx].
func (t *tx) Key(id string) (*core.Key, error) { return t.before.keys.get(id) }

// CountUsers implements [core.Tx].
func (t *tx) CountUsers(f core.UserFilter) (int, error) { return len(t.before.matchingUsers(f)), nil }

// CountKeys implements [core.Tx].
func (t *tx) CountKeys(f core.KeyFilter) (int, error) { return len(t.before.matchingKeys(f)), nil }

// Plans implements [core.Tx].
func (t *tx) Plans(p core.Page) ([]*core.Plan, int, error) {
	list, total := page(t.before.allPlans(), p)
	return list, total, nil
}

// Prices implements [core.Tx].
func (t *tx) Prices() (*core.Prices, error) { return copyOf(t.before.prices), nil }

// PutUser implements [core.Tx].
func (t *tx) PutUser(u *core.User) error {
	for _, f := range u.UniqueFilters() {
		for _, other := range t.after.matchingUsers(f) {
			if other.ID != u.ID {
				return f.Duplicate()
			}
		}
	}
	return put(t, t.after.users, u)
}

// PutPlan implements [core.Tx].
func (t *tx) PutPlan(p *core.Plan) error { return put(t, t.after.plans, p) }

// PutKey implements [core.Tx].
func (t *tx) PutKey(k *core.Key) error { return put(t, t.after.keys, k) }

// PutPrices implements [core.Tx].
func (t *tx) PutPrices(p *core.Prices) error {
	if t.missing {
		return core.ErrAccountNotFound
	}
	t.after.prices = copyOf(p)
	return nil
}

func put[K comparable, T any](t *tx, in *table[K, T], v *T) error {
	if t.missing {
		return core.ErrAccountNotFound
	}
	in.put(v)
	return nil
}

// DeleteUser implements [core.Tx].
func (t *tx) DeleteUser(id int64) error {
	if err := t.after.users.remove(id); err != nil {
		return err
	}
	t.deleted = append(t.deleted, core.CounterID{Account: t.account, UserID: id})
	for _, k := range t.after.matchingKeys(core.KeyFilter{UserID: id}) {
		if err := t.DeleteKey(k.ID); err != nil {
			return err
		}
	}
	return nil
}

// DeletePlan implements [core.Tx].
func (t *tx) DeletePlan(id string) error { return t.after.plans.remove(id) }

// DeleteKey implements [core.Tx].
func (t *tx) DeleteKey(id string) error {
	if err := t.after.keys.remove(id); err != nil {
		return err
	}
	t.deleted = append(t.deleted, core.CounterID{Account: t.account, KeyID: id})
	return nil
}

var _ core.Tx = (*tx)(nil)
