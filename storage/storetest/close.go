package storetest

import (
	"errors"
	"fmt"
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
}

// calls returns a call of every method, on an account of filledAccount.
func (e *env) calls(account string, k *core.Key) map[string]func(n string) error {
	s, page := e.Store, core.Page{Number: 1, Size: 10}
	return map[string]func(string) error{
		"CreateAccount": func(n string) error {
			a, k := newAccount("acct_late" + n)
			return s.CreateAccount(e.ctx, a, k)
		},
		"AccountByName": func(string) error { _, err := s.AccountByName(e.ctx, "name of "+account); return err },
		"Accounts":      func(string) error { _, _, err := s.Accounts(e.ctx, page); return err },
		"UpdateAccount": func(n string) error {
			_, err := s.UpdateAccount(e.ctx, account, func(a *core.Account) error { a.KeyPrefix = "p" + n + "_"; return nil })
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
		"Update": func(string) error { return s.Update(e.ctx, account, putting(newUser(account, "late"))) },
		"User":   func(string) error { _, err := s.User(e.ctx, account, 1); return err },
		"Users": func(string) error {
			_, _, err := s.Users(e.ctx, account, core.UserFilter{OnPlan: "plan_1"}, page)
			return err
		},
		"Plan":  func(string) error { _, err := s.Plan(e.ctx, account, "plan_1"); return err },
		"Plans": func(string) error { _, _, err := s.Plans(e.ctx, account, page); return err },
		"Key":   func(string) error { _, err := s.Key(e.ctx, account, "key_1"); return err },
		"KeyByDigest": func(string) error {
			_, err := s.KeyByDigest(e.ctx, k.Digest)
			return err
		},
		"Keys":    func(string) error { _, _, err := s.Keys(e.ctx, account, core.KeyFilter{UserID: 1}, page); return err },
		"Consume": func(string) error { c := request(k, noon); _, err := s.Consume(e.ctx, &c); return err },
		"repeat": func(string) error {
			c := withRequestID(request(k, noon), "id")
			_, err := s.Consume(e.ctx, &c)
			return err
		},
		"cost of 0": func(string) error { c := cost(request(k, noon), 0); _, err := s.Consume(e.ctx, &c); return err },
		"denied": func(string) error {
			c := limit(request(k, noon), core.Day, 0)
			_, err := s.Consume(e.ctx, &c)
			return err
		},
		"Account": func(string) error { _, err := s.Account(e.ctx, account); return err },
		"Access":  func(string) error { _, err := s.Access(e.ctx, account); return err },
		"UpdateAccess": func(n string) error {
			_, err := s.UpdateAccess(e.ctx, account, func(ac *core.Access) error { ac.Password = n; return nil })
			return err
		},
		"Days": func(string) error {
			_, err := s.Days(e.ctx, core.DaysFilter{Account: account, PlanID: "plan_1"}, today, today)
			return err
		},
		"PlanTotals": func(string) error {
			_, err := s.PlanTotals(e.ctx, account, "plan_1", core.Month, noon, 1)
			return err
		},
		"Counters": func(string) error { _, err := s.Counters(e.ctx, []core.CounterID{keyCounter(k)}); return err },
		"History":  func(string) error { _, _, err := s.History(e.ctx, keyCounter(k), time.Time{}, page); return err },
	}
}

func closeAfterwards(e *env) {
	account, k := e.filledAccount()
	for name, call := range e.calls(account, k) {
		e.ok(name+" before Close", call("0"))
	}
	before := e.snapshotWithDenial(account, k)
	e.ok("Close", e.Store.Close())
	for name, call := range e.calls(account, k) {
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

// snapshotWithDenial waits for the denied request of calls, and then reads the account.
func (e *env) snapshotWithDenial(account string, k *core.Key) snapshot {
	e.Helper()
	e.awaitHistory(keyCounter(k), 4)
	e.awaitHistory(userCounter(k), 4)
	return e.snapshot(account)
}

func closeUnderLoad(e *env) {
	const callers, quota = 32, 100_000
	keys := e.user1("key_1", "key_2")
	var allowed, unsure, begun atomic.Int64
	s, half := e.Store, make(chan struct{})
	e.parallel(callers+1, func(i int) {
		if i == callers {
			<-half
			if err := s.Close(); err != nil {
				e.Errorf("Close: %v", err)
			}
			return
		}
		for {
			if begun.Add(1) == 500 {
				close(half)
			}
			c := limit(request(keys[i%2], noon), core.Month, quota)
			v, err := s.Consume(e.ctx, &c)
			if errors.Is(err, core.ErrUnavailable) {
				unsure.Add(1)
				return
			}
			if err != nil || !v.Allowed {
				e.Errorf("Consume: got %t, %v, want allowed or ErrUnavailable", v.Allowed, err)
				return
			}
			allowed.Add(1)
		}
	})
	e.Store = e.Reopen(e)
	var used int64
	for _, k := range keys {
		n := e.counter(keyCounter(k)).Requests[core.Month]
		if total := e.historyTotal(keyCounter(k)); int64(total) != n {
			e.Errorf("history of %s: got %d entries, want as many as were counted, %d", k.ID, total, n)
		}
		used += n
	}
	if low, high := allowed.Load(), allowed.Load()+unsure.Load(); used < low || used > high {
		e.Errorf("usage after reopening: got %d, want from %d to %d", used, low, high)
	}
}

func closeBesideEverything(e *env) {
	account, k := e.filledAccount()
	calls, s := e.calls(account, k), e.Store
	names := make([]string, 0, len(calls))
	for name := range calls {
		names = append(names, name)
	}
	var begun atomic.Int64
	half := make(chan struct{})
	e.parallel(len(names)+1, func(i int) {
		if i == len(names) {
			<-half
			if err := s.Close(); err != nil {
				e.Errorf("Close: %v", err)
			}
			return
		}
		for n := 0; ; n++ {
			if begun.Add(1) == 400 {
				close(half)
			}
			err := calls[names[i]](fmt.Sprintf("%d_%d", i, n))
			if errors.Is(err, core.ErrUnavailable) {
				return
			}
			if err != nil {
				e.Errorf("%s: got %v, want nil or ErrUnavailable", names[i], err)
				return
			}
		}
	})
	e.Store = e.Reopen(e)
	before := e.snapshot(account)
	e.reopen()
	e.same("the account opened twice", before, e.snapshot(account))
}

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
