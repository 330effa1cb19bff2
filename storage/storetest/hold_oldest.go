package storetest

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

func holdsOldest(e *env) {
	keys := e.sharing("key_1", "key_2")
	account, user := keys[0].AccountID, keys[0].UserID
	other := e.user1("key_1")[0]
	e.hold(holding(request(other, noon)))
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	want := func(what string, times map[int64]time.Time) {
		e.Helper()
		got, err := e.Store.OldestHolds(e.ctx, account)
		e.ok("OldestHolds", err)
		e.same(what, times, got)
	}
	want("without a hold", map[int64]time.Time{})
	open := make([]*core.Hold, 4)
	for i := range open {
		c := holding(request(keys[i%2], at(i)))
		if i == 0 {
			c = holding(ofUser(request(keys[0], at(0))))
		}
		c.Hold.OnExpiry, c.Hold.ExpiresAt = core.ReleaseHeld, at(i+10).Truncate(time.Millisecond)
		open[i] = e.hold(c)
	}
	want("four open holds", map[int64]time.Time{user: at(0)})
	_, err := e.settle(account, open[0], 1, 0, at(5))
	e.ok("Settle", err)
	want("the oldest one settled", map[int64]time.Time{user: at(1)})
	_, err = e.release(account, open[2], at(5))
	e.ok("Settle", err)
	want("a later one released", map[int64]time.Time{user: at(1)})
	e.reopen()
	want("after reopening", map[int64]time.Time{user: at(1)})
	e.ok("ExtendHold", e.Store.ExtendHold(e.ctx, account, open[1].ID, at(5), at(30)))
	e.ok("ExpireHolds", e.Store.ExpireHolds(e.ctx, account, at(20), forever))
	want("a later one expired", map[int64]time.Time{user: at(1)})
	e.ok("ExpireHolds", e.Store.ExpireHolds(e.ctx, account, at(30), forever))
	want("all expired", map[int64]time.Time{})
}
