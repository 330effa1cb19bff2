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
	{name: "counts appended entries", caughtBy: "import/history", machine: true,
		open: appending(func(s core.Importer, account string, e core.Entry) error {
			c := core.Consumption{Account: account, KeyID: e.KeyID, UserID: e.UserID, Cost: e.Cost, Entry: e,
				Terms: core.Terms{Limit: math.MaxInt64}}
			if e.Denied {
				c.Limit = 0
			}
			_, err := s.Consume(context.Background(), &c)
			return err
		})},
	{name: "does not mark appended denials", caughtBy: "import/unchanged", machine: true,
		open: editing(func(es []core.Entry) []core.Entry {
			es = slices.Clone(es)
			for i := range es {
				es[i].Denied = false
			}
			return es
		})},
	{name: "omits appended denials", caughtBy: "import/unchanged", machine: true,
		open: editing(func(es []core.Entry) []core.Entry {
			n := 0
			return slices.DeleteFunc(slices.Clone(es), func(x core.Entry) bool {
				if x.Denied {
					n++
				}
				return x.Denied && n > core.DeniedPerSecond
			})
		})},
	{name: "appends the newest first", caughtBy: "import/history", machine: true, open: editing(reversed)},
	{name: "sorts appended entries by time", caughtBy: "import/history",
		open: editing(func(es []core.Entry) []core.Entry {
			return slices.SortedStableFunc(slices.Values(es), func(a, b core.Entry) int { return a.At.Compare(b.At) })
		})},
	{name: "appends half of a large batch", caughtBy: "import/many",
		open: editing(func(es []core.Entry) []core.Entry { return es[:min(len(es), core.MaxImport/2)] })},
	{name: "ignores missing keys", caughtBy: "import/missing",
		open: appending(func(s core.Importer, account string, e core.Entry) error {
			err := s.AppendHistory(context.Background(), account, []core.Entry{e}, forever)
			if errors.Is(err, core.ErrKeyNotFound) {
				return nil
			}
			return err
		})},
	{name: "restores the history of a deleted key", caughtBy: "import/put again", machine: true,
		open: importing(func(s core.Importer) core.Store { return &remembersDeleted{Importer: s} })},
	{name: "loses appended entries on reopening", caughtBy: "import/history", machine: true, open: forgettingImports},
	{name: "reuses numbers that were put", caughtBy: "import/numbers",
		open: importing(func(s core.Importer) core.Store { return &givesLow{Importer: s} })},
	{name: "adds to counters", caughtBy: "import/counters", machine: true,
		open: setting(func(was, c core.Counter) core.Counter {
			for p := range c.Windows {
				c.Windows[p].Used += was.Windows[p].Used
			}
			return c
		})},
	{name: "sets no counter to a lower value", caughtBy: "import/counters", machine: true,
		open: setting(func(was, c core.Counter) core.Counter {
			if was.Windows[core.Month].Used > c.Windows[core.Month].Used {
				return was
			}
			return c
		})},
	{name: "sets only the windows of a counter", caughtBy: "import/counters", machine: true,
		open: setting(func(was, c core.Counter) core.Counter {
			was.Windows = c.Windows
			return was
		})},
	{name: "opens earlier windows", caughtBy: "import/counters decide",
		open: setting(func(_, c core.Counter) core.Counter {
			for _, p := range core.Periods() {
				c.Windows[p].Start = min(c.Windows[p].Start, p.Window(noon).Start.Unix())
			}
			return c
		})},
	{name: "sets counters in another order", caughtBy: "import/counters",
		open: importing(func(s core.Importer) core.Store { return setsReversed{s} })},
	{name: "loses set counters on reopening", caughtBy: "import/many counters", machine: true, open: forgettingImports},
	{name: "sets counters of missing keys", caughtBy: "import/counters missing", machine: true,
		open: importing(func(s core.Importer) core.Store { return &setsMissing{Importer: s} })},
	{name: "sets counters in two steps", caughtBy: "import/counters while counting",
		open: importing(func(s core.Importer) core.Store { return setsSlowly{s} })},
	{name: "imports after Close", caughtBy: "import/closed",
		open: importing(func(s core.Importer) core.Store { return &importsClosed{Importer: s} })},
}

// importing opens stores that wrap a good importer.
func importing(wrap func(core.Importer) core.Store) func() Opened {
	return wrapped(func(s core.Store) core.Store { return wrap(s.(core.Importer)) })
}

// appends calls a function for each appended entry.
type appends struct {
	core.Importer
	one func(core.Importer, string, core.Entry) error
}

func appending(one func(core.Importer, string, core.Entry) error) func() Opened {
	return importing(func(s core.Importer) core.Store { return appends{s, one} })
}

func (s appends) AppendHistory(_ context.Context, account string, entries []core.Entry, _ time.Duration) error {
	for _, x := range entries {
		if err := s.one(s.Importer, account, x); err != nil {
			return err
		}
	}
	return nil
}

// edits changes the appended entries.
type edits struct {
	core.Importer
	edit func([]core.Entry) []core.Entry
}

func editing(edit func([]core.Entry) []core.Entry) func() Opened {
	return importing(func(s core.Importer) core.Store { return edits{s, edit} })
}

func (s edits) AppendHistory(ctx context.Context, account string, entries []core.Entry, keep time.Duration) error {
	return s.Importer.AppendHistory(ctx, account, s.edit(entries), keep)
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
		half[i].Windows[core.Day] = core.WindowUsage{}
	}
	if err := s.Importer.SetCounters(ctx, ids, half); err != nil {
		return err
	}
	within(overlap, func() bool { return false }) // waits while others count
	was, err := s.Counters(ctx, ids)
	for i := range was {
		was[i].Windows[core.Day] = counters[i].Windows[core.Day]
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

func (s journalImporter) AppendHistory(ctx context.Context, account string, entries []core.Entry, keep time.Duration) error {
	return s.inner.AppendHistory(ctx, account, entries, keep)
}

func (s journalImporter) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	return s.inner.SetCounters(ctx, ids, counters)
}

// remembersDeleted gives a key that is put again its former history.
type remembersDeleted struct {
	core.Importer
	had sync.Map // histories of keys, by id
}

func (s *remembersDeleted) AppendHistory(ctx context.Context, account string, entries []core.Entry, keep time.Duration) error {
	err := s.Importer.AppendHistory(ctx, account, entries, keep)
	for _, x := range entries {
		had, _ := s.had.LoadOrStore(account+x.KeyID, []core.Entry{})
		s.had.Store(account+x.KeyID, append(slices.Clone(had.([]core.Entry)), x))
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

func (s *importsClosed) AppendHistory(ctx context.Context, account string, entries []core.Entry, keep time.Duration) error {
	if err := s.Importer.AppendHistory(ctx, account, entries, keep); !errors.Is(err, core.ErrUnavailable) {
		return err
	}
	return nil
}
