package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

var machineCases = []testCase{
	{name: "machine", run: machineRuns, own: true,
		promise: "for random operations in random order, the store answers as the reference store does"},
}

// machine runs random operations on the store under test and on the model, and compares every
// result.
type machine struct {
	e        *env
	model    *memstore.Store
	obeys    bool // the resources obey the rules of core.Service: see FillAtRandom
	accounts []string

	now, latest time.Time // of the simulated clock
	floor       time.Time // the clock steps back no further
	steppedBack bool

	keys    []keyRef
	digests []core.Digest
	counted map[string]time.Time // when a request was counted, by key and request id
	named   []core.Consumption   // those requests
	renewed map[string]bool      // keys that were put again: their request ids may be remembered or not
	serial  int
	checks  int // number of comparisons of the stores
}

// keyRef is a key and the number of values that it was given.
type keyRef struct {
	account, id string
	values      int
}

func machineRuns(e *env) { runMachines(e, (*machine).actions) }

// runMachines runs many machines, one after the other on the same two stores.
func runMachines(e *env, actions func(*machine) map[string]func(*rapid.T)) {
	model := memstore.New()
	rapid.Check(e.TB, func(t *rapid.T) {
		m := newMachine(e, model)
		defer func() { model = m.model }()
		m.begin(t)
		t.Repeat(actions(m))
	})
}

func newMachine(e *env, model *memstore.Store) *machine {
	return &machine{e: e, model: model, now: noon, latest: noon, floor: noon.AddDate(-1, 0, 0),
		counted: map[string]time.Time{}, renewed: map[string]bool{}}
}

// begin creates two accounts with a few resources.
func (m *machine) begin(t *rapid.T) {
	for range 2 {
		m.createAccount(t)
	}
	for range 10 { // initial resources
		m.update(t)
	}
	m.change(t)
}

// FillAtRandom fills a new store by 200 or more random operations of the case "machine". The resources obey the rules
// of [core.Service]: each user and key has a plan that exists or none, each key has a user, and the ids of owner's keys are
// unique among all accounts. FillAtRandom reopens the store now and then, and o.Store is then the reopened store. It fails
// run if an answer differs from the answer of memstore, and t if the store cannot be reopened.
func FillAtRandom(run *rapid.T, t testing.TB, o *Opened) {
	const operations = 200
	m := newMachine(&env{TB: t, Opened: o, ctx: t.Context()}, memstore.New())
	m.obeys = true
	m.begin(run)
	for m.checks < operations { // a check follows each operation
		run.Repeat(m.actions())
	}
}

// actions are what a machine does at random.
func (m *machine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"":        m.check,
		"change":  m.change,
		"replace": m.change, // chosen more often than the others
		"consume": m.consume,
		"flood":   m.flood,
		"special": m.special,
		"again":   m.again,
		"clock":   m.clock,
		"look":    m.compareReads,
		"owner":   m.ownerKey,
		"reopen":  m.reopen,
	}
}

// both runs an operation on both stores and fails unless the results are equal. It returns the
// result of the model.
func (m *machine) both(t *rapid.T, what string, call func(core.Store) (any, error)) (any, error) {
	want, wantErr := call(m.model)
	got, gotErr := call(m.e.Store)
	if fault(wantErr) != fault(gotErr) {
		t.Fatalf("%s: got error %v, want %v", what, gotErr, wantErr)
	}
	if d := diff(want, got); wantErr == nil && d != "" {
		t.Fatalf("%s (-want +got):\n%s", what, d)
	}
	return want, wantErr
}

// fault returns the part of an error that must be equal in both stores.
func fault(err error) string {
	for _, known := range []error{core.ErrAccountNotFound, core.ErrAccountExists, core.ErrOwnerKeyNotFound, core.ErrOwnerKeyExists,
		core.ErrUserNotFound, core.ErrPlanNotFound, core.ErrKeyNotFound, core.ErrDuplicateEmail, core.ErrDuplicateExternalID, core.ErrUnavailable, errAborted} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return fmt.Sprint(err)
}

// list is a page and its total.
type list[T any] struct {
	Page  []T
	Total int
}

func listed[T any](page []T, total int, err error) (any, error) { return list[T]{page, total}, err }

// account draws an account.
func (m *machine) account(t *rapid.T) string { return rapid.SampledFrom(m.accounts).Draw(t, "account") }

// anyAccount draws an account, sometimes a missing one.
func (m *machine) anyAccount() []string {
	return append(slices.Repeat(m.accounts, 4), "acct_missing")
}

// next returns an unused name.
func (m *machine) next(prefix string) string {
	m.serial++
	return fmt.Sprintf("%s%d", prefix, m.serial)
}

func (m *machine) createAccount(t *rapid.T) {
	a, _ := newAccount(fmt.Sprintf("acct_machine%d", serial.Add(1)))
	k := newOwnerKey(a.ID, m.ownerKeyID(a.ID, "okey_1"))
	m.accounts = append(m.accounts, a.ID)
	m.both(t, "CreateAccount", func(s core.Store) (any, error) { return nil, s.CreateAccount(m.e.ctx, a, k) })
	m.both(t, "CreateAccount", func(s core.Store) (any, error) { return nil, s.CreateAccount(m.e.ctx, a, k) })
}

// check compares the whole of one account, after each step another account.
func (m *machine) check(t *rapid.T) {
	m.checks++
	page := core.Page{Number: 1, Size: 100}
	account := m.accounts[m.checks%len(m.accounts)]
	for _, f := range []core.UserFilter{{}, {Anchored: true}} {
		m.both(t, "Users", func(s core.Store) (any, error) { return listed(s.Users(m.e.ctx, account, f, page)) })
	}
	m.both(t, "Plans", func(s core.Store) (any, error) { return listed(s.Plans(m.e.ctx, account, page)) })
	m.both(t, "Keys", func(s core.Store) (any, error) {
		return listed(s.Keys(m.e.ctx, account, core.KeyFilter{}, page))
	})
	m.both(t, "Counters", func(s core.Store) (any, error) {
		cs, err := s.Counters(m.e.ctx, m.counters())
		for i, c := range cs { // without the unexported members
			cs[i] = core.Counter{}
			cs[i].Set(&c)
		}
		return cs, err
	})
	m.checkDays(t, account)
}

// checkDays compares the days of the account, then of a user, a plan or a key: the latest days, or
// one of them.
func (m *machine) checkDays(t *rapid.T, account string) {
	last := core.DateOf(m.latest)
	first := last - 4
	if m.checks%4 > 1 {
		last -= core.Date(m.checks % 8 / 4)
		first = last
	}
	some := []core.DaysFilter{{Account: account, UserID: 1}, {Account: account, UserID: 2}, {Account: account, PlanID: "plan_1"}}
	m.bothDays(t, core.DaysFilter{Account: account}, first, last)
	m.bothDays(t, some[m.checks%len(some)], first, last)
	if n := len(m.keys); n > 0 {
		k := m.keys[max(0, n-1-m.checks%5)]
		m.bothDays(t, core.DaysFilter{Account: k.account, KeyID: k.id}, first, last)
	}
}

func (m *machine) bothDays(t *rapid.T, of core.DaysFilter, first, last core.Date) {
	m.both(t, fmt.Sprintf("Days of %+v", of), func(s core.Store) (any, error) { return s.Days(m.e.ctx, of, first, last) })
}

// counters returns the ids of the counters of every key and user that ever existed.
func (m *machine) counters() (ids []core.CounterID) {
	for _, k := range m.keys {
		ids = append(ids, core.CounterID{Account: k.account, KeyID: k.id})
	}
	for _, account := range m.accounts {
		for user := range int64(12) {
			ids = append(ids, core.CounterID{Account: account, UserID: user + 1})
		}
	}
	return ids
}

// clock moves the clock, mostly forward.
func (m *machine) clock(t *rapid.T) {
	by := rapid.SampledFrom([]time.Duration{time.Nanosecond, time.Second, time.Hour, 23 * time.Hour, 8 * 24 * time.Hour,
		32 * 24 * time.Hour, 400 * 24 * time.Hour, -time.Second, -25 * time.Hour, -40 * 24 * time.Hour}).Draw(t, "by")
	m.setClock(m.now.Add(by))
}

func (m *machine) setClock(now time.Time) {
	m.now = now
	if m.now.Before(m.floor) {
		m.now = m.floor
	}
	if m.now.After(m.latest) {
		m.latest = m.now
	}
	m.steppedBack = m.steppedBack || m.now.Before(m.latest)
}

// reopen reopens both stores, not too often. A store may or may not keep the number of denials in a
// past second, so the clock never returns to such a second. A store may drop its buckets, so the clock advances by 3
// minutes, which fills the largest one.
func (m *machine) reopen(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "rarely") != 0 {
		t.SkipNow()
	}
	m.e.reopen()
	m.model = m.model.Reopen()
	m.latest = m.latest.Add(3 * time.Minute)
	m.now, m.floor = m.latest, m.latest
	for _, d := range m.digests {
		m.both(t, "KeyByDigest", func(s core.Store) (any, error) { return s.KeyByDigest(m.e.ctx, d) })
	}
}

// accountUpdate updates an account, or makes such a call fail.
func (m *machine) accountUpdate(t *rapid.T) {
	account := rapid.SampledFrom(m.anyAccount()).Draw(t, "account")
	abort, prefix := rapid.Bool().Draw(t, "abort"), m.next("prefix")+"_"
	m.both(t, "UpdateAccount", func(s core.Store) (any, error) {
		return s.UpdateAccount(m.e.ctx, account, func(a *core.Account) error {
			a.KeyPrefix, a.KeyPrefixes = prefix, append(a.KeyPrefixes, prefix)
			if abort {
				return errAborted
			}
			return nil
		})
	})
	m.both(t, "Account", func(s core.Store) (any, error) { return s.Account(m.e.ctx, account) })
}

// accessUpdate changes who may sign in to an account, or makes such a call fail.
func (m *machine) accessUpdate(t *rapid.T) {
	account, abort, to := rapid.SampledFrom(m.anyAccount()).Draw(t, "account"), rapid.Bool().Draw(t, "abort"), someAccess()
	if m.obeys {
		to.Password = "$argon2id$v=19$m=19456,t=2,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"
	}
	to.Links = to.Links[:rapid.IntRange(0, 2).Draw(t, "links")]
	to.Sessions = to.Sessions[rapid.IntRange(0, 2).Draw(t, "first session"):]
	m.both(t, "UpdateAccess", func(s core.Store) (any, error) {
		return s.UpdateAccess(m.e.ctx, account, func(a *core.Access) error {
			if *a = to; abort {
				return errAborted
			}
			return nil
		})
	})
	m.both(t, "Access", func(s core.Store) (any, error) { return s.Access(m.e.ctx, account) })
}

// ownerKeyID returns the id of an owner's key. If the machine obeys, each account has other ids.
func (m *machine) ownerKeyID(account, id string) string {
	if m.obeys {
		return account + "_" + id
	}
	return id
}

// ownerKey creates or updates an owner's key, or makes such a call fail.
func (m *machine) ownerKey(t *rapid.T) {
	account := rapid.SampledFrom(m.anyAccount()).Draw(t, "account")
	id := m.ownerKeyID(account, rapid.SampledFrom([]string{"okey_1", "okey_2", "okey_3"}).Draw(t, "id"))
	switch rapid.SampledFrom([]string{"create", "revoke", "give up"}).Draw(t, "what") {
	case "create":
		k := newOwnerKey(account, id)
		k.CreatedAt, k.Name = m.now, m.next("owner")
		k.ExpiresAt = rapid.SampledFrom([]*time.Time{nil, new(m.now.Add(time.Hour))}).Draw(t, "expires")
		m.both(t, "CreateOwnerKey", func(s core.Store) (any, error) { return nil, s.CreateOwnerKey(m.e.ctx, k) })
	case "revoke":
		now := m.now
		m.both(t, "UpdateOwnerKey", func(s core.Store) (any, error) {
			return s.UpdateOwnerKey(m.e.ctx, account, id, func(k *core.OwnerKey) error { k.RevokedAt = &now; return nil })
		})
	case "give up":
		m.both(t, "UpdateOwnerKey", func(s core.Store) (any, error) {
			return s.UpdateOwnerKey(m.e.ctx, account, id, func(k *core.OwnerKey) error { k.Name = "given up"; return errAborted })
		})
	}
	m.both(t, "OwnerKeys", func(s core.Store) (any, error) {
		return listed(s.OwnerKeys(m.e.ctx, account, core.Page{Number: 1, Size: 100}))
	})
	m.both(t, "OwnerKeyByDigest", func(s core.Store) (any, error) {
		return s.OwnerKeyByDigest(m.e.ctx, newOwnerKey(account, id).Digest)
	})
}

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
