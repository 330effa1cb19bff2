package storetest

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

// importActions are the actions of the machine, with the operations of an importer.
func (m *machine) importActions() map[string]func(*rapid.T) {
	actions := m.actions()
	actions["history"], actions["set"], actions["days"], actions["replant"] = m.importHistory, m.setCounters, m.setDays, m.putAgain
	actions["numbers"] = m.putNumbered
	delete(actions, "account")
	return actions
}

// imported runs an operation of an importer on both stores.
func (m *machine) imported(t *rapid.T, what string, call func(core.Importer) (any, error)) {
	m.both(t, what, func(s core.Store) (any, error) { return call(s.(core.Importer)) })
}

// entry returns an entry of a key, with its number as the endpoint.
func entry(k *core.Key, n int) core.Entry {
	return endpoint(request(k, noon.Add(time.Duration(n)*time.Second)), "/%d", n).Entry
}

// importHistory appends entries to a history or replaces it, sometimes that of a deleted key or user. The other key or user of an entry
// may be missing. The times are sometimes not in order.
func (m *machine) importHistory(t *rapid.T) {
	k := m.aKey(t)
	ids := append(m.counters()[:1:1], keyCounter(k), userCounter(k))
	of := rapid.SampledFrom(ids).Draw(t, "counter")
	unsteady := rapid.IntRange(0, 3).Draw(t, "unsteady") == 0
	var entries []core.Entry
	for range rapid.IntRange(0, 80).Draw(t, "entries") {
		x := entry(k, m.serial)
		x.At, x.Cost = m.someNow(), int64(m.serial%7)
		if m.serial%3 == 0 {
			x.Denied, x.Reason = true, core.Reasons()[m.serial%5]
		}
		if unsteady {
			x.At, m.steppedBack = x.At.Add(-time.Duration(m.serial%5)*time.Minute), true
		}
		if m.serial%7 == 0 {
			x.KeyID, x.UserID = "key_missing", 99
		}
		x.KeyID, x.UserID = cmp.Or(of.KeyID, x.KeyID), cmp.Or(of.UserID, x.UserID)
		entries = append(entries, x)
	}
	replace := rapid.Bool().Draw(t, "replace")
	m.imported(t, "the import of a history", func(s core.Importer) (any, error) {
		given := copyOf(entries)
		defer func() { spoil(given) }()
		if replace {
			return nil, s.SetHistory(m.e.ctx, of, given, forever)
		}
		return nil, s.AppendHistory(m.e.ctx, of, given, forever)
	})
	m.bothHistory(t, of)
}

// setCounters sets a few counters, or one of a deleted key or user.
func (m *machine) setCounters(t *rapid.T) {
	ids := rapid.SliceOfNDistinct(rapid.SampledFrom(m.counters()), 1, 8, rapid.ID[core.CounterID]).Draw(t, "ids")
	if m.exists(ids[0]) {
		ids = slices.DeleteFunc(ids, func(id core.CounterID) bool { return !m.exists(id) })
	} else {
		ids = ids[:1]
	}
	var counters []core.Counter
	for range ids {
		c := core.Counter{DeniedOmitted: rapid.Int64Range(0, 5).Draw(t, "denied")}
		if rapid.Bool().Draw(t, "used") {
			ch := charge(rapid.Int64Range(1, 9).Draw(t, "usage"), m.now.Add(-rapid.SampledFrom([]time.Duration{0, 24 * time.Hour}).Draw(t, "ago")))
			if rapid.Bool().Draw(t, "tokens") {
				ch.Costs = []core.MeterCost{{Meter: "tokens", Cost: ch.Cost}}
			}
			c.Add(ch)
		}
		counters = append(counters, c)
	}
	m.imported(t, "SetCounters", func(s core.Importer) (any, error) {
		given := make([]core.Counter, len(counters))
		for i := range given {
			given[i] = counters[i].Clone()
		}
		return nil, s.SetCounters(m.e.ctx, slices.Clone(ids), given)
	})
}

// exists reports whether the key or user of a counter exists.
func (m *machine) exists(id core.CounterID) bool {
	if id.KeyID != "" {
		_, err := m.model.Key(m.e.ctx, id.Account, id.KeyID)
		return err == nil
	}
	_, err := m.model.User(m.e.ctx, id.Account, id.UserID)
	return err == nil
}

// setDays sets the days of a counter, sometimes of a deleted key or user, or of the deleted users of an account.
func (m *machine) setDays(t *rapid.T) {
	id := rapid.SampledFrom(append(m.counters(), core.CounterID{Account: m.accounts[0]})).Draw(t, "counter")
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
	m.imported(t, "SetDays", func(s core.Importer) (any, error) { return nil, s.SetDays(m.e.ctx, id, slices.Clone(list)) })
	m.imported(t, "CounterDays", func(s core.Importer) (any, error) { return s.CounterDays(m.e.ctx, id) })
}

// putAgain deletes a key, or a user with all its keys, and puts it again. Or it puts another key with the number of the deleted one,
// sometimes in the same transaction.
func (m *machine) putAgain(t *rapid.T) {
	k := m.aKey(t)
	account := k.AccountID
	m.renewed[account+k.ID] = true
	again, remove := putting(k), func(tx core.Tx) error { return tx.DeleteKey(k.ID) }
	fns := []func(core.Tx) error{remove, again}
	switch rapid.SampledFrom([]string{"key", "other", "other at once", "user"}).Draw(t, "what") {
	case "other":
		fns[1] = putting(m.otherKey(k))
	case "other at once":
		put := putting(m.otherKey(k))
		fns = []func(core.Tx) error{func(tx core.Tx) error { return errors.Join(remove(tx), put(tx)) }}
	case "user":
		u, err := m.model.User(m.e.ctx, account, k.UserID)
		if err != nil { // a key may outlive its user in the machine
			t.SkipNow()
		}
		things := []any{u}
		ks, _, _ := m.model.Keys(m.e.ctx, account, core.KeyFilter{UserID: u.ID}, core.Page{Number: 1, Size: 100})
		for _, k := range ks {
			things = append(things, k)
			m.renewed[account+k.ID] = true
		}
		fns = []func(core.Tx) error{func(tx core.Tx) error { return tx.DeleteUser(u.ID) }, putting(things...)}
	}
	for _, fn := range fns {
		m.both(t, "Update", func(s core.Store) (any, error) { return nil, s.Update(m.e.ctx, account, fn) })
	}
	m.bothHistory(t, keyCounter(k))
	m.bothHistory(t, userCounter(k))
}

// otherKey returns another key with the number of a key.
func (m *machine) otherKey(k *core.Key) *core.Key {
	other := m.newKey(k.AccountID, k.UserID)
	other.Seq = k.Seq
	m.renewed[k.AccountID+other.ID] = true
	return other
}

// newKey returns a key that no account has had.
func (m *machine) newKey(account string, user int64) *core.Key {
	k := newKey(account, m.newID(account, "key_"), user, "")
	m.keys = append(m.keys, keyRef{account: account, id: k.ID, values: 1})
	m.digests = append(m.digests, k.Digest)
	return k
}

// putNumbered puts a new user, plan and key with numbers that the account has not given.
func (m *machine) putNumbered(t *rapid.T) {
	account, above := m.account(t), rapid.Int64Range(1, 3).Draw(t, "above")
	n, err := m.model.LastNumbers(m.e.ctx, account)
	m.e.ok("LastNumbers", err)
	u, p := newUser(account, m.next("user")), newPlan(account, m.newID(account, "plan_"))
	u.ID, p.Seq = n.User+above, n.Plan+above
	k := m.newKey(account, u.ID)
	k.Seq = n.Key + above
	for _, fn := range []func(core.Tx) error{putting[any](u, p), putting(k)} {
		m.both(t, "Update", func(s core.Store) (any, error) { return nil, s.Update(m.e.ctx, account, fn) })
	}
	m.raiseNumbers(t, account, core.Numbers{User: n.User + rapid.Int64Range(-1, 5).Draw(t, "users"), Plan: n.Plan, Key: n.Key + 2*above})
}

// raiseNumbers raises the numbers of an account.
func (m *machine) raiseNumbers(t *rapid.T, account string, n core.Numbers) {
	for _, account := range []string{account, "acct_missing"} {
		m.imported(t, "RaiseNumbers", func(s core.Importer) (any, error) { return nil, s.RaiseNumbers(m.e.ctx, account, n) })
		m.imported(t, "LastNumbers", func(s core.Importer) (any, error) { return s.LastNumbers(m.e.ctx, account) })
	}
}
