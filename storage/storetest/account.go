package storetest

import (
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

var accountCases = []testCase{
	{name: "account/rename at once", run: renameAtOnce,
		promise: "a name belongs to one account: of concurrent renames to one name, one succeeds; a former name is free at once"},
}

func renameAtOnce(e *env) {
	const callers = 8
	name := fmt.Sprintf("contested%d", serial.Add(1))
	var ids []string
	for range callers {
		ids = append(ids, e.account())
	}
	errs := make([]error, callers+1)
	e.parallel(callers+1, func(i int) {
		if i == callers {
			a, k := newAccount(name)
			a.Name = name
			errs[i] = e.Store.CreateAccount(e.ctx, a, k)
			return
		}
		_, errs[i] = e.Store.UpdateAccount(e.ctx, ids[i], func(a *core.Account) error { return a.Rename(name) })
	})
	winner := append(ids, name)[e.onlyOne(errs, core.ErrAccountExists)]
	if got, err := e.Store.AccountByName(e.ctx, name); err != nil || got.ID != winner || got.Name != name {
		e.Errorf("AccountByName: got %+v, %v, want the account of the call that succeeded, %s", got, err, winner)
	}
	for _, id := range ids {
		former, err := e.Store.AccountByName(e.ctx, "name of "+id)
		if id == winner {
			e.isErr("AccountByName with the former name", err, core.ErrAccountNotFound)
			a, k := newAccount(id + "_again")
			a.Name = "name of " + id
			e.ok("CreateAccount with the former name", e.Store.CreateAccount(e.ctx, a, k))
		} else if err != nil || former.ID != id || len(former.FormerNames) > 0 {
			e.Errorf("AccountByName of an account that was not renamed: got %+v, %v", former, err)
		}
	}
}
