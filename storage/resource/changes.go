package resource

import (
	"maps"
	"slices"
)

// changes returns what the transaction stores.
func (t *tx) changes() (*Changes, error) {
	c := &Changes{Sets: map[string]*SetChange{}, Unique: t.unique, Last: t.last, Purges: t.purges}
	c.Accounts = collect(t, c, &t.accounts)
	c.OwnerKeys = collect(t, c, &t.ownerKeys)
	collect(t, c, &t.accesses)
	c.Plans = collect(t, c, &t.plans)
	c.Keys = collect(t, c, &t.keys)
	c.Users = collect(t, c, &t.users)
	c.Prices = collect(t, c, &t.prices)
	c.Webhooks = collect(t, c, &t.webhooks)
	c.Events = collect(t, c, &t.events)
	collect(t, c, &t.attempts)
	if err := t.appendAudit(c); err != nil {
		return nil, err
	}
	if err := t.listPlanUsers(c); err != nil {
		return nil, t.keep(err)
	}
	return c, t.keep(t.listPlanKeys(c))
}

// collect adds the changed resources of a kind to the changes, in the order of their ids.
func collect[T any](t *tx, c *Changes, in *table[T]) (list []*Change[T]) {
	for _, id := range slices.Sorted(maps.Keys(in.changes)) {
		ch := in.changes[id]
		if !ch.written || ch.Before == nil && ch.After == nil {
			continue
		}
		list = append(list, ch)
		if t.auditing != nil && in.audit != nil {
			in.audit(t.auditing, ch.Before, ch.After)
		}
		was, is := in.numberOf(ch.Before), max(in.numberOf(ch.After), ch.number)
		c.Records = append(c.Records, Record{in.kind, id, is, was, ch.value})
		c.Creates = c.Creates || ch.Before == nil && in.kind != Access && in.kind != Attempt // a full disk refuses new resources, but not the result of a delivery
		c.move(Member{was, id}, Member{is, id}, of(in.sets, ch.Before), of(in.sets, ch.After))
	}
	return list
}

// move takes a resource out of the sets from, and puts it into the sets to.
func (c *Changes) move(was, is Member, from, to []string) {
	for _, name := range from {
		if was != is || !slices.Contains(to, name) {
			c.set(name).Remove = append(c.set(name).Remove, was)
		}
	}
	for _, name := range to {
		if was != is || !slices.Contains(from, name) {
			c.set(name).Add = append(c.set(name).Add, is)
		}
	}
}

func (c *Changes) set(name string) *SetChange {
	if c.Sets[name] == nil {
		c.Sets[name] = &SetChange{}
	}
	return c.Sets[name]
}
