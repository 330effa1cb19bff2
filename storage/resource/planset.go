package resource

import (
	"cmp"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// planUser is a pair of a user and a plan that the user, or a key of the user, may have.
type planUser struct {
	user int64
	plan string
}

// listPlanUsers changes the sets that list the users on a plan, see [core.UserFilter.OnPlan].
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

// listPlanKeys changes the sets that list the keys that a plan limits, see [core.KeyFilter.UnderPlan].
func (t *tx) listPlanKeys(c *Changes) error {
	var ids []string
	for _, k := range c.Keys {
		for _, k := range []*core.Key{k.Before, k.After} {
			if k != nil && k.PlanID == "" {
				ids = append(ids, userID(k.UserID))
			}
		}
	}
	if _, err := load(t, &t.users, ids...); err != nil {
		return err
	}
	for _, k := range c.Keys {
		from := t.planSets(k.Before, func(u *Change[core.User]) *core.User { return u.Before })
		to := t.planSets(k.After, (*Change[core.User]).now)
		c.move(keyMember(k.Before), keyMember(k.After), from, to)
	}
	return t.movePlanKeys(c)
}

// planSets returns the sets of listPlanKeys that have a key, none for a nil key. ofUser returns the user before or after the transaction.
func (t *tx) planSets(k *core.Key, ofUser func(*Change[core.User]) *core.User) []string {
	if k == nil {
		return nil
	}
	plan := ""
	if k.PlanID == "" {
		plan = of(planOf, ofUser(t.users.changes[userID(k.UserID)]))
	}
	return keyPlanSets(k, plan)
}

func planOf(u *core.User) string { return u.PlanID }

// keyMember returns the member of a key in the sets of keys, the zero member for nil.
func keyMember(k *core.Key) (m Member) {
	if k != nil {
		m = Member{k.Seq, k.ID}
	}
	return m
}

// keyPlanSets returns the sets of listPlanKeys that have a key. ofUser is the plan of its user, "" for none.
func keyPlanSets(k *core.Key, ofUser string) (sets []string) {
	for _, f := range k.PlanFilters(ofUser) {
		sets = append(sets, KeySet(f))
	}
	return sets
}

// movePlanKeys moves the keys without a plan of their own to other sets when their user gets another plan. listPlanKeys has already moved the keys that
// the transaction changes.
func (t *tx) movePlanKeys(c *Changes) error {
	changed := map[int64]bool{}
	for _, k := range c.Keys {
		if k.Before != nil {
			changed[k.Before.Seq] = true
		}
	}
	var sets []string
	var shared []core.Key // for each set: a key with its status and without a plan
	var users []*Change[core.User]
	for _, u := range c.Users {
		isNew := u.Before == nil && !u.Given // a new user has no keys
		if isNew || of(planOf, u.Before) == of(planOf, u.After) {
			continue
		}
		id := cmp.Or(u.Before, u.After).ID
		for _, status := range []core.KeyStatus{core.KeyActive, core.KeyInactive} {
			sets = append(sets, KeySet(core.KeyFilter{UserID: id, PlanID: new(""), Status: status}))
			shared, users = append(shared, core.Key{Status: status}), append(users, u)
		}
	}
	if len(sets) == 0 {
		return nil
	}
	sizes, err := t.r.Sizes(sets...)
	if err != nil {
		return err
	}
	for i, set := range sets {
		from, to := keyPlanSets(&shared[i], of(planOf, users[i].Before)), keyPlanSets(&shared[i], of(planOf, users[i].After))
		for offset := 0; offset < sizes[i]; offset += keysPerRead {
			members, err := t.r.Members(set, offset, keysPerRead)
			if err != nil {
				return err
			}
			for _, m := range members {
				if !changed[m.Number] {
					c.move(m, m, from, to)
				}
			}
		}
	}
	return nil
}
