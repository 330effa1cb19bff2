package resource

import (
	"cmp"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// tx is a [core.Tx]. It collects the changes of each resource, and makes the [Changes] of all at the end.
type tx struct {
	r   Reader
	err error // the first error of the reader: nothing is stored

	exists bool // the account is known to exist
	purges bool // the account is being removed

	auditing *core.Auditing // nil if the changes leave no entries in the audit log

	accounts  table[core.Account]
	ownerKeys table[core.OwnerKey]
	accesses  table[core.Access]
	users     table[core.User]
	plans     table[core.Plan]
	keys      table[core.Key]
	prices    table[core.Prices]
	webhooks  table[core.Webhook]
	events    table[core.Event]
	attempts  table[core.Attempt]

	unique map[Unique]string
	last   map[Kind]int64
	put    map[int64][]string // ids of the keys that the transaction has put, by user
}

// table has the changes of the resources of a kind, by id.
type table[T any] struct {
	*description[T]
	changes map[string]*Change[T]
}

func newTable[T any](d *description[T]) table[T] { return table[T]{d, map[string]*Change[T]{}} }

func newTx(r Reader) *tx {
	return &tx{
		r: r, accounts: newTable(accounts), ownerKeys: newTable(ownerKeys), accesses: newTable(accesses),
		users: newTable(users), plans: newTable(plans), keys: newTable(keys), prices: newTable(prices),
		webhooks: newTable(webhooks), events: newTable(events), attempts: newTable(attempts),
		unique: map[Unique]string{}, last: map[Kind]int64{}, put: map[int64][]string{},
	}
}

// keep returns an error of the reader, and keeps the first one.
func (t *tx) keep(err error) error {
	if t.err == nil {
		t.err = err
	}
	return err
}

// load returns the changes of resources. The transaction reads each resource once.
func load[T any](t *tx, in *table[T], ids ...string) ([]*Change[T], error) {
	var unread []string
	for _, id := range ids {
		if in.changes[id] == nil {
			unread = append(unread, id)
		}
	}
	if len(unread) > 0 {
		records, err := t.r.Records(in.kind, unread...)
		if err != nil {
			return nil, t.keep(err)
		}
		for i, id := range unread {
			c := &Change[T]{record: records[i]}
			if c.record != nil {
				if c.Before, err = decode[T](c.record); err != nil {
					return nil, t.keep(err)
				}
			}
			in.changes[id] = c
		}
	}
	list := make([]*Change[T], len(ids))
	for i, id := range ids {
		list[i] = in.changes[id]
	}
	return list, nil
}

func loadOne[T any](t *tx, in *table[T], id string) (*Change[T], error) {
	list, err := load(t, in, id)
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// before returns a copy of a resource as it was when the transaction began.
func before[T any](t *tx, in *table[T], id string) (*T, error) {
	c, err := loadOne(t, in, id)
	switch {
	case err != nil:
		return nil, err
	case c.Before == nil:
		return nil, in.missing
	}
	return decode[T](c.record)
}

// User implements [core.Tx].
func (t *tx) User(id int64) (*core.User, error) { return before(t, &t.users, userID(id)) }

// Plan implements [core.Tx].
func (t *tx) Plan(id string) (*core.Plan, error) { return before(t, &t.plans, id) }

// Key implements [core.Tx].
func (t *tx) Key(id string) (*core.Key, error) { return before(t, &t.keys, id) }

// Plans implements [core.Tx].
func (t *tx) Plans(p core.Page) ([]*core.Plan, int, error) {
	list, total, err := readPage(t.r, plans, PlanSet, p)
	return list, total, t.keep(err)
}

// Prices implements [core.Tx].
func (t *tx) Prices() (*core.Prices, error) {
	c, err := loadOne(t, &t.prices, "")
	if err != nil || c.Before == nil {
		return new(core.Prices), err
	}
	return before(t, &t.prices, "")
}

// CountUsers implements [core.Tx].
func (t *tx) CountUsers(f core.UserFilter) (int, error) {
	u, single := uniqueOf(f)
	if !single {
		return t.size(UserSet(f))
	}
	id, err := t.r.Holder(u)
	if err != nil || id == "" {
		return 0, t.keep(err)
	}
	return 1, nil
}

// CountKeys implements [core.Tx].
func (t *tx) CountKeys(f core.KeyFilter) (int, error) { return t.size(KeySet(f)) }

func (t *tx) size(set string) (int, error) {
	sizes, err := t.r.Sizes(set)
	if err != nil {
		return 0, t.keep(err)
	}
	return sizes[0], nil
}

// PutUser implements [core.Tx].
func (t *tx) PutUser(u *core.User) error { return put(t, &t.users, u) }

// PutPlan implements [core.Tx].
func (t *tx) PutPlan(p *core.Plan) error { return put(t, &t.plans, p) }

// PutKey implements [core.Tx].
func (t *tx) PutKey(k *core.Key) error {
	if err := put(t, &t.keys, k); err != nil {
		return err
	}
	t.put[k.UserID] = append(t.put[k.UserID], k.ID)
	return nil
}

// PutPrices implements [core.Tx].
func (t *tx) PutPrices(p *core.Prices) error {
	if _, err := loadOne(t, &t.prices, ""); err != nil {
		return err
	}
	if err := t.checkAccount(); err != nil {
		return err
	}
	return write(t, &t.prices, "", p)
}

// put stores a resource, and gives it a number if it has none. It does not read a user without an id, or with a larger one than
// any before: there is none.
func put[T any](t *tx, in *table[T], v *T) error {
	last, err := t.lastOf(in.kind) // first: whether the account exists must be newer than what the transaction depends on
	if err != nil {
		return err
	}
	if err := t.checkAccount(); err != nil {
		return err
	}
	c, id := &Change[T]{}, in.id(v)
	if in.kind != User || id != "" && in.numberOf(v) <= last {
		if c, err = loadOne(t, in, id); err != nil {
			return err
		}
	}
	if err := checkUnique(t, in, id, v); err != nil {
		return err
	}
	number := &c.number
	if in.number != nil {
		number = in.number(v)
	}
	c.Given = c.Given || *number != 0
	if *number == 0 {
		*number = last + 1 // one more than the largest ever given
	}
	t.last[in.kind] = max(last, *number)
	id = in.id(v)
	in.changes[id] = c
	return write(t, in, id, v)
}

// checkUnique returns an error if another resource has a unique value of v, the resource with the id.
func checkUnique[T any](t *tx, in *table[T], id string, v *T) error {
	for _, u := range of(in.unique, v) {
		holder, err := t.holder(u)
		if err != nil {
			return err
		}
		if holder != "" && holder != id {
			return in.duplicate(u)
		}
	}
	return nil
}

// checkAccount returns an error if the account does not exist.
func (t *tx) checkAccount() error {
	if t.exists {
		return nil
	}
	exists, err := t.r.Exists()
	if err != nil || !exists {
		return cmp.Or[error](t.keep(err), core.ErrAccountNotFound)
	}
	t.exists = true
	return nil
}

// write sets the resource after the transaction, nil to delete it, and the holders of its unique values.
func write[T any](t *tx, in *table[T], id string, v *T) (err error) {
	c := in.changes[id]
	from, to := of(in.unique, c.now()), of(in.unique, v)
	for _, u := range from {
		if !slices.Contains(to, u) {
			t.unique[u] = ""
		}
	}
	for _, u := range to {
		if !slices.Contains(from, u) {
			t.unique[u] = id
		}
	}
	c.After, c.value, c.written = nil, nil, true
	if v == nil {
		return nil
	}
	if c.value, err = record.Encode(v); err == nil {
		c.After, err = record.Decode[T](c.value) // the caller may change v
	}
	return t.keep(err)
}

// holder returns the id of the resource with a unique value, including the writes of the transaction.
func (t *tx) holder(u Unique) (string, error) {
	if id, known := t.unique[u]; known {
		return id, nil
	}
	id, err := t.r.Holder(u)
	return id, t.keep(err)
}

// lastOf returns the largest number that was given, including the writes of the transaction.
func (t *tx) lastOf(kind Kind) (int64, error) {
	if last, known := t.last[kind]; known {
		return last, nil
	}
	last, err := t.r.Last(kind)
	return last, t.keep(err)
}

// remove deletes a resource.
func remove[T any](t *tx, in *table[T], id string) error {
	c, err := loadOne(t, in, id)
	if err != nil {
		return err
	}
	if c.now() == nil {
		return in.missing
	}
	return write(t, in, id, nil)
}

// DeletePlan implements [core.Tx].
func (t *tx) DeletePlan(id string) error { return remove(t, &t.plans, id) }

// DeleteKey implements [core.Tx].
func (t *tx) DeleteKey(id string) error { return remove(t, &t.keys, id) }

// keysPerRead is the number of keys that DeleteUser reads at once.
const keysPerRead = 1000

// DeleteUser implements [core.Tx].
func (t *tx) DeleteUser(id int64) error {
	if err := remove(t, &t.users, userID(id)); err != nil {
		return err
	}
	ids := slices.Clone(t.put[id])
	set := KeySet(core.KeyFilter{UserID: id})
	for offset, size := 0, 1; offset < size; offset += keysPerRead {
		var records [][]byte
		var err error
		if records, size, err = t.r.Page(Key, set, offset, keysPerRead); err != nil {
			return t.keep(err)
		}
		for _, b := range records {
			k, err := decode[core.Key](b)
			if err != nil {
				return t.keep(err)
			}
			if t.keys.changes[k.ID] == nil {
				t.keys.changes[k.ID] = &Change[core.Key]{Before: k, record: b}
			}
			ids = append(ids, k.ID)
		}
	}
	for _, key := range ids {
		if k := t.keys.changes[key].now(); k != nil && k.UserID == id {
			if err := write(t, &t.keys, key, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

var _ core.Tx = (*tx)(nil)
