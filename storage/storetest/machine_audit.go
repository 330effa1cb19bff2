package storetest

import (
	"context"
	"encoding/json"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

// acting returns the context of a change: mostly of an actor, sometimes one whose changes leave no entry, or one entry.
func (m *machine) acting(t *rapid.T) context.Context {
	ctx := m.e.ctx
	switch rapid.IntRange(0, 9).Draw(t, "acting") {
	case 0:
		return ctx
	case 1:
		return core.WithAuditTime(core.WithoutAudit(ctx), m.someNow())
	case 2:
		ctx = core.WithBulk(ctx, "key.import")
	case 3:
	default:
		ctx = core.WithActor(ctx, core.Actor{Kind: core.ActorOwnerKey, ID: "okey_1", Name: m.text(t, "owner"), IP: "192.0.2.1"})
	}
	return core.WithAuditTime(ctx, m.someNow())
}

func (m *machine) bothAudit(t *rapid.T, account string, before int64, n int) {
	m.both(t, "Audit", func(s core.Store) (any, error) { return listed(s.Audit(m.e.ctx, account, before, n)) })
}

// someSeq draws the number of an entry, or one near to it.
func (m *machine) someSeq(t *rapid.T, account string) int64 {
	list, _, _ := m.model.Audit(m.e.ctx, account, 0, 100)
	if len(list) == 0 {
		return 1
	}
	return rapid.SampledFrom(list).Draw(t, "entry").Seq + rapid.Int64Range(-1, 1).Draw(t, "near")
}

// lookAudit compares the entries before a place, and all of a missing account.
func (m *machine) lookAudit(t *rapid.T, account string) {
	m.bothAudit(t, account, m.someSeq(t, account), rapid.IntRange(0, 4).Draw(t, "entries"))
}

// auditEntry returns an entry of an adjustment with a number.
func auditEntry(seq int64) core.AuditEntry {
	return core.AuditEntry{Seq: seq, At: noon, Actor: core.Actor{Kind: core.ActorPerson, ID: "person_1", Name: awkward}, IP: "192.0.2.1", Action: "usage.adjust",
		Target: core.AuditTarget{Kind: "user", ID: "1", Name: awkwardName}, Before: json.RawMessage(`{"a":1}`), After: json.RawMessage(`{"metadata":` + string(awkwardJSON) + `}`)}
}

// appendAudit appends entries, some with numbers.
func (m *machine) appendAudit(t *rapid.T) {
	account := m.anyAccount(t)
	var list []core.AuditEntry
	for range rapid.IntRange(0, 3).Draw(t, "entries") {
		e := auditEntry(0)
		if e.At = m.someNow(); rapid.Bool().Draw(t, "numbered") {
			e.Seq = max(1, m.someSeq(t, account)+rapid.Int64Range(-3, 5).Draw(t, "by"))
		}
		list = append(list, e)
	}
	m.both(t, "AppendAudit", func(s core.Store) (any, error) {
		given := copyOf(list)
		err := s.AppendAudit(m.e.ctx, account, given)
		var numbers []int64
		for i := range given {
			if numbers = append(numbers, given[i].Seq); err != nil {
				numbers[i] = 0
			}
		}
		spoil(given)
		return numbers, err
	})
	m.bothAudit(t, account, 0, 200)
}

// removeAudit removes some entries: one, the oldest, or a range.
func (m *machine) removeAudit(t *rapid.T) {
	account := m.anyAccount(t)
	first, last := m.someSeq(t, account), m.someSeq(t, account)
	switch rapid.IntRange(0, 2).Draw(t, "range") {
	case 0:
		last = first
	case 1:
		first = 0
	}
	m.both(t, "RemoveAudit", func(s core.Store) (any, error) { return s.RemoveAudit(m.e.ctx, account, first, last) })
	m.bothAudit(t, account, 0, 200)
}
