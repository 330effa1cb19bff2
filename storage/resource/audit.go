package resource

import (
	"cmp"
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// logs returns the two audit logs of an account.
func logs(account string) []Scope {
	return []Scope{{Account: account}, {Account: account, Registry: true}}
}

// appendAudit adds the entries of the transaction to its changes.
func (t *tx) appendAudit(c *Changes) (err error) {
	account, list := t.auditing.Entries()
	for i := range list {
		if err = c.Audit.add(&list[i]); err != nil {
			return t.keep(err)
		}
	}
	c.Audit.Log = Scope{Account: account, Registry: len(c.Accounts)+len(c.OwnerKeys)+len(t.accesses.changes) > 0}
	return nil
}

// add adds an entry to Append.
func (a *Audit) add(e *core.AuditEntry) error {
	wanted := e.Wanted()
	stored := *e
	stored.Seq = 0 // the database has the number
	value, err := record.Encode(&stored)
	a.Append = append(a.Append, &AuditRecord{wanted, value})
	return err
}

// Audit implements [core.Store].
func (r Resources) Audit(ctx context.Context, account string, before int64, n int) (list []core.AuditEntry, total int, err error) {
	for _, in := range logs(account) {
		err := r.db.View(ctx, in, func(rd Reader) error {
			some, size, err := rd.Audit(before, n)
			total += size
			for i := 0; i < len(some) && err == nil; i++ {
				var e *core.AuditEntry
				if e, err = decode[core.AuditEntry](some[i].Value); err == nil {
					e.Seq = some[i].Number
					list = append(list, *e)
				}
			}
			return err
		})
		if err != nil {
			return nil, 0, err
		}
	}
	slices.SortFunc(list, func(a, b core.AuditEntry) int { return cmp.Compare(b.Seq, a.Seq) })
	return list[:min(n, len(list))], total, nil
}

// AppendAudit implements [core.Store].
func (r Resources) AppendAudit(ctx context.Context, account string, entries []core.AuditEntry) error {
	for _, in := range logs(account) {
		var to []*core.AuditEntry
		for i := range entries {
			if entries[i].OfRegistry() == in.Registry {
				to = append(to, &entries[i])
			}
		}
		if len(to) == 0 {
			continue
		}
		var c *Changes
		err := r.changeAudit(ctx, in, func() (Audit, error) {
			a := Audit{Log: in}
			for _, e := range to {
				if err := a.add(e); err != nil {
					return a, err
				}
			}
			return a, nil
		}, &c)
		if err != nil {
			return err
		}
		for i, e := range to {
			e.Seq = c.Audit.Append[i].Number
		}
	}
	return nil
}

// changeAudit changes an audit log of an account, and sets made to the stored changes.
func (r Resources) changeAudit(ctx context.Context, in Scope, change func() (Audit, error), made **Changes) error {
	return r.db.Change(ctx, in, func(rd Reader) (*Changes, error) {
		t := newTx(rd)
		if err := t.checkAuditAccount(in); err != nil {
			return nil, err
		}
		if _, _, err := rd.Audit(0, 1); err != nil { // on Redis, a commit compares the version that a read has returned
			return nil, err
		}
		a, err := change()
		*made = &Changes{Audit: a}
		return *made, err
	})
}

// checkAuditAccount returns an error if the account of an audit log does not exist.
func (t *tx) checkAuditAccount(in Scope) error {
	if !in.Registry {
		return t.checkAccount()
	}
	c, err := loadOne(t, &t.accounts, in.Account)
	if err == nil && (c.Before == nil || c.Before.Deleting) {
		err = core.ErrAccountNotFound
	}
	return err
}

// RemoveAudit implements [core.Store].
func (r Resources) RemoveAudit(ctx context.Context, account string, first, last int64) (more bool, err error) {
	for _, in := range logs(account) {
		found, err := view(ctx, r.db, in, func(rd Reader) ([]AuditRecord, error) {
			list, _, err := rd.Audit(last+1, core.MaxImport+1)
			return list, err
		})
		if err != nil {
			return false, err
		}
		has := slices.IndexFunc(found, func(a AuditRecord) bool { return a.Number < first })
		if has < 0 {
			has = len(found)
		}
		if more = more || has > core.MaxImport; has == 0 {
			continue
		}
		err = r.changeAudit(ctx, in, func() (Audit, error) { return Audit{Log: in, First: first, Last: last}, nil }, new(*Changes))
		if err != nil {
			return false, err
		}
	}
	return more, nil
}
