// Package ranking has the rankings of a store that keeps them in memory: the counters of each account, the fullest first. No file has them: after a start,
// the service computes them from counters and terms, and then calls Complete.
package ranking

import (
	"container/heap"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Rankings are the rankings of a store, by account. The zero value is empty. It is safe for concurrent use.
type Rankings struct {
	mu        sync.Mutex
	byAccount map[string]*ranking
}

// lock returns the ranking of an account, and locks it. It adds a missing ranking.
func (r *Rankings) lock(account string) *ranking {
	r.mu.Lock()
	of := r.byAccount[account]
	if of == nil {
		of = newRanking(core.MaxRanked)
		if r.byAccount == nil {
			r.byAccount = map[string]*ranking{}
		}
		r.byAccount[account] = of
	}
	r.mu.Unlock()
	of.mu.Lock()
	return of
}

// Rank implements [core.Store.Rank].
func (r *Rankings) Rank(account string, list []core.Ranked) {
	of := r.lock(account)
	defer of.mu.Unlock()
	for i := range list {
		of.rankLocked(&list[i])
	}
}

// Page implements [core.Store.Ranking].
func (r *Rankings) Page(account string, q core.RankingQuery, p core.Page) core.Ranking {
	of := r.lock(account)
	defer of.mu.Unlock()
	of.sweepLocked(q.At, core.MaxSwept)
	return of.pageLocked(account, q, p)
}

// Complete implements [core.Store.CompleteRanking].
func (r *Rankings) Complete(account string, at time.Time) {
	of := r.lock(account)
	defer of.mu.Unlock()
	of.completeLocked(at)
}

// Remove removes the ranking of an account. It ignores a missing ranking.
func (r *Rankings) Remove(account string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byAccount, account)
}

// ranking is the ranking of an account. It takes about 300 bytes for each counter.
type ranking struct {
	mu      sync.Mutex
	max     int                       // maximum number of counters
	byName  map[string]*rankedCounter // by record.RankName
	lists   map[string]*list          // by meter; "" for the highest fill of any meter
	ends    windowEnds
	cut     bool      // counters were left out since wholeAt was last forgotten
	wholeAt time.Time // see [core.Ranking.WholeAt]
}

// newRanking returns an empty ranking of at most max counters.
func newRanking(max int) *ranking {
	return &ranking{max: max, byName: map[string]*rankedCounter{}, lists: map[string]*list{"": {}}}
}

// rankedCounter is a counter in a ranking.
type rankedCounter struct {
	fills []core.Fill
	end   int64 // windowEnd.at of its earliest item in ranking.ends; math.MaxInt64 without an item
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
	if r.lists[""].len() > r.max {
		r.cut = true
		last, _ := r.lists[""].last()
		r.setLocked(last.name, r.byName[last.name].fills, nil)
	}
	r.checkCutLocked()
}

// setLocked replaces the fills of a counter.
func (r *ranking) setLocked(name string, before, after []core.Fill) {
	if slices.Equal(before, after) {
		return
	}
	for meter, score := range scoresOf(before) {
		if r.lists[meter].remove(item{score: score, name: name}); meter != "" && r.lists[meter].len() == 0 {
			delete(r.lists, meter)
		}
	}
	for meter, score := range scoresOf(after) {
		if r.lists[meter] == nil {
			r.lists[core.Intern(meter)] = &list{}
		}
		r.lists[meter].put(item{score: score, name: name})
	}
	if len(after) == 0 {
		delete(r.byName, name) // its items stay in ends, where sweepLocked ignores them
		return
	}
	c := r.byName[name]
	if c == nil {
		c = &rankedCounter{end: math.MaxInt64}
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
	if earliest == core.NoEnd || earliest >= c.end {
		return
	}
	c.end = earliest
	heap.Push(&r.ends, windowEnd{earliest, name})
	if len(r.ends) > 2*len(r.byName)+1024 { // most items are outdated
		r.ends = slices.DeleteFunc(r.ends, func(e windowEnd) bool { return r.byName[e.name] == nil || r.byName[e.name].end != e.at })
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

// sweepLocked removes the fills of windows that have ended, for at most n items of ends.
func (r *ranking) sweepLocked(at time.Time, n int) {
	for ; n > 0 && len(r.ends) > 0 && r.ends[0].at <= at.Unix(); n-- {
		end := heap.Pop(&r.ends).(windowEnd)
		if c := r.byName[end.name]; c != nil && c.end == end.at {
			c.end = math.MaxInt64
			r.setLocked(end.name, c.fills, core.LiveFills(c.fills, at))
			if c = r.byName[end.name]; c != nil {
				r.pushEndLocked(end.name, c)
			}
		}
	}
	r.checkCutLocked()
}

// pageLocked returns a page of the counters that match a query. It ignores q.At except for Behind.
func (r *ranking) pageLocked(account string, q core.RankingQuery, p core.Page) core.Ranking {
	page := core.Ranking{WholeAt: r.wholeAt, Behind: len(r.ends) > 0 && r.ends[0].at <= q.At.Unix()}
	list := r.lists[q.Meter]
	if list == nil {
		return page
	}
	page.Total = list.atLeast(q.From)
	for it := range list.after(p.Offset()) {
		if len(page.Counters) == p.Size || it.score < q.From {
			break
		}
		id, _ := record.RankedCounter(account, it.name) // all names are of RankName
		page.Counters = append(page.Counters, core.Ranked{CounterID: id, Fills: slices.Clone(r.byName[it.name].fills)})
	}
	return page
}

// completeLocked stores the time at which all counters were ranked. It keeps cut, because counters may have been left out while they were ranked.
func (r *ranking) completeLocked(at time.Time) { r.wholeAt = at.Round(0).UTC() }

// checkCutLocked forgets the time of CompleteRanking if counters were left out and fewer than half of max are left.
func (r *ranking) checkCutLocked() {
	if r.cut && r.lists[""].len() < r.max/2 {
		r.cut, r.wholeAt = false, time.Time{}
	}
}

// windowEnds is a heap of ends of windows, the earliest first. An item whose end is not the end of its counter is outdated.
type windowEnds []windowEnd

// windowEnd is the earliest end of the windows of a counter, when the item was added.
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
