package storetest

import (
	"errors"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var tenancyCases = []testCase{
	{name: "tenancy/another account", run: tenancyAnotherAccount,
		promise: "a resource of another account is reported as missing"},
	{name: "tenancy/missing account", run: tenancyMissingAccount,
		promise: "a resource of a missing account is reported as missing, and nothing can be put into such an account"},
	{name: "tenancy/same ids", run: tenancySameIDs,
		promise: "resources of two accounts with the same ids are separate, even if the name of one account is a prefix of the other"},
}

// filledAccount returns an account with a user, a plan and a key with usage.
func (e *env) filledAccount() (account string, k *core.Key) {
	e.Helper()
	account = e.account()
	u := newUser(account, "user")
	u.Email, u.ExternalID, u.PlanID = new("user@example.com"), "cus_user", "plan_1"
	k = newKey(account, "key_1", 1, "")
	e.put(u, newPlan(account, "plan_1"))
	e.put(k)
	e.allowed(request(k, noon))
	return account, k
}

func tenancyAnotherAccount(e *env) {
	account, k := e.filledAccount()
	before := e.snapshot(account)
	e.wantForeign(e.account(), k)
	e.same("the account after another one tried", before, e.snapshot(account))
}

func tenancyMissingAccount(e *env) {
	account, k := e.filledAccount()
	before := e.snapshot(account)
	const missing = "acct_missing"
	e.wantForeign(missing, k)
	for _, thing := range []any{newUser(missing, "user"), newPlan(missing, "plan_1"), newKey(missing, "key_2", 1, "")} {
		e.isErr("a Put into a missing account", e.Store.Update(e.ctx, missing, putting(thing)), core.ErrAccountNotFound)
	}
	e.wantForeign(missing, k)
	_, err := e.Store.KeyByDigest(e.ctx, digest(missing, "key_2", 1))
	e.isErr("a key that was put into a missing account", err, core.ErrKeyNotFound)
	e.same("the account beside the missing one", before, e.snapshot(account))
}

// wantForeign fails if an account has any resource, or can change a key, its user or its plan.
func (e *env) wantForeign(account string, k *core.Key) {
	e.Helper()
	_, err := e.Store.User(e.ctx, account, k.UserID)
	e.isErr("User", err, core.ErrUserNotFound)
	_, err = e.Store.Plan(e.ctx, account, "plan_1")
	e.isErr("Plan", err, core.ErrPlanNotFound)
	_, err = e.Store.Key(e.ctx, account, k.ID)
	e.isErr("Key", err, core.ErrKeyNotFound)

	e.wantUsers(account, core.UserFilter{})
	e.wantUsers(account, core.UserFilter{Email: "user@example.com"})
	e.wantUsers(account, core.UserFilter{ExternalID: "cus_user"})
	e.wantUsers(account, core.UserFilter{OnPlan: "plan_1"})
	e.wantKeys(account, core.KeyFilter{})
	e.wantKeys(account, core.KeyFilter{PlanID: new("")})
	e.wantPlans(account)
	for _, id := range []core.CounterID{{Account: account, KeyID: k.ID}, {Account: account, UserID: k.UserID}} {
		e.same("counter", core.Counter{}, e.counter(id))
		e.wantHistory(id, time.Time{})
	}
	for _, of := range []core.DaysFilter{{}, {KeyID: k.ID}, {UserID: k.UserID}, {PlanID: "plan_1"}} {
		of.Account = account
		e.wantDays(of, today, 0, 0)
	}
	e.wantPlanTotals(account, "plan_1", core.Month, noon, 10, 0)
	e.update(account, func(tx core.Tx) error {
		_, err := tx.User(k.UserID)
		e.isErr("User in a transaction", err, core.ErrUserNotFound)
		_, err = tx.Plan("plan_1")
		e.isErr("Plan in a transaction", err, core.ErrPlanNotFound)
		_, err = tx.Key(k.ID)
		e.isErr("Key in a transaction", err, core.ErrKeyNotFound)
		return nil
	})
	for _, remove := range []func(core.Tx) error{
		func(tx core.Tx) error { return tx.DeleteUser(k.UserID) },
		func(tx core.Tx) error { return tx.DeletePlan("plan_1") },
		func(tx core.Tx) error { return tx.DeleteKey(k.ID) },
	} {
		if err := e.Store.Update(e.ctx, account, remove); errors.Is(err, core.ErrUnavailable) {
			e.Errorf("deletion of what is not there: got %v, want no fault of the store", err)
		}
	}
}

// tenancySameIDs uses an account whose id is a prefix of that of a second one.
func tenancySameIDs(e *env) {
	short := e.account()
	a, owner := newAccount(short + "0")
	e.ok("CreateAccount", e.Store.CreateAccount(e.ctx, a, owner))
	accounts := []string{short, a.ID}
	for i, account := range accounts {
		u := newUser(account, "user of "+account)
		u.Email, u.ExternalID = new("same@example.com"), "same"
		k := newKey(account, "key_1", 1, "plan_1")
		e.put(u, newPlan(account, "plan_1"))
		e.put(k)
		for n := range 2 + i {
			c := request(k, noon)
			c.Entry.Endpoint = "/" + account
			if got := e.allowed(c).Used; got != int64(n+1) {
				e.Errorf("usage of %s: got %d, want %d", account, got, n+1)
			}
		}
	}
	for i, account := range accounts {
		u, err := e.Store.User(e.ctx, account, 1)
		e.ok("User", err)
		if !strings.HasSuffix(u.Name, " "+account) {
			e.Errorf("user 1 of %s: got %q", account, u.Name)
		}
		for _, id := range []core.CounterID{{Account: account, KeyID: "key_1"}, {Account: account, UserID: 1}} {
			var want []string
			for range 2 + i {
				want = append(want, "/"+account)
			}
			e.wantHistory(id, time.Time{}, want...)
		}
	}
	e.deleteUsers(short, 1)
	e.wantKeys(short, core.KeyFilter{})
	e.wantKeys(a.ID, core.KeyFilter{}, "key_1")
	e.wantUsed(core.CounterID{Account: a.ID, KeyID: "key_1"}, core.Month, noon, 3)
}
