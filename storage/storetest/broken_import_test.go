package storetest

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

var brokenImports = []defect{
	{name: "counts appended entries", caughtBy: "import/machine",
		open: appending(func(s core.Importer, of core.CounterID, e core.Entry) error {
			c := core.Consumption{Account: of.Account, KeyID: e.KeyID, UserID: e.UserID, Cost: e.Cost, Entry: e,
				Terms: core.Terms{Limit: math.MaxInt64}}
			if e.Denied {
				c.Limit = 0
			}
			_, err := s.Consume(context.Background(), &c)
			return err
		})},
	{name: "does not mark appended denials", caughtBy: "import/machine",
		open: editing(func(es []core.Entry) []core.Entry {
			es = slices.Clone(es)
			for i := range es {
				es[i].Denied = false
			}
			return es
		})},
	{name: "omits appended denials", caughtBy: "import/machine",
		open: editing(func(es []core.Entry) []core.Entry {
			n := 0
			return slices.DeleteFunc(slices.Clone(es), func(x core.Entry) bool {
				if x.Denied {
					n++
				}
				return x.Denied && n > core.DeniedPerSecond
			})
		})},
	{name: "appends the newest first", caughtBy: "import/machine", open: editing(reversed)},
	{name: "sorts appended entries by time", caughtBy: "import/machine",
		open: editing(func(es []core.Entry) []core.Entry {
			return slices.SortedStableFunc(slices.Values(es), func(a, b core.Entry) int { return a.At.Compare(b.At) })
		})},
	{name: "appends half of a large batch", caughtBy: "import/many",
		open: editing(func(es []core.Entry) []core.Entry { return es[:min(len(es), core.MaxImport/2)] })},
	{name: "ignores missing keys", caughtBy: "import/machine",
		open: appending(func(s core.Importer, of core.CounterID, e core.Entry) error {
			err := s.AppendHistory(context.Background(), of, []core.Entry{e}, forever)
			if errors.Is(err, core.ErrKeyNotFound) {
				return nil
			}
			return err
		})},
	{name: "appends where it replaces", caughtBy: "import/machine",
		open: importing(func(s core.Importer) core.Store { return &replaces{s, s.AppendHistory} })},
	{name: "replaces where it appends", caughtBy: "import/machine",
		open: importing(func(s core.Importer) core.Store {
			return edits{s, func(es []core.Entry) []core.Entry { return es }, true}
		})},
	{name: "clears the counter with the history", caughtBy: "import/machine",
		open: importing(func(s core.Importer) core.Store {
			return &replaces{s, func(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
				err := s.SetHistory(ctx, of, entries, keep)
				if err == nil {
					err = s.SetCounters(ctx, []core.CounterID{of}, make([]core.Counter, 1))
				}
				return err
			}}
		})},
	{name: "omits entries of deleted keys", caughtBy: "import/machine",
		open: importing(func(s core.Importer) core.Store {
			return &replaces{s, func(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
				entries = slices.DeleteFunc(slices.Clone(entries), func(x core.Entry) bool {
					_, err := s.Key(ctx, of.Account, x.KeyID)
					return err != nil
				})
				return s.SetHistory(ctx, of, entries, keep)
			}}
		})},
	{name: "restores the history of a deleted key", caughtBy: "import/machine",
		open: importing(func(s core.Importer) core.Store { return &remembersDeleted{Importer: s} })},
	{name: "loses appended entries on reopening", caughtBy: "import/machine", open: forgettingImports},
	{name: "reuses numbers that were put", caughtBy: "import/machine",
		open: importing(func(s core.Importer) core.Store { return &givesLow{Importer: s} })},
	{name: "adds to counters", caughtBy: "import/machine",
		open: setting(func(was, c core.Counter) core.Counter {
			for p := range c.Requests {
				c.Requests[p] += was.Requests[p]
			}
			return c
		})},
	{name: "sets no counter to a lower value", caughtBy: "import/machine",
		open: setting(func(was, c core.Counter) core.Counter {
			if was.Requests[core.Month] > c.Requests[core.Month] {
				return was
			}
			return c
		})},
	{name: "sets only the windows of a counter", caughtBy: "import/machine",
		open: setting(func(was, c core.Counter) core.Counter {
			was.At, was.Requests = c.At, c.Requests
			return was
		})},
	{name: "opens earlier windows", caughtBy: "import/machine",
		open: setting(func(_, c core.Counter) core.Counter {
			c.At = min(c.At, noon.Unix())
			return c
		})},
	{name: "sets counters in another order", caughtBy: "import/machine",
		open: importing(func(s core.Importer) core.Store { return setsReversed{s} })},
	{name: "loses set counters on reopening", caughtBy: "import/machine", open: forgettingImports},
	{name: "sets counters of missing keys", caughtBy: "import/machine",
		open: importing(func(s core.Importer) core.Store { return &setsMissing{Importer: s} })},
	{name: "sets counters in two steps", caughtBy: "import/counters while counting",
		open: importing(func(s core.Importer) core.Store { return setsSlowly{s} })},
	{name: "imports after Close", caughtBy: "close/afterwards",
		open: importing(func(s core.Importer) core.Store { return &importsClosed{Importer: s} })},
}

// importing opens stores that wrap a good importer.
func importing(wrap func(core.Importer) core.Store) func() Opened {
	return wrapped(func(s core.Store) core.Store { return wrap(s.(core.Importer)) })
}

// appends calls a function for each appended entry.
type appends struct {
	core.Importer
	one func(core.Importer, core.CounterID, core.Entry) error
}

func appending(one func(core.Importer, core.CounterID, core.Entry) error) func() Opened {
	return importing(func(s core.Importer) core.Store { return appends{s, one} })
}

func (s appends) AppendHistory(_ context.Context, of core.CounterID, entries []core.Entry, _ time.Duration) error {
	for _, x := range entries {
		if err := s.one(s.Importer, of, x); err != nil {
			return err
		}
	}
	return nil
}

// edits changes the appended entries. With replace it replaces the history by them.
type edits struct {
	core.Importer
	edit    func([]core.Entry) []core.Entry
	replace bool
}

func editing(edit func([]core.Entry) []core.Entry) func() Opened {
	return importing(func(s core.Importer) core.Store { return edits{s, edit, false} })
}

func (s edits) AppendHistory(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
	if s.replace {
		return s.Importer.SetHistory(ctx, of, entries, keep)
	}
	return s.Importer.AppendHistory(ctx, of, s.edit(entries), keep)
}

// replaces does something else instead of SetHistory.
type replaces struct {
	core.Importer
	set func(context.Context, core.CounterID, []core.Entry, time.Duration) error
}

func (s *replaces) SetHistory(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
	return s.set(ctx, of, entries, keep)
}

// sets computes the new value of each counter from its old and its given value.
type sets struct {
	core.Importer
	become func(was, c core.Counter) core.Counter
}

func setting(become func(was, c core.Counter) core.Counter) func() Opened {
	return importing(func(s core.Importer) core.Store { return sets{s, become} })
}

func (s sets) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	was, err := s.Counters(ctx, ids)
	if err != nil {
		return err
	}
	for i := range was {
		was[i] = s.become(was[i], counters[i])
	}
	return s.Importer.SetCounters(ctx, ids, was)
}

type setsReversed struct{ core.Importer }

func (s setsReversed) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	return s.Importer.SetCounters(ctx, ids, reversed(counters))
}

// setsSlowly reads a counter, waits, and then sets it to the sum of the old and the given value.
type setsSlowly struct{ core.Importer }

func (s setsSlowly) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	half := slices.Clone(counters)
	for i := range half {
		half[i].Requests[core.Day] = 0
	}
	if err := s.Importer.SetCounters(ctx, ids, half); err != nil {
		return err
	}
	within(overlap, func() bool { return false }) // waits while others count
	was, err := s.Counters(ctx, ids)
	for i := range was {
		was[i].Requests[core.Day] = counters[i].Requests[core.Day]
	}
	return errors.Join(err, s.Importer.SetCounters(ctx, ids, was))
}

// setsMissing stores counters of missing keys until the keys exist.
type setsMissing struct {
	core.Importer
	late sync.Map
}

func (s *setsMissing) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	for i := range ids {
		if err := s.Importer.SetCounters(ctx, ids[i:i+1], counters[i:i+1]); err != nil {
			if errors.Is(err, core.ErrUnavailable) {
				return err
			}
			s.late.Store(ids[i], counters[i])
		}
	}
	return nil
}

// forgettingImports opens stores that lose imports on reopening, but no other counts.
func forgettingImports() Opened {
	j := &journal{Store: memstore.New()}
	return Opened{Store: j.importing(), Reopen: func(testing.TB) core.Store {
		next := &journal{Store: memstore.New(), entries: j.entries}
		for _, x := range next.entries {
			x.do(next.Store)
		}
		j = next
		return j.importing()
	}}
}

// journalImporter keeps its imports out of the journal.
type journalImporter struct {
	*journal
	inner core.Importer
}

func (j *journal) importing() core.Store { return journalImporter{j, j.Store.(core.Importer)} }

func (s journalImporter) SetHistory(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
	return s.inner.SetHistory(ctx, of, entries, keep)
}

func (s journalImporter) AppendHistory(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
	return s.inner.AppendHistory(ctx, of, entries, keep)
}

func (s journalImporter) SetDays(ctx context.Context, of core.CounterID, days []core.CounterDay) error {
	return s.inner.SetDays(ctx, of, days)
}

func (s journalImporter) CounterDays(ctx context.Context, of core.CounterID) ([]core.CounterDay, error) {
	return s.inner.CounterDays(ctx, of)
}

func (s journalImporter) LastNumbers(ctx context.Context, account string) (core.Numbers, error) {
	return s.inner.LastNumbers(ctx, account)
}

func (s journalImporter) RaiseNumbers(ctx context.Context, account string, n core.Numbers) error {
	return s.inner.RaiseNumbers(ctx, account, n)
}

func (s journalImporter) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	return s.inner.SetCounters(ctx, ids, counters)
}

// remembersDeleted gives a key that is put again its former history.
type remembersDeleted struct {
	core.Importer
	had sync.Map // histories of keys, by id
}

func (s *remembersDeleted) AppendHistory(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
	err := s.Importer.AppendHistory(ctx, of, entries, keep)
	if of.KeyID != "" {
		had, _ := s.had.LoadOrStore(of.Account+of.KeyID, []core.Entry{})
		s.had.Store(of.Account+of.KeyID, append(slices.Clone(had.([]core.Entry)), entries...))
	}
	return err
}

func (s *remembersDeleted) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	es, total, err := s.Importer.History(ctx, of, since, p)
	if had, ok := s.had.Load(of.Account + of.KeyID); ok && total == 0 && err == nil && p.Number == 1 {
		if _, err := s.Key(ctx, of.Account, of.KeyID); err == nil {
			return reversed(had.([]core.Entry)), len(had.([]core.Entry)), nil
		}
	}
	return es, total, err
}

// givesLow gives new users the smallest free number.
type givesLow struct{ core.Importer }

func (s *givesLow) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return s.Importer.Update(ctx, account, func(tx core.Tx) error { return fn(lowTx{tx}) })
}

type lowTx struct{ core.Tx }

func (tx lowTx) PutUser(u *core.User) error {
	for id := int64(1); u.ID == 0; id++ {
		if _, err := tx.User(id); err != nil {
			u.ID = id
		}
	}
	return tx.Tx.PutUser(u)
}

// importsClosed returns nil after Close.
type importsClosed struct{ core.Importer }

func (s *importsClosed) AppendHistory(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
	if err := s.Importer.AppendHistory(ctx, of, entries, keep); !errors.Is(err, core.ErrUnavailable) {
		return err
	}
	return nil
}
