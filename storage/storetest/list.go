package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var listCases = []testCase{
	{name: "list/large", run: listLarge,
		promise: "lists of thousands are in the order of creation with the right total, after any deletions, changes and creations"},
	{name: "list/under plan", run: listUnderPlan,
		promise: "the keys that a plan limits follow the plans, users and statuses of keys, and the plans of their users"},
}

// large is the initial number of resources: more than one node of an index is likely to hold.
const large = 3300

// deleted reports whether the ith of many resources is to be deleted: the first, the last, single
// ones, and a long run.
func deleted(i int) bool {
	return i == 0 || i == large-1 || i%7 == 3 || i >= 900 && i < 2100 || i >= 2555 && i <= 2561
}

// listLarge moves many keys between users, plans and statuses, deletes some users with their keys, and creates a few others.
func listLarge(e *env) {
	account := e.account()
	_, keys := Fill(e, e.Store, account, large)
	var users, gone []int64
	for i, k := range keys {
		if deleted(i) {
			gone = append(gone, k.UserID)
		}
		users = append(users, k.UserID)
	}
	collector := keys[1].UserID
	for i, k := range keys {
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
	putAll(e, e.Store, keys...)
	e.wantLarge(account, collector, users, keys)

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
	users = slices.DeleteFunc(users, func(id int64) bool { return slices.Contains(gone, id) })
	keys = slices.DeleteFunc(keys, func(k *core.Key) bool { return slices.Contains(gone, k.UserID) })
	for i := range 3 {
		u := newUser(account, "late")
		e.put(u)
		k := newKey(account, fmt.Sprint("key_late", 3-i), u.ID, "plan_third")
		e.put(k)
		users, keys = append(users, u.ID), append(keys, k)
	}
	e.wantLarge(account, collector, users, keys)
	e.reopen()
	e.wantLarge(account, collector, users, keys)
	e.wantUsers(account, core.UserFilter{Email: "USER500@example.com"}, 500)
}

// wantLarge fails unless the users are in the list, and the filters select the right keys, in order.
func (e *env) wantLarge(account string, collector int64, users []int64, keys []*core.Key) {
	e.Helper()
	e.wantUsers(account, core.UserFilter{}, users...)
	plan, third := new("plan_fill"), new("plan_third")
	for _, f := range []core.KeyFilter{{}, {UserID: collector}, {PlanID: plan}, {PlanID: third},
		{Status: core.KeyInactive}, {UserID: collector, PlanID: third}, {UnderPlan: *plan, Status: core.KeyActive},
		{UserID: collector, PlanID: plan, Status: core.KeyInactive}} {
		var want []string
		for _, k := range keys {
			if (f.UserID == 0 || k.UserID == f.UserID) && (f.PlanID == nil || k.PlanID == *f.PlanID) &&
				(f.UnderPlan == "" || k.PlanID == f.UnderPlan) && (f.Status == "" || k.Status == f.Status) {
				want = append(want, k.ID)
			}
		}
		e.wantKeys(account, f, want...)
	}
	for _, on := range []string{*plan, *third} {
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

// listUnderPlan changes the plans that limit the keys of three users. One user has more keys than a store is likely to read at once, and two users have a
// few keys.
func listUnderPlan(e *env) {
	account := e.account()
	a, b := newPlan(account, "plan_a"), newPlan(account, "plan_b")
	putAll(e, e.Store, a, b)
	users := []*core.User{newUser(account, "many"), newUser(account, "few"), newUser(account, "without")}
	users[0].PlanID, users[1].PlanID = a.ID, b.ID
	putAll(e, e.Store, users...)
	var keys []*core.Key
	for i := range 2200 {
		owner, plan := users[0], ""
		if i%100 == 0 {
			owner = users[1+i%200/100]
			plan = map[bool]string{true: b.ID}[owner == users[2]]
		}
		k := newKey(account, fmt.Sprintf("key_%d", i), owner.ID, plan)
		if i%7 == 0 {
			k.Status = core.KeyInactive
		}
		keys = append(keys, k)
	}
	putAll(e, e.Store, keys...)
	check := func() {
		e.Helper()
		for _, plan := range []string{a.ID, b.ID} {
			for _, status := range []core.KeyStatus{"", core.KeyActive, core.KeyInactive} {
				var want []string
				for _, k := range keys {
					owner := users[slices.IndexFunc(users, func(u *core.User) bool { return u.ID == k.UserID })]
					if cmp.Or(k.PlanID, owner.PlanID) == plan && (status == "" || k.Status == status) {
						want = append(want, k.ID)
					}
				}
				e.wantKeys(account, core.KeyFilter{UnderPlan: plan, Status: status}, want...)
			}
		}
	}
	check()
	users[0].PlanID, users[1].PlanID = b.ID, a.ID // with keys that change in the same transaction
	keys[1].Status, keys[2].PlanID, keys[3].UserID = core.KeyInactive, a.ID, users[1].ID
	e.put(users[0], users[1], keys[1], keys[2], keys[3])
	check()
	users[0].PlanID, keys[4].PlanID = "", b.ID
	e.put(users[0], keys[4])
	check()
	e.reopen()
	users[0].PlanID, users[2].PlanID, keys[200].PlanID = a.ID, a.ID, ""
	e.put(users[0], users[2], keys[200])
	check()
	e.update(account, func(tx core.Tx) error { return errors.Join(tx.DeleteKey(keys[5].ID), tx.DeleteUser(users[1].ID)) })
	keys = slices.DeleteFunc(slices.Delete(keys, 5, 6), func(k *core.Key) bool { return k.UserID == users[1].ID })
	check()
}

// lister returns a page of a list and its total.
type lister[T any] func(core.Page) ([]T, int, error)

// all reads a whole list.
func all[T any](e *env, list lister[T]) []T {
	e.Helper()
	var items []T
	for p := (core.Page{Number: 1, Size: 1000}); ; p.Number++ {
		page, _, err := list(p)
		e.ok("list", err)
		items = append(items, page...)
		if len(page) < p.Size {
			return items
		}
	}
}

// samePages reads a list in pages of two sizes, some of the many small ones. It fails unless the items
// are want, named by id, and every page has the right total.
func samePages[T any, I comparable](e *env, what string, want []I, id func(T) I, list lister[T]) {
	e.Helper()
	for _, size := range []int{97, 1000} {
		last := len(want)/size + 1
		for n := 1; n <= last; n++ {
			if size == 97 && n%5 != 1 && n < last-1 {
				continue
			}
			p := core.Page{Number: n, Size: size}
			items, total, err := list(p)
			e.ok(what, err)
			if total != len(want) {
				e.Fatalf("%s: total on page %d: got %d, want %d", what, n, total, len(want))
			}
			var got []I
			for _, item := range items {
				got = append(got, id(item))
			}
			e.same(fmt.Sprintf("%s: page %d of %d each", what, n, size), cut(want, p), got)
		}
	}
}

// cut returns a page of a list.
func cut[T any](all []T, p core.Page) []T {
	first := min(p.Offset(), len(all))
	return all[first:min(first+min(p.Size, len(all)), len(all))]
}

// users lists the users that match.
func (e *env) users(account string, f core.UserFilter) lister[*core.User] {
	return func(p core.Page) ([]*core.User, int, error) { return e.Store.Users(e.ctx, account, f, p) }
}

func (e *env) keys(account string, f core.KeyFilter) lister[*core.Key] {
	return func(p core.Page) ([]*core.Key, int, error) { return e.Store.Keys(e.ctx, account, f, p) }
}

func (e *env) entries(of core.CounterID) lister[core.Entry] {
	return func(p core.Page) ([]core.Entry, int, error) { return e.Store.History(e.ctx, of, time.Time{}, p) }
}

// wantUsers fails unless exactly the users with the ids match, in lists and in the count of a
// transaction.
func (e *env) wantUsers(account string, f core.UserFilter, ids ...int64) {
	e.Helper()
	samePages(e, fmt.Sprintf("users that match %+v", f), ids, func(u *core.User) int64 { return u.ID }, e.users(account, f))
	e.wantCount(account, len(ids), func(tx core.Tx) (int, error) { return tx.CountUsers(f) })
}

// wantKeys is wantUsers for keys.
func (e *env) wantKeys(account string, f core.KeyFilter, ids ...string) {
	e.Helper()
	samePages(e, fmt.Sprintf("keys that match %+v", f), ids, func(k *core.Key) string { return k.ID }, e.keys(account, f))
	e.wantCount(account, len(ids), func(tx core.Tx) (int, error) { return tx.CountKeys(f) })
}

// wantCount fails unless a transaction counts so many resources.
func (e *env) wantCount(account string, want int, count func(core.Tx) (int, error)) {
	e.Helper()
	e.update(account, func(tx core.Tx) error {
		n, err := count(tx)
		if err == nil && n != want {
			e.Errorf("count in a transaction: got %d, want %d", n, want)
		}
		return err
	})
}
