package redisstore

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// auditKey names an audit log.
func (s *Store) auditKey(in resource.Scope) string {
	if in.Registry {
		return s.o.registry().key("audit:" + in.Account)
	}
	return s.o.account(in.Account).key("audit")
}

// audit adds the change of an audit log.
func (w *writes) audit(a *resource.Audit) {
	if len(a.Append) == 0 && a.Last == 0 {
		return
	}
	decimal := func(n int64) string { return strconv.FormatInt(n, 10) }
	args := []string{decimal(core.MaxAuditEntries), decimal(core.MaxAuditBytes), decimal(core.MaxImport), decimal(a.First), decimal(a.Last)}
	for _, e := range a.Append {
		args = append(args, decimal(core.NextAuditSeq(e.Number, 0, a.Log.Registry)), string(e.Value))
	}
	w.batch.add("AUDIT", w.r.s.auditKey(a.Log), args...)
}

// Audit implements [resource.Reader].
func (r *reader) Audit(before int64, n int) (list []resource.AuditRecord, total int, err error) {
	end := "+inf"
	if before != 0 {
		end = "(" + strconv.FormatInt(before, 10)
	}
	answers, err := r.read(func(b *batch) {
		b.add("ZCARD", r.s.auditKey(r.in))
		b.add("ZRANGE", r.s.auditKey(r.in), end, "-inf", "BYSCORE", "REV", "LIMIT", "0", strconv.Itoa(max(n, 0)), "WITHSCORES")
	})
	if err != nil {
		return nil, 0, err
	}
	pairs, err := answers[1].AsStrSlice()
	if err != nil {
		return nil, 0, unavailable(err)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		_, value, ok := bytes.Cut([]byte(pairs[i]), []byte(" "))
		number, err := strconv.ParseInt(pairs[i+1], 10, 64)
		if err != nil || !ok {
			return nil, 0, core.Unavailable(errors.Join(err, errors.New("redis: an entry of an audit log is damaged")))
		}
		list = append(list, resource.AuditRecord{Number: number, Value: value})
	}
	return list, int(number(answers[0])), nil
}
