package badgerstore

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// auditLog is the record of the numbers and sizes of the entries in one audit log of an account.
//
//	first   uvarint: no entry has a smaller number
//	last    uvarint: the number of the newest entry, 0 for none
//	count   uvarint: of entries
//	bytes   uvarint: of all entries
type auditLog struct{ first, last, count, bytes int64 }

// code codes the record.
func (l *auditLog) code(c *record.Codec) {
	for _, n := range []*int64{&l.first, &l.last, &l.count, &l.bytes} {
		record.Number(c, n)
	}
}

// logFlag tells the two audit logs of an account apart in paths.
func logFlag(in resource.Scope) byte { return flagByte(in.Registry) }

func auditLogPath(in resource.Scope) path {
	return append(at(kindAuditLog).text(in.Account), logFlag(in))
}

// auditPath returns the prefix of the paths of all entries in a log.
func auditPath(in resource.Scope) path { return append(at(kindAudit).text(in.Account), logFlag(in)) }

func auditEntryPath(in resource.Scope, number int64) path { return auditPath(in).number(number) }

// auditNumber returns the number in the path of an entry.
func auditNumber(p path) int64 { return int64(binary.BigEndian.Uint64(p[len(p)-8:])) }

func (r view) auditLog(in resource.Scope) (l auditLog, err error) {
	b, err := r.get(auditLogPath(in))
	if err != nil || b == nil {
		return l, err
	}
	c := record.Decoder(b)
	if l.code(&c); c.Failed() || !c.Ended() {
		err = errRecord
	}
	return l, err
}

// Audit implements [resource.Reader].
func (r reader) Audit(before int64, n int) (list []resource.AuditRecord, total int, err error) {
	l, err := r.auditLog(r.in)
	if err != nil || n <= 0 {
		return nil, int(l.count), fault(err)
	}
	if before == 0 {
		before = math.MaxInt64
	}
	err = r.each(auditPath(r.in), auditEntryPath(r.in, before-1), true, func(p path, value []byte) (bool, error) {
		list = append(list, resource.AuditRecord{Number: auditNumber(p), Value: slices.Clone(value)})
		return len(list) < n, nil
	})
	return list, int(l.count), fault(err)
}

// changeAudit adds the writes of a change of an audit log. The caller has locked Store.audits for the account before it opened the view.
func (r view) changeAudit(w *writes, a *resource.Audit) error {
	l, err := r.auditLog(a.Log)
	if err != nil {
		return err
	}
	remove := func(number int64, size int) {
		w.put(auditEntryPath(a.Log, number), nil)
		l.count, l.bytes = l.count-1, l.bytes-int64(size)
	}
	if a.Last > 0 {
		n, fromStart := 0, a.First <= l.first
		err = r.eachFrom(auditPath(a.Log), auditEntryPath(a.Log, max(a.First, l.first)), func(p path, value []byte) (bool, error) {
			number := auditNumber(p)
			if number > a.Last || n == core.MaxImport {
				return false, nil
			}
			if n++; fromStart {
				l.first = number + 1
			}
			remove(number, len(value))
			return true, nil
		})
		if _, removed := w.value(auditEntryPath(a.Log, l.last)); removed && err == nil {
			l.last, err = r.newestAudit(w, a.Log, l.last)
		}
		if l.count == 0 {
			l.first = 0 // the next entry may have any number
		}
		if err != nil {
			return err
		}
	}
	for _, e := range a.Append {
		e.Number = core.NextAuditSeq(e.Number, l.last, a.Log.Registry)
		w.put(auditEntryPath(a.Log, e.Number), e.Value)
		l.last, l.count, l.bytes = e.Number, l.count+1, l.bytes+int64(len(e.Value))
	}
	if err := r.boundAudit(w, a, &l, remove); err != nil {
		return err
	}
	w.put(auditLogPath(a.Log), record.Append(nil, l.code))
	return nil
}

// newestAudit returns the largest number below before whose entry w does not remove, 0 for none.
func (r view) newestAudit(w *writes, in resource.Scope, before int64) (newest int64, err error) {
	err = r.each(auditPath(in), auditEntryPath(in, before-1), true, func(p path, _ []byte) (bool, error) {
		if _, removed := w.value(p); removed {
			return true, nil
		}
		newest = auditNumber(p)
		return false, nil
	})
	return newest, err
}

// boundAudit removes the oldest entries of a log beyond its bounds: stored entries first, then new ones.
func (r view) boundAudit(w *writes, a *resource.Audit, l *auditLog, remove func(number int64, size int)) error {
	over := func() bool { return l.count > 1 && (l.count > core.MaxAuditEntries || l.bytes > core.MaxAuditBytes) }
	if !over() {
		return nil
	}
	err := r.eachFrom(auditPath(a.Log), auditEntryPath(a.Log, l.first), func(p path, value []byte) (bool, error) {
		number := auditNumber(p)
		if _, removed := w.value(auditEntryPath(a.Log, number)); removed {
			return true, nil
		}
		if over() {
			remove(number, len(value))
			l.first = number + 1
		}
		return over(), nil
	})
	for i := 0; i < len(a.Append) && err == nil && over(); i++ {
		remove(a.Append[i].Number, len(a.Append[i].Value))
		l.first = a.Append[i].Number + 1
	}
	return err
}
