package storetest

import (
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var purgeCases = []testCase{
	{name: "purge/nothing is left", run: purgeLeavesNothing,
		promise: "after PurgeAccount nothing of an account is found, its name is free at once, and other accounts are as they were, also after reopening"},
	{name: "purge/takes no writes", run: purgeTakesNoWrites,
		promise: "an account with Deleting takes no new resources, owner's keys and access, and its name is free"},
	{name: "purge/not without Deleting", run: purgeNeedsDeleting,
		promise: "PurgeAccount of an account without Deleting is ErrAccountNotFound and removes nothing; a missing account is done"},
	{name: "purge/at once", run: purgeAtOnce,
		promise: "concurrent calls of PurgeAccount remove an account once, with requests to the account meanwhile"},
}

// startDeleting sets Deleting of an account.
func (e *env) startDeleting(account string) {
	e.Helper()
	_, err := e.Store.UpdateAccount(e.ctx, account, func(a *core.Account) error { a.Deleting = true; return nil })
	e.ok("UpdateAccount", err)
}

// fullAccount returns an account with everything in it: more keys than one call of PurgeAccount removes, and its first key.
func (e *env) fullAccount() (account string, keys []*core.Key) {
	e.Helper()
	account = e.account()
	_, keys = Fill(e, e.Store, account, 450)
	e.ok("CreateOwnerKey", e.Store.CreateOwnerKey(e.ctx, newOwnerKey(account, "okey_2")))
	_, err := e.Store.UpdateAccess(e.ctx, account, func(ac *core.Access) error { *ac = someAccess(); return nil })
	e.ok("UpdateAccess", err)
	e.update(account, func(tx core.Tx) error { return tx.PutPrices(&core.Prices{UpdatedAt: noon}) })
	for i, k := range keys[:100] {
		e.allowed(withRequestID(request(k, noon), "id"))
		e.allowed(cost(request(k, noon.Add(time.Duration(i)*time.Hour)), 3))
	}
	e.update(account, func(tx core.Tx) error { return tx.DeleteUser(keys[1].UserID) }) // its days stay with the deleted users
	e.update(account, func(tx core.Tx) error {
		if err := tx.PutWebhook(&core.Webhook{AccountID: account, ID: "whk_1", CreatedAt: noon, UpdatedAt: noon}); err != nil {
			return err
		}
		for i := range 5 {
			id := fmt.Sprint("event_", i)
			if err := tx.PutEvent(&core.Event{ID: id, Type: "limitkeeper.threshold", Subject: "key_1", At: noon, Until: noon.AddDate(0, 1, 0)}); err != nil {
				return err
			}
			if err := tx.PutAttempt(&core.Attempt{ID: fmt.Sprint("attempt_", i), Webhook: "whk_1", EventID: id}); err != nil {
				return err
			}
		}
		return nil
	})
	e.ok("AppendAudit", e.Store.AppendAudit(e.ctx, account, []core.AuditEntry{{At: noon, Action: "account.update"}, {Seq: 2*noon.UnixMicro() + 1, At: noon, Action: "user.update"}}))
	e.ok("Rank", e.Store.Rank(e.ctx, account, full(account, 3), false))
	e.ok("CompleteRanking", e.Store.CompleteRanking(e.ctx, account, noon))
	return account, keys
}

// nothingLeft fails if a read finds something of an account.
func (e *env) nothingLeft(account string, keys []*core.Key) {
	e.Helper()
	_, err := e.Store.Account(e.ctx, account)
	e.isErr("Account", err, core.ErrAccountNotFound)
	_, err = e.Store.Access(e.ctx, account)
	e.isErr("Access", err, core.ErrAccountNotFound)
	e.same("the account", snapshot{}, e.snapshot(account))
	_, err = e.Store.OwnerKeyByDigest(e.ctx, newOwnerKey(account, "okey_1").Digest)
	e.isErr("OwnerKeyByDigest", err, core.ErrOwnerKeyNotFound)
	p, err := e.Store.Prices(e.ctx, account)
	e.ok("Prices", err)
	e.same("Prices", &core.Prices{}, p)
	hooks, _, err := e.Store.Webhooks(e.ctx, account, core.Page{Number: 1, Size: 10})
	e.ok("Webhooks", err)
	events, _, err := e.Store.Events(e.ctx, account, core.EventFilter{}, 0, 10)
	e.ok("Events", err)
	attempts, _, err := e.Store.Attempts(e.ctx, account, "whk_1", core.Page{Number: 1, Size: 10})
	e.ok("Attempts", err)
	audit, _, err := e.Store.Audit(e.ctx, account, 0, 10)
	e.ok("Audit", err)
	e.same("webhooks, events, attempts and audit entries", [4]int{}, [4]int{len(hooks), len(events), len(attempts), len(audit)})
	for _, k := range keys[:3] {
		_, err = e.Store.KeyByDigest(e.ctx, k.Digest)
		e.isErr("KeyByDigest", err, core.ErrKeyNotFound)
		_, err = e.Store.Consume(e.ctx, new(request(k, noon)))
		e.isErr("Consume", err, core.ErrKeyNotFound)
		entries, _, err := e.Store.History(e.ctx, keyCounter(k), time.Time{}, core.Page{Number: 1, Size: 10})
		e.ok("History", err)
		e.same("History", 0, len(entries))
	}
	counters, err := e.Store.Counters(e.ctx, []core.CounterID{keyCounter(keys[0]), userCounter(keys[0])})
	e.ok("Counters", err)
	e.same("Counters", make([]core.Counter, 2), counters)
	days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: account}, today, today)
	e.ok("Days", err)
	e.same("Days of the account", core.NewDays(today, today), days)
	r, err := e.Store.Ranking(e.ctx, account, core.RankingQuery{At: noon}, core.Page{Number: 1, Size: 10})
	e.ok("Ranking", err)
	e.same("Ranking", core.Ranking{}, r)
}

func purgeLeavesNothing(e *env) {
	account, keys := e.fullAccount()
	other, k, _ := e.filledAccount()
	before := e.snapshot(other)
	e.startDeleting(account)
	a, again := newAccount(account + "_again")
	a.Name = "name of " + account
	e.ok("CreateAccount with the name", e.Store.CreateAccount(e.ctx, a, again))
	if more, err := e.Store.PurgeAccount(e.ctx, account); err != nil || !more {
		if _, err := e.Store.Account(e.ctx, account); err == nil {
			e.Errorf("PurgeAccount: got %t, %v, and the account is there", more, err)
		}
	}
	e.reopen() // in the middle
	e.ok("PurgeAccount", purge(e.ctx, e.Store, account))
	e.nothingLeft(account, keys)
	e.same("the other account", before, e.snapshot(other))
	e.reopen()
	e.nothingLeft(account, keys)
	e.same("the other account after reopening", before, e.snapshot(other))
	e.allowed(request(k, noon))

	same := newOwnerKey(a.ID, "okey_2") // the digests are free
	same.Digest = newOwnerKey(account, "okey_1").Digest
	e.ok("CreateOwnerKey with the digest of a removed one", e.Store.CreateOwnerKey(e.ctx, same))
	e.put(newUser(a.ID, "u"))
	taken := newKey(a.ID, "key_1", 1, "")
	taken.Digest = keys[0].Digest
	e.put(taken)
	found, err := e.Store.KeyByDigest(e.ctx, keys[0].Digest)
	e.ok("KeyByDigest", err)
	e.same("the key with the digest of a removed one", taken.ID, found.ID)
}

func purgeTakesNoWrites(e *env) {
	account := e.account()
	e.put(newUser(account, "u"))
	e.startDeleting(account)
	found, err := e.Store.Account(e.ctx, account)
	if err != nil || !found.Deleting {
		e.Errorf("Account: got %+v, %v, want an account with Deleting", found, err)
	}
	_, err = e.Store.AccountByName(e.ctx, "name of "+account)
	e.isErr("AccountByName", err, core.ErrAccountNotFound)
	for what, put := range map[string]func(core.Tx) error{
		"PutUser":   func(tx core.Tx) error { return tx.PutUser(newUser(account, "late")) },
		"PutPlan":   func(tx core.Tx) error { return tx.PutPlan(newPlan(account, "plan_late")) },
		"PutKey":    func(tx core.Tx) error { return tx.PutKey(newKey(account, "key_late", 1, "")) },
		"PutPrices": func(tx core.Tx) error { return tx.PutPrices(&core.Prices{UpdatedAt: noon}) },
	} {
		e.isErr(what, e.Store.Update(e.ctx, account, put), core.ErrAccountNotFound)
	}
	e.isErr("CreateOwnerKey", e.Store.CreateOwnerKey(e.ctx, newOwnerKey(account, "okey_late")), core.ErrAccountNotFound)
	_, err = e.Store.UpdateAccess(e.ctx, account, func(ac *core.Access) error { *ac = someAccess(); return nil })
	e.isErr("UpdateAccess", err, core.ErrAccountNotFound)
	e.isErr("AppendAudit", e.Store.AppendAudit(e.ctx, account, []core.AuditEntry{{At: noon, Action: "late"}}), core.ErrAccountNotFound)
	_, err = e.Store.UpdateAccount(e.ctx, account, func(a *core.Account) error { a.Deleting = false; return nil })
	e.isErr("UpdateAccount", err, core.ErrAccountNotFound)
	e.ok("PurgeAccount", purge(e.ctx, e.Store, account))
}

func purgeNeedsDeleting(e *env) {
	account, _, _ := e.filledAccount()
	before := e.snapshot(account)
	_, err := e.Store.PurgeAccount(e.ctx, account)
	e.isErr("PurgeAccount", err, core.ErrAccountNotFound)
	e.same("the account", before, e.snapshot(account))
	more, err := e.Store.PurgeAccount(e.ctx, "acct_missing")
	e.ok("PurgeAccount of a missing account", err)
	e.same("PurgeAccount of a missing account", false, more)
}

func purgeAtOnce(e *env) {
	account, keys := e.fullAccount()
	other := e.account()
	_, theirs := Fill(e, e.Store, other, 20)
	e.startDeleting(account)
	e.parallel(6, func(i int) {
		if i < 3 {
			if err := purge(e.ctx, e.Store, account); err != nil {
				e.Errorf("PurgeAccount: got %v", err)
			}
			return
		}
		for n := range 40 {
			_, _ = e.Store.Consume(e.ctx, new(request(keys[(7*n+i)%len(keys)], noon))) // counted or refused
			if _, err := e.Store.Consume(e.ctx, new(request(theirs[n%len(theirs)], noon))); err != nil {
				e.Errorf("Consume of another account: got %v", err)
			}
		}
	})
	e.nothingLeft(account, keys)
	sum, err := e.Store.Days(e.ctx, core.DaysFilter{Account: other}, today, today)
	e.ok("Days", err)
	e.same("requests of the other account", int64(3*40), sum[0].Allowed)
}
