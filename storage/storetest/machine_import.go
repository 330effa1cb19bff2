package storetest

import (
	"cmp"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

// importMachine is the machine with the operations of an importer.
func importMachine(e *env) {
	e.importer()
	runMachines(e, func(m *machine) map[string]func(*rapid.T) {
		actions := m.actions()
		actions["history"], actions["set"], actions["days"], actions["replant"] = m.importHistory, m.setCounters, m.setDays, m.putAgain
		delete(actions, "owner")
		return actions
	})
}

// importHistory appends entries to a history or replaces it, sometimes that of a deleted key or user.
func (m *machine) importHistory(t *rapid.T) {
	k := m.aKey(t)
	ids := append(m.counters()[:1:1], keyCounter(k), userCounter(k))
	of := rapid.SampledFrom(ids).Draw(t, "counter")
	var entries []core.Entry
	for range rapid.IntRange(0, 80).Draw(t, "entries") {
		x := entry(k, m.serial)
		m.serial++
		x.At, x.Cost = m.now, int64(m.serial%7)
		if m.serial%3 == 0 {
			x.Denied, x.Reason = true, core.Reasons()[m.serial%4]
		}
		x.KeyID, x.UserID = cmp.Or(of.KeyID, x.KeyID), cmp.Or(of.UserID, x.UserID)
		entries = append(entries, x)
	}
	replace := rapid.Bool().Draw(t, "replace")
	m.both(t, "the import of a history", func(s core.Store) (any, error) {
		if replace {
			return nil, s.(core.Importer).SetHistory(m.e.ctx, of, entries, forever)
		}
		return nil, s.(core.Importer).AppendHistory(m.e.ctx, of, entries, forever)
	})
}

// setCounters sets a few counters, some of deleted keys and users.
func (m *machine) setCounters(t *rapid.T) {
	for range rapid.IntRange(1, 3).Draw(t, "counters") {
		id := rapid.SampledFrom(m.counters()).Draw(t, "counter")
		c := core.Counter{DeniedOmitted: rapid.Int64Range(0, 5).Draw(t, "denied")}
		if rapid.Bool().Draw(t, "used") {
			ch := charge(rapid.Int64Range(1, 9).Draw(t, "usage"), m.now.Add(-rapid.SampledFrom([]time.Duration{0, 24 * time.Hour}).Draw(t, "ago")))
			if rapid.Bool().Draw(t, "tokens") {
				ch.Costs = []core.MeterCost{{Meter: "tokens", Cost: ch.Cost}}
			}
			c.Add(ch)
		}
		m.both(t, "SetCounters", func(s core.Store) (any, error) {
			return nil, s.(core.Importer).SetCounters(m.e.ctx, []core.CounterID{id}, []core.Counter{c})
		})
	}
}

// setDays sets the days of a counter, sometimes of a deleted key or user.
func (m *machine) setDays(t *rapid.T) {
	id := rapid.SampledFrom(m.counters()).Draw(t, "counter")
	counters, err := m.model.Counters(m.e.ctx, []core.CounterID{id})
	m.e.ok("Counters", err)
	last, began := core.DateOf(m.latest), counters[0].At != 0
	if began {
		last = core.DateOf(time.Unix(counters[0].At, 0))
	}
	var list []core.CounterDay
	for _, ago := range []core.Date{150, 100, 2, 1, 0} {
		n := rapid.Int64Range(0, 3).Draw(t, "number")
		day := core.CounterDay{Date: last - ago, Traffic: core.Traffic{Denied: n}}
		switch {
		case n == 0:
			continue
		case id.KeyID == "":
			day.Allowed, day.Shared.Denied = n+1, n-1
			if began {
				day.Shared.Allowed = n
			}
		case began:
			day.Allowed = n
		}
		list = append(list, day)
	}
	m.both(t, "SetDays", func(s core.Store) (any, error) {
		return nil, s.(core.Importer).SetDays(m.e.ctx, id, list)
	})
	m.both(t, "CounterDays", func(s core.Store) (any, error) { return s.(core.Importer).CounterDays(m.e.ctx, id) })
}

// putAgain deletes a key, or a user with all its keys, and puts it again.
func (m *machine) putAgain(t *rapid.T) {
	k := m.aKey(t)
	m.renewed[k.AccountID+k.ID] = true
	things, remove := []any{k}, func(tx core.Tx) error { return tx.DeleteKey(k.ID) }
	if rapid.Bool().Draw(t, "user") {
		u, err := m.model.User(m.e.ctx, k.AccountID, k.UserID)
		if err != nil { // a key may outlive its user in the machine
			t.SkipNow()
		}
		ks, _, _ := m.model.Keys(m.e.ctx, k.AccountID, core.KeyFilter{UserID: u.ID}, core.Page{Number: 1, Size: 100})
		things, remove = []any{u}, func(tx core.Tx) error { return tx.DeleteUser(u.ID) }
		for _, k := range ks {
			things = append(things, k)
			m.renewed[k.AccountID+k.ID] = true
		}
	}
	for _, fn := range []func(core.Tx) error{remove, putting(things...)} {
		m.both(t, "Update", func(s core.Store) (any, error) { return nil, s.Update(m.e.ctx, k.AccountID, fn) })
	}
}
