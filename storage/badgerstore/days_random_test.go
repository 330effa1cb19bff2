package badgerstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// dayTwin makes the same random changes in a store and in the reference store.
type dayTwin struct {
	t       *testing.T
	r       *rand.Rand
	s       *Store
	model   *memstore.Store
	now     time.Time
	users   []int64
	keys    map[int64][]*core.Key
	holds   []*core.Hold
	n       int
	holding bool
	deletes bool // not during a checkpoint: a transaction waits for its end
}

// both makes a change in both stores, which must have the same result.
func (w *dayTwin) both(what string, fn func(core.Store) error) {
	a, b := fn(w.model), fn(w.s)
	if fmt.Sprint(a) != fmt.Sprint(b) {
		w.t.Fatalf("%s: %v and %v", what, a, b)
	}
}

// addUser adds a user with three keys.
func (w *dayTwin) addUser() {
	var id int64
	var keys []*core.Key
	w.both("PutUser", func(s core.Store) error {
		keys = nil
		return s.Update(w.t.Context(), acct, func(tx core.Tx) error {
			keys = nil
			u := &core.User{AccountID: acct, Name: "user"}
			if err := tx.PutUser(u); err != nil {
				return err
			}
			id = u.ID
			for i := range 3 {
				name := fmt.Sprintf("key_%d_%d", id, i)
				k := &core.Key{AccountID: acct, ID: name, UserID: id, Status: core.KeyActive, Digest: secrets.DigestOf(name)}
				if err := tx.PutKey(k); err != nil {
					return err
				}
				keys = append(keys, k)
			}
			return nil
		})
	})
	w.users, w.keys[id] = append(w.users, id), keys
}

// step moves the clock, and makes a request, an adjustment, the end of a hold, or the deletion of a user.
func (w *dayTwin) step() {
	w.n++
	switch w.r.IntN(12) {
	case 0:
		w.now = w.now.Add(time.Duration(w.r.IntN(60)) * time.Hour)
	case 1:
		if w.holding {
			break
		}
		w.now = w.now.Add(-time.Duration(w.r.IntN(30)) * time.Hour)
	default:
		w.now = w.now.Add(time.Duration(1+w.r.IntN(3000)) * time.Second)
	}
	u := w.users[w.r.IntN(len(w.users))]
	i := w.r.IntN(3)
	k := w.keys[u][i]
	c := core.Consumption{Account: acct, KeyID: k.ID, KeySeq: k.Seq, UserID: u, Shared: i > 0, Terms: core.Terms{Period: core.Month, Limit: endless}, Cost: int64(w.r.IntN(4)),
		Entry: core.Entry{At: w.now, KeyID: k.ID, UserID: u, Endpoint: "/", Method: "GET"}, Retention: 1000 * 24 * time.Hour}
	if w.r.IntN(6) == 0 {
		c.KeyID, c.KeySeq, c.Entry.KeyID, c.Shared = "", 0, "", true
	}
	for _, m := range []string{"spend", "tokens"} {
		if w.r.IntN(2) == 0 {
			c.Costs = append(c.Costs, core.MeterCost{Meter: m, Cost: int64(1 + w.r.IntN(50))})
		}
	}
	c.Free = true
	c.Entry.Cost, c.Entry.Costs = c.Cost, c.Costs
	switch n := w.r.IntN(20); {
	case n < 3: // denied
		c.Limit = 0
		c.Cost, c.Entry.Cost = c.Cost+1, c.Cost+1
	case n < 8 && w.holding:
		c.Hold = &core.NewHold{ID: core.NewHoldID(u), ExpiresAt: w.now.Truncate(time.Millisecond).Add(500 * time.Hour)}
	case n < 11:
		c.Cost, c.Costs, c.Entry.Cost, c.Entry.Costs, c.Free = 0, nil, 0, nil, false
		c.Adjustment = &core.Adjustment{Meter: []string{"requests", "spend", "tokens"}[w.r.IntN(3)], Value: int64(w.r.IntN(100) - 60), Reason: "x"}
		if w.r.IntN(3) == 0 {
			c.Adjustment.Set, c.Adjustment.Value, c.Adjustment.Period = true, int64(w.r.IntN(20)), core.Periods()[w.r.IntN(7)]
		}
		if c.Shared && c.KeyID != "" && w.r.IntN(3) == 0 {
			c.Shared, c.OwnOnly = false, true
		}
	case n < 15 && len(w.holds) > 0:
		j := w.r.IntN(len(w.holds))
		h := w.holds[j]
		w.holds = slices.Delete(w.holds, j, j+1)
		st := h.Settle(acct, core.HoldReleased, 0, nil, w.now, 1000*24*time.Hour)
		if w.r.IntN(2) == 0 {
			st = h.Settle(acct, core.HoldSettled, int64(w.r.IntN(4)), c.Costs, w.now, 1000*24*time.Hour)
		}
		w.both("Settle", func(s core.Store) error {
			x := *st
			_, _, err := s.Settle(w.t.Context(), &x)
			return err
		})
		return
	case n == 15 && w.n%7 == 0 && w.deletes:
		w.both("DeleteUser", func(s core.Store) error {
			return s.Update(w.t.Context(), acct, func(tx core.Tx) error { return tx.DeleteUser(u) })
		})
		w.users = slices.DeleteFunc(w.users, func(id int64) bool { return id == u })
		w.holds = slices.DeleteFunc(w.holds, func(h *core.Hold) bool { return h.UserID == u })
		w.addUser()
		return
	}
	var held bool
	w.both("Consume", func(s core.Store) error {
		x := c
		v, err := s.Consume(w.t.Context(), &x)
		held = v.HoldID != ""
		return err
	})
	if held {
		h, err := w.model.Hold(w.t.Context(), acct, c.Hold.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		w.holds = append(w.holds, h)
	}
}

// evictAll evicts all counters.
func (w *dayTwin) evictAll() {
	for _, id := range w.ids()[1:] {
		evict(w.t, w.s, refOf(w.t, w.s, id))
	}
}

// ids returns the deleted users, the users and the keys.
func (w *dayTwin) ids() []core.CounterID {
	ids := []core.CounterID{{Account: acct}}
	for _, u := range w.users {
		ids = append(ids, ofUser(u))
		for _, k := range w.keys[u] {
			ids = append(ids, ofKey(k.ID))
		}
	}
	return ids
}

// days returns all days of a store.
func (w *dayTwin) days(s core.Importer) map[core.CounterID][]core.CounterDay {
	all := map[core.CounterID][]core.CounterDay{}
	for _, id := range w.ids() {
		list, err := s.CounterDays(w.t.Context(), id)
		if err != nil {
			w.t.Fatal(err)
		}
		all[id] = list
	}
	return all
}

// TestRandomDays compares the days of each meter with the reference store, through adjustments, settlements on later days, deleted users, evictions,
// checkpoints, and a kill at any failpoint of a checkpoint. While there are holds, the clock does not step back: see core.Consumption.NotBefore.
func TestRandomDays(t *testing.T) {
	for seed := range uint64(4) {
		var h hook
		dir := t.TempDir()
		w := &dayTwin{t: t, r: rand.New(rand.NewPCG(seed, 1)), holding: seed%2 == 0, deletes: true, now: noon, keys: map[int64][]*core.Key{}, model: memstore.New()}
		w.s = openAlone(t, dir, Options{failpoint: h.step})
		for _, s := range []core.Store{w.model, w.s} {
			if err := s.CreateAccount(t.Context(), &core.Account{ID: acct, Name: acct, CreatedAt: noon}, &core.OwnerKey{ID: "okey_1", AccountID: acct, Digest: secrets.DigestOf(acct), CreatedAt: noon}); err != nil {
				t.Fatal(err)
			}
		}
		w.addUser()
		w.addUser()
		check := func(what string, want map[core.CounterID][]core.CounterDay) {
			t.Helper()
			if d := cmp.Diff(want, w.days(w.s)); d != "" {
				t.Fatalf("seed %d, step %d: %s (-want +got):\n%s", seed, w.n, what, d)
			}
		}
		for range 12 {
			for range 15 {
				w.step()
			}
			check("serving", w.days(w.model))
			switch w.r.IntN(4) {
			case 0:
				writeCheckpoint(t, w.s)
				check("after a checkpoint", w.days(w.model))
			case 1:
				if err := w.s.events.Flush(); err != nil {
					t.Fatal(err)
				}
				w.evictAll()
				check("evicted", w.days(w.model))
			default:
				after := t.TempDir()
				at := []failpoint{failCheckpoint, failPages, failCommit, failCommitted, failPagesWritten, failMarked}[w.r.IntN(6)]
				copied := false
				var want map[core.CounterID][]core.CounterDay
				h.once(at, func() {
					w.deletes = false
					defer func() { w.deletes = true }()
					for range w.r.IntN(6) {
						w.step()
					}
					if err := w.s.events.Flush(); err != nil {
						t.Error(err)
					}
					if w.r.IntN(2) == 0 { // the counters are loaded again before the checkpoint has marked them
						w.evictAll()
						w.days(w.s)
						w.step()
						if err := w.s.events.Flush(); err != nil {
							t.Error(err)
						}
					}
					copyDatabase(t, after, dir)
					copyEventLog(t, after, dir)
					copied, want = true, w.days(w.model)
				})
				writeCheckpoint(t, w.s)
				h.fn.Store(nil)
				check("after the checkpoint", w.days(w.model))
				if copied {
					abandon(t, w.s)
					dir = after
					w.s = openAlone(t, dir, Options{failpoint: h.step})
					check("after a kill at "+fmt.Sprint(at), want)
				}
			}
		}
		abandon(t, w.s)
	}
}
