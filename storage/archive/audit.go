package archive

import (
	"bytes"
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// auditSize is the number of entries in an audit log and their size.
type auditSize struct{ entries, bytes int }

// putAudit checks an entry of an audit log. An archive has no entries beyond the bounds, because a store drops them.
func (c *checker) putAudit(v *Audit) {
	if !c.belongs(v.AccountID) || !c.rules("audit", v.ID(), v.Check()) {
		return
	}
	c.notAhead("audit", v.At)
	if v.Seq <= c.auditSeq {
		c.problem("audit %s: entries are sorted by seq, each once", v.ID())
	}
	c.auditSeq = v.Seq
	stored := v.AuditEntry
	stored.Seq = 0
	text, err := record.Encode(&stored)
	size := &c.audit[v.Seq%2]
	size.entries, size.bytes = size.entries+1, size.bytes+len(text)
	if err != nil || size.entries > core.MaxAuditEntries || size.bytes > core.MaxAuditBytes && size.entries > 1 {
		c.problem("audit %s: an audit log has at most %d entries and %d bytes", v.ID(), core.MaxAuditEntries, core.MaxAuditBytes)
	}
}

// auditLog exports the audit log of an account, the oldest entry first. A store lists the newest entry first, so auditLog first reads where each page begins,
// and then the pages from the last to the first. Entries that the store drops or appends meanwhile are left out.
func (e *export) auditLog(ctx context.Context) error {
	pages := []int64{0}
	for {
		list, _, err := e.s.Audit(ctx, e.of.ID, pages[len(pages)-1], e.o.entryPage)
		if err != nil {
			return err
		}
		if len(pages) == 1 && len(list) > 0 {
			pages[0] = list[0].Seq + 1
		}
		if len(list) < e.o.entryPage {
			break
		}
		pages = append(pages, list[len(list)-1].Seq)
	}
	for _, before := range slices.Backward(pages) {
		list, _, err := e.s.Audit(ctx, e.of.ID, before, e.o.entryPage)
		if err != nil {
			return err
		}
		for _, x := range slices.Backward(list) {
			if e.o.compares && isImport(e.of, &x) {
				continue
			}
			if err := e.record(ctx, KindAudit, &Audit{e.of.ID, x}); err != nil {
				return err
			}
		}
	}
	return nil
}

// isImport reports whether an entry was left by the import that has created the account. The imported archive lacks this entry.
func isImport(a *core.Account, e *core.AuditEntry) bool {
	return e.Action == "account.import" && a.Import != nil && bytes.Contains(e.After, []byte(a.Import.SHA256))
}

// putAudit appends entries to the audit log of the account. Before the first ones, it removes the entries of an interrupted import.
func (w *writing) putAudit(ctx context.Context, batch []Record) error {
	for more := !w.audited; more; {
		var err error
		if more, err = w.to.RemoveAudit(ctx, w.account.ID, 0, core.MaxLimit); err != nil {
			return err
		}
	}
	w.audited = true
	list := make([]core.AuditEntry, len(batch))
	for i, r := range batch {
		list[i] = r.Value.(*Audit).AuditEntry
	}
	return w.to.AppendAudit(ctx, w.account.ID, list)
}
