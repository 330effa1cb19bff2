package storetest

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var userCases = []testCase{
	{name: "user/read back", run: userReadBack,
		promise: "strings, numbers and compact JSON of a user come back as they went in, times as the same instant in UTC"},
	{name: "user/replace", run: userReplace,
		promise: "PutUser stores a user in place of the one with its ID, and clears members that are now empty"},
	{name: "user/ids", run: userIDs,
		promise: "a new user gets one more than the largest ID that the account ever gave, from 1, also after deletions and reopening"},
	{name: "user/plan filter", run: userPlanFilter,
		promise: "UserFilter.PlanID matches the users with this plan; OnPlan matches them and the users of keys with it, each once, by id"},
	{name: "user/delete", run: userDelete,
		promise: "DeleteUser deletes a user and its keys, and no other resource"},
}

// awkward is text with characters that stores often treat specially.
const awkward = "Ünïcode 日本 \x00\x01/:%{}\u2028\"'\\ <&> 👩‍👩‍👧"

// awkwardJSON is compact JSON that another encoder would change.
var awkwardJSON = json.RawMessage(`{"b":1e400,"a":12345678901234567890,"<&>":"\u00e9é\/","e":[{},null,1.0],"a":0.10}`)

func userReadBack(e *env) {
	account := e.account()
	full := newUser(account, awkward)
	full.Email, full.PlanID, full.Metadata, full.Disabled = new("Ünï.Code+tag@Example.COM"), "plan_x", awkwardJSON, true
	full.ExternalID = awkward
	full.CreatedAt = noon.In(time.FixedZone("somewhere", 3600))
	full.UpdatedAt = time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)
	bare := newUser(account, "bare")
	e.put(full, bare)

	e.wantUser(full)
	e.wantUser(bare)
	got, err := e.Store.User(e.ctx, account, full.ID)
	e.ok("User", err)
	e.utc(got.CreatedAt, got.UpdatedAt)
	got, err = e.Store.User(e.ctx, account, bare.ID)
	e.ok("User", err)
	if got.Email != nil || got.Metadata != nil || got.ExternalID != "" {
		e.Errorf("members that were never set: got %v, %v and %q, want none", got.Email, got.Metadata, got.ExternalID)
	}
}

// wantUser fails unless the user is stored: by id, in a transaction and in the list.
func (e *env) wantUser(want *core.User) {
	e.Helper()
	got, err := e.Store.User(e.ctx, want.AccountID, want.ID)
	e.ok("User", err)
	e.same("User", want, got)
	e.update(want.AccountID, func(tx core.Tx) (err error) {
		got, err = tx.User(want.ID)
		return err
	})
	e.same("User in a transaction", want, got)
	for _, u := range all(e, e.users(want.AccountID, core.UserFilter{})) {
		if u.ID == want.ID {
			e.same("user in the list", want, u)
			return
		}
	}
	e.Errorf("user %d is not in the list", want.ID)
}

func userReplace(e *env) {
	account := e.account()
	u := newUser(account, "before")
	u.Email, u.PlanID, u.Metadata, u.Disabled = new("before@example.com"), "plan_before", json.RawMessage(`{"a":1}`), true
	u.ExternalID = "cus_before"
	other := newUser(account, "other")
	e.put(u, other)

	u.Name, u.Email, u.PlanID, u.Metadata, u.Disabled = "after", new("after@example.com"), "plan_after", json.RawMessage(`{}`), false
	u.ExternalID, u.UpdatedAt = "cus_after", noon.Add(time.Hour)
	e.put(u)
	e.wantUser(u)

	u.Email, u.ExternalID, u.PlanID, u.Metadata = nil, "", "", nil
	e.put(u)
	e.wantUser(u)
	e.wantUser(other)
	e.wantUsers(account, core.UserFilter{}, u.ID, other.ID)
}

func userIDs(e *env) {
	account, another := e.account(), e.account()
	create := func(want ...int64) {
		e.Helper()
		var users []any
		for range want {
			users = append(users, newUser(account, "user"))
		}
		e.put(users...)
		for i, u := range users {
			if got := u.(*core.User).ID; got != want[i] {
				e.Errorf("ID of a new user: got %d, want %d", got, want[i])
			}
		}
	}
	create(1)
	create(2, 3, 4)
	e.put(newUser(another, "the other account counts for itself"))
	e.wantUsers(another, core.UserFilter{}, 1)

	e.deleteUsers(account, 4, 2) // the largest id, and one in between
	create(5)
	failure := errors.New("no")
	e.isErr("Update when fn fails", e.Store.Update(e.ctx, account, func(tx core.Tx) error {
		return errors.Join(tx.PutUser(newUser(account, "given up")), failure)
	}), failure)
	create(6)

	e.deleteUsers(account, 6, 5, 3, 1)
	e.wantUsers(account, core.UserFilter{})
	e.reopen()
	create(7)
	e.reopen()
	create(8)
	e.wantUsers(account, core.UserFilter{}, 7, 8)
}

// deleteUsers deletes users, each in its own transaction.
func (e *env) deleteUsers(account string, ids ...int64) {
	e.Helper()
	for _, id := range ids {
		e.update(account, func(tx core.Tx) error { return tx.DeleteUser(id) })
	}
}

// deleteKeys is deleteUsers for keys.
func (e *env) deleteKeys(account string, ids ...string) {
	e.Helper()
	for _, id := range ids {
		e.update(account, func(tx core.Tx) error { return tx.DeleteKey(id) })
	}
}

func userPlanFilter(e *env) {
	account := e.account()
	a, b, c := newUser(account, "a"), newUser(account, "b"), newUser(account, "c")
	a.PlanID = "plan_x"
	e.put(a, b, c, newPlan(account, "plan_x"), newPlan(account, "plan_xy"))
	want := func(when, plan string, with, on []int64) {
		e.Helper()
		e.Logf("%s: %s", when, plan)
		e.wantUsers(account, core.UserFilter{PlanID: plan}, with...)
		e.wantUsers(account, core.UserFilter{OnPlan: plan}, on...)
	}
	ids := func(ids ...int64) []int64 { return ids }
	want("a has the plan", "plan_x", ids(1), ids(1))
	want("a has the plan", "plan_xy", nil, nil)

	k2, k3, k4 := newKey(account, "key_2", 2, "plan_x"), newKey(account, "key_3", 2, "plan_x"), newKey(account, "key_4", 1, "plan_x")
	e.put(k2, k3, k4)
	want("b has two keys with it, a one", "plan_x", ids(1), ids(1, 2))
	e.deleteKeys(account, "key_2")
	want("one of the two is gone", "plan_x", ids(1), ids(1, 2))
	k3.PlanID = "plan_xy"
	e.put(k3)
	want("the other has another plan", "plan_x", ids(1), ids(1))
	want("the other has another plan", "plan_xy", nil, ids(2))
	k3.UserID = 3
	e.put(k3)
	want("the key moved to c", "plan_xy", nil, ids(3))
	a.PlanID = ""
	e.put(a)
	want("a has the key alone", "plan_x", nil, ids(1))
	k4.PlanID = ""
	e.put(k4)
	want("a's key draws on a's plan", "plan_x", nil, nil)
	b.PlanID, c.PlanID = "plan_xy", "plan_xy"
	e.put(b, c)
	want("b and c have the plan, c also a key", "plan_xy", ids(2, 3), ids(2, 3))
	e.deleteUsers(account, 3)
	want("c is gone", "plan_xy", ids(2), ids(2))
	e.wantUsers(account, core.UserFilter{PlanID: "plan_missing"})
	e.wantUsers(account, core.UserFilter{OnPlan: "plan_missing"})
}

func userDelete(e *env) {
	account, other := e.account(), e.account()
	for _, of := range []string{account, other} {
		for range 10 { // "1" is a prefix of "10"
			e.put(newUser(of, "user"))
		}
		e.put(newKey(of, "key_1", 1, "plan_x"), newKey(of, "key_10", 10, "plan_x"), newKey(of, "key_11", 1, ""))
	}
	e.deleteUsers(account, 1)

	_, err := e.Store.User(e.ctx, account, 1)
	e.isErr("the deleted user", err, core.ErrUserNotFound)
	for _, id := range []string{"key_1", "key_11"} {
		e.noKey(account, id, 1)
	}
	e.wantUsers(account, core.UserFilter{}, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	e.wantUsers(account, core.UserFilter{OnPlan: "plan_x"}, 10)
	e.wantKeys(account, core.KeyFilter{}, "key_10")
	e.wantKeys(account, core.KeyFilter{UserID: 1})
	e.wantKeys(other, core.KeyFilter{}, "key_1", "key_10", "key_11")
	e.wantUsers(other, core.UserFilter{}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	e.update(account, func(tx core.Tx) error {
		_, err := tx.User(1)
		e.isErr("the deleted user in a transaction", err, core.ErrUserNotFound)
		return nil
	})
}
