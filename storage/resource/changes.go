package resource

import (
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// changes returns what the transaction stores.
func (t *tx) changes() (*Changes, error) {
	c := &Changes{Sets: map[string]*SetChange{}, Unique: t.unique, Last: t.last}
	c.Accounts = collect(c, &t.accounts)
	c.OwnerKeys = collect(c, &t.ownerKeys)
	collect(c, &t.accesses)
	c.Plans = collect(c, &t.plans)
	c.Keys = collect(c, &t.keys)
	c.Users = collect(c, &t.users)
	c.Prices = collect(c, &t.prices)
	return c, t.keep(t.listPlanUsers(c))
}

// collect adds the changed resources of a kind to the changes, in the order of their ids.
func collect[T any](c *Changes, in *table[T]) (list []*Change[T]) {
	for _, id := range slices.Sorted(maps.Keys(in.changes)) {
		ch := in.changes[id]
		if !ch.written || ch.Before == nil && ch.After == nil {
			continue
		}
		list = append(list, ch)
		was, is := in.numberOf(ch.Before), max(in.numberOf(ch.After), ch.number)
		c.Records = append(c.Records, Record{in.kind, id, is, was, ch.value})
		c.Creates = c.Creates || ch.Before == nil && in.kind != Access
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

// planUser is a user that may have a plan, as its own or by one of its keys.
type planUser struct {
	user int64
	plan string
}

// listPlanUsers changes the sets of the users on a plan: [core.UserFilter.OnPlan].
func (t *tx) listPlanUsers(c *Changes) error {
	pairs := map[planUser]bool{}
	for _, u := range c.Users {
		addPlanUsers(pairs, u, func(u *core.User) planUser { return planUser{u.ID, u.PlanID} })
	}
	for _, k := range c.Keys {
		addPlanUsers(pairs, k, func(k *core.Key) planUser { return planUser{k.UserID, k.PlanID} })
	}
	var ids, sets []string
	all := slices.Collect(maps.Keys(pairs))
	for _, h := range all {
		ids, sets = append(ids, userID(h.user)), append(sets, KeySet(core.KeyFilter{UserID: h.user, PlanID: &h.plan}))
	}
	if len(all) == 0 {
		return nil
	}
	changed, err := load(t, &t.users, ids...)
	if err != nil {
		return err
	}
	sizes, err := t.r.Sizes(sets...)
	if err != nil {
		return err
	}
	for i, h := range all {
		if s := c.Sets[sets[i]]; s != nil {
			sizes[i] += len(s.Add) - len(s.Remove)
		}
		on, m := c.set(UserSet(core.UserFilter{OnPlan: h.plan})), Member{h.user, ids[i]}
		if u := changed[i].now(); u != nil && (u.PlanID == h.plan || sizes[i] > 0) {
			on.Add = append(on.Add, m)
		} else {
			on.Remove = append(on.Remove, m)
		}
	}
	return nil
}

// addPlanUsers adds the pairs of a resource before and after a change, if they differ.
func addPlanUsers[T any](all map[planUser]bool, c *Change[T], pair func(*T) planUser) {
	before, after := of(pair, c.Before), of(pair, c.After)
	for _, h := range []planUser{before, after} {
		if before != after && h.plan != "" {
			all[h] = true
		}
	}
}
