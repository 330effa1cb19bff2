// Package migrate copies everything from one store to another: accounts with their sign-in data, owner's keys, plans,
// users, keys with their digests, counters, days and histories. Request ids stay behind: a request that is repeated
// after the move counts again.
//
// Both stores must be unused while [Run] copies. Run writes to the target alone, and returns an error if the source
// has changed. Use the target only after Run has returned nil: until then its counters are too low.
//
// # Order
//
// A history needs its user or key, so [Run] copies in this order. First all accounts. Then for each account:
// owner's keys, sign-in data, plans, users and keys; the histories, several at the same time (history.go); the last
// numbers (numbers.go); the counters and their days. At the end [Run] reads both stores again and compares everything (verify.go).
//
// # Interruption
//
// Run may be interrupted at any moment and called again. Each write may be repeated, except an append to a history:
// a history that differs from the source is replaced as a whole.
package migrate

import (
	"context"
	"errors"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var (
	// ErrRefused means that the target has content that is not in the source. Nothing was written.
	ErrRefused = errors.New("the target cannot take this over")
	// ErrDiffers means that the final comparison of the stores has found a difference.
	ErrDiffers = errors.New("the stores differ")
	// ErrChanged means that the source has changed during the copy.
	ErrChanged = errors.New("the source has changed while it was read: is it in use?")
)

// Options are the options of [Run]. The zero value has the defaults.
type Options struct {
	// Retention is the retention of the history. Older entries stay behind.
	// [core.DefaultRetention] by default.
	Retention time.Duration
	// Workers is the number of histories that are copied at the same time, 16 by default.
	Workers int
	// Progress is called about once a second, and at the end, by one goroutine at a time.
	Progress func(Progress)

	page int // number of resources on a page; small in tests
	read int // number of entries on a page, at most core.MaxImport; small in tests
	now  func() time.Time
}

// The defaults of [Options].
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

// Run copies everything from one store to another, or continues an interrupted Run. The report counts the content of
// the target. It is complete if Run returns nil.
func Run(ctx context.Context, from, to core.Importer, o Options) (Report, error) {
	o = o.withDefaults()
	m := &migration{
		from: from, to: to, o: o, since: o.now().Add(-o.Retention), progress: newProgress(o),
		fromCap: capOf(from), toCap: capOf(to), leftover: map[string]placeholders{},
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

// migration is the state of a Run.
type migration struct {
	from  core.Importer
	to    core.Importer
	o     Options
	since time.Time // earlier entries stay behind

	fromCap, toCap int // maximum number of entries of a history, 0 for no bound

	progress *progress
	leftover map[string]placeholders // of an interrupted run, by account
}

// capOf returns the maximum number of entries of a history in a store, 0 for no bound.
func capOf(s core.Store) int {
	if c, ok := s.(core.CappedHistory); ok {
		return max(0, c.HistoryCap())
	}
	return 0
}

// copy copies the content of the source.
func (m *migration) copy(ctx context.Context) error {
	if err := m.copyAccounts(ctx); err != nil {
		return err
	}
	return m.eachAccount(ctx, func(a *core.Account) error {
		for _, step := range []func(context.Context, string) error{
			m.copyOwnerKeys, m.copyAccess, m.deleteLeftover, m.copyPlans, m.copyUsers, m.copyKeys, m.copyHistories,
			m.raiseNumbers, m.copyCounters,
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
