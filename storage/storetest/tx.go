package storetest

import (
	"errors"

	"github.com/limitkeeper/limitkeeper/core"
)

var txCases = []testCase{
	{name: "transaction/all or nothing", run: txAllOrNothing,
		promise: "if fn fails, Update returns its error and stores none of its writes; if fn returns nil, Update stores all"},
	{name: "transaction/reads", run: txReads,
		promise: "the reads of a transaction show the account: its resources, missing ones, and the number of matches"},
	{name: "transaction/usage apart", run: txUsageApart,
		promise: "a write to a user, plan or key does not change counters and histories"},
}

// busyTx makes every kind of write: on an account of filledAccount, with another user and key.
func busyTx(account string) func(core.Tx) error {
	return func(tx core.Tx) error {
		u, err := tx.User(1)
		if err != nil {
			return err
		}
		k, err := tx.Key("key_1")
		if err != nil {
			return err
		}
		pl, err := tx.Plan("plan_1")
		if err != nil {
			return err
		}
		u.Email, u.ExternalID, u.Name = new("changed@example.com"), "cus_changed", "changed"
		k.Digest, k.Name = digest(account, k.ID, 2), "changed"
		pl.Limit++
		return errors.Join(putting(u, pl, k)(tx), tx.DeleteKey("key_2"), tx.DeleteUser(3), tx.DeletePlan("plan_2"),
			putting(newUser(account, "new"), newPlan(account, "plan_new"), newKey(account, "key_new", 1, ""))(tx))
	}
}

// busyAccount returns an account for busyTx.
func (e *env) busyAccount() string {
	e.Helper()
	account, _ := e.filledAccount()
	e.put(newUser(account, "two"), newUser(account, "three"), newPlan(account, "plan_2"))
	k2, k3 := newKey(account, "key_2", 2, "plan_1"), newKey(account, "key_3", 3, "plan_1")
	e.put(k2, k3)
	e.allowed(request(k2, noon))
	e.allowed(request(k3, noon))
	return account
}

func txAllOrNothing(e *env) {
	account := e.busyAccount()
	before := e.snapshot(account)
	failure := errors.New("no")
	e.isErr("Update", e.Store.Update(e.ctx, account, func(tx core.Tx) error {
		return errors.Join(busyTx(account)(tx), failure)
	}), failure)
	untouched := func(when string) {
		e.Helper()
		e.same("the account "+when, before, e.snapshot(account))
		for _, d := range []core.Digest{digest(account, "key_1", 2), digest(account, "key_new", 1)} {
			_, err := e.Store.KeyByDigest(e.ctx, d)
			e.isErr("a digest that was not stored", err, core.ErrKeyNotFound)
		}
		e.wantUsers(account, core.UserFilter{Email: "user@example.com"}, 1)
		e.wantUsers(account, core.UserFilter{Email: "changed@example.com"})
		e.wantUsers(account, core.UserFilter{ExternalID: "cus_user"}, 1)
		e.wantUsers(account, core.UserFilter{ExternalID: "cus_changed"})
	}
	untouched("after a transaction that failed")
	e.reopen()
	untouched("after reopening")

	e.update(account, busyTx(account))
	e.changedByBusyTx(account)
	e.reopen()
	e.changedByBusyTx(account)
}

// changedByBusyTx fails unless all writes of busyTx are stored.
func (e *env) changedByBusyTx(account string) {
	e.Helper()
	e.wantUsers(account, core.UserFilter{}, 1, 2, 4)
	e.wantUsers(account, core.UserFilter{Email: "user@example.com"})
	e.wantUsers(account, core.UserFilter{Email: "changed@example.com"}, 1)
	e.wantUsers(account, core.UserFilter{ExternalID: "cus_user"})
	e.wantUsers(account, core.UserFilter{ExternalID: "cus_changed"}, 1)
	e.wantUsers(account, core.UserFilter{OnPlan: "plan_1"}, 1)
	e.wantPlans(account, "plan_1", "plan_new")
	e.wantKeys(account, core.KeyFilter{}, "key_1", "key_new")
	e.noKey(account, "key_2", 1)
	e.noKey(account, "key_3", 1)
	_, err := e.Store.KeyByDigest(e.ctx, digest(account, "key_1", 1))
	e.isErr("the digest that key_1 had", err, core.ErrKeyNotFound)
	k, err := e.Store.KeyByDigest(e.ctx, digest(account, "key_1", 2))
	e.ok("KeyByDigest", err)
	if k.Name != "changed" {
		e.Errorf("key_1: got the name %q, want %q", k.Name, "changed")
	}
	pl, err := e.Store.Plan(e.ctx, account, "plan_1")
	e.ok("Plan", err)
	if pl.Limit != 1001 {
		e.Errorf("plan_1: got the limit %d, want 1001", pl.Limit)
	}
}

func txReads(e *env) {
	account := e.busyAccount()
	before := e.snapshot(account)
	e.update(account, func(tx core.Tx) error {
		u, err := tx.User(2)
		e.same("User", before.Users[1], u)
		pl, err2 := tx.Plan("plan_2")
		e.same("Plan", before.Plans[1], pl)
		k, err3 := tx.Key("key_3")
		e.same("Key", before.Keys[2], k)
		_, missing := tx.User(99)
		e.isErr("User", missing, core.ErrUserNotFound)
		_, missing = tx.User(0)
		e.isErr("User", missing, core.ErrUserNotFound)
		_, missing = tx.Plan("plan_")
		e.isErr("Plan", missing, core.ErrPlanNotFound)
		_, missing = tx.Key("key_")
		e.isErr("Key", missing, core.ErrKeyNotFound)
		return errors.Join(err, err2, err3)
	})
	e.wantUsers(account, core.UserFilter{}, 1, 2, 3) // also checks the count in a transaction
	e.wantUsers(account, core.UserFilter{PlanID: "plan_1"}, 1)
	e.wantUsers(account, core.UserFilter{OnPlan: "plan_1"}, 1, 2, 3)
	e.wantUsers(account, core.UserFilter{Email: "USER@example.com"}, 1)
	e.wantKeys(account, core.KeyFilter{PlanID: new("plan_1")}, "key_2", "key_3")
	e.wantKeys(account, core.KeyFilter{PlanID: new("")}, "key_1")
	e.same("the account after transactions that only read", before, e.snapshot(account))
}

func txUsageApart(e *env) {
	account := e.busyAccount()
	before := e.snapshot(account)
	for _, u := range before.Users {
		u.PlanID, u.Disabled = "plan_2", true
		e.put(u)
	}
	for _, k := range before.Keys {
		k.PlanID, k.Digest, k.Status = "plan_2", digest(account, k.ID, 2), core.KeyInactive
		e.put(k)
	}
	e.update(account, func(tx core.Tx) error { return tx.DeletePlan("plan_1") })
	after := e.snapshot(account)
	e.same("counters", before.Counters, after.Counters)
	e.same("histories", before.Histories, after.Histories)
}
