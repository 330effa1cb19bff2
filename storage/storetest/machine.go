package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

var machineCases = []testCase{
	{name: "machine", run: func(e *env) { runMachines(e, (*machine).actions) }, own: true,
		promise: "for random operations in random order, the store answers as the reference store does"},
	{name: "import/machine", run: func(e *env) { runMachines(e, (*machine).importActions) }, own: true, imports: true,
		promise: "for random operations, imports included, the store answers as the reference store does"},
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
	digests []secrets.Digest
	counted map[string]time.Time // when a request was counted, by key and request id
	named   []core.Consumption   // those requests
	holds   []heldRef
	hooks   []string                // ids of webhooks that were put, the last ones
	uneven  map[core.CounterID]bool // counters with a change that was cut off at 0 in some windows: see checkLaw
	imports bool                    // the machine sets counters and days
	likeIDs []string                // two request ids, one of the pairs likeIDs
	renewed map[string]bool         // keys that were put again: their request ids may be known or unknown
	ids     map[string]int          // number of ids of an account, by account and prefix
	serial  int
	checks  int // number of comparisons of the stores
}

// keyRef is a key and the number of values that it was given.
type keyRef struct {
	account, id string
	values      int
}

// runMachines runs many machines, one after the other on the same two stores.
func runMachines(e *env, actions func(*machine) map[string]func(*rapid.T)) {
	model := memstore.New()
	rapid.Check(e.TB, func(t *rapid.T) {
		m := newMachine(e, model)
		_, m.imports = actions(m)["days"]
		defer func() { model = m.model }()
		m.begin(t)
		t.Repeat(actions(m))
	})
}

func newMachine(e *env, model *memstore.Store) *machine {
	return &machine{e: e, model: model, now: noon, latest: noon, floor: noon.AddDate(-1, 0, 0),
		digests: []secrets.Digest{{}}, counted: map[string]time.Time{}, renewed: map[string]bool{}, ids: map[string]int{},
		uneven: map[core.CounterID]bool{}}
}

// begin creates two accounts with a few resources.
func (m *machine) begin(t *rapid.T) {
	first := fmt.Sprintf("acct_machine%d_", serial.Add(1))
	m.likeIDs = likeIDs[0]
	if !m.obeys {
		m.likeIDs = rapid.SampledFrom(likeIDs).Draw(t, "like ids")
	}
	m.createAccount(t, first)
	m.createAccount(t, first+"0") // the other id is a prefix of this one
	for range 10 {                // initial resources
		m.update(t)
	}
	m.change(t)
}

// FillAtRandom fills a new store by 200 or more random operations of the case "machine". The resources obey the rules
// of [service.Service]: each user and key has a plan that exists or none, each key has a user, and the ids of owner's keys are
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
		"hold":    m.hold,
		"settle":  m.settle,
		"clock":   m.clock,
		"look":    m.compareReads,
		"account": m.changeAccount,
		"reopen":  m.reopen,
	}
}

// special runs one of the rare actions, not too often.
func (m *machine) special(t *rapid.T) {
	rare := []func(*rapid.T){m.adjust, m.keyless, m.refused, m.missing, m.twins, m.deleteMissing, m.replaceKey, m.expire, m.appendAudit, m.removeAudit}
	if n := rapid.IntRange(0, 11).Draw(t, "special"); n < len(rare) {
		rare[n](t)
		return
	}
	t.SkipNow()
}

// both runs an operation on both stores and fails unless the results are equal, with all times in UTC. It returns the
// result of the model.
func (m *machine) both(t *rapid.T, what string, call func(core.Store) (any, error)) (any, error) {
	want, wantErr := call(m.model)
	got, gotErr := call(m.e.Store)
	if fault(wantErr) != fault(gotErr) {
		t.Fatalf("%s: got error %v, want %v", what, gotErr, wantErr)
	}
	if wantErr != nil {
		return want, wantErr
	}
	if d := diff(want, got); d != "" {
		t.Fatalf("%s (-want +got):\n%s", what, d)
	}
	if !spoil(got) {
		t.Fatalf("%s: got a time that is not in UTC", what)
	}
	return want, nil
}

// fault returns the part of an error that must be equal in both stores.
func fault(err error) string {
	for _, known := range []error{core.ErrAccountNotFound, core.ErrAccountExists, core.ErrOwnerKeyNotFound, core.ErrOwnerKeyExists,
		core.ErrUserNotFound, core.ErrPlanNotFound, core.ErrKeyNotFound, core.ErrDuplicateEmail, core.ErrDuplicateExternalID, core.ErrUnavailable, core.ErrHoldNotFound, core.ErrWebhookNotFound, core.ErrEventNotFound,
		core.ErrHoldExpired, core.ErrTooManyHolds, errAborted} {
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
func (m *machine) anyAccount(t *rapid.T) string {
	if rapid.IntRange(0, 8).Draw(t, "missing") == 0 {
		return "acct_missing"
	}
	return m.account(t)
}

// next returns an unused name.
func (m *machine) next(prefix string) string {
	m.serial++
	return fmt.Sprintf("%s%d", prefix, m.serial)
}

// newID returns an id that is not in the order of creation. Unless the machine obeys, other accounts have the same ids.
func (m *machine) newID(account, prefix string) string {
	if m.obeys {
		return m.next(prefix)
	}
	m.ids[account+prefix]++
	return fmt.Sprint(prefix, m.ids[account+prefix]*37%101)
}

// text draws a text: plain or, unless the machine obeys, an awkward one.
func (m *machine) text(t *rapid.T, plain string) string {
	if !m.obeys && rapid.IntRange(0, 3).Draw(t, "awkward") == 0 {
		return plain + awkward
	}
	return plain
}

// abroad is not UTC.
var abroad = time.FixedZone("abroad", -5*3600)

// someNow returns the time of the clock, in UTC or in another zone.
func (m *machine) someNow() time.Time {
	m.serial++
	if m.serial%3 == 0 {
		return m.now.In(abroad)
	}
	return m.now
}

// counters returns the ids of the counters of every key and user that ever existed, and of a user of each account that did not.
func (m *machine) counters() (ids []core.CounterID) {
	for _, k := range m.keys {
		ids = append(ids, core.CounterID{Account: k.account, KeyID: k.id})
	}
	for _, account := range m.accounts {
		last, _ := m.model.LastNumbers(m.e.ctx, account)
		for user := range min(12, last.User+1) {
			ids = append(ids, core.CounterID{Account: account, UserID: user + 1})
		}
	}
	return ids
}

// clock moves the clock, mostly forward, sometimes to the end of a window or just before it.
func (m *machine) clock(t *rapid.T) {
	const day = 24 * time.Hour
	end := rapid.SampledFrom(core.PlanPeriods()).Draw(t, "period").Window(m.now).End.Sub(m.now)
	by := rapid.SampledFrom([]time.Duration{time.Nanosecond, time.Second, time.Hour, 23 * time.Hour, 8 * day,
		32 * day, 100 * day, 400 * day, end, end - time.Nanosecond, -time.Second, -25 * time.Hour, -40 * day}).Draw(t, "by")
	m.setClock(m.now.Add(by))
}

func (m *machine) setClock(now time.Time) {
	m.now = now.UTC()
	if m.now.Before(m.floor) {
		m.now = m.floor
	}
	if m.now.After(m.latest) {
		m.latest = m.now
	}
	m.steppedBack = m.steppedBack || m.now.Before(m.latest)
}

// reopen reopens both stores after a request, not too often, and then repeats a request. A store may or may not keep the number
// of denials in a past second, so the clock never returns to such a second. A store may drop its buckets, so the clock advances
// by 3 minutes, which fills the largest one.
func (m *machine) reopen(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "rarely") != 0 {
		t.SkipNow()
	}
	m.consume(t)
	m.e.reopen()
	m.model = m.model.Reopen()
	m.latest = m.latest.Add(3 * time.Minute)
	m.now, m.floor = m.latest, m.latest
	m.bothDigests(t)
	m.again(t)
}
