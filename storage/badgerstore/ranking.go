package badgerstore

import (
	"container/heap"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/ranklist"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Rankings are in memory only. The service computes them from counters and terms again after a start.

// rankings are the rankings of a store, by account.
type rankings struct {
	mu        sync.Mutex
	byAccount map[string]*ranking
}

// of returns the ranking of an account. It adds a missing ranking.
func (r *rankings) of(account string) *ranking {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.byAccount[account]
	if of == nil {
		of = newRanking(core.MaxRanked)
		if r.byAccount == nil {
			r.byAccount = map[string]*ranking{}
		}
		r.byAccount[account] = of
	}
	return of
}

// ranking is the ranking of an account. It takes about 300 bytes for each counter.
type ranking struct {
	mu      sync.Mutex
	max     int                       // maximum number of counters
	byName  map[string]*rankedCounter // by record.RankName
	lists   map[string]*ranklist.List // by meter; "" for the highest fill of any meter
	ends    windowEnds
	cut     bool      // counters were left out since wholeAt was forgotten
	wholeAt time.Time // see [core.Ranking.WholeAt]
}

// newRanking returns an empty ranking of at most max counters.
func newRanking(max int) *ranking {
	return &ranking{max: max, byName: map[string]*rankedCounter{}, lists: map[string]*ranklist.List{"": {}}}
}

// rankedCounter is a counter in a ranking.
type rankedCounter struct {
	fills []core.Fill
	ends  int64 // the time of its earliest item in ranking.ends; math.MaxInt64 without an item
}

// rankLocked changes a counter as [core.Store.Rank] says.
func (r *ranking) rankLocked(c *core.Ranked) {
	name := record.RankName(c.CounterID)
	var present []core.Fill
	if has := r.byName[name]; has != nil {
		present = has.fills
	}
	fills := c.Fills
	if !c.Exact {
		fills = core.RaiseFills(present, c.Fills)
	}
	r.setLocked(name, present, slices.Clone(fills))
	if r.lists[""].Len() > r.max {
		r.cut = true
		last, _ := r.lists[""].Last()
		r.setLocked(last.Name, r.byName[last.Name].fills, nil)
	}
	r.checkCutLocked()
}

// setLocked replaces the fills of a counter.
func (r *ranking) setLocked(name string, before, after []core.Fill) {
	if slices.Equal(before, after) {
		return
	}
	for meter, score := range scoresOf(before) {
		if r.lists[meter].Remove(ranklist.Item{Score: score, Name: name}); meter != "" && r.lists[meter].Len() == 0 {
			delete(r.lists, meter)
		}
	}
	for meter, score := range scoresOf(after) {
		if r.lists[meter] == nil {
			r.lists[core.Intern(meter)] = &ranklist.List{}
		}
		r.lists[meter].Put(ranklist.Item{Score: score, Name: name})
	}
	if len(after) == 0 {
		delete(r.byName, name) // its items stay in ends, where sweepLocked ignores them
		return
	}
	c := r.byName[name]
	if c == nil {
		c = &rankedCounter{ends: math.MaxInt64}
		r.byName[name] = c
	}
	c.fills = after
	r.pushEndLocked(name, c)
}

// pushEndLocked adds the earliest end of the windows of a counter to ends, unless ends has an earlier item of the counter.
func (r *ranking) pushEndLocked(name string, c *rankedCounter) {
	earliest := int64(core.NoEnd)
	for _, f := range c.fills {
		earliest = min(earliest, f.End)
	}
	if earliest == core.NoEnd || earliest >= c.ends {
		return
	}
	c.ends = earliest
	heap.Push(&r.ends, windowEnd{earliest, name})
	if len(r.ends) > 2*len(r.byName)+1024 { // most items are outdated
		r.ends = slices.DeleteFunc(r.ends, func(e windowEnd) bool { return r.byName[e.name] == nil || r.byName[e.name].ends != e.at })
		heap.Init(&r.ends)
	}
}

// scoresOf returns the highest fill of each meter, and of all meters for "".
func scoresOf(fills []core.Fill) map[string]int64 {
	scores := map[string]int64{}
	for _, f := range fills {
		scores[f.Meter] = max(scores[f.Meter], f.Percent)
		scores[""] = max(scores[""], f.Percent)
	}
	return scores
}

// sweepLocked removes the fills of windows that have ended, of at most n counters.
func (r *ranking) sweepLocked(at time.Time, n int) {
	for ; n > 0 && len(r.ends) > 0 && r.ends[0].at <= at.Unix(); n-- {
		end := heap.Pop(&r.ends).(windowEnd)
		if c := r.byName[end.name]; c != nil && c.ends == end.at {
			c.ends = math.MaxInt64
			r.setLocked(end.name, c.fills, core.LiveFills(c.fills, at))
			if c = r.byName[end.name]; c != nil {
				r.pushEndLocked(end.name, c)
			}
		}
	}
	r.checkCutLocked()
}

// completeLocked stores the time at which all counters were ranked. It keeps cut, because counters may have been left out while they were ranked.
func (r *ranking) completeLocked(at time.Time) { r.wholeAt = at.Round(0).UTC() }

// checkCutLocked forgets the time of CompleteRanking if counters were left out and fewer than half of max are left.
func (r *ranking) checkCutLocked() {
	if r.cut && r.lists[""].Len() < r.max/2 {
		r.cut, r.wholeAt = false, time.Time{}
	}
}

// windowEnds is a heap of ends of windows, the earliest first.
type windowEnds []windowEnd

// windowEnd is the first end of a window of a counter.
type windowEnd struct {
	at   int64 // Unix seconds
	name string
}

func (h windowEnds) Len() int           { return len(h) }
func (h windowEnds) Less(i, j int) bool { return h[i].at < h[j].at }
func (h windowEnds) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *windowEnds) Push(x any) { *h = append(*h, x.(windowEnd)) }

// Pop implements [heap.Interface].
func (h *windowEnds) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// withRanking runs fn on the ranking of an account under its lock.
func (s *Store) withRanking(account string, fn func(*ranking)) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	r := s.rankings.of(account)
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r)
	return nil
}

// Rank implements [core.Store].
func (s *Store) Rank(_ context.Context, account string, list []core.Ranked, _ bool) error {
	return s.withRanking(account, func(r *ranking) {
		for i := range list {
			r.rankLocked(&list[i])
		}
	})
}

// Ranking implements [core.Store].
func (s *Store) Ranking(_ context.Context, account string, q core.RankingQuery, p core.Page) (page core.Ranking, err error) {
	err = s.withRanking(account, func(r *ranking) {
		r.sweepLocked(q.At, core.MaxSwept)
		page.WholeAt, page.Behind = r.wholeAt, len(r.ends) > 0 && r.ends[0].at <= q.At.Unix()
		list := r.lists[q.Meter]
		if list == nil {
			return
		}
		page.Total = list.From(q.From)
		for it := range list.After(p.Offset()) {
			if len(page.Counters) == p.Size || it.Score < q.From {
				break
			}
			id, _ := record.RankedCounter(account, it.Name) // all names are of RankName
			page.Counters = append(page.Counters, core.Ranked{CounterID: id, Fills: slices.Clone(r.byName[it.Name].fills)})
		}
	})
	return page, err
}

// CompleteRanking implements [core.Store].
func (s *Store) CompleteRanking(_ context.Context, account string, at time.Time) error {
	return s.withRanking(account, func(r *ranking) { r.completeLocked(at) })
}
