package storetest

import "github.com/limitkeeper/limitkeeper/core"

// holdAdjusted settles holds after adjustments have given all usage back. The days of a user still add up to the usage of the counters that decide for its
// keys. The days of the user leave out an adjustment of the own limits of a key.
func holdAdjusted(e *env) {
	keys := e.sharing("key_1", "key_2")
	shared, account := keys[0], keys[0].AccountID
	own := newKey(account, "key_own", shared.UserID, "plan_1")
	putAll(e, e.Store, own)
	for _, k := range []*core.Key{shared, own} {
		requests := []core.Consumption{request(k, noon)}
		if k == shared {
			requests = append(requests, ofUser(request(k, noon)))
		}
		for _, c := range requests {
			h := e.hold(holding(tokens(cost(c, 4), 100)))
			e.allowed(adjusted(c, "tokens", -90))
			e.allowed(adjusted(c, core.MeterRequests, -4))
			_, err := e.settle(account, h, 1, 30, noon)
			e.ok("Settle", err)
			h = e.hold(holding(tokens(c, 50)))
			e.allowed(adjusted(c, "tokens", -70))
			_, err = e.release(account, h, noon)
			e.ok("Settle", err)
		}
	}
	onlyOwn := adjusted(request(shared, noon), "tokens", 500)
	onlyOwn.Shared, onlyOwn.OwnOnly = false, true
	e.allowed(onlyOwn)
	e.wantTokens(keyCounter(shared), 530) // the settled hold, and the adjustment
	for range 2 {
		days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: account, UserID: shared.UserID}, today, today)
		e.ok("Days", err)
		for _, meter := range []string{core.MeterRequests, "tokens"} {
			used := int64(0)
			for _, id := range []core.CounterID{userCounter(shared), keyCounter(own)} {
				c := e.counter(id)
				used += c.Usage(meter, core.Month, nil, noon).Used
			}
			if got := days[0].Of(meter).Used(); got != used {
				e.Errorf("the days of the user have %d %s used, and its counters have %d: %+v", got, meter, used, days)
			}
		}
		e.reopen()
	}
}
