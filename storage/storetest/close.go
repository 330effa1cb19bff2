package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var closeCases = []testCase{
	{name: "close/afterwards", run: closeAfterwards, own: true,
		promise: "after Close every method returns ErrUnavailable"},
	{name: "close/under load", run: closeUnderLoad, own: true,
		promise: "a Consume during Close is counted or returns ErrUnavailable; every answered one is there after reopening"},
	{name: "close/during every method", run: closeBesideEverything, own: true,
		promise: "every method called during Close does its work or returns ErrUnavailable"},
	{name: "close/denials", run: closeDenials,
		promise: "Close finishes the writes that have begun: answered denials are in the history when the store is opened again"},
	{name: "reopen/after every step", run: reopenAfterEveryStep,
		promise: "the last write before reopening is there, and the last deletion is done"},
}

// filledAccount returns an account with a user, a plan and two keys. The first key has usage.
func (e *env) filledAccount() (account string, k, second *core.Key) {
	e.Helper()
	account = e.account()
	u := newUser(account, "user")
	u.Email, u.ExternalID, u.PlanID = new("user@example.com"), "cus_user", "plan_1"
	e.put(u, newPlan(account, "plan_1"))
	k, second = newKey(account, "key_1", 1, ""), newKey(account, "key_2", 1, "plan_1")
	e.put(k, second)
	e.allowed(request(k, noon))
	return account, k, second
}

// calls returns a call of every method, on an account of filledAccount. Methods of an importer change the second key.
func (e *env) calls(account string, k, second *core.Key) map[string]func(n string) error {
	s, page := e.Store, core.Page{Number: 1, Size: 10}
	consume := func(c core.Consumption) func(string) error {
		return func(string) error { given := c; _, err := s.Consume(e.ctx, &given); return err }
	}
	calls := map[string]func(string) error{
		"CreateAccount": func(n string) error {
			a, k := newAccount("acct_late" + n)
			return s.CreateAccount(e.ctx, a, k)
		},
		"AccountByName": func(string) error { _, err := s.AccountByName(e.ctx, "name of "+account); return err },
		"Account":       func(string) error { _, err := s.Account(e.ctx, account); return err },
		"Accounts":      func(string) error { _, _, err := s.Accounts(e.ctx, page); return err },
		"UpdateAccount": func(n string) error {
			_, err := s.UpdateAccount(e.ctx, account, func(a *core.Account) error { a.KeyPrefix = "p" + n + "_"; return nil })
			return err
		},
		"PurgeAccount": func(string) error { _, err := s.PurgeAccount(e.ctx, "acct_missing"); return err },
		"Access":       func(string) error { _, err := s.Access(e.ctx, account); return err },
		"UpdateAccess": func(n string) error {
			_, err := s.UpdateAccess(e.ctx, account, func(ac *core.Access) error { ac.Password = n; return nil })
			return err
		},
		"CreateOwnerKey": func(n string) error { return s.CreateOwnerKey(e.ctx, newOwnerKey(account, "okey_late"+n)) },
		"OwnerKeyByDigest": func(string) error {
			_, err := s.OwnerKeyByDigest(e.ctx, newOwnerKey(account, "okey_1").Digest)
			return err
		},
		"OwnerKeys": func(string) error { _, _, err := s.OwnerKeys(e.ctx, account, page); return err },
		"UpdateOwnerKey": func(string) error {
			_, err := s.UpdateOwnerKey(e.ctx, account, "okey_1", func(*core.OwnerKey) error { return nil })
			return err
		},
		"Audit": func(string) error { _, _, err := s.Audit(e.ctx, account, 0, 1); return err },
		"AppendAudit": func(string) error {
			return s.AppendAudit(e.ctx, account, []core.AuditEntry{auditEntry(1), auditEntry(1)})
		},
		"RemoveAudit": func(string) error { _, err := s.RemoveAudit(e.ctx, account, 1, core.MaxLimit-1); return err },
		"Update":      func(string) error { return s.Update(e.ctx, account, putting(newUser(account, "late"))) },
		"User":        func(string) error { _, err := s.User(e.ctx, account, 1); return err },
		"Users": func(string) error {
			_, _, err := s.Users(e.ctx, account, core.UserFilter{OnPlan: "plan_1"}, page)
			return err
		},
		"Plan":        func(string) error { _, err := s.Plan(e.ctx, account, "plan_1"); return err },
		"Plans":       func(string) error { _, _, err := s.Plans(e.ctx, account, page); return err },
		"Key":         func(string) error { _, err := s.Key(e.ctx, account, "key_1"); return err },
		"KeyByDigest": func(string) error { _, err := s.KeyByDigest(e.ctx, k.Digest); return err },
		"Keys":        func(string) error { _, _, err := s.Keys(e.ctx, account, core.KeyFilter{UserID: 1}, page); return err },
		"Consume":     consume(request(k, noon)),
		"repeat":      consume(withRequestID(request(k, noon), "id")),
		"cost of 0":   consume(cost(request(k, noon), 0)),
		"denied":      consume(limit(request(k, noon), core.Day, 0)),
		"Days": func(string) error {
			_, err := s.Days(e.ctx, core.DaysFilter{Account: account, PlanID: "plan_1"}, today, today)
			return err
		},
		"Rank":            func(string) error { return s.Rank(e.ctx, account, full(account, 1), false) },
		"CompleteRanking": func(string) error { return s.CompleteRanking(e.ctx, account, noon) },
		"Ranking": func(string) error {
			_, err := s.Ranking(e.ctx, account, core.RankingQuery{At: noon}, core.Page{Number: 1, Size: 1})
			return err
		},
		"PlanUsed": func(string) error {
			_, err := s.PlanUsed(e.ctx, account, "plan_1", core.Month, noon)
			return err
		},
		"Counters": func(string) error { _, err := s.Counters(e.ctx, []core.CounterID{keyCounter(k)}); return err },
		"History":  func(string) error { _, _, err := s.History(e.ctx, keyCounter(k), time.Time{}, page); return err },
	}
	if im, ok := s.(core.Importer); ok {
		id, entries := keyCounter(second), []core.Entry{entry(second, 1)}
		maps.Copy(calls, map[string]func(string) error{
			"LastNumbers":   func(string) error { _, err := im.LastNumbers(e.ctx, account); return err },
			"RaiseNumbers":  func(string) error { return im.RaiseNumbers(e.ctx, account, core.Numbers{User: 1}) },
			"SetHistory":    func(string) error { return im.SetHistory(e.ctx, id, entries, forever) },
			"AppendHistory": func(string) error { return im.AppendHistory(e.ctx, id, entries, forever) },
			"CounterDays":   func(string) error { _, err := im.CounterDays(e.ctx, id); return err },
			"SetDays":       func(string) error { return im.SetDays(e.ctx, id, nil) },
			"SetCounters": func(string) error {
				return im.SetCounters(e.ctx, []core.CounterID{id}, []core.Counter{usedCounter(3, noon)})
			},
		})
	}
	return calls
}

func closeAfterwards(e *env) {
	account, k, second := e.filledAccount()
	for name, call := range e.calls(account, k, second) {
		e.ok(name+" before Close", call("0"))
	}
	e.awaitHistory(keyCounter(k), 4) // with the denied request
	e.awaitHistory(userCounter(k), 4)
	before := e.snapshot(account)
	e.ok("Close", e.Store.Close())
	for name, call := range e.calls(account, k, second) {
		e.isErr(name+" after Close", call("1"), core.ErrUnavailable)
	}
	ran := false
	err := e.Store.Update(e.ctx, account, func(core.Tx) error { ran = true; return nil })
	e.isErr("Update after Close", err, core.ErrUnavailable)
	if ran {
		e.Errorf("Update after Close ran its function")
	}
	e.Store = e.Reopen(e)
	e.same("the account after Close and more calls", before, e.snapshot(account))
}

// besideClose runs call in parallel callers, again and again, until the store is closed. Another goroutine closes the store after begin
// calls. Then besideClose opens the store again.
func (e *env) besideClose(callers, begin int, call func(caller, i int) error) {
	e.Helper()
	var begun atomic.Int64
	half := make(chan struct{})
	e.parallel(callers+1, func(caller int) {
		if caller == callers {
			<-half
			if err := e.Store.Close(); err != nil {
				e.Errorf("Close: %v", err)
			}
			return
		}
		for i := 0; ; i++ {
			if begun.Add(1) == int64(begin) {
				close(half)
			}
			err := call(caller, i)
			if errors.Is(err, core.ErrUnavailable) {
				return
			}
			if err != nil {
				e.Errorf("call: got %v, want nil or ErrUnavailable", err)
				return
			}
		}
	})
	e.Store = e.Reopen(e)
}

// mustAllow makes a request, and returns an error if it is denied.
func (e *env) mustAllow(c *core.Consumption) (core.ConsumeResult, error) {
	v, err := e.Store.Consume(e.ctx, c)
	if err == nil && !v.Allowed {
		err = errors.New("denied")
	}
	return v, err
}

func closeUnderLoad(e *env) {
	const callers, quota = 32, 100_000
	keys := e.user1("key_1", "key_2")
	var allowed atomic.Int64
	e.besideClose(callers, 500, func(caller, _ int) error {
		c := limit(request(keys[caller%2], noon), core.Month, quota)
		_, err := e.mustAllow(&c)
		if err == nil {
			allowed.Add(1)
		}
		return err
	})
	var used int64
	for _, k := range keys {
		n := e.counter(keyCounter(k)).Requests[core.Month]
		if total := e.historyTotal(keyCounter(k)); int64(total) != n {
			e.Errorf("history of %s: got %d entries, want as many as were counted, %d", k.ID, total, n)
		}
		used += n
	}
	if low := allowed.Load(); used < low || used > low+callers { // the last request of each caller got ErrUnavailable
		e.Errorf("usage after reopening: got %d, want from %d to %d", used, low, low+callers)
	}
}

func closeBesideEverything(e *env) {
	account, k, second := e.filledAccount()
	calls := e.calls(account, k, second)
	names := slices.Sorted(maps.Keys(calls))
	e.besideClose(len(names), 400, func(caller, i int) error { return calls[names[caller]](fmt.Sprintf("%d_%d", caller, i)) })
	e.sameReopened(account)
}

func closeDenials(e *env) {
	const denials = 12 // in a second
	k := e.user1("key_1")[0]
	for i := range 17 * denials {
		e.denied(limit(request(k, noon.Add(time.Duration(i/denials)*time.Second)), core.Month, 0))
	}
	e.reopen()
	for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
		if got := e.historyTotal(of); got != 17*core.DeniedPerSecond {
			e.Errorf("history of %+v: got %d entries, want %d", of, got, 17*core.DeniedPerSecond)
		}
	}
	e.same("counter", core.Counter{DeniedOmitted: 17 * (denials - core.DeniedPerSecond), LastRefused: noon.Unix() + 16}, e.counter(keyCounter(k)))
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
			_, err := e.Store.UpdateOwnerKey(e.ctx, account, "okey_2", func(k *core.OwnerKey) error { k.Hint = "changed"; return nil })
			e.ok("UpdateOwnerKey", err)
		},
		func() { e.update(account, func(tx core.Tx) error { return tx.DeleteKey("key_1") }) },
		func() { e.update(account, func(tx core.Tx) error { return tx.DeletePlan("plan_1") }) },
		func() { e.update(account, func(tx core.Tx) error { return tx.DeleteUser(1) }) },
	}
	for _, step := range steps {
		step()
		e.sameReopened(account)
	}
}
