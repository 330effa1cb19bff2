package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var accountCases = []testCase{
	{name: "account/read back", run: accountReadBack,
		promise: "CreateAccount stores an account with its first owner's key; AccountByName returns the account with exactly this name"},
	{name: "account/name taken", run: accountNameTaken,
		promise: "a name that is taken is ErrAccountExists, and neither account nor owner's key is stored"},
	{name: "account/digest taken", run: accountDigestTaken,
		promise: "a digest that is taken is ErrOwnerKeyExists, and neither account nor owner's key is stored"},
	{name: "account/created at once", run: accountCreatedAtOnce,
		promise: "of concurrent creations with one name exactly one succeeds, with its owner's key"},
	{name: "account/list", run: accountList, own: true,
		promise: "Accounts lists all accounts in the order of creation, with their total"},
	{name: "account/update", run: accountUpdate,
		promise: "UpdateAccount stores the changes of fn and returns the result; if fn fails, it returns its error and stores nothing"},
	{name: "account/updated at once", run: accountUpdatedAtOnce,
		promise: "UpdateAccount is atomic: no concurrent update is lost"},
}

func accountReadBack(e *env) {
	a, k := newAccount(fmt.Sprintf("acct_%d", serial.Add(1)))
	a.Name = a.ID + " Ünïcode 日本 \x00/:\u2028'\""
	a.CreatedAt = noon.In(time.FixedZone("somewhere", 3600))
	e.ok("CreateAccount", e.Store.CreateAccount(e.ctx, a, k))

	got, err := e.Store.AccountByName(e.ctx, a.Name)
	e.ok("AccountByName", err)
	e.same("account", a, got)
	e.utc(got.CreatedAt)
	owner, err := e.Store.OwnerKeyByDigest(e.ctx, k.Digest)
	e.ok("OwnerKeyByDigest", err)
	e.same("first owner's key", k, owner)

	for _, other := range []string{"", a.ID, a.Name + "x", a.Name[:len(a.Name)-1], "A" + a.Name[1:]} {
		_, err := e.Store.AccountByName(e.ctx, other)
		e.isErr(fmt.Sprintf("AccountByName(%q)", other), err, core.ErrAccountNotFound)
	}
}

func accountNameTaken(e *env) {
	id := e.account()
	a, k := newAccount(id + "_second")
	a.Name = "name of " + id
	e.isErr("CreateAccount", e.Store.CreateAccount(e.ctx, a, k), core.ErrAccountExists)

	_, err := e.Store.OwnerKeyByDigest(e.ctx, k.Digest)
	e.isErr("the owner's key of the refused account", err, core.ErrOwnerKeyNotFound)
	got, err := e.Store.AccountByName(e.ctx, a.Name)
	e.ok("AccountByName", err)
	if got.ID != id {
		e.Errorf("AccountByName: got the account %s, want %s", got.ID, id)
	}
}

func accountDigestTaken(e *env) {
	id := e.account()
	_, first := newAccount(id)
	a, k := newAccount(id + "_second")
	k.Digest = first.Digest
	e.isErr("CreateAccount", e.Store.CreateAccount(e.ctx, a, k), core.ErrOwnerKeyExists)

	_, err := e.Store.AccountByName(e.ctx, a.Name)
	e.isErr("the refused account", err, core.ErrAccountNotFound)
	samePages(e, "owner's keys of the refused account", nil, ownerKeyID, e.ownerKeys(a.ID))
	got, err := e.Store.OwnerKeyByDigest(e.ctx, k.Digest)
	e.ok("OwnerKeyByDigest", err)
	if got.AccountID != id {
		e.Errorf("OwnerKeyByDigest: got a key of %s, want of %s", got.AccountID, id)
	}
	e.ok("CreateAccount with another digest", func() error {
		a, k := newAccount(a.ID)
		return e.Store.CreateAccount(e.ctx, a, k)
	}())
}

func accountCreatedAtOnce(e *env) {
	const callers = 8
	name := fmt.Sprintf("acct_contested%d", serial.Add(1))
	id := func(i int) string { return fmt.Sprintf("%s_%d", name, i) }
	errs := make([]error, callers)
	e.parallel(callers, func(i int) {
		a, k := newAccount(id(i))
		a.Name = name
		errs[i] = e.Store.CreateAccount(e.ctx, a, k)
	})

	winner := e.onlyOne(errs, core.ErrAccountExists)
	got, err := e.Store.AccountByName(e.ctx, name)
	e.ok("AccountByName", err)
	if got.ID != id(winner) {
		e.Errorf("AccountByName: got the account %s, want that of the call that succeeded, %s", got.ID, id(winner))
	}
	for i := range callers {
		_, k := newAccount(id(i))
		_, err := e.Store.OwnerKeyByDigest(e.ctx, k.Digest)
		if i == winner {
			e.ok("the owner's key of the account", err)
		} else {
			e.isErr("the owner's key of a refused account", err, core.ErrOwnerKeyNotFound)
		}
	}
}

// onlyOne fails unless exactly one of the errors is nil and the others are want. It returns the
// index of the nil error.
func (e *env) onlyOne(errs []error, want error) int {
	e.Helper()
	winner := -1
	for i, err := range errs {
		if err != nil {
			e.isErr("a later call", err, want)
			continue
		}
		if winner >= 0 {
			e.Fatalf("the calls %d and %d both succeeded, want one", winner, i)
		}
		winner = i
	}
	if winner < 0 {
		e.Fatalf("no call succeeded, want one: %v", errs)
	}
	return winner
}

func accountList(e *env) {
	id := func(a *core.Account) string { return a.ID }
	list := func(p core.Page) ([]*core.Account, int, error) { return e.Store.Accounts(e.ctx, p) }
	samePages(e, "accounts of an empty store", nil, id, list)

	var want []string
	for i := range 12 { // not in the order of ids or times
		a, k := newAccount(fmt.Sprintf("acct_%d", 100-i*7%12))
		a.CreatedAt = noon.Add(-time.Duration(i) * time.Hour)
		e.ok("CreateAccount", e.Store.CreateAccount(e.ctx, a, k))
		want = append(want, a.ID)
	}
	samePages(e, "accounts", want, id, list)
	e.reopen()
	samePages(e, "accounts after reopening", want, id, list)
}

// wantAccount fails unless each way to read an account returns it.
func (e *env) wantAccount(want *core.Account) {
	e.Helper()
	byID, err := e.Store.Account(e.ctx, want.ID)
	e.ok("Account", err)
	e.same("account by id", want, byID)
	byName, err := e.Store.AccountByName(e.ctx, want.Name)
	e.ok("AccountByName", err)
	e.same("account by name", want, byName)
	e.utc(byID.CreatedAt, byName.CreatedAt)
}

func accountUpdate(e *env) {
	id, other := e.account(), e.account()
	want, _ := newAccount(id)
	untouched, _ := newAccount(other)
	e.wantAccount(want) // without prefixes, as every account of an earlier version

	failure := errors.New("no")
	_, err := e.Store.UpdateAccount(e.ctx, id, func(a *core.Account) error {
		a.KeyPrefix, a.KeyPrefixes = "spoilt_", []string{"spoilt_"}
		return failure
	})
	e.isErr("UpdateAccount when fn fails", err, failure)
	for _, missing := range []string{"acct_missing", ""} {
		_, err = e.Store.UpdateAccount(e.ctx, missing, func(*core.Account) error { return nil })
		e.isErr("UpdateAccount of a missing account", err, core.ErrAccountNotFound)
	}
	e.wantAccount(want)

	want.KeyPrefix, want.KeyPrefixes = "acme_live_", []string{"acme_test_", "acme_live_"}
	given := slices.Clone(want.KeyPrefixes)
	got, err := e.Store.UpdateAccount(e.ctx, id, func(a *core.Account) error {
		e.same("the account that fn gets", untouched.KeyPrefixes, a.KeyPrefixes)
		a.KeyPrefix, a.KeyPrefixes = want.KeyPrefix, given
		return nil
	})
	e.ok("UpdateAccount", err)
	e.same("the account that UpdateAccount returns", want, got)
	given[0], got.KeyPrefixes[1] = "spoilt_", "spoilt_"
	for range 2 {
		e.wantAccount(want)
		e.wantAccount(untouched)
		e.reopen()
	}
}

func accountUpdatedAtOnce(e *env) {
	const callers, times = 8, 10
	id := e.account()
	e.parallel(callers, func(i int) {
		for n := range times {
			_, err := e.Store.UpdateAccount(e.ctx, id, func(a *core.Account) error {
				a.KeyPrefixes = append(a.KeyPrefixes, fmt.Sprintf("p%d_%d_", i, n))
				return nil
			})
			if err != nil {
				e.Errorf("UpdateAccount: %v", err)
			}
		}
	})
	a, err := e.Store.Account(e.ctx, id)
	e.ok("Account", err)
	slices.Sort(a.KeyPrefixes)
	if got := len(slices.Compact(a.KeyPrefixes)); got != callers*times {
		e.Errorf("after %d updates: got %d changes", callers*times, got)
	}
}

// utc fails unless the times are in UTC.
func (e *env) utc(times ...time.Time) {
	e.Helper()
	for _, t := range times {
		if t.Location() != time.UTC {
			e.Errorf("time %v: got the location %v, want UTC", t, t.Location())
		}
	}
}

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
