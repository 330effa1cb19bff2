package storetest

import (
	"fmt"
	"math"
	"slices"
	"time"

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

// samePages reads a list in pages of several sizes, and beyond its end. It fails unless the items
// are want, named by id, and every page has the right total.
func samePages[T any, I comparable](e *env, what string, want []I, id func(T) I, list lister[T]) {
	e.Helper()
	r := &paging[T, I]{env: e, what: what, total: len(want), id: id, list: list}
	sizes := []int{1, 3, 100}
	if len(want) > 50 {
		sizes = []int{97, 1000}
	}
	for _, size := range sizes {
		last := len(want)/size + 1
		for n := 1; n <= last; n++ {
			if size == 97 && n%5 != 1 && n < last-1 { // reads some of the many small pages
				continue
			}
			r.same(fmt.Sprintf("%s: page %d of %d each", what, n, size), cut(want, core.Page{Number: n, Size: size}),
				r.page(core.Page{Number: n, Size: size}))
		}
	}
	for _, n := range []int{len(want) + 2, 1 << 40, math.MaxInt/100 + 1, math.MaxInt} {
		if got := r.page(core.Page{Number: n, Size: 100}); len(got) > 0 {
			e.Errorf("%s: page %d beyond the end: got %v, want nothing", what, n, got)
		}
	}
}

// cut returns a page of a list.
func cut[T any](all []T, p core.Page) []T {
	first := min(p.Offset(), len(all))
	return all[first:min(first+min(p.Size, len(all)), len(all))]
}

// paging reads the pages of one list.
type paging[T any, I comparable] struct {
	*env
	what  string
	total int
	id    func(T) I
	list  lister[T]
	wrong bool // the total was wrong; reported once
}

// page returns the ids on a page, and fails unless the total is right.
func (r *paging[T, I]) page(p core.Page) []I {
	r.Helper()
	items, total, err := r.list(p)
	r.ok(r.what, err)
	if total != r.total && !r.wrong {
		r.wrong = true
		r.Errorf("%s: total on page %d: got %d, want %d", r.what, p.Number, total, r.total)
	}
	var ids []I
	for _, item := range items {
		ids = append(ids, r.id(item))
	}
	return ids
}

// users lists the users that match.
func (e *env) users(account string, f core.UserFilter) lister[*core.User] {
	return func(p core.Page) ([]*core.User, int, error) { return e.Store.Users(e.ctx, account, f, p) }
}

func (e *env) plans(account string) lister[*core.Plan] {
	return func(p core.Page) ([]*core.Plan, int, error) { return e.Store.Plans(e.ctx, account, p) }
}

func (e *env) keys(account string, f core.KeyFilter) lister[*core.Key] {
	return func(p core.Page) ([]*core.Key, int, error) { return e.Store.Keys(e.ctx, account, f, p) }
}

func (e *env) ownerKeys(account string) lister[*core.OwnerKey] {
	return func(p core.Page) ([]*core.OwnerKey, int, error) { return e.Store.OwnerKeys(e.ctx, account, p) }
}

func (e *env) entries(of core.CounterID, since time.Time) lister[core.Entry] {
	return func(p core.Page) ([]core.Entry, int, error) { return e.Store.History(e.ctx, of, since, p) }
}

// wantUsers fails unless exactly the users with the ids match, in lists and in the count of a
// transaction.
func (e *env) wantUsers(account string, f core.UserFilter, ids ...int64) {
	e.Helper()
	what := fmt.Sprintf("users that match %+v", f)
	samePages(e, what, ids, func(u *core.User) int64 { return u.ID }, e.users(account, f))
	e.update(account, func(tx core.Tx) error {
		n, err := tx.CountUsers(f)
		if err == nil && n != len(ids) {
			e.Errorf("%s: CountUsers: got %d, want %d", what, n, len(ids))
		}
		return err
	})
}

// wantKeys is wantUsers for keys.
func (e *env) wantKeys(account string, f core.KeyFilter, ids ...string) {
	e.Helper()
	what := "keys that match " + describe(f)
	samePages(e, what, ids, func(k *core.Key) string { return k.ID }, e.keys(account, f))
	e.update(account, func(tx core.Tx) error {
		n, err := tx.CountKeys(f)
		if err == nil && n != len(ids) {
			e.Errorf("%s: CountKeys: got %d, want %d", what, n, len(ids))
		}
		return err
	})
}

// describe prints a filter with the value of its plan.
func describe(f core.KeyFilter) string {
	plan := "any"
	if f.PlanID != nil {
		plan = fmt.Sprintf("%q", *f.PlanID)
	}
	return fmt.Sprintf("{UserID:%d PlanID:%s Status:%q}", f.UserID, plan, f.Status)
}

// wantPlans fails unless the account has exactly these plans.
func (e *env) wantPlans(account string, ids ...string) {
	e.Helper()
	samePages(e, "plans", ids, func(p *core.Plan) string { return p.ID }, e.plans(account))
	e.update(account, func(tx core.Tx) error {
		samePages(e, "plans in a transaction", ids, func(p *core.Plan) string { return p.ID }, tx.Plans)
		return nil
	})
}
