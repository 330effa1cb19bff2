package storetest

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenAudits = []defect{
	{name: "leaves no entry of a change of an owner's key", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return quietOwnerKeys{s} })},
	{name: "leaves no entry of a transaction", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return quietUpdates{s} })},
	{name: "leaves an entry of a transaction that failed", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return auditsFailures{s} })},
	{name: "leaves an entry of a change that changes nothing", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return auditsNothing{s} })},
	{name: "leaves entries for a context without an actor", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return neverQuiet{s} })},
	{name: "appends entries for a missing account", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return auditsMissing{s} })},
	{name: "repeats the entry at the end of a page", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return repeatsEntry{s} })},
	{name: "lists the entries oldest first", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return oldestFirst{s} })},
	{name: "ignores the numbers of entries", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return renumbers{s} })},
	{name: "removes newer entries, too", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return removesNewer{s} })},
	{name: "removes any number of entries at once", caughtBy: "audit/remove many", open: wrapped(func(s core.Store) core.Store { return removesAll{s} })},
	{name: "drops entries too early", caughtBy: "audit/number of entries", open: wrapped(func(s core.Store) core.Store { return dropsEarly{s} })},
	{name: "bounds both logs together", caughtBy: "audit/number of entries", open: wrapped(func(s core.Store) core.Store { return boundsBoth{s} })},
	{name: "drops large entries", caughtBy: "audit/bytes", open: wrapped(func(s core.Store) core.Store { return dropsLarge{s} })},
	{name: "leaves the entry of a new owner's key in a transaction of its own, with a number from before", caughtBy: "audit/concurrent",
		open: wrapped(func(s core.Store) core.Store { return forgetsSome{s} })},
}

type quietOwnerKeys struct{ core.Store }

func (s quietOwnerKeys) UpdateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (*core.OwnerKey, error) {
	return s.Store.UpdateOwnerKey(core.WithoutAudit(ctx), account, id, fn)
}

type quietUpdates struct{ core.Store }

func (s quietUpdates) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return s.Store.Update(core.WithoutAudit(ctx), account, fn)
}

type auditsFailures struct{ core.Store }

func (s auditsFailures) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	err := s.Store.Update(ctx, account, fn)
	if err != nil {
		_ = s.Store.AppendAudit(ctx, account, []core.AuditEntry{auditEntry(0)})
	}
	return err
}

type auditsNothing struct{ core.Store }

func (s auditsNothing) UpdateAccess(ctx context.Context, account string, fn func(*core.Access) error) (*core.Access, error) {
	a, err := s.Store.UpdateAccess(ctx, account, fn)
	if err == nil {
		err = s.Store.AppendAudit(ctx, account, []core.AuditEntry{auditEntry(1)})
	}
	return a, err
}

type neverQuiet struct{ core.Store }

func (s neverQuiet) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if core.NewAuditing(ctx, account) == nil {
		ctx = core.WithAuditTime(context.Background(), noon)
	}
	return s.Store.Update(ctx, account, fn)
}

type auditsMissing struct{ core.Store }

func (s auditsMissing) AppendAudit(ctx context.Context, account string, entries []core.AuditEntry) error {
	err := s.Store.AppendAudit(ctx, account, entries)
	if err == core.ErrAccountNotFound {
		return nil
	}
	return err
}

type repeatsEntry struct{ core.Store }

func (s repeatsEntry) Audit(ctx context.Context, account string, before int64, n int) ([]core.AuditEntry, int, error) {
	if before != 0 {
		before++
	}
	return s.Store.Audit(ctx, account, before, n)
}

type oldestFirst struct{ core.Store }

func (s oldestFirst) Audit(ctx context.Context, account string, before int64, n int) ([]core.AuditEntry, int, error) {
	list, total, err := s.Store.Audit(ctx, account, before, n)
	for i := range len(list) / 2 {
		list[i], list[len(list)-1-i] = list[len(list)-1-i], list[i]
	}
	return list, total, err
}

type renumbers struct{ core.Store }

func (s renumbers) AppendAudit(ctx context.Context, account string, entries []core.AuditEntry) error {
	for i := range entries {
		entries[i].Seq %= 2
	}
	return s.Store.AppendAudit(ctx, account, entries)
}

type removesNewer struct{ core.Store }

func (s removesNewer) RemoveAudit(ctx context.Context, account string, first, _ int64) (bool, error) {
	return s.Store.RemoveAudit(ctx, account, first, core.MaxLimit)
}

type removesAll struct{ core.Store }

func (s removesAll) RemoveAudit(ctx context.Context, account string, first, last int64) (more bool, err error) {
	for more = true; more && err == nil; {
		more, err = s.Store.RemoveAudit(ctx, account, first, last)
	}
	return more, err
}

// dropsEarly keeps 1000 entries less than the bound.
type dropsEarly struct{ core.Store }

func (s dropsEarly) AppendAudit(ctx context.Context, account string, entries []core.AuditEntry) error {
	err := s.Store.AppendAudit(ctx, account, entries)
	if _, total, _ := s.Store.Audit(ctx, account, 0, 1); total > core.MaxAuditEntries-1000 {
		_, err = s.Store.RemoveAudit(ctx, account, 0, entries[len(entries)-1].Seq-2*(core.MaxAuditEntries-1000))
	}
	return err
}

// boundsBoth drops an entry of the other log.
type boundsBoth struct{ core.Store }

func (s boundsBoth) AppendAudit(ctx context.Context, account string, entries []core.AuditEntry) error {
	err := s.Store.AppendAudit(ctx, account, entries)
	if _, total, _ := s.Store.Audit(ctx, account, 0, 1); total > core.MaxAuditEntries {
		_, err = s.Store.RemoveAudit(ctx, account, 1, 1)
	}
	return err
}

type dropsLarge struct{ core.Store }

func (s dropsLarge) AppendAudit(ctx context.Context, account string, entries []core.AuditEntry) error {
	if len(entries) == 10 {
		entries = entries[:9]
	}
	return s.Store.AppendAudit(ctx, account, entries)
}

// forgetsSome overwrites the newest entry of the account when it creates an owner's key.
type forgetsSome struct{ core.Store }

func (s forgetsSome) CreateOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	if list, _, _ := s.Store.Audit(ctx, k.AccountID, 0, 1); len(list) > 0 {
		_, _ = s.Store.RemoveAudit(ctx, k.AccountID, list[0].Seq, list[0].Seq)
	}
	return s.Store.CreateOwnerKey(ctx, k)
}
