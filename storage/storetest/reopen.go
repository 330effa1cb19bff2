package storetest

import (
	"github.com/limitkeeper/limitkeeper/core"
)

var reopenCases = []testCase{
	{name: "reopen/everything", run: reopenEverything,
		promise: "a write that returned without an error is there after reopening"},
	{name: "reopen/after every step", run: reopenAfterEveryStep,
		promise: "the last write before reopening is there, and the last deletion is done"},
}

func reopenEverything(e *env) {
	account := e.busyAccount()
	u, p, k := fullResources(account)
	p.ID, k.ID, k.PlanID = "plan_rich", "key_rich", "plan_rich"
	k.Digest, k.Previous = digest(account, k.ID, 1), []core.GraceValue{{Digest: digest(account, k.ID, 2), Until: noon}}
	u.Email, u.ExternalID = new("rich@example.com"), "cus_rich"
	e.put(u, p)
	k.UserID = u.ID
	e.put(k)
	e.ok("CreateOwnerKey", e.Store.CreateOwnerKey(e.ctx, newOwnerKey(account, "okey_2")))
	for range 5 {
		e.allowed(request(k, noon))
	}
	e.denied(limit(request(k, noon), core.Month, 5))
	e.awaitHistory(keyCounter(k), 6)
	before := e.snapshot(account)
	for i := range 3 {
		e.reopen()
		e.same("the account after reopening", before, e.snapshot(account))
		e.allowed(limit(request(k, noon), core.Month, int64(6+i)))
		before = e.snapshot(account)
	}
	e.reopen()
	e.same("the account after reopening", before, e.snapshot(account))
}

func reopenAfterEveryStep(e *env) {
	account := e.account()
	k := newKey(account, "key_1", 1, "plan_1")
	steps := []func(){
		func() { e.put(newUser(account, "user")) },
		func() { e.put(newPlan(account, "plan_1")) },
		func() { e.put(k) },
		func() { e.allowed(request(k, noon)) },
		func() { e.ok("CreateOwnerKey", e.Store.CreateOwnerKey(e.ctx, newOwnerKey(account, "okey_2"))) },
		func() {
			_, err := e.Store.UpdateOwnerKey(e.ctx, account, "okey_2", func(k *core.OwnerKey) error {
				k.RevokedAt = new(noon)
				return nil
			})
			e.ok("UpdateOwnerKey", err)
		},
		func() { e.deleteKeys(account, "key_1") },
		func() { e.update(account, func(tx core.Tx) error { return tx.DeletePlan("plan_1") }) },
		func() { e.deleteUsers(account, 1) },
	}
	before := e.snapshot(account)
	for i, step := range steps {
		step()
		after := e.snapshot(account)
		if diff(before, after) == "" {
			e.Errorf("step %d changed nothing", i)
		}
		e.reopen()
		e.same("the account after reopening", after, e.snapshot(account))
		before = after
	}
}
