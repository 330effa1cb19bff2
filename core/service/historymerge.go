package service

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"slices"
	"sort"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

// historyMerge merges histories of an account, newest first.
type historyMerge struct {
	s       *Service
	f       *HistoryFilter
	since   time.Time // entries at or before it are left out
	end     time.Time // entries from it on may be skipped; zero for none
	user    int64     // of the history of the entry that next returned last, 0 for that of a key
	sources historySources
	parked  parkedSources // the other histories that may have matching entries
	account string
	index   core.HistoryIndex // nil if the store has none
	read    int               // counts up to maxSearched
	endless bool              // read has no bound
	latest  time.Time         // the time LatestSoFar of the entry that was examined last
	past    bool              // the page is full, and an entry behind its cursor's place was read
	more    bool              // there are more than MaxFound matches
	capped  bool              // the store drops old entries: a history with a new entry may have as many as before
}

// open finds the histories that may have matching entries.
func (m *historyMerge) open(ctx context.Context, account string) error {
	m.account = account
	m.index, _ = m.s.store.(core.HistoryIndex)
	switch {
	case m.f.KeyID != "":
		return m.add(ctx, []*historySource{{of: core.CounterID{Account: account, KeyID: m.f.KeyID}}})
	case m.f.UserID != 0:
		return m.add(ctx, []*historySource{{of: core.CounterID{Account: account, UserID: m.f.UserID}}})
	}
	list := func(p core.Page) ([]*core.User, int, error) {
		return m.s.store.Users(ctx, account, core.UserFilter{}, p)
	}
	err := core.EachPage(ctx, core.ReadSize, list, func(users []*core.User) error {
		ids := make([]core.CounterID, len(users))
		for i, u := range users {
			ids[i] = core.CounterID{Account: account, UserID: u.ID}
		}
		if m.index == nil {
			sources := make([]*historySource, len(ids))
			for i, id := range ids {
				sources[i] = &historySource{of: id}
			}
			return m.add(ctx, sources)
		}
		newest, err := m.index.NewestEntries(ctx, ids)
		for i, at := range newest {
			if at.After(m.since) {
				m.parked = append(m.parked, parkedSource{user: ids[i].UserID, next: at.UnixNano()})
			}
		}
		return err
	})
	heap.Init(&m.parked)
	return err
}

// errSearched means that a search stops at its bound.
var errSearched = errors.New("the search read as many entries as it may")

// readNewer opens each parked history whose next entry may come before the next entry of the open histories.
func (m *historyMerge) readNewer(ctx context.Context) error {
	for len(m.parked) > 0 && (len(m.sources) == 0 || m.parked[0].before(m.sources[0])) {
		var sources []*historySource
		for len(sources) < historiesAtOnce && len(m.parked) > 0 {
			sources = append(sources, m.unpark(heap.Pop(&m.parked).(parkedSource)))
		}
		if err := m.add(ctx, sources); err != nil {
			return err
		}
	}
	return nil
}

// add opens the sources, and drops each source without entries. After maxSearched reads the error is errSearched.
func (m *historyMerge) add(ctx context.Context, sources []*historySource) error {
	if m.read > maxSearched && !m.endless {
		return errSearched
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(1)
	if m.index == nil {
		g.SetLimit(historiesAtOnce)
	}
	for _, src := range sources {
		g.Go(func() error {
			if err := src.seek(ctx, m); err != nil {
				return err
			}
			return src.fill(ctx, m)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, src := range sources {
		if m.read += 1 + src.probes; len(src.batch) > 0 {
			heap.Push(&m.sources, src)
		}
	}
	m.park()
	return nil
}

// next returns the next entry, nil at the end.
func (m *historyMerge) next(ctx context.Context) (*core.Entry, error) {
	if err := m.readNewer(ctx); err != nil || len(m.sources) == 0 {
		return nil, cmp.Or(err, ctx.Err())
	}
	src := m.sources[0]
	e := src.batch[0]
	m.user = src.of.UserID
	if m.capped {
		src.remember(&e)
	}
	src.batch = src.batch[1:]
	if len(src.batch) == 0 {
		if err := src.fill(ctx, m); err != nil {
			return nil, err
		}
	}
	if len(src.batch) == 0 {
		heap.Pop(&m.sources)
	} else {
		heap.Fix(&m.sources, 0)
	}
	return &e, nil
}

// historySource reads one history, newest first.
type historySource struct {
	of     core.CounterID
	newest time.Time    // no entry is newer; zero if that is not known
	probes int          // entries that seek read
	offset int          // entries that are read or skipped
	total  int          // of the history at the last fill, 0 before
	batch  []core.Entry // read, and not yet returned

	returned // only of a store with a cap
}

// returned is what [historySource.countReturned] needs.
type returned struct {
	first *core.Entry  // the newest entry at the first read
	last  []core.Entry // the entries that were returned last, of one time
}

// seek skips entries from m.end on, unless the history was open before. Without an index it needs a binary search, and a read for each probe. It searches a store with a cap, too,
// because countReturned needs first.
func (src *historySource) seek(ctx context.Context, m *historyMerge) (err error) {
	if src.total > 0 || m.end.IsZero() || !src.newest.IsZero() && src.newest.Before(m.end) {
		return nil
	}
	if m.index != nil && !m.capped {
		src.offset, err = m.index.CountFrom(ctx, src.of, m.since, m.end)
		return err
	}
	newest, n, err := m.s.store.History(ctx, src.of, m.since, core.Page{Number: 1, Size: 1})
	before := func(e *core.Entry) bool { return e.At.Before(m.end.Add(maxLate)) }
	if err != nil || len(newest) == 0 || before(&newest[0]) {
		return err
	}
	src.first = &newest[0]
	src.offset = sort.Search(n, func(i int) bool {
		src.probes++
		one, _, failed := m.s.store.History(ctx, src.of, m.since, core.Page{Number: i + 1, Size: 1})
		err = cmp.Or(err, failed)
		return failed != nil || len(one) == 0 || before(&one[0])
	})
	return err
}

// fill reads the next entries into the batch. A page begins at a multiple of its size, so fill drops the entries before the offset. New
// entries push the old ones back, so fill also skips as many as were added since the last read.
func (src *historySource) fill(ctx context.Context, m *historyMerge) error {
	for {
		size := historyBatch
		switch {
		case src.total == 0 && m.index == nil: // of each user
			size = 1
		case src.total == 0:
			size = firstHistoryBatch
		}
		size = min(size, max(1, maxBuffered/max(1, len(m.sources))))
		page, total, err := m.s.store.History(ctx, src.of, m.since, core.Page{Number: src.offset/size + 1, Size: size})
		src.batch = page[min(src.offset%size, len(page)):]
		if err != nil || len(src.batch) == 0 {
			return err
		}
		added := 0
		if src.total > 0 {
			added = max(0, total-src.total)
		}
		skip := min(added, len(src.batch))
		src.offset += len(src.batch)
		src.total = total - (added - skip) // the next read skips the other new entries
		if m.capped {
			skip, err = src.countReturned(ctx, m)
		}
		if src.batch = src.batch[skip:]; len(src.batch) > 0 || err != nil || src.offset >= total { // the end, whatever has come in front
			return err
		}
	}
}

// countReturned counts the entries at the beginning of the batch that were returned before. A store with a cap drops an old entry for each
// new one, so the total does not tell. It compares times, and the entries of one time one by one.
func (src *historySource) countReturned(ctx context.Context, m *historyMerge) (int, error) {
	if src.first == nil {
		src.first = new(src.batch[0]) // the newest entry: seek has not skipped any, else it has set first
	}
	newest, _, err := m.s.store.History(ctx, src.of, m.since, core.Page{Number: 1, Size: 1})
	if err != nil || len(newest) == 0 {
		return 0, err
	}
	if newest[0].Same(*src.first) || len(src.last) == 0 {
		return 0, nil
	}
	n, last := 0, slices.Clone(src.last)
	for i := range src.batch {
		e := &src.batch[i]
		same := slices.IndexFunc(last, e.Same)
		if same >= 0 {
			last = slices.Delete(last, same, same+1)
		}
		if same >= 0 || e.LatestSoFar().After(src.last[0].LatestSoFar()) {
			n = i + 1
		}
	}
	return n, nil
}

// remember adds a returned entry to last, and drops the entries of another time.
func (src *historySource) remember(e *core.Entry) {
	if len(src.last) > 0 && !src.last[0].LatestSoFar().Equal(e.LatestSoFar()) {
		src.last = src.last[:0]
	}
	src.last = append(src.last, *e)
}

// historySources is a heap ordered by the time LatestSoFar of the next entry, newest first. Ties go to the lower user id.
type historySources []*historySource

func (h historySources) Len() int { return len(h) }

func (h historySources) Less(i, j int) bool { return compareSources(h[i], h[j]) < 0 }

func compareSources(a, b *historySource) int {
	return cmp.Or(b.batch[0].LatestSoFar().Compare(a.batch[0].LatestSoFar()), cmp.Compare(a.of.UserID, b.of.UserID))
}

func (h historySources) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *historySources) Push(x any) { *h = append(*h, x.(*historySource)) }

func (h *historySources) Pop() any {
	last := len(*h) - 1
	src := (*h)[last]
	*h = (*h)[:last]
	return src
}
