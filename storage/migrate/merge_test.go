package migrate

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// long is a source with one user whose history has any number of entries, which it makes
// up when it is asked for them, and a target that keeps the newest and checks the order.
type long struct {
	core.Importer
	total int

	asked   int // the largest page
	written int
	largest uint64 // memory in use while it is written
	last    core.Entry
	wrong   string
}

func (s *long) entry(n int) core.Entry {
	return core.Entry{At: noon.Add(time.Duration(n) * time.Millisecond), KeyID: "key_1", UserID: 1, Endpoint: fmt.Sprint("/", n), Cost: 1}
}

func (s *long) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	if of.KeyID == "key_2" || of.UserID == 2 {
		return nil, 0, nil
	}
	s.asked = max(s.asked, p.Size)
	var list []core.Entry
	for n := s.total - 1 - p.Offset(); n >= 0 && len(list) < p.Size; n-- {
		list = append(list, s.entry(n))
	}
	return list, s.total, nil
}

func (s *long) Counters(_ context.Context, ids []core.CounterID) ([]core.Counter, error) {
	return make([]core.Counter, len(ids)), nil
}

// longTo is the target.
type longTo struct{ *long }

func (s longTo) History(_ context.Context, of core.CounterID, _ time.Time, _ core.Page) ([]core.Entry, int, error) {
	if of.KeyID == "key_2" || of.UserID == 2 || s.written == 0 {
		return nil, 0, nil
	}
	return []core.Entry{s.last}, s.written, nil
}

func (s longTo) AppendHistory(_ context.Context, _ string, entries []core.Entry, _ time.Duration) error {
	for _, e := range entries {
		if want := s.entry(s.written); e != want && s.wrong == "" {
			s.wrong = fmt.Sprintf("entry %d: got %+v, want %+v", s.written, e, want)
		}
		s.written++
		s.last = e
	}
	if s.written%100_000 < core.MaxImport {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		s.largest = max(s.largest, m.HeapAlloc)
	}
	return nil
}

// The memory that is needed does not grow with a history: these entries would take 30 MiB and more.
func TestLongHistory(t *testing.T) {
	const total, most = 300_003, 20 << 20
	source := &long{Importer: acme(t), total: total}
	target := longTo{&long{Importer: memstore.New(), total: total}}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if _, err := Run(t.Context(), source, target, Options{Workers: 1}); err != nil {
		t.Fatalf("Run: %v", err)
	}
	if target.written != total || target.wrong != "" {
		t.Errorf("got %d entries, want %d; %s", target.written, total, target.wrong)
	}
	if source.asked > core.MaxImport {
		t.Errorf("entries on a page: got %d, want at most %d", source.asked, core.MaxImport)
	}
	if used := int64(target.largest) - int64(before.HeapAlloc); used > most {
		t.Errorf("memory: got %d bytes more than before, want at most %d", used, most)
	}
}

// The entries of a user are appended together, though those of another were counted in
// between, as far as no key was of both.
func TestBatches(t *testing.T) {
	source := acme(t)
	for i := range 50 {
		use(t, source, "key_1", 1, noon.Add(time.Duration(2*i)*time.Second))
		use(t, source, "key_2", 2, noon.Add(time.Duration(2*i+1)*time.Second))
	}
	moved := newKey("key_1", 1, 2)
	if err := source.Update(t.Context(), "acct_a", func(tx core.Tx) error { return tx.PutKey(moved) }); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		use(t, source, "key_1", 2, noon.Add(time.Duration(1000+i)*time.Second))
	}
	target := &batches{Importer: memstore.New()}
	mustRun(t, source, target, Options{Retention: forever})
	wantSame(t, "moved", everything(t, source), target)
	if want := []int{51, 50, 50}; len(target.sizes) > 3 {
		t.Errorf("entries that were appended at once: got %v, want about %v", target.sizes, want)
	}
}

type batches struct {
	core.Importer
	mu    sync.Mutex
	sizes []int // guarded by mu
}

func (s *batches) AppendHistory(ctx context.Context, account string, entries []core.Entry, keep time.Duration) error {
	s.mu.Lock()
	s.sizes = append(s.sizes, len(entries))
	s.mu.Unlock()
	return s.Importer.AppendHistory(ctx, account, entries, keep)
}

// Stubs of deleted keys get the numbers that these have left free, each once.
func TestGaps(t *testing.T) {
	source := memstore.New()
	w := &world{t: t, s: source, now: noon, acct: "acct_a"}
	w.must(source.CreateAccount(t.Context(), newAccount("acct_a", "acme"), newOwner("acct_a", "okey_1")))
	w.update(func(tx core.Tx) error {
		return firstOf(tx.PutUser(&core.User{AccountID: "acct_a", ID: 1}), tx.PutKey(newKey("key_3", 3, 1)), tx.PutKey(newKey("key_4", 4, 1)),
			tx.PutKey(newKey("key_7", 7, 1)))
	})
	m := &migration{from: source, o: small()}
	for last, want := range map[int64][]int64{7: {1, 2, 5, 6, 0, 0}, 9: {1, 2, 5, 6, 8, 9, 0, 0}} {
		g := newGaps(t.Context(), m, "acct_a", last)
		var got []int64
		for range want {
			n, err := g.take()
			w.must(err)
			got = append(got, n)
		}
		if !slices.Equal(got, want) {
			t.Errorf("gaps up to %d: got %v, want %v", last, got, want)
		}
	}
}

// Who is entangled with whom is found however many steps apart they are, and who is not is
// not in the same group.
func TestTangle(t *testing.T) {
	g := newTangle()
	g.add(&survey{user: 1, strangers: map[string]int64{"a": 2}})
	g.add(&survey{user: 5, moved: []*movedKey{{id: "b", byUser: map[int64]int{5: 1, 9: 3}}}})
	g.add(&survey{user: 7, strangers: map[string]int64{"gone": 0}})
	var asked []int64
	for id, ok := g.unknown(); ok; id, ok = g.unknown() {
		asked = append(asked, id)
		switch id {
		case 2:
			g.add(&survey{user: 2, strangers: map[string]int64{"c": 3}})
		case 3:
			g.add(&survey{user: 3})
		case 9:
			g.gone(9)
		}
	}
	g.add(&survey{user: 8, moved: []*movedKey{{id: "d", byUser: map[int64]int{9: 1}}}})
	slices.Sort(asked)
	if want := []int64{2, 3, 9}; !slices.Equal(asked, want) {
		t.Errorf("users that had to be looked at: got %v, want %v", asked, want)
	}
	if got, want := fmt.Sprint(g.groups()), "[[1 2 3] [5 8] [7]]"; got != want {
		t.Errorf("groups: got %s, want %s", got, want)
	}
}
