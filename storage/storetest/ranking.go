package storetest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

var rankingCases = []testCase{
	{name: "ranking/random", run: rankingRandom,
		promise: "Ranking lists the counters with a fill of a meter, the fullest first, with their number; Rank raises fills, or with Exact replaces them; ended windows do not count"},
	{name: "ranking/accounts", run: rankingOfAccounts,
		promise: "the ranking of an account lists no counter of another account"},
	{name: "ranking/soon", run: rankingSoon,
		promise: "a Rank with soon is in the ranking within a second; after a Rank with soon and a Close, the ranking has the counter or is incomplete"},
}

// rankingRandom makes the same random calls on the store and on memstore, and compares all pages.
func rankingRandom(e *env) {
	account, reference := e.account(), memstore.New()
	random, now := rand.New(rand.NewPCG(7, 7)), noon
	meters := []string{core.MeterRequests, "tokens", "spend"}
	ids := []core.CounterID{}
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
	for step := range 400 {
		q := core.RankingQuery{Meter: append(meters, "")[random.IntN(4)], From: core.RankFrom + random.Int64N(60), At: now}
		p := core.Page{Number: 1 + random.IntN(3), Size: random.IntN(8)}
		want, err := reference.Ranking(e.ctx, account, q, p)
		e.ok("Ranking of memstore", err)
		got, err := e.Store.Ranking(e.ctx, account, q, p)
		e.ok("Ranking", err)
		e.same(fmt.Sprintf("step %d: page %+v of the ranking %+v", step, p, q), want, got)
		if e.Failed() {
			return
		}
		rank := func(list ...core.Ranked) {
			e.ok("Rank of memstore", reference.Rank(e.ctx, account, list, false))
			e.ok("Rank", e.Store.Rank(e.ctx, account, list, false))
		}
		switch random.IntN(8) {
		case 0:
			now = now.Add(time.Duration(random.IntN(90)) * time.Minute)
		case 1:
			now = now.AddDate(0, 0, random.IntN(20))
		case 2:
			at := now.Add(time.Duration(random.IntN(1000)))
			if random.IntN(3) == 0 {
				at = time.Time{}
			}
			e.ok("CompleteRanking of memstore", reference.CompleteRanking(e.ctx, account, at))
			e.ok("CompleteRanking", e.Store.CompleteRanking(e.ctx, account, at))
		case 3: // a reader corrects the ranking
			for _, c := range got.Counters {
				c.Fills, c.Exact = fills(), true
				rank(c)
			}
			rank(core.Ranked{CounterID: ids[random.IntN(len(ids))], Fills: fills(), Exact: true})
		default:
			rank(core.Ranked{CounterID: ids[random.IntN(len(ids))], Fills: fills()}, core.Ranked{CounterID: ids[random.IntN(len(ids))], Fills: fills()})
		}
	}
}

// full returns the counter of a user with one fill: 90 per cent of a month.
func full(account string, user int64) []core.Ranked {
	return []core.Ranked{{CounterID: core.CounterID{Account: account, UserID: user}, Fills: []core.Fill{
		{Meter: core.MeterRequests, Period: core.Month, Percent: 90, End: core.Month.Window(noon).End.Unix()}}}}
}

// ranking returns the first page of the ranking of an account, with fills of any meter.
func (e *env) ranking(account string) core.Ranking {
	e.Helper()
	r, err := e.Store.Ranking(e.ctx, account, core.RankingQuery{From: core.RankFrom, At: noon}, core.Page{Number: 1, Size: 100})
	e.ok("Ranking", err)
	return r
}

func rankingOfAccounts(e *env) {
	mine, theirs := e.account(), e.account()
	e.ok("Rank", e.Store.Rank(e.ctx, mine, full(mine, 1), false))
	e.ok("CompleteRanking", e.Store.CompleteRanking(e.ctx, mine, noon))
	e.same("the ranking of another account", core.Ranking{}, e.ranking(theirs))
	e.same("the ranking", core.Ranking{Counters: full(mine, 1), Total: 1, WholeAt: noon}, e.ranking(mine))
}

func rankingSoon(e *env) {
	account := e.account()
	e.ok("CompleteRanking", e.Store.CompleteRanking(e.ctx, account, noon))
	e.ok("Rank", e.Store.Rank(e.ctx, account, full(account, 1), true))
	if !within(waitTimeout, func() bool { return e.ranking(account).Total == 1 }) {
		e.Errorf("the ranking lacks a counter that was ranked with soon")
	}
	e.ok("Rank", e.Store.Rank(e.ctx, account, full(account, 2), true))
	e.reopen()
	if r := e.ranking(account); r.Total != 2 && !r.WholeAt.IsZero() {
		e.Errorf("after reopening: got %+v, want both counters, or an incomplete ranking", r)
	}
}
