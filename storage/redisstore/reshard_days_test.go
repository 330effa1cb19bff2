package redisstore_test

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// A request, an adjustment or a settlement that comes while the keys of its slot are on two masters counts whole or not at all: the days of the meters and
// the counter agree afterwards.
func TestReshardingDaysOfMeters(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for _, moved := range []string{"}y:u", "}y:", "}t:", "}e:"} { // the keys that are on the new master meanwhile
		w := newWorld(t, openFaulty(t, faulty(c.Addrs()...)), 1)
		k, now := &w.keys[0], time.Now()
		use := func(at time.Time, change func(*core.Consumption)) {
			r := consumption(k, "", false)
			r.Entry.At, r.Costs = at, []core.MeterCost{{Meter: "tokens", Cost: 100}}
			change(r)
			_, _ = w.s.Consume(t.Context(), r)
		}
		request := func(*core.Consumption) {}
		hold := core.NewHoldID(k.UserID)
		use(now.AddDate(0, 0, -1), func(r *core.Consumption) { r.Hold = &core.NewHold{ID: hold, ExpiresAt: now.AddDate(0, 0, 1)} })
		use(now, request)
		slot := w.slotOf(t, c.Nodes()[0], k.UserID)
		from := c.MasterOf(slot)
		to := c.Nodes()[(nodeOf(c, from)+1)%3]
		n := strconv.Itoa(slot)
		to.Do(t, "CLUSTER", "SETSLOT", n, "IMPORTING", from.Do(t, "CLUSTER", "MYID"))
		from.Do(t, "CLUSTER", "SETSLOT", n, "MIGRATING", to.Do(t, "CLUSTER", "MYID"))
		host, port, err := net.SplitHostPort(to.Addr())
		if err != nil {
			t.Fatal(err)
		}
		for key := range strings.SplitSeq(from.Do(t, "CLUSTER", "GETKEYSINSLOT", n, "100"), "\n") {
			if strings.Contains(key, moved) {
				from.Do(t, "MIGRATE", host, port, key, "0", "5000")
			}
		}
		use(now, request)
		use(now, func(r *core.Consumption) {
			r.Cost, r.Costs, r.Adjustment = 0, nil, &core.Adjustment{Meter: "tokens", Value: 7, Reason: "charge"}
		})
		if h, err := w.s.Hold(t.Context(), w.account, hold); err != nil {
			t.Error(err)
		} else {
			_, _, _ = w.s.Settle(t.Context(), h.Settle(w.account, core.HoldSettled, 1, []core.MeterCost{{Meter: "tokens", Cost: 40}}, now, core.DefaultRetention))
		}
		moveSlot(t, c, slot, from, to)
		id := core.CounterID{Account: w.account, KeyID: k.ID}
		counters, days, err := w.s.CountersWithDays(t.Context(), []core.CounterID{id})
		if err != nil {
			t.Fatal(err)
		}
		ofUser, err := w.s.CounterDays(t.Context(), core.CounterID{Account: w.account, UserID: k.UserID})
		if err != nil {
			t.Fatal(err)
		}
		for _, meter := range []string{core.MeterRequests, "tokens"} {
			used := counters[0].Usage(meter, core.Lifetime, nil, now).Used
			for whose, list := range map[string][]core.CounterDay{"key": days[0], "user": ofUser} {
				var days, hours int64
				for i := range list {
					if d := list[i].Totals(false); d.Date.IsHour() {
						hours += d.Of(meter).Used()
					} else {
						days += d.Of(meter).Used()
					}
				}
				if days != used || hours != used {
					t.Errorf("with %s on the new master: the days of the %s add up to %d %s, its hours to %d, and the counter has %d", moved, whose, days, meter, hours, used)
				}
			}
		}
	}
}
