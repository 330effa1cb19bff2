package storetest

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var copyCases = []testCase{
	{name: "copy/results", run: copyReturned,
		promise: "results are copies: changing one changes nothing in the store"},
	{name: "copy/arguments", run: copyGiven,
		promise: "the caller may change its arguments after the call"},
}

// fullResources returns new resources with every pointer and slice set.
func fullResources(account string) (u *core.User, p *core.Plan, k *core.Key) {
	u, p = newUser(account, "user"), newPlan(account, "plan_1")
	u.Email, u.ExternalID, u.Metadata = new("user@example.com"), "cus_full", json.RawMessage(`{"a":1}`)
	p.Description, p.Features = new("description"), []string{"a", "b"}
	k = newKey(account, "key_1", 1, "plan_1")
	k.Previous = []core.GraceValue{{Digest: digest(account, k.ID, 2), Until: noon}}
	k.ExpiresAt, k.Metadata = new(noon), json.RawMessage(`{"a":1}`)
	return u, p, k
}

// overwriteUser, overwritePlan and overwriteKey change everything that a resource points to.
func overwriteUser(u *core.User) {
	*u.Email, u.Metadata[2] = "spoilt", 'x'
	u.Name = "spoilt"
}

func overwritePlan(p *core.Plan) {
	*p.Description, p.Features[1] = "spoilt", "spoilt"
	p.Name = "spoilt"
}

func overwriteKey(k *core.Key) {
	k.Previous[0].Digest[0]++
	*k.ExpiresAt, k.Metadata[2] = noon.Add(time.Hour), 'x'
	k.Name, k.Digest = "spoilt", core.DigestOf("spoilt")
}

func copyReturned(e *env) {
	account := e.account()
	u, p, k := fullResources(account)
	e.put(u, p)
	e.put(k)
	e.allowed(request(k, noon))
	want := e.copied(e.snapshot(account))

	got := e.snapshot(account)
	for _, k := range append(got.Keys, got.ByDigest...) {
		overwriteKey(k)
	}
	overwriteUser(got.Users[0])
	overwritePlan(got.Plans[0])
	got.Counters[0].Requests[0] = 99
	got.Histories[0][0].Endpoint = "/spoilt"
	got.Owners[0].Name = "spoilt"
	e.overwriteResults(account, u.ID, p.ID, k.ID)
	e.same("the account after changing results", want, e.snapshot(account))

	failure := errors.New("no")
	read := func(tx core.Tx) error {
		u, err1 := tx.User(u.ID)
		p, err2 := tx.Plan(p.ID)
		k, err3 := tx.Key(k.ID)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		overwriteUser(u)
		overwritePlan(p)
		overwriteKey(k)
		return nil
	}
	e.update(account, read)
	e.same("the account after changing results of a transaction", want, e.snapshot(account))
	e.isErr("Update", e.Store.Update(e.ctx, account, func(tx core.Tx) error {
		return errors.Join(read(tx), failure)
	}), failure)
	e.same("the account after a failed transaction", want, e.snapshot(account))
}

// overwriteResults changes the results of the methods that return one resource.
func (e *env) overwriteResults(account string, user int64, plan, key string) {
	e.Helper()
	u, err := e.Store.User(e.ctx, account, user)
	e.ok("User", err)
	overwriteUser(u)
	p, err := e.Store.Plan(e.ctx, account, plan)
	e.ok("Plan", err)
	overwritePlan(p)
	k, err := e.Store.Key(e.ctx, account, key)
	e.ok("Key", err)
	overwriteKey(k)
	_, owner := newAccount(account)
	owner, err = e.Store.UpdateOwnerKey(e.ctx, account, owner.ID, func(*core.OwnerKey) error { return nil })
	e.ok("UpdateOwnerKey", err)
	owner.Name = "spoilt"
	owner, err = e.Store.OwnerKeyByDigest(e.ctx, owner.Digest)
	e.ok("OwnerKeyByDigest", err)
	owner.Name = "spoilt"
}

func copyGiven(e *env) {
	account := e.account()
	u, p, k := fullResources(account)
	e.update(account, func(tx core.Tx) error {
		givenUser, givenPlan, _ := fullResources(account)
		err := errors.Join(tx.PutUser(givenUser), tx.PutPlan(givenPlan))
		u.ID, p.Seq = givenUser.ID, givenPlan.Seq
		overwriteUser(givenUser) // before the end of the transaction
		overwritePlan(givenPlan)
		return err
	})
	e.update(account, func(tx core.Tx) error {
		_, _, given := fullResources(account)
		err := tx.PutKey(given)
		k.Seq = given.Seq
		overwriteKey(given)
		return err
	})
	e.wantUser(u)
	e.wantPlan(p)
	e.wantKey(k)

	c := request(k, noon)
	c.Limit, c.Entry.Endpoint = 1, "/first"
	if v, err := e.Store.Consume(e.ctx, &c); !v.Allowed || err != nil {
		e.Fatalf("Consume: got %t and %v, want allowed", v.Allowed, err)
	}
	c.Entry.Endpoint = "/second"
	if v, err := e.Store.Consume(e.ctx, &c); v.Allowed || err != nil {
		e.Fatalf("Consume: got %t and %v, want denied", v.Allowed, err)
	}
	c.Entry.Endpoint, c.KeyID, c.Account = "/spoilt", "key_2", "acct_missing"
	e.awaitHistory(keyCounter(k), 2)
	e.wantHistory(keyCounter(k), time.Time{}, "/second", "/first")
}
