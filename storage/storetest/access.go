package storetest

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var accessCases = []testCase{
	{name: "access/read back", run: accessReadBack,
		promise: "the Access of an account comes back unchanged, also after reopening; the Access of another account does not change"},
	{name: "access/refusals", run: accessRefusals,
		promise: "Access and UpdateAccess of a missing account are ErrAccountNotFound; if fn fails, UpdateAccess returns its error and stores nothing"},
	{name: "access/updated at once", run: accessUpdatedAtOnce,
		promise: "UpdateAccess is atomic: no concurrent update is lost"},
	{name: "access/own copy", run: accessOwnCopy,
		promise: "the results of Access and UpdateAccess, and the argument of fn, are copies"},
	{name: "account/by id", run: accountByID,
		promise: "Account returns the account with the id, or ErrAccountNotFound"},
}

// someAccess returns an Access with every member set.
func someAccess() core.Access {
	return core.Access{
		Password: "$argon2id$v=19$Ünïcode \x00",
		Links:    []core.SignInLink{{Digest: core.DigestOf("link 1"), ExpiresAt: noon.In(time.FixedZone("somewhere", 3600))}, {Digest: core.DigestOf("link 2"), ExpiresAt: noon}},
		Sessions: []core.Session{{Digest: core.DigestOf("session 1"), ByLink: true, CreatedAt: noon, SeenAt: noon.Add(time.Nanosecond)},
			{Digest: core.DigestOf("session 2"), CreatedAt: noon.Add(time.Hour), SeenAt: noon.Add(time.Hour), FormsAfter: noon,
				SpentForms: []core.FormToken{{ID: "form 1", At: noon}, {ID: "form 2", At: noon.Add(time.Minute)}}}},
		Browsers: []core.Browser{{Digest: core.DigestOf("browser 1"), SeenAt: noon}, {Digest: core.DigestOf("browser 2"), SeenAt: noon.Add(time.Hour)}},
	}
}

// setAccess stores an Access.
func (e *env) setAccess(account string, to core.Access) *core.Access {
	e.Helper()
	got, err := e.Store.UpdateAccess(e.ctx, account, func(ac *core.Access) error { *ac = to; return nil })
	e.ok("UpdateAccess", err)
	return got
}

// wantAccess fails unless the account has the Access.
func (e *env) wantAccess(account string, want core.Access) {
	e.Helper()
	got, err := e.Store.Access(e.ctx, account)
	e.ok("Access", err)
	e.same("access", &want, got)
	for _, l := range got.Links {
		e.utc(l.ExpiresAt)
	}
	for _, se := range got.Sessions {
		e.utc(se.CreatedAt, se.SeenAt)
	}
	for _, b := range got.Browsers {
		e.utc(b.SeenAt)
	}
}

func accessReadBack(e *env) {
	account, other := e.account(), e.account()
	e.wantAccess(account, core.Access{})
	e.same("result of UpdateAccess", new(someAccess()), e.setAccess(account, someAccess()))
	for range 2 {
		e.wantAccess(account, someAccess())
		e.wantAccess(other, core.Access{})
		e.reopen()
	}
	e.setAccess(account, core.Access{Password: "another"})
	e.wantAccess(account, core.Access{Password: "another"})
	e.setAccess(account, core.Access{})
	e.wantAccess(account, core.Access{})
}

func accessRefusals(e *env) {
	account := e.account()
	e.setAccess(account, someAccess())
	failure := errors.New("no")
	_, err := e.Store.UpdateAccess(e.ctx, account, func(ac *core.Access) error {
		*ac = core.Access{}
		return failure
	})
	e.isErr("UpdateAccess when fn fails", err, failure)
	e.wantAccess(account, someAccess())
	for _, missing := range []string{"acct_missing", ""} {
		_, err = e.Store.Access(e.ctx, missing)
		e.isErr("Access of a missing account", err, core.ErrAccountNotFound)
		_, err = e.Store.UpdateAccess(e.ctx, missing, func(*core.Access) error { return nil })
		e.isErr("UpdateAccess of a missing account", err, core.ErrAccountNotFound)
	}
}

func accessUpdatedAtOnce(e *env) {
	const callers, times = 8, 10
	account := e.account()
	e.setAccess(account, core.Access{Password: "0"})
	e.parallel(callers, func(int) {
		for range times {
			_, err := e.Store.UpdateAccess(e.ctx, account, func(ac *core.Access) error {
				n, err := strconv.Atoi(ac.Password)
				ac.Password = strconv.Itoa(n + 1)
				return err
			})
			if err != nil {
				e.Errorf("UpdateAccess: %v", err)
			}
		}
	})
	e.wantAccess(account, core.Access{Password: strconv.Itoa(callers * times)})
}

func accessOwnCopy(e *env) {
	account := e.account()
	given := someAccess()
	spoil := func(ac *core.Access) {
		ac.Links[0].Digest, ac.Sessions[1].SeenAt = core.DigestOf("spoilt"), time.Time{}
		ac.Sessions[1].SpentForms[0].ID, ac.Browsers[0].Digest = "spoilt", core.DigestOf("spoilt")
		ac.Links, ac.Sessions = slices.Delete(ac.Links, 1, 2), slices.Delete(ac.Sessions, 0, 1)
	}
	returned := e.setAccess(account, given)
	spoil(&given)
	spoil(returned)
	read, err := e.Store.Access(e.ctx, account)
	e.ok("Access", err)
	spoil(read)
	e.wantAccess(account, someAccess())
}

func accountByID(e *env) {
	account, other := e.account(), e.account()
	for _, id := range []string{account, other} {
		want, _ := newAccount(id)
		got, err := e.Store.Account(e.ctx, id)
		e.ok("Account", err)
		e.same("account", want, got)
		e.utc(got.CreatedAt)
	}
	for _, id := range []string{"acct_missing", "", account + "x"} {
		_, err := e.Store.Account(e.ctx, id)
		e.isErr("Account that is missing", err, core.ErrAccountNotFound)
	}
}
