package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// A scan counts each key once that exists throughout the scan, while other keys come and go.
func TestDaysWhileIndexChanges(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	plan, keys := storetest.Fill(t, m.s, moveAccount, 2*scanBatch+100)
	put := func(key *core.Key, plan string) {
		changed := *key
		changed.PlanID = plan
		m.update(func(tx core.Tx) error { return tx.PutKey(&changed) })
	}
	put(keys[0], "plan_2")
	var want int64 // keys at both sides of a batch boundary, and the last
	for i, cost := range map[int]int64{499: 1, 500: 10, 501: 100, 999: 1_000, 1000: 10_000, 1001: 100_000, 1099: 1_000_000} {
		k := keys[i]
		if _, err := m.s.Consume(t.Context(), &core.Consumption{Account: moveAccount, KeyID: k.ID, KeySeq: k.Seq, UserID: k.UserID, Cost: cost,
			Terms: core.Terms{Period: core.Year, Limit: core.MaxLimit}, Entry: core.Entry{At: noon, KeyID: k.ID, UserID: k.UserID, Cost: cost}}); err != nil {
			t.Fatal(err)
		}
		want += cost
	}
	n := m.s.o.account(moveAccount)
	onPlan, users := n.keys(core.KeyFilter{PlanID: &plan.ID}), n.users(core.UserFilter{})
	ofKey := func(id string) core.CounterID { return core.CounterID{Account: moveAccount, KeyID: id} }
	ofUser := func(id string) core.CounterID {
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			t.Error(err)
		}
		return core.CounterID{Account: moveAccount, UserID: n}
	}
	for _, c := range []struct {
		name    string
		index   string
		counter func(string) core.CounterID
		change  func()
	}{
		{"a key comes", onPlan, ofKey, func() { put(keys[0], plan.ID) }},
		{"a key goes to another plan", onPlan, ofKey, func() { put(keys[0], "plan_2") }},
		{"a key is deleted", onPlan, ofKey, func() { m.update(func(tx core.Tx) error { return tx.DeleteKey(keys[1].ID) }) }},
		{"a user is deleted", users, ofUser, func() { m.update(func(tx core.Tx) error { return tx.DeleteUser(keys[2].UserID) }) }},
	} {
		var got atomic.Int64
		seen := 0
		counter := func(id string) core.CounterID {
			if seen++; seen == scanBatch { // after the first batch
				c.change()
			}
			return c.counter(id)
		}
		err := m.s.scanIndex(t.Context(), c.index, counter, func(ctx context.Context, ids []core.CounterID) error {
			days, err := m.s.daysOf(ctx, ids, spanOf(core.DateOf(noon), core.DateOf(noon)))
			for _, of := range days {
				for _, d := range of.days {
					got.Add(d.Allowed)
				}
			}
			return err
		})
		if err != nil || got.Load() != want {
			t.Errorf("%s: got %d, %v; want %d", c.name, got.Load(), err, want)
		}
	}
}

// The days of a plan include its keys also while a move is pending.
func TestDaysDuringMove(t *testing.T) {
	t.Parallel()
	for _, days := range []core.Date{1, 2} {
		m := newMoveTest(t)
		m.update(func(tx core.Tx) error {
			k, err := tx.Key("key_1")
			if err != nil {
				return err
			}
			k.PlanID = "plan_1"
			return tx.PutKey(k)
		})
		m.count(1, 0, 7, 100)
		if err := m.leaveTasks(func(tx core.Tx) error {
			k, err := tx.Key("key_1")
			if err != nil {
				return err
			}
			k.UserID = 2
			return tx.PutKey(k)
		}); err != nil {
			t.Fatal(err)
		}
		got, err := m.s.Days(t.Context(), core.DaysFilter{Account: moveAccount, PlanID: "plan_1"}, core.DateOf(noon), core.DateOf(noon)+days-1)
		if err != nil || got[0].Allowed != 7 {
			t.Errorf("%d days: got %v, %v, want 7 allowed", days, got, err)
		}
	}
}

// A query for one day equals that day in a query for many, whichever days the counter holds.
func TestSingleDay(t *testing.T) {
	t.Parallel()
	m := newMoveTest(t)
	m.update(func(tx core.Tx) error {
		k, err := tx.Key("key_1")
		if err != nil {
			return err
		}
		u, err := tx.User(1)
		if err != nil {
			return err
		}
		k.PlanID, u.PlanID = "plan_1", "plan_1"
		return errors.Join(tx.PutUser(u), tx.PutKey(k))
	})
	first := core.DateOf(noon) - 1
	const days = 10
	ids := []core.CounterID{{Account: moveAccount, KeyID: "key_1"}, {Account: moveAccount, UserID: 1}}
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 60 {
		at, cost := noon.AddDate(0, 0, random.IntN(days-2)), int64(1+random.IntN(300))
		id := ids[random.IntN(len(ids))]
		var err error
		switch random.IntN(8) {
		case 0:
			var c core.Counter
			c.At, c.Today = at.Unix(), cost
			err = m.s.SetCounters(t.Context(), []core.CounterID{id}, []core.Counter{c})
		case 1:
			var set []core.CounterDay
			for i := range core.Date(random.IntN(6)) {
				set = append(set, core.CounterDay{Date: first + i, Traffic: core.Traffic{Allowed: random.Int64N(3), Denied: random.Int64N(3)}})
			}
			err = m.s.SetDays(t.Context(), id, set)
		default:
			_, err = m.s.Consume(t.Context(), &core.Consumption{Account: moveAccount, KeyID: "key_1", KeySeq: 1, UserID: 1, Shared: random.IntN(2) == 0, Cost: cost,
				Terms: core.Terms{Period: core.Year, Limit: int64(random.IntN(3)) * core.MaxLimit / 2}, Entry: core.Entry{At: at, KeyID: "key_1", UserID: 1, Cost: cost}})
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range []core.DaysFilter{{KeyID: "key_1"}, {UserID: 1}, {PlanID: "plan_1"}, {}} {
			of.Account = moveAccount
			all, err := m.s.Days(t.Context(), of, first, first+days)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range all {
				one, err := m.s.Days(t.Context(), of, want.Date, want.Date)
				if err != nil || len(one) != 1 || one[0].Date != want.Date || one[0].Traffic != want.Traffic {
					t.Fatalf("step %d, %+v: got %v (%v), want %v", step, of, one, err, want)
				}
			}
		}
	}
}
