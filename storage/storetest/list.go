package storetest

import (
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

var listCases = []testCase{
	{name: "list/large", run: listLarge,
		promise: "lists of thousands are in the order of creation with the right total, after any deletions and creations"},
	{name: "list/filtered large", run: listFilteredLarge,
		promise: "filtered lists of thousands are in the order of creation with the right total, after any deletions, changes and creations"},
}

// large is the initial number of resources: more than one node of an index is likely to hold.
const large = 3300

// deleted reports whether the ith of many resources is to be deleted: the first, the last, single
// ones, and a long run.
func deleted(i int) bool {
	return i == 0 || i == large-1 || i%7 == 3 || i >= 900 && i < 2100 || i >= 2555 && i <= 2561
}

func listLarge(e *env) {
	account := e.account()
	_, keys := Fill(e, e.Store, account, large)
	var users []int64
	var names []string
	for _, k := range keys {
		users, names = append(users, k.UserID), append(names, k.ID)
	}
	e.wantUsers(account, core.UserFilter{}, users...)
	e.wantKeys(account, core.KeyFilter{}, names...)

	users, names = e.deleteMany(account, keys)
	e.wantUsers(account, core.UserFilter{}, users...)
	e.wantKeys(account, core.KeyFilter{}, names...)
	for range 3 {
		u := newUser(account, "late")
		e.put(u)
		k := newKey(account, "key_late"+u.Name+string(rune('a'+len(users)%26)), u.ID, "")
		e.put(k)
		users, names = append(users, u.ID), append(names, k.ID)
	}
	e.reopen()
	e.wantUsers(account, core.UserFilter{}, users...)
	e.wantKeys(account, core.KeyFilter{}, names...)
	e.wantUsers(account, core.UserFilter{Email: "USER500@example.com"}, keys[499].UserID)
}

// deleteMany deletes the users for which deleted is true, with their keys, many in one transaction.
// It returns the remaining ids.
func (e *env) deleteMany(account string, keys []*core.Key) (users []int64, names []string) {
	e.Helper()
	var gone []int64
	for i, k := range keys {
		if deleted(i) {
			gone = append(gone, k.UserID)
			continue
		}
		users, names = append(users, k.UserID), append(names, k.ID)
	}
	for some := range slices.Chunk(gone, 100) {
		e.update(account, func(tx core.Tx) error {
			for _, id := range some {
				if err := tx.DeleteUser(id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return users, names
}

// listFilteredLarge moves many keys between plans and users.
func listFilteredLarge(e *env) {
	account := e.account()
	pl, keys := Fill(e, e.Store, account, large)
	collector := keys[0].UserID
	for i, k := range keys { // every fifth key moves to the first user, every third to another plan
		if i%5 == 0 {
			k.UserID = collector
		}
		if i%3 == 0 {
			k.PlanID = "plan_third"
		}
		if i%11 == 0 {
			k.Status = core.KeyInactive
		}
	}
	for some := range slices.Chunk(keys, 100) {
		var things []any
		for _, k := range some {
			things = append(things, k)
		}
		e.put(things...)
	}
	e.wantLarge(account, collector, pl.ID, keys)

	var gone, left []*core.Key
	for i, k := range keys {
		if deleted(i) {
			gone = append(gone, k)
		} else {
			left = append(left, k)
		}
	}
	for some := range slices.Chunk(gone, 100) {
		e.update(account, func(tx core.Tx) error {
			for _, k := range some {
				if err := tx.DeleteKey(k.ID); err != nil {
					return err
				}
			}
			return nil
		})
	}
	e.wantLarge(account, collector, pl.ID, left)
	k := newKey(account, "key_late", collector, "plan_third")
	e.put(k)
	e.wantLarge(account, collector, pl.ID, append(left, k))
}

// wantLarge fails unless the filters select the right keys, in order.
func (e *env) wantLarge(account string, collector int64, plan string, keys []*core.Key) {
	e.Helper()
	filters := []core.KeyFilter{{}, {UserID: collector}, {PlanID: &plan}, {PlanID: new("plan_third")},
		{Status: core.KeyInactive}, {UserID: collector, PlanID: new("plan_third")},
		{PlanID: &plan, Status: core.KeyActive}, {UserID: collector, PlanID: &plan, Status: core.KeyInactive}}
	for _, f := range filters {
		var want []string
		for _, k := range keys {
			if (f.UserID == 0 || k.UserID == f.UserID) && (f.PlanID == nil || k.PlanID == *f.PlanID) &&
				(f.Status == "" || k.Status == f.Status) {
				want = append(want, k.ID)
			}
		}
		e.wantKeys(account, f, want...)
	}
	for _, on := range []string{plan, "plan_third"} {
		var want []int64
		for _, k := range keys {
			if k.PlanID == on {
				want = append(want, k.UserID)
			}
		}
		slices.Sort(want)
		e.wantUsers(account, core.UserFilter{OnPlan: on}, slices.Compact(want)...)
	}
}
