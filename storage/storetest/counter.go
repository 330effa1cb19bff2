package storetest

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var counterCases = []testCase{
	{name: "counter/batch", run: counterBatch,
		promise: "Counters returns the counters with the ids, in the order of ids; an unknown id has the zero counter"},
	{name: "counter/many", run: counterMany,
		promise: "each of thousands of counters is exact, however long it was unused"},
}

func counterBatch(e *env) {
	keys := e.user1("key_1", "key_2", "key_3")
	for i, k := range keys {
		for range i + 1 {
			e.allowed(request(k, noon.Add(time.Duration(i)*time.Hour)))
		}
	}
	account := keys[0].AccountID
	id := func(key string) core.CounterID { return core.CounterID{Account: account, KeyID: key} }
	ids := []core.CounterID{id("key_3"), id("key_missing"), id("key_1"), {Account: account, UserID: 1},
		{Account: "acct_missing", KeyID: "key_1"}, id("key_2"), id("key_3"), {Account: account, UserID: 99}}
	want := []core.Counter{usedCounter(3, noon.Add(2*time.Hour)), {}, usedCounter(1, noon), {},
		{}, usedCounter(2, noon.Add(time.Hour)), usedCounter(3, noon.Add(2*time.Hour)), {}}
	got, err := e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	e.same("Counters", want, got)
	got, err = e.Store.Counters(e.ctx, nil)
	e.ok("Counters of no ids", err)
	e.same("Counters of no ids", []core.Counter{}, got)
	e.reopen()
	got, err = e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	e.same("Counters after reopening", want, got)
}

// counterMany uses thousands of counters in turn, so that a store with a cache has to evict some.
func counterMany(e *env) {
	const n, callers = 3000, 64
	_, keys := Fill(e, e.Store, e.account(), n)
	round := func(number int, max int64) {
		e.parallel(callers, func(i int) {
			for at := i; at < n; at += callers {
				c := limit(request(keys[at], noon), core.Month, max)
				v, err := e.Store.Consume(e.ctx, &c)
				if err != nil || v.Allowed != (int64(number) <= max) || v.Usage.Used != min(int64(number), max) {
					e.Errorf("request %d of %s: got %d, %t, %v, want %d of %d", number, c.KeyID, v.Usage.Used, v.Allowed, err, number, max)
					return
				}
			}
		})
	}
	round(1, 2)
	round(2, 2)
	round(3, 2)
	e.reopen()
	round(3, 2)
	var ids []core.CounterID
	for _, k := range keys {
		ids = append(ids, keyCounter(k))
	}
	got, err := e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	for i := range got {
		if used := got[i].Usage(core.MeterRequests, core.Month, nil, noon).Used; used != 2 {
			e.Errorf("usage of %s: got %d, want 2", keys[i].ID, used)
			break
		}
	}
	last := keys[n-1]
	if total := e.historyTotal(keyCounter(last)); total < 2 {
		e.Errorf("history of %s: got %d entries, want at least the 2 allowed requests", last.ID, total)
	}

}
