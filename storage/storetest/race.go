package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var raceCases = []testCase{
	{name: "race/no lost update", run: raceNoLostUpdate,
		promise: "transactions of one account are serializable: no concurrent change of a resource is lost"},
	{name: "race/read then decide", run: raceReadThenDecide,
		promise: "transactions of one account are serializable: a plan that one transaction found unused and deletes is not given to a key by another"},
	{name: "race/count then create", run: raceCountThenCreate,
		promise: "transactions of one account are serializable: a count of matches is still true when the writes are stored"},
	{name: "race/snapshot", run: raceSnapshot,
		promise: "all writes of a transaction are stored at once, and the reads of another show the account at one moment"},
	{name: "race/ids", run: raceIDs,
		promise: "concurrent creations get consecutive IDs without duplicates"},
}

func raceNoLostUpdate(e *env) {
	const callers, times = 16, 12
	account := e.account()
	pl := newPlan(account, "plan_1")
	pl.Name = "0"
	e.put(pl)
	e.parallel(callers, func(int) {
		for range times {
			if err := e.Store.Update(e.ctx, account, increment("plan_1")); err != nil {
				e.Errorf("Update: %v", err)
			}
		}
	})
	pl.Name = strconv.Itoa(callers * times)
	e.wantPlan(pl)
}

// increment adds 1 to the number in the name of each plan.
func increment(ids ...string) func(core.Tx) error {
	return func(tx core.Tx) error {
		for _, id := range ids {
			pl, err := tx.Plan(id)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(pl.Name)
			if err != nil {
				return err
			}
			pl.Name = strconv.Itoa(n + 1)
			if err := tx.PutPlan(pl); err != nil {
				return err
			}
		}
		return nil
	}
}

var errInUse = errors.New("the plan is in use")

// raceReadThenDecide assigns a plan to a key while another transaction deletes the plan if it is
// unused. Each transaction reads a resource that the other writes.
func raceReadThenDecide(e *env) {
	const rounds = 20
	account := e.account()
	e.put(newUser(account, "user"))
	for round := range rounds {
		plan, key := fmt.Sprintf("plan_%d", round), fmt.Sprintf("key_%d", round)
		e.put(newPlan(account, plan))
		both := meeting{of: 2, all: make(chan struct{})}
		give := func(tx core.Tx) error {
			if _, err := tx.Plan(plan); err != nil {
				return err
			}
			both.wait()
			return tx.PutKey(newKey(account, key, 1, plan))
		}
		drop := func(tx core.Tx) error {
			n, err := tx.CountKeys(core.KeyFilter{PlanID: &plan})
			both.wait()
			if err := atMost(0, n, err, errInUse); err != nil {
				return err
			}
			return tx.DeletePlan(plan)
		}
		fns := []func(core.Tx) error{give, drop}
		errs := make([]error, len(fns))
		e.parallel(len(fns), func(i int) { errs[i] = e.Store.Update(e.ctx, account, fns[(i+round)%2]) })
		gave, dropped := errs[round%2], errs[1-round%2]
		switch {
		case gave == nil && errors.Is(dropped, errInUse):
			e.wantKeys(account, core.KeyFilter{PlanID: &plan}, key)
		case errors.Is(gave, core.ErrPlanNotFound) && dropped == nil:
			e.wantKeys(account, core.KeyFilter{PlanID: &plan})
		default:
			e.Fatalf("round %d: giving the plan: got %v, deleting it if unused: got %v, want one to succeed", round, gave, dropped)
		}
	}
}

// overlap is how long a transaction waits for another one, which may itself have to wait for its
// end.
var overlap = 2 * time.Millisecond

// meeting makes transactions wait for each other after their reads, so that they overlap if the
// store runs them concurrently. Otherwise the first waits for the time overlap, in vain.
type meeting struct {
	of      int32
	arrived atomic.Int32
	all     chan struct{}
}

func (m *meeting) wait() {
	if m.arrived.Add(1) == m.of {
		close(m.all)
	}
	select {
	case <-m.all:
	case <-time.After(overlap):
	}
}

// atMost returns err, or refusal if n is above most.
func atMost(most, n int, err, refusal error) error {
	if err == nil && n > most {
		return refusal
	}
	return err
}

var errFull = errors.New("there are enough")

// raceCountThenCreate creates users, keys and plans up to a number. Each transaction counts them
// itself.
func raceCountThenCreate(e *env) {
	const callers, most, rounds = 8, 5, 4
	account := e.account()
	e.put(newUser(account, "user"))
	for round := range rounds {
		plan := fmt.Sprintf("plan_%d", round)
		addUser := func(tx core.Tx) error {
			n, err := tx.CountUsers(core.UserFilter{PlanID: plan})
			if err := atMost(most-1, n, err, errFull); err != nil {
				return err
			}
			u := newUser(account, "user")
			u.PlanID = plan
			return tx.PutUser(u)
		}
		e.parallel(callers, func(i int) {
			for n := range 2 {
				addKey := func(tx core.Tx) error {
					count, err := tx.CountKeys(core.KeyFilter{UserID: 1, PlanID: &plan})
					if err := atMost(most-1, count, err, errFull); err != nil {
						return err
					}
					return tx.PutKey(newKey(account, fmt.Sprintf("key_%d_%d_%d", round, i, n), 1, plan))
				}
				addPlan := func(tx core.Tx) error {
					_, count, err := tx.Plans(core.Page{Number: 1, Size: 1})
					if err := atMost(most*(round+1)-1, count, err, errFull); err != nil {
						return err
					}
					return tx.PutPlan(newPlan(account, fmt.Sprintf("plan_%d_%d_%d", round, i, n)))
				}
				for _, fn := range []func(core.Tx) error{addUser, addKey, addPlan} {
					if err := e.Store.Update(e.ctx, account, fn); err != nil && !errors.Is(err, errFull) {
						e.Errorf("Update: %v", err)
					}
				}
			}
		})
		if got := len(all(e, e.users(account, core.UserFilter{PlanID: plan}))); got != most {
			e.Errorf("round %d: users: got %d, want %d", round, got, most)
		}
		if got := len(all(e, e.keys(account, core.KeyFilter{PlanID: &plan}))); got != most {
			e.Errorf("round %d: keys: got %d, want %d", round, got, most)
		}
		if got := len(all(e, e.plans(account))); got != most*(round+1) {
			e.Errorf("round %d: plans: got %d, want %d", round, got, most*(round+1))
		}
	}
}

// raceSnapshot reads two plans that always change together. If the store allows it, both change
// between the two reads.
func raceSnapshot(e *env) {
	const rounds = 20
	account := e.account()
	a, b := newPlan(account, "plan_a"), newPlan(account, "plan_b")
	a.Name, b.Name = "0", "0"
	e.put(a, b)
	for round := range rounds {
		begun, changed := meeting{of: 2, all: make(chan struct{})}, meeting{of: 2, all: make(chan struct{})}
		read := func(tx core.Tx) error {
			a, err1 := tx.Plan("plan_a")
			begun.wait()
			changed.wait()
			b, err2 := tx.Plan("plan_b")
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			if a.Name != b.Name {
				return fmt.Errorf("round %d: plans that always change together: got %s and %s", round, a.Name, b.Name)
			}
			return nil
		}
		e.parallel(2, func(i int) {
			fn := read
			if i == 1 {
				begun.wait()
				defer changed.wait()
				fn = increment("plan_a", "plan_b")
			}
			if err := e.Store.Update(e.ctx, account, fn); err != nil {
				e.Errorf("Update: %v", err)
			}
		})
	}
	a.Name, b.Name = strconv.Itoa(rounds), strconv.Itoa(rounds)
	e.wantPlan(a)
	e.wantPlan(b)
}

func raceIDs(e *env) {
	const callers, times = 8, 10
	account := e.account()
	e.parallel(callers, func(i int) {
		for n := range times {
			u := newUser(account, fmt.Sprintf("%d %d", i, n))
			k := newKey(account, fmt.Sprintf("key_%d_%d", i, n), 1, "plan_1")
			if err := e.Store.Update(e.ctx, account, putting(u, k)); err != nil {
				e.Errorf("Update: %v", err)
				return
			}
			if got, err := e.Store.User(e.ctx, account, u.ID); err != nil || got.Name != u.Name {
				e.Errorf("User %d: got %v and %v, want the one that was created", u.ID, got, err)
			}
		}
	})
	var ids []int64
	for i := range callers * times {
		ids = append(ids, int64(i+1))
	}
	e.wantUsers(account, core.UserFilter{}, ids...)
	seqs := map[int64]bool{}
	for _, k := range all(e, e.keys(account, core.KeyFilter{})) {
		seqs[k.Seq] = true
	}
	if len(seqs) != callers*times {
		e.Errorf("keys with a Seq of their own: got %d, want %d", len(seqs), callers*times)
	}
}

var requestIDRaceCases = []testCase{
	{name: "request id/at once", run: requestIDAtOnce,
		promise: "of concurrent requests with one id one counts, and all get its answer"},
	{name: "request id/at once with a quota", run: requestIDAtOnceWithQuota,
		promise: "of concurrent requests with many ids, the allowed ids fill the limit exactly, and requests with the same id get the same answer"},
	{name: "request id/with other ids", run: requestIDMeanwhile,
		promise: "a repeat gets the answer that the first request got, also while other requests count"},
	{name: "request id/during close", run: requestIDBesideClose, own: true,
		promise: "a count and its id are stored in one step: an answered request is remembered after reopening; any other can be repeated and counts once"},
}

// resultsByID holds the results of concurrent requests, by id.
type resultsByID struct {
	mu      sync.Mutex
	firsts  map[string]int // results that were no repeats
	answers map[string]core.ConsumeResult
}

func newTwins() *resultsByID {
	return &resultsByID{firsts: map[string]int{}, answers: map[string]core.ConsumeResult{}}
}

// add stores a result, and fails if another result of the same id differs.
func (w *resultsByID) add(e *env, c *core.Consumption, v core.ConsumeResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v.Allowed && v.FirstTerms == nil {
		w.firsts[c.RequestID]++
	}
	if v.FirstTerms != nil && !reflect.DeepEqual(*v.FirstTerms, c.Terms) {
		e.Errorf("first answer to %q: got it under %+v, want %+v", c.RequestID, *v.FirstTerms, c.Terms)
	}
	v.FirstTerms = nil
	before, known := w.answers[c.RequestID]
	if !known {
		w.answers[c.RequestID] = v
	} else if !reflect.DeepEqual(before, v) {
		e.Errorf("answers to %q: got %+v and %+v, want the same", c.RequestID, before, v)
	}
}

// wantFirsts fails unless each allowed id was counted once, and the number of allowed ids is right.
func (w *resultsByID) wantFirsts(e *env, want int) {
	e.Helper()
	allowed := 0
	for id, v := range w.answers {
		if v.Allowed {
			allowed++
		}
		if n := w.firsts[id]; v.Allowed != (n == 1) {
			e.Errorf("%q: got allowed %t and %d counts, want one when it is allowed", id, v.Allowed, n)
		}
	}
	if allowed != want {
		e.Errorf("ids that were allowed: got %d, want %d", allowed, want)
	}
}

// consume makes n requests by each of the callers at once, all the same requests in the same order.
func (w *resultsByID) consume(e *env, callers, n int, request func(n int) core.Consumption) {
	e.parallel(callers, func(int) {
		for i := range n {
			c := request(i)
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil {
				e.Errorf("Consume: %v", err)
				return
			}
			w.add(e, &c, v)
		}
	})
}

func requestIDAtOnce(e *env) {
	const callers, n = 32, 40
	keys := e.user1("key_1", "key_2")
	shared := keys[1]
	shared.PlanID = ""
	e.put(shared)
	for _, k := range keys {
		w := newTwins()
		consume := func(i int) core.Consumption { return withRequestID(request(k, noon), fmt.Sprintf("%d", i)) }
		w.consume(e, callers, n, consume)
		w.wantFirsts(e, n)
		check := func() {
			e.Helper()
			e.wantUsed(keyCounter(k), core.Month, noon, n)
			if got := e.historyTotal(keyCounter(k)); got != n {
				e.Errorf("history: got %d entries, want %d", got, n)
			}
		}
		check()
		e.reopen()
		w.consume(e, 1, n, consume)
		check()
	}
}

func requestIDAtOnceWithQuota(e *env) {
	const callers, n, quota = 32, 40, 15
	k := e.user1("key_1")[0]
	w := newTwins()
	e.parallel(callers, func(caller int) {
		for i := range n {
			c := withRequestID(limit(request(k, noon), core.Month, quota), fmt.Sprintf("%d", (i+caller%4*10)%n))
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil {
				e.Errorf("Consume: %v", err)
				return
			}
			w.add(e, &c, v)
		}
	})
	w.wantFirsts(e, quota)
	e.wantUsed(keyCounter(k), core.Month, noon, quota)
}

func requestIDMeanwhile(e *env) {
	const callers, n = 16, 30
	k := e.user1("key_1")[0]
	w := newTwins()
	e.parallel(callers, func(caller int) {
		for i := range n {
			other := request(k, noon)
			c := withRequestID(request(k, noon.Add(time.Duration(i)*time.Second)), fmt.Sprintf("%d", i))
			for _, c := range []core.Consumption{c, other, c} {
				v, err := e.Store.Consume(e.ctx, &c)
				if err != nil {
					e.Errorf("Consume: %v", err)
					return
				}
				if c.RequestID != "" {
					w.add(e, &c, v)
				}
			}
		}
	})
	w.wantFirsts(e, n)
	e.wantUsed(keyCounter(k), core.Month, noon, n+callers*n)
}

func requestIDBesideClose(e *env) {
	const callers, begin = 32, 300
	keys := e.user1("key_1", "key_2")
	w := newTwins()
	var begun atomic.Int64
	var asked sync.Map
	s, half := e.Store, make(chan struct{})
	e.parallel(callers+1, func(caller int) {
		if caller == callers {
			<-half
			if err := s.Close(); err != nil {
				e.Errorf("Close: %v", err)
			}
			return
		}
		for i := 0; ; i++ {
			if begun.Add(1) == begin {
				close(half)
			}
			k := keys[caller%2]
			c := withRequestID(limit(request(k, noon), core.Month, core.MaxLimit), fmt.Sprintf("%s %d", k.ID, i/2))
			asked.Store(c.RequestID, c)
			v, err := s.Consume(e.ctx, &c)
			if errors.Is(err, core.ErrUnavailable) {
				return
			}
			if err != nil || !v.Allowed {
				e.Errorf("Consume: got %t, %v, want allowed or ErrUnavailable", v.Allowed, err)
				return
			}
			w.add(e, &c, v)
		}
	})
	e.Store = e.Reopen(e)
	for range 2 { // an unanswered request counts now or has counted before
		ids := map[string]int64{}
		asked.Range(func(_, value any) bool {
			c := value.(core.Consumption)
			ids[c.KeyID]++
			_, answered := w.answers[c.RequestID]
			v := e.consume(c)
			if answered && v.FirstTerms == nil {
				e.Errorf("%q was answered before Close: got it counted again", c.RequestID)
			}
			w.add(e, &c, v)
			return true
		})
		for _, k := range keys {
			e.wantUsed(keyCounter(k), core.Month, noon, ids[k.ID])
			if got := e.historyTotal(keyCounter(k)); int64(got) != ids[k.ID] {
				e.Errorf("history of %s: got %d entries, want %d", k.ID, got, ids[k.ID])
			}
		}
		e.reopen()
	}
}
