// Package migrate moves everything that a store holds to another one: accounts and how they
// are signed in to, owner's keys, plans, users, keys with their digests, counters, days and
// histories. Request ids stay behind: a request that is asked again after the move is counted
// again.
//
// Both stores must be quiet: nobody counts on them or changes anything while [Run] is under
// way. It writes nothing but to the target, and where the source changes all the same it
// ends with an error. The target is not to be used before Run has returned without an
// error: until then its counters are too low.
//
// # In which order
//
// What a history needs is put first: accounts, plans, users, keys. Then come the histories
// (history.go), of many users at the same time, and then the counters and their days, each as
// a whole. At the end everything is read again from both stores and compared (verify.go).
//
// The entry of a request is in two histories, that of its key and that of its user, and is
// appended to both at once. A key may have moved from one user to another, or one of the two
// may be deleted: then users and keys that are entangled like that are a group (tangle.go),
// whose histories are put in one order that fits all of them (merge.go). On the target the
// keys move along, and what was deleted is put for as long as it is needed (writer.go,
// stub.go).
//
// # Going on
//
// Run may be cut off at any moment and run again. Whatever it does is done once more without
// harm, but appending: of users whose histories are not the same as in the source, down to
// the newest entry, the target's histories are thrown away and appended anew.
package migrate

import (
	"context"
	"errors"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var (
	// ErrRefused means that the target holds what the source does not: nothing was written.
	ErrRefused = errors.New("the target cannot take this over")
	// ErrDiffers means that the stores do not hold the same at the end.
	ErrDiffers = errors.New("the stores differ")
	// ErrChanged means that the source was changed meanwhile.
	ErrChanged = errors.New("the source has changed while it was read: is it in use?")
)

// Options say how everything is moved. The zero value is good.
type Options struct {
	// Retention is how long the history is kept: what is older stays behind.
	// [core.DefaultRetention] by default.
	Retention time.Duration
	// Workers is how many users are worked on at the same time, 16 by default.
	Workers int
	// Progress is called about once a second while something is done, and at the end, by
	// one goroutine at a time.
	Progress func(Progress)

	page int // resources that are read and put at once; tests have small ones
	read int // entries that are read at once, likewise
	now  func() time.Time
}

// The defaults of what is done at once.
const (
	defaultWorkers = 16
	defaultPage    = 250
	defaultRead    = core.MaxImport
)

func (o Options) withDefaults() Options {
	if o.Retention <= 0 {
		o.Retention = core.DefaultRetention
	}
	if o.Workers <= 0 {
		o.Workers = defaultWorkers
	}
	if o.page <= 0 {
		o.page = defaultPage
	}
	if o.read <= 0 {
		o.read = defaultRead
	}
	if o.now == nil {
		o.now = time.Now
	}
	return o
}

// Run moves everything from one store to another, or goes on where an earlier Run was cut
// off. The report says what the target holds. It is whole when there is no error.
func Run(ctx context.Context, from, to core.Importer, o Options) (Report, error) {
	o = o.withDefaults()
	m := &migration{
		from: from, to: to, o: o, since: o.now().Add(-o.Retention), progress: newProgress(o),
		fromCap: capOf(from), toCap: capOf(to), stubs: map[string]*stubs{},
	}
	defer m.progress.tell()
	if err := m.check(ctx); err != nil {
		return Report{}, err
	}
	if err := m.copy(ctx); err != nil {
		return Report{}, err
	}
	return m.verify(ctx)
}

// migration is what is under way.
type migration struct {
	from  core.Importer
	to    core.Importer
	o     Options
	since time.Time // entries up to then stay behind

	fromCap, toCap int // how many entries of a history are kept, 0 for all

	progress *progress
	stubs    map[string]*stubs // that an earlier run has left, by account
}

// capOf returns how many entries of a history a store keeps, 0 for all.
func capOf(s core.Store) int {
	if c, ok := s.(core.CappedHistory); ok {
		return max(0, c.HistoryCap())
	}
	return 0
}

// copy copies all that the source holds.
func (m *migration) copy(ctx context.Context) error {
	if err := m.copyAccounts(ctx); err != nil {
		return err
	}
	return m.eachAccount(ctx, func(a *core.Account) error {
		for _, step := range []func(context.Context, string) error{
			m.copyOwnerKeys, m.copyAccess, m.removeStubs, m.copyPlans, m.copyUsers, m.copyKeys, m.copyHistories, m.giveNumbers, m.copyCounters,
		} {
			if err := step(ctx, a.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachAccount calls fn with every account of the source.
func (m *migration) eachAccount(ctx context.Context, fn func(*core.Account) error) error {
	return each(ctx, m.o.page, accountsOf(ctx, m.from), fn)
}
