package storetest

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var raceCases = []testCase{
	{name: "race/no lost update", run: raceNoLostUpdate,
		promise: "transactions of one account are serializable: no concurrent change of a resource is lost"},
	{name: "race/prices", run: racePrices,
		promise: "transactions of one account are serializable: no concurrent change of the prices is lost"},
	{name: "race/read then decide", run: raceReadThenDecide,
		promise: "transactions of one account are serializable: a plan that one transaction found unused and deletes is not given to a key by another"},
	{name: "race/count then create", run: raceCountThenCreate,
		promise: "transactions of one account are serializable: a count of matches is still true when the writes are stored"},
	{name: "race/snapshot", run: raceSnapshot,
		promise: "all writes of a transaction are stored at once, and the reads of another show the account at one moment"},
	{name: "race/ids", run: raceIDs,
		promise: "concurrent creations get consecutive IDs without duplicates"},
	{name: "race/same email or external id", run: raceSameMember,
		promise: "of concurrent creations with one email or external id exactly one succeeds"},
	{name: "race/same account name", run: raceSameName,
		promise: "of concurrent creations of accounts with one name exactly one succeeds, with its owner's key"},
	{name: "race/update", run: raceUpdate,
		promise: "UpdateAccount, UpdateAccess and UpdateOwnerKey are atomic: no concurrent update is lost"},
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
	e.wantNames(account, strconv.Itoa(callers*times))
}

func racePrices(e *env) {
	const callers, times = 8, 6
	account := e.account()
	e.parallel(callers, func(int) {
		for range times {
			err := e.Store.Update(e.ctx, account, func(tx core.Tx) error {
				p, err := tx.Prices()
				if err != nil {
					return err
				}
				p.Rules = append(p.Rules, core.PriceRule{Model: strconv.Itoa(len(p.Rules)), Costs: map[string]core.Price{"requests": "2"}})
				return tx.PutPrices(p)
			})
			if err != nil {
				e.Errorf("Update: %v", err)
			}
		}
	})
	p, err := e.Store.Prices(e.ctx, account)
	e.ok("Prices", err)
	e.same("number of rules", callers*times, len(p.Rules))
	for i := range p.Rules {
		e.same("model of a rule", strconv.Itoa(i), p.Rules[i].Model)
	}
}

// wantNames fails unless the plans of an account have the names.
func (e *env) wantNames(account string, names ...string) {
	e.Helper()
	plans, _, err := e.Store.Plans(e.ctx, account, core.Page{Number: 1, Size: 100})
	e.ok("Plans", err)
	var got []string
	for _, p := range plans {
		got = append(got, p.Name)
	}
	e.same("names of plans", names, got)
}

// increment adds 1 to the number in the name of each plan.
func increment(ids ...string) func(core.Tx) error {
	return func(tx core.Tx) error {
		for _, id := range ids {
			pl, err := tx.Plan(id)
			if err != nil {
				return err
			}
			add1(&pl.Name)
			if err := tx.PutPlan(pl); err != nil {
				return err
			}
		}
		return nil
	}
}

// add1 adds 1 to a number that is text. Another text is 0.
func add1(text *string) {
	n, _ := strconv.Atoi(*text)
	*text = strconv.Itoa(n + 1)
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
		e.wantCount(account, most, func(tx core.Tx) (int, error) { return tx.CountUsers(core.UserFilter{PlanID: plan}) })
		e.wantCount(account, most, func(tx core.Tx) (int, error) { return tx.CountKeys(core.KeyFilter{PlanID: &plan}) })
		e.wantCount(account, most*(round+1), func(tx core.Tx) (int, error) {
			_, n, err := tx.Plans(core.Page{Number: 1, Size: 1})
			return n, err
		})
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
	e.wantNames(account, strconv.Itoa(rounds), strconv.Itoa(rounds))
}

func raceIDs(e *env) {
	const callers, times = 8, 10
	account := e.account()
	e.parallel(callers, func(i int) {
		for n := range times {
			u := newUser(account, fmt.Sprintf("%d %d", i, n))
			k := newKey(account, fmt.Sprintf("key_%d_%d", i, n), 1, "plan_1")
			if err := e.Store.Update(e.ctx, account, putting[any](u, k)); err != nil {
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

func raceSameMember(e *env) {
	const callers, rounds = 16, 5
	for taken, member := range map[error]func(u *core.User, name string){
		core.ErrDuplicateEmail:      func(u *core.User, name string) { u.Email = new(name + "@example.com") },
		core.ErrDuplicateExternalID: func(u *core.User, name string) { u.ExternalID = name },
	} {
		account := e.account()
		var want []int64
		for round := range rounds {
			errs, users := make([]error, callers), make([]*core.User, callers)
			e.parallel(callers, func(i int) {
				users[i] = newUser(account, "user")
				member(users[i], fmt.Sprintf("round%d", round))
				errs[i] = e.Store.Update(e.ctx, account, putting(users[i]))
			})
			want = append(want, users[e.onlyOne(errs, taken)].ID)
		}
		e.wantUsers(account, core.UserFilter{}, want...)
	}
}

func raceSameName(e *env) {
	const callers = 8
	name := fmt.Sprintf("acct_contested%d", serial.Add(1))
	id := func(i int) string { return fmt.Sprintf("%s_%d", name, i) }
	errs := make([]error, callers)
	e.parallel(callers, func(i int) {
		a, k := newAccount(id(i))
		a.Name = name
		errs[i] = e.Store.CreateAccount(e.ctx, a, k)
	})
	winner := e.onlyOne(errs, core.ErrAccountExists)
	if got, err := e.Store.AccountByName(e.ctx, name); err != nil || got.ID != id(winner) {
		e.Errorf("AccountByName: got %+v, %v, want the account of the call that succeeded, %s", got, err, id(winner))
	}
	for i := range callers {
		_, k := newAccount(id(i))
		if _, err := e.Store.OwnerKeyByDigest(e.ctx, k.Digest); (err == nil) != (i == winner) {
			e.Errorf("OwnerKeyByDigest of call %d: got %v, want only the key of call %d", i, err, winner)
		}
	}
}

// onlyOne fails unless exactly one of the errors is nil and the others are want. It returns the
// index of the nil error.
func (e *env) onlyOne(errs []error, want error) int {
	e.Helper()
	winner := -1
	for i, err := range errs {
		if err != nil {
			e.isErr("a later call", err, want)
			continue
		}
		if winner >= 0 {
			e.Fatalf("the calls %d and %d both succeeded, want one", winner, i)
		}
		winner = i
	}
	if winner < 0 {
		e.Fatalf("no call succeeded, want one: %v", errs)
	}
	return winner
}

func raceUpdate(e *env) {
	const callers, times = 8, 10
	account := e.account()
	e.parallel(callers, func(int) {
		for range times {
			_, err1 := e.Store.UpdateAccount(e.ctx, account, func(a *core.Account) error { add1(&a.KeyPrefix); return nil })
			_, err2 := e.Store.UpdateAccess(e.ctx, account, func(a *core.Access) error { add1(&a.Password); return nil })
			_, err3 := e.Store.UpdateOwnerKey(e.ctx, account, "okey_1", func(k *core.OwnerKey) error { add1(&k.Name); return nil })
			if err := errors.Join(err1, err2, err3); err != nil {
				e.Errorf("update: %v", err)
			}
		}
	})
	a, err1 := e.Store.Account(e.ctx, account)
	access, err2 := e.Store.Access(e.ctx, account)
	k, err3 := e.Store.OwnerKeyByDigest(e.ctx, newOwnerKey(account, "okey_1").Digest)
	e.ok("reads", errors.Join(err1, err2, err3))
	want := strconv.Itoa(callers * times)
	e.same("number of updates", []string{want, want, want}, []string{a.KeyPrefix, access.Password, k.Name})
}
