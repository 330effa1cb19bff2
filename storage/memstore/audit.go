package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// auditName names one of the two audit logs of an account.
type auditName struct {
	account  string
	registry bool
}

// auditLog is an audit log.
type auditLog struct {
	entries []*core.AuditEntry // oldest first
	bytes   int                // of all entries
}

// sizeOf returns the size of an entry in a database, in bytes.
func sizeOf(e *core.AuditEntry) int {
	stored := *e
	stored.Seq = 0
	text, err := record.Encode(&stored)
	if err != nil {
		panic(err) // no resource of core fails to encode
	}
	return len(text)
}

// audit returns a log. The caller holds the lock.
func (s *Store) audit(of auditName) *auditLog {
	if s.audits[of] == nil {
		s.audits[of] = &auditLog{}
	}
	return s.audits[of]
}

// append appends the entries that fn adds to a. A nil a has none. The caller holds the lock.
func (s *Store) append(a *core.Auditing, registry bool, fn func(*core.Auditing)) {
	if a == nil {
		return
	}
	fn(a)
	account, list := a.Entries()
	for i := range list {
		s.audit(auditName{account, registry}).append(&list[i], registry)
	}
}

// append appends an entry, sets its number, and drops the oldest entries beyond the bounds.
func (l *auditLog) append(e *core.AuditEntry, registry bool) {
	last := int64(0)
	if n := len(l.entries); n > 0 {
		last = l.entries[n-1].Seq
	}
	e.Seq = core.NextAuditSeq(e.Wanted(), last, registry)
	l.entries, l.bytes = append(l.entries, copyOf(e)), l.bytes+sizeOf(e)
	for len(l.entries) > 1 && (len(l.entries) > core.MaxAuditEntries || l.bytes > core.MaxAuditBytes) {
		l.remove(0)
	}
}

func (l *auditLog) remove(i int) {
	l.bytes -= sizeOf(l.entries[i])
	l.entries = slices.Delete(l.entries, i, i+1)
}

// audit adds the changes of the transaction to a.
func (t *tx) audit(a *core.Auditing) {
	auditTable(a, t.before.plans, t.after.plans, (*core.Auditing).Plan)
	auditTable(a, t.before.users, t.after.users, (*core.Auditing).User)
	auditTable(a, t.before.keys, t.after.keys, (*core.Auditing).Key)
	auditTable(a, t.before.webhooks, t.after.webhooks, (*core.Auditing).Webhook)
	if t.before.prices != t.after.prices {
		a.Prices(t.before.prices, t.after.prices)
	}
}

func auditTable[K comparable, T any](a *core.Auditing, before, after *table[K, T], audit func(a *core.Auditing, before, after *T)) {
	all := maps.Clone(before.rows)
	maps.Copy(all, after.rows)
	for id := range all {
		if before.rows[id] != after.rows[id] {
			audit(a, before.rows[id], after.rows[id])
		}
	}
}

// Audit implements [core.Store].
func (s *Store) Audit(_ context.Context, account string, before int64, n int) (list []core.AuditEntry, total int, err error) {
	err = s.locked(func() error {
		all := slices.Concat(s.audit(auditName{account, false}).entries, s.audit(auditName{account, true}).entries)
		slices.SortFunc(all, func(a, b *core.AuditEntry) int { return cmp.Compare(b.Seq, a.Seq) })
		for _, e := range all {
			if (before == 0 || e.Seq < before) && len(list) < n {
				list = append(list, *copyOf(e))
			}
		}
		total = len(all)
		return nil
	})
	return list, total, err
}

// AppendAudit implements [core.Store].
func (s *Store) AppendAudit(_ context.Context, account string, entries []core.AuditEntry) error {
	return s.locked(func() error {
		if len(entries) > 0 && s.isMissing(account) {
			return core.ErrAccountNotFound
		}
		for i := range entries {
			registry := entries[i].OfRegistry()
			s.audit(auditName{account, registry}).append(&entries[i], registry)
		}
		return nil
	})
}

// RemoveAudit implements [core.Store].
func (s *Store) RemoveAudit(_ context.Context, account string, first, last int64) (more bool, err error) {
	err = s.locked(func() error {
		for _, registry := range []bool{false, true} {
			l, removed := s.audit(auditName{account, registry}), 0
			for i := 0; i < len(l.entries); {
				switch seq := l.entries[i].Seq; {
				case seq < first || seq > last:
					i++
				case removed == core.MaxImport:
					more, i = true, len(l.entries)
				default:
					l.remove(i)
					removed++
				}
			}
		}
		return nil
	})
	return more, err
}
