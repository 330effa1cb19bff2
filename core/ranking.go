package core

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// The bounds of a ranking.
const (
	RankFrom  = 50      // per cent: counters that have used less of each of their limits are left out
	MaxRanked = 100_000 // counters in the ranking of an account

	// MaxSwept is the maximum number of counters whose ended windows one call of [Store.Ranking] removes. That takes a few milliseconds.
	MaxSwept = 1000
)

// Fill is the share of a limit that a counter has used, at least RankFrom.
type Fill struct {
	Meter   string
	Period  Period
	Percent int64 // used, in per cent of the limit, rounded down, at most MaxPercent
	End     int64 // the time from which the usage no longer counts, in Unix seconds; NoEnd for never. The end of the window or of a later one, see [Anchors.Since]
}

// The bounds of a [Fill].
const (
	MaxPercent = 1_000_000_000 // fits in 4 bytes
	NoEnd      = 1<<40 - 1     // the largest number that fits in 5 bytes
)

// Ranked is a counter in the ranking of its account. Its fills are sorted by meter and period, without duplicates.
type Ranked struct {
	CounterID // of a key: without UserID
	Fills     []Fill

	// Exact makes Fills replace the present fills in [Store.Rank]. Without Exact, Fills raise the present fills, see [RaiseFills].
	Exact bool
}

// RankingQuery selects counters of a ranking.
type RankingQuery struct {
	Meter string    // of the fills, "" for any
	From  int64     // the smallest Percent of the highest fill of the counter
	At    time.Time // the present: fills whose windows have ended do not count
}

// Ranking is a page of the fullest counters of an account.
type Ranking struct {
	Counters []Ranked // the counter with the highest fill of the query first; ties: users by ID, then keys by KeyID
	Total    int      // on all pages

	// Behind reports that windows of MaxSwept or more counters have ended since the last call. The page and Total may include ended windows: call
	// Ranking again.
	Behind bool

	// WholeAt is the last time given to [Store.CompleteRanking], the zero time for none.
	WholeAt time.Time
}

// RankedIDs returns the ids of counters.
func RankedIDs(list []Ranked) []CounterID {
	ids := make([]CounterID, len(list))
	for i, c := range list {
		ids[i] = c.CounterID
	}
	return ids
}

// Compare orders counters of one account: users by ID, then keys by KeyID.
func (id CounterID) Compare(other CounterID) int {
	return cmp.Or(strings.Compare(id.KeyID, other.KeyID), cmp.Compare(id.UserID, other.UserID))
}

// fill returns the fill of a limit, and false for less than RankFrom.
func (l Limit) fill(u Usage, a Anchors) (f Fill, ok bool) {
	if u.Used < l.Max/2 || l.Unlimited() || u.Used <= 0 {
		return f, false
	}
	f = Fill{l.Meter, l.Period, percent(u.Used, l.Max), NoEnd}
	if u.Window.Ends() {
		f.End = min(a.resets(l.Period, u.Window).Unix(), NoEnd)
	}
	return f, f.Percent >= RankFrom
}

// percent returns used in per cent of limit, rounded down, at most MaxPercent.
func percent(used, limit int64) int64 {
	limit = max(limit, 1)
	if used > math.MaxInt64/100 {
		return MaxPercent
	}
	return min(used*100/limit, MaxPercent)
}

// FillsOf returns the fills of the limits of one counter. a has the anchors of its user.
func FillsOf(limits []LimitUsage, a Anchors) (fills []Fill) {
	for i := range limits {
		if f, ok := limits[i].fill(limits[i].Usage, a); ok {
			fills = addFill(fills, f)
		}
	}
	return fills
}

// addFill adds a fill to a sorted list. Of two of the same meter and period, the higher one stays.
func addFill(fills []Fill, f Fill) []Fill {
	i, has := slices.BinarySearchFunc(fills, f, Fill.compareLimit)
	if !has {
		return slices.Insert(fills, i, f)
	}
	if fills[i].Percent < f.Percent {
		fills[i] = f
	}
	return fills
}

func (f Fill) compareLimit(other Fill) int {
	return cmp.Or(strings.Compare(f.Meter, other.Meter), cmp.Compare(f.Period, other.Period))
}

// RaiseFills returns the present fills of a counter after more fills, in a new slice. Of two fills of the same meter and period, the new one
// replaces the present one if it is higher, or if its window ends later.
func RaiseFills(present, more []Fill) []Fill {
	raised := slices.Clone(present)
	for _, f := range more {
		i, has := slices.BinarySearchFunc(raised, f, Fill.compareLimit)
		switch {
		case !has:
			raised = slices.Insert(raised, i, f)
		case f.Percent > raised[i].Percent || f.End > raised[i].End:
			raised[i] = f
		}
	}
	return raised
}

// LiveFills returns the fills whose windows have not ended at a time, in a new slice.
func LiveFills(fills []Fill, at time.Time) (live []Fill) {
	for _, f := range fills {
		if f.End == NoEnd || at.Unix() < f.End {
			live = append(live, f)
		}
	}
	return live
}

// HighestFill returns the highest Percent among the fills of a meter, or of all meters for "". It returns 0 without such a fill.
func HighestFill(fills []Fill, meter string) (highest int64) {
	for _, f := range fills {
		if meter == "" || f.Meter == meter {
			highest = max(highest, f.Percent)
		}
	}
	return highest
}

// FillHash returns a hash of the fills of the counters of a request after its decision, 0 without fills. raised reports whether the request itself has
// raised a fill.
func (c *Consumption) FillHash(v *ConsumeResult) (hash uint64, raised bool) {
	if v.Limits == nil { // the usual request, without copies
		l := c.LimitAt(0)
		if f, ok := l.fill(v.Usage, c.Anchors); ok {
			return f.hash(0), v.Allowed && c.raises(l, v.Usage.Used)
		}
		return 0, false
	}
	for i := range v.Limits {
		l := &v.Limits[i]
		if f, ok := l.fill(l.Usage, c.Anchors); ok {
			hash = f.hash(hash + uint64(i))
			raised = raised || v.Allowed && c.raises(l.Limit, l.Used)
		}
	}
	return hash, raised
}

// raises reports whether the request has raised the used share of a limit, in whole per cent.
func (c *Consumption) raises(l Limit, used int64) bool {
	cost := c.CostOn(l.Meter)
	return cost > 0 && percent(used, l.Max) != percent(max(0, used-cost), l.Max)
}

// hash returns a hash of the fill and of a seed, never 0.
func (f Fill) hash(seed uint64) uint64 {
	const prime = 0x9E3779B97F4A7C15 // 2⁶⁴ divided by the golden ratio
	h := ((seed ^ uint64(f.End)) * prime) ^ uint64(f.Percent)
	return max(1, (h^h>>29)*prime)
}

// Ranked returns the counters of a request with their fills after its decision: the deciding counter, and the key if it has limits of its own. It
// leaves out counters without fills.
func (c *Consumption) Ranked(v *ConsumeResult) (list []Ranked) {
	limits, key := v.Limits, CounterID{Account: c.Account, KeyID: c.KeyID}
	if limits == nil {
		limits = []LimitUsage{{Limit: c.LimitAt(0), Usage: v.Usage}}
	}
	shared := len(limits)
	if c.Shared {
		shared = min(shared, 1+len(c.Further))
	}
	for _, r := range []Ranked{{CounterID: c.DecidingCounter(), Fills: FillsOf(limits[:shared], c.Anchors)}, {CounterID: key, Fills: FillsOf(limits[shared:], c.Anchors)}} {
		if len(r.Fills) > 0 {
			list = append(list, r)
		}
	}
	return list
}
