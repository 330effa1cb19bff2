package ranking

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
)

// model is a ranking that sorts all counters for each page.
type model struct {
	max     int
	fills   map[core.CounterID][]core.Fill
	cut     bool
	wholeAt time.Time
}

func (m *model) rank(c core.Ranked) {
	fills := slices.Clone(c.Fills)
	if !c.Exact {
		fills = core.RaiseFills(m.fills[c.CounterID], c.Fills)
	}
	if m.fills[c.CounterID] = fills; len(fills) == 0 {
		delete(m.fills, c.CounterID)
	}
	if len(m.fills) > m.max {
		m.cut = true
		all := m.sorted("")
		delete(m.fills, all[len(all)-1].CounterID)
	}
	m.checkCut()
}

func (m *model) checkCut() {
	if m.cut && len(m.fills) < m.max/2 {
		m.cut, m.wholeAt = false, time.Time{}
	}
}

// sorted returns the counters with a fill of a meter, the fullest first.
func (m *model) sorted(meter string) (list []core.Ranked) {
	for id, fills := range m.fills {
		if core.HighestFill(fills, meter) > 0 {
			list = append(list, core.Ranked{CounterID: id, Fills: slices.Clone(fills)})
		}
	}
	slices.SortFunc(list, func(a, b core.Ranked) int {
		return cmp.Or(cmp.Compare(core.HighestFill(b.Fills, meter), core.HighestFill(a.Fills, meter)), a.CounterID.Compare(b.CounterID))
	})
	return list
}

func (m *model) page(q core.RankingQuery, p core.Page) core.Ranking {
	for id, fills := range m.fills {
		if m.fills[id] = core.LiveFills(fills, q.At); len(m.fills[id]) == 0 {
			delete(m.fills, id)
		}
	}
	m.checkCut()
	list := slices.DeleteFunc(m.sorted(q.Meter), func(c core.Ranked) bool { return core.HighestFill(c.Fills, q.Meter) < q.From })
	from := min(p.Offset(), len(list))
	return core.Ranking{Total: len(list), WholeAt: m.wholeAt, Counters: list[from:min(from+p.Size, len(list))]}
}

// After any changes, a page of a ranking equals the page of a list that is sorted for it. A failure means that a page lacks counters, has them in a
// wrong order, or has a fill of a window that has ended.
func TestRandomRanking(t *testing.T) {
	const account = "a"
	random, now := rand.New(rand.NewPCG(7, 7)), time.Date(2026, time.March, 12, 12, 0, 0, 0, time.UTC)
	meters := []string{core.MeterRequests, "tokens", "spend"}
	var ids []core.CounterID
	for i := range 6 {
		ids = append(ids, core.CounterID{Account: account, UserID: int64(i*i*i + 1)}, core.CounterID{Account: account, KeyID: fmt.Sprint("key_", i)})
	}
	fills := func() (list []core.Fill) {
		for range random.IntN(4) {
			l := core.LimitUsage{Limit: core.Limit{Meter: meters[random.IntN(3)], Period: core.Periods()[random.IntN(7)], Max: 100}}
			l.Usage = core.Usage{Window: l.Period.Window(now), Used: core.RankFrom + random.Int64N(60)}
			list = core.RaiseFills(list, core.FillsOf([]core.LimitUsage{l}, nil))
		}
		return list
	}
	for _, most := range []int{7, core.MaxRanked} {
		r, m := newRanking(most), &model{max: most, fills: map[core.CounterID][]core.Fill{}}
		for step := range 4000 {
			q := core.RankingQuery{Meter: append(meters, "")[random.IntN(4)], From: core.RankFrom + random.Int64N(60), At: now}
			p := core.Page{Number: 1 + random.IntN(3), Size: random.IntN(8)}
			r.sweepLocked(q.At, core.MaxSwept)
			want, got := m.page(q, p), r.pageLocked(account, q, p)
			if len(want.Counters) == 0 {
				want.Counters = nil
			}
			if d := gocmp.Diff(want, got); d != "" {
				t.Fatalf("at most %d, step %d: page %+v of %+v (-want +got):\n%s", most, step, p, q, d)
			}
			switch random.IntN(8) {
			case 0:
				now = now.Add(time.Duration(random.IntN(90)) * time.Minute)
			case 1:
				now = now.AddDate(0, 0, random.IntN(20))
			case 2:
				r.completeLocked(now)
				m.wholeAt = now
			default:
				c := core.Ranked{CounterID: ids[random.IntN(len(ids))], Fills: fills(), Exact: random.IntN(2) == 0}
				r.rankLocked(&c)
				m.rank(c)
			}
		}
	}
}
