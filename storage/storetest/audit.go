package storetest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

var auditCases = []testCase{
	{name: "audit/number of entries", run: auditNumber,
		promise: "each audit log of an account drops its oldest entries beyond MaxAuditEntries, and no other"},
	{name: "audit/bytes", run: auditBytes,
		promise: "each audit log of an account drops its oldest entries beyond MaxAuditBytes, and no other"},
	{name: "audit/concurrent", run: auditConcurrent,
		promise: "concurrent changes of an account leave each exactly one entry, with a number of its own"},
	{name: "audit/remove many", run: auditRemoveMany,
		promise: "RemoveAudit removes at most MaxImport entries of each log, the oldest first, and says that others remain"},
}

// appendAudit appends n entries, the first with a number, and each with the next number of the same log.
func (e *env) appendAudit(account string, first int64, n int, change func(*core.AuditEntry)) {
	e.Helper()
	for from := 0; from < n; from += core.MaxImport {
		list := make([]core.AuditEntry, min(core.MaxImport, n-from))
		for i := range list {
			list[i] = auditEntry(first + 2*int64(from+i))
			change(&list[i])
		}
		e.ok("AppendAudit", e.Store.AppendAudit(e.ctx, account, list))
	}
}

func keep(*core.AuditEntry) {}

// wantAudit fails unless the log of an account has the entries with the even or the odd numbers from first to last.
func (e *env) wantAudit(account string, first, last int64) {
	e.Helper()
	want := last
	for before := int64(0); ; {
		list, _, err := e.Store.Audit(e.ctx, account, before, 1000)
		e.ok("Audit", err)
		for _, x := range list {
			if before = x.Seq; x.Seq%2 != last%2 {
				continue
			}
			if x.Seq != want {
				e.Fatalf("the entry before %d: got the number %d, want %d", want+2, x.Seq, want)
			}
			want -= 2
		}
		if len(list) < 1000 {
			break
		}
	}
	if want != first-2 {
		e.Errorf("the oldest entry: got the number %d, want %d", want+2, first)
	}
}

func auditNumber(e *env) {
	account := e.account()
	e.appendAudit(account, 1, 5, keep) // the other log
	e.appendAudit(account, 2, core.MaxAuditEntries-1, keep)
	last := int64(2 * (core.MaxAuditEntries - 1))
	e.wantAudit(account, 2, last)
	e.appendAudit(account, last+2, 1, keep)
	e.wantAudit(account, 2, last+2)
	e.appendAudit(account, last+4, 3, keep)
	e.wantAudit(account, 8, last+8)
	e.reopen()
	e.appendAudit(account, last+10, 1, keep)
	e.wantAudit(account, 10, last+10)
	e.wantAudit(account, 1, 9)
	_, total, err := e.Store.Audit(e.ctx, account, 0, 1)
	e.ok("Audit", err)
	e.same("the number of entries", core.MaxAuditEntries+5, total)
}

// auditBytes appends entries of 100 kB, of which a log has room for 335.
func auditBytes(e *env) {
	account := e.account()
	large := func(x *core.AuditEntry) { x.Target.Name = strings.Repeat("x", 100_000) }
	e.appendAudit(account, 1, 5, keep)
	for i := range 40 {
		e.appendAudit(account, int64(2+20*i), 10, large)
	}
	list, total, err := e.Store.Audit(e.ctx, account, 0, 1)
	e.ok("Audit", err)
	size := 100_000 + 400 // at most, of each
	if has := total - 5; has*size < core.MaxAuditBytes-size || has*100_000 > core.MaxAuditBytes {
		e.Errorf("entries of 100 kB: got %d, want as many as have %d bytes", has, core.MaxAuditBytes)
	}
	e.wantAudit(account, list[0].Seq-2*int64(total-6), list[0].Seq)
	e.wantAudit(account, 1, 9)
}

// auditConcurrent changes the account, its owner's keys, users and usage at once.
func auditConcurrent(e *env) {
	account := e.account()
	ctx := core.WithAuditTime(e.ctx, noon)
	const each = 8
	changes := []func(n int) error{
		func(n int) error { return e.Store.CreateOwnerKey(ctx, newOwnerKey(account, fmt.Sprint("okey_new", n))) },
		func(n int) error {
			_, err := e.Store.UpdateOwnerKey(ctx, account, "okey_1", func(k *core.OwnerKey) error { k.Name += "x"; return nil })
			return err
		},
		func(n int) error {
			_, err := e.Store.UpdateAccount(ctx, account, func(a *core.Account) error { a.KeyPrefix += "x"; return nil })
			return err
		},
		func(n int) error {
			return e.Store.Update(ctx, account, putting(newUser(account, fmt.Sprint("user", n))))
		},
		func(n int) error { return e.Store.AppendAudit(ctx, account, []core.AuditEntry{auditEntry(0)}) },
	}
	e.parallel(each*len(changes), func(i int) {
		if err := changes[i%len(changes)](i); err != nil {
			e.Errorf("a change: got error %v, want none", err)
		}
	})
	list, total, err := e.Store.Audit(e.ctx, account, 0, 1000)
	e.ok("Audit", err)
	actions, numbers := map[string]int{}, map[int64]bool{}
	for _, x := range list {
		actions[x.Action]++
		numbers[x.Seq] = true
	}
	e.same("the entries", map[string]int{"owner_key.create": each, "owner_key.update": each, "account.update": each, "user.create": each, "usage.adjust": each}, actions)
	e.same("the number of different numbers", total, len(numbers))
	if !slices.IsSortedFunc(list, func(a, b core.AuditEntry) int { return int(b.Seq - a.Seq) }) {
		e.Errorf("the entries are not sorted by number")
	}
}

func auditRemoveMany(e *env) {
	account := e.account()
	e.appendAudit(account, 2, core.MaxImport+10, keep)
	e.appendAudit(account, 1, 3, keep)
	last := int64(2 * (core.MaxImport + 10))
	for _, want := range []struct {
		more  bool
		first int64
	}{{true, last - 18}, {false, last}} {
		more, err := e.Store.RemoveAudit(e.ctx, account, 0, last-2)
		e.ok("RemoveAudit", err)
		e.same("others remain", want.more, more)
		e.wantAudit(account, want.first, last)
	}
	e.reopen()
	e.appendAudit(account, last, 1, keep) // the log has this number
	e.wantAudit(account, last, last+2)
	for range 2 { // an empty log takes any numbers
		_, err := e.Store.RemoveAudit(e.ctx, account, 0, core.MaxLimit)
		e.ok("RemoveAudit", err)
		e.appendAudit(account, 2, 3, keep)
		e.wantAudit(account, 2, 6)
	}
}
