package archive

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// The ways in which the last write of an interrupted run fails.
const (
	notDone  = iota // writes nothing
	answered        // writes everything, and returns an error
	halfDone        // writes a part, where the contract allows it
	canceled        // writes everything, and the context is canceled
	ways
)

// cutOff is a target whose write number `left` fails, and every later write.
type cutOff struct {
	core.Importer
	way    int
	cancel context.CancelFunc

	mu   sync.Mutex
	left int
}

var errCut = core.Unavailable(errors.New("cut off"))

// write calls do until the write that fails. half writes a part.
func (s *cutOff) write(do, half func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left--
	switch {
	case s.left > 0:
		return do()
	case s.left < 0:
		return errCut
	}
	switch s.way {
	case answered:
		_ = do()
	case halfDone:
		_ = half()
	case canceled:
		s.cancel()
		return do()
	}
	return errCut
}

func noWrite() error { return nil }

func (s *cutOff) CreateAccount(ctx context.Context, a *core.Account, k *core.OwnerKey) error {
	return s.write(func() error { return s.Importer.CreateAccount(ctx, a, k) }, noWrite)
}

func (s *cutOff) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (a *core.Account, err error) {
	err = s.write(func() error {
		a, err = s.Importer.UpdateAccount(ctx, id, fn)
		return err
	}, noWrite)
	return a, err
}

func (s *cutOff) CreateOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	return s.write(func() error { return s.Importer.CreateOwnerKey(ctx, k) }, noWrite)
}

func (s *cutOff) UpdateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (k *core.OwnerKey, err error) {
	err = s.write(func() error {
		k, err = s.Importer.UpdateOwnerKey(ctx, account, id, fn)
		return err
	}, noWrite)
	return k, err
}

func (s *cutOff) UpdateAccess(ctx context.Context, account string, fn func(*core.Access) error) (ac *core.Access, err error) {
	err = s.write(func() error {
		ac, err = s.Importer.UpdateAccess(ctx, account, fn)
		return err
	}, noWrite)
	return ac, err
}

func (s *cutOff) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return s.write(func() error { return s.Importer.Update(ctx, account, fn) }, noWrite)
}

func (s *cutOff) SetHistory(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
	return s.write(func() error { return s.Importer.SetHistory(ctx, of, entries, keep) },
		func() error { return s.Importer.SetHistory(ctx, of, entries[:len(entries)/2], keep) })
}

func (s *cutOff) AppendHistory(ctx context.Context, of core.CounterID, entries []core.Entry, keep time.Duration) error {
	return s.write(func() error { return s.Importer.AppendHistory(ctx, of, entries, keep) },
		func() error { return s.Importer.AppendHistory(ctx, of, entries[:len(entries)/2], keep) })
}

func (s *cutOff) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	return s.write(func() error { return s.Importer.SetCounters(ctx, ids, counters) },
		func() error { return s.Importer.SetCounters(ctx, ids[:len(ids)/2], counters[:len(ids)/2]) })
}

func (s *cutOff) SetDays(ctx context.Context, id core.CounterID, days []core.CounterDay) error {
	return s.write(func() error { return s.Importer.SetDays(ctx, id, days) },
		func() error { return s.Importer.SetDays(ctx, id, days[:len(days)/2]) })
}

func (s *cutOff) RaiseNumbers(ctx context.Context, account string, n core.Numbers) error {
	return s.write(func() error { return s.Importer.RaiseNumbers(ctx, account, n) },
		func() error { return s.Importer.RaiseNumbers(ctx, account, core.Numbers{User: n.User}) })
}

// mostCuts is the largest number of interruptions before a run must succeed.
const mostCuts = 400

// cut runs an import that is interrupted at a write, and reports whether it has reached that write.
func cut(t *testing.T, from, to core.Importer, o ImportOptions, at, way int) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Import(ctx, &cutOff{Importer: to, way: way, left: at, cancel: cancel}, FromStore(from, exporting()), o)
	switch {
	case err == nil:
		return false
	case !errors.Is(err, core.ErrUnavailable) && !errors.Is(err, context.Canceled):
		t.Fatalf("cut off at write %d: got %v, want ErrUnavailable or that the context is canceled", at, err)
	}
	return true
}

// After an interruption at any write, the next run has the same result as a single run. If this fails, requests are
// missing or doubled in the histories of customers.
func TestCutOffAnywhere(t *testing.T) {
	source := filled(t, 1)
	want := everything(t, source)
	for way := range ways {
		o := small()
		for at := 1; ; at++ {
			target := memstore.New()
			if !cut(t, source, target, o, at, way) {
				if at < 50 {
					t.Errorf("it took %d writes, want many", at)
				}
				break
			}
			mustImport(t, source, target, o)
			wantSame(t, "after it was cut off and run again", want, target)
		}
	}
}

// cutAgainAndAgain interrupts an import later and later, until it succeeds.
func cutAgainAndAgain(t *testing.T, from, to core.Importer, r *rand.Rand) {
	t.Helper()
	for times := range mostCuts {
		if !cut(t, from, to, small(), 1+r.IntN(60*(1+times/4)), r.IntN(ways)) {
			return
		}
	}
	t.Fatalf("cut off %d times: got no end", mostCuts)
}

// A run that is interrupted many times still succeeds.
func TestCutOffAgainAndAgain(t *testing.T) {
	for seed := range 3 {
		source, target := filled(t, 20+seed), memstore.New()
		r := rand.New(rand.NewPCG(uint64(seed), 3))
		cutAgainAndAgain(t, source, target, r)
		wantSame(t, "after it was cut off many times", everything(t, source), target)
	}
}

// The same holds for a store on disk that is reopened after each interruption.
func TestCutOffBadger(t *testing.T) {
	for seed := range 2 {
		source, dir := filled(t, 30+seed), t.TempDir()
		r := rand.New(rand.NewPCG(uint64(seed), 9))
		again := true
		for times := 0; again && times < mostCuts; times++ {
			disk, err := badgerstore.Open(dir, badgerstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			again = cut(t, source, disk, small(), 1+r.IntN(40*(1+times/4)), r.IntN(ways))
			if !again {
				wantSame(t, "on the disk", everything(t, source), disk)
			}
			if err := disk.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if again {
			t.Fatalf("cut off %d times: got no end", mostCuts)
		}
	}
}

// A target that keeps only the newest entries gets these, in their order.
func TestCappedTarget(t *testing.T) {
	const most = 7
	for seed := range 4 {
		from := filled(t, 61+seed)
		target := &capped{Importer: memstore.New(), most: most}
		if seed%2 == 0 {
			cut(t, from, target, small(), 40, halfDone)
		}
		r := mustImport(t, from, target, small())
		want := everything(t, from)
		for _, a := range want.Each {
			for of, entries := range a.Histories {
				a.Histories[of] = entries[:min(len(entries), most)]
			}
		}
		wantSame(t, "the newest entries", want, target)
		if r.Events >= r.Records[KindEvent] {
			t.Errorf("events: got %d of %d, want fewer", r.Events, r.Records[KindEvent])
		}
	}
}

// capped keeps the newest entries of each history.
type capped struct {
	core.Importer
	most int
}

func (s *capped) HistoryCap() int { return s.most }

func (s *capped) HistoryCut(context.Context, core.CounterID) (bool, error) { return false, nil }

func (s *capped) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	es, _, err := s.Importer.History(ctx, of, time.Time{}, core.Page{Number: 1, Size: s.most})
	es = slices.DeleteFunc(es, func(e core.Entry) bool { return !e.At.After(since) })
	first := min(p.Offset(), len(es))
	return es[first:min(first+min(p.Size, len(es)), len(es))], len(es), err
}

// short is a target that has dropped the oldest half of each history. says is the result of HistoryCut.
type short struct {
	core.Importer
	says bool
}

func (*short) HistoryCap() int { return 0 }

func (s *short) HistoryCut(context.Context, core.CounterID) (bool, error) { return s.says, nil }

func (s *short) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	all, _, err := s.Importer.History(ctx, of, since, core.Page{Number: 1, Size: 1 << 20})
	all = all[:len(all)/2]
	first := min(p.Offset(), len(all))
	return all[first:min(first+p.Size, len(all))], len(all), err
}

// A target may drop old entries because of their size if HistoryCut reports it. Otherwise missing entries are an error.
func TestTargetDropsHistory(t *testing.T) {
	from := filled(t, 90)
	r := mustImport(t, from, &short{memstore.New(), true}, small())
	if r.Events >= r.Records[KindEvent] {
		t.Errorf("events: got %d of %d, want fewer", r.Events, r.Records[KindEvent])
	}
	if _, err := Import(t.Context(), &short{memstore.New(), false}, FromStore(from, exporting()), small()); !errors.Is(err, ErrDiffers) {
		t.Errorf("a target that lost history without saying so: got %v, want ErrDiffers", err)
	}
}

// All entries of a source that keeps only the newest entries are copied, in their order.
func TestCappedSource(t *testing.T) {
	for seed := range 4 {
		from := &capped{Importer: filled(t, 80+seed), most: 4 + seed}
		target := memstore.New()
		mustImport(t, from, target, small())
		wantSame(t, "from a source that keeps the newest entries", everything(t, from), target)
	}
}
