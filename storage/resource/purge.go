package resource

import (
	"cmp"
	"context"
	"errors"

	"github.com/limitkeeper/limitkeeper/core"
)

// purgeAtOnce is the number of resources that one call of PurgeAccount removes. Their records fit into one transaction of Badger. On Redis, their removal
// blocks a master for some milliseconds.
const purgeAtOnce = 200

// PurgeAccount implements [core.Store]. Each step is a transaction, or may be repeated: after a crash, the next call goes on. The order is: keys with
// their counters; users, plans, prices, events and webhooks; owner's keys and access; what the database keeps beside the resources; and last, in one
// transaction, the record of the account.
func (r Resources) PurgeAccount(ctx context.Context, id string) (more bool, err error) {
	a, err := r.Account(ctx, id)
	switch {
	case errors.Is(err, core.ErrAccountNotFound):
		return false, nil
	case err != nil || !a.Deleting:
		return false, cmp.Or[error](err, core.ErrAccountNotFound)
	}
	for _, step := range []struct {
		in     Scope
		remove func(*tx) (bool, error)
	}{
		{Scope{Account: id}, (*tx).purgeResources},
		{Scope{Account: id, Registry: true}, func(t *tx) (bool, error) { return t.purgeAccess(id) }},
	} {
		removed := false
		err := r.change(ctx, step.in, func(t *tx) (err error) {
			t.purge()
			removed, err = step.remove(t)
			return err
		})
		if removed || err != nil {
			return true, err
		}
	}
	if more, err := r.db.Purge(ctx, a); more || err != nil {
		return true, err
	}
	return false, r.change(ctx, registry, func(t *tx) error {
		t.purge()
		switch err := remove(t, &t.accounts, id); {
		case err == core.ErrAccountNotFound: // another process has removed it
			return nil
		case err != nil:
			return err
		}
		removed, err := t.lastOf(Removed)
		t.last[Removed] = removed + 1
		return err
	})
}

// purge marks the transaction as part of the removal of an account. It leaves no entries in the audit log.
func (t *tx) purge() { t.purges, t.auditing = true, nil }

// purgeResources removes some keys, users, plans or events, the prices, or a webhook with its delivery log. It returns false if the account has none of them.
func (t *tx) purgeResources() (bool, error) {
	for _, purge := range []func() (bool, error){
		func() (bool, error) { return purgeSome(t, &t.keys, KeySet(core.KeyFilter{})) },
		func() (bool, error) { return purgeSome(t, &t.users, UserSet(core.UserFilter{})) },
		func() (bool, error) { return purgeSome(t, &t.plans, PlanSet) },
		func() (bool, error) { return purgeOne(t, &t.prices, "") },
		func() (bool, error) { return purgeSome(t, &t.events, eventSet(core.EventFilter{})) },
		t.purgeWebhook,
	} {
		if removed, err := purge(); removed || err != nil {
			return removed, err
		}
	}
	return false, nil
}

// purgeWebhook removes the first webhook with its delivery log.
func (t *tx) purgeWebhook() (bool, error) {
	list, _, err := t.Webhooks(core.Page{Number: 1, Size: 1})
	if err != nil || len(list) == 0 {
		return false, err
	}
	return true, t.DeleteWebhook(list[0].ID)
}

// purgeAccess removes some owner's keys, or the Access. It returns false if the account has neither.
func (t *tx) purgeAccess(account string) (bool, error) {
	removed, err := purgeSome(t, &t.ownerKeys, ownerKeySet(account))
	if removed || err != nil {
		return removed, err
	}
	return purgeOne(t, &t.accesses, account)
}

// purgeSome removes the first resources of a set.
func purgeSome[T any](t *tx, in *table[T], set string) (bool, error) {
	records, _, err := t.r.Page(in.kind, set, 0, purgeAtOnce)
	if err != nil {
		return false, t.keep(err)
	}
	for _, b := range records {
		v, err := decode[T](b)
		if err != nil {
			return false, t.keep(err)
		}
		id := in.id(v)
		in.changes[id] = &Change[T]{Before: v, record: b}
		if err := write(t, in, id, nil); err != nil {
			return false, err
		}
	}
	return len(records) > 0, nil
}

// purgeOne removes a resource that is in no set.
func purgeOne[T any](t *tx, in *table[T], id string) (bool, error) {
	c, err := loadOne(t, in, id)
	if err != nil || c.Before == nil {
		return false, err
	}
	return true, write(t, in, id, nil)
}
