package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var planCases = []testCase{
	{name: "plan/read back", run: planReadBack,
		promise: "strings and numbers of a plan come back as they went in, times as the same instant in UTC"},
	{name: "plan/replace", run: planReplace,
		promise: "PutPlan stores a plan in place of the one with its ID, and clears members that are now empty"},
	{name: "plan/list", run: planList,
		promise: "Plans lists the plans by Seq, which grows with every new plan and is never reused"},
}

func planReadBack(e *env) {
	account := e.account()
	full := newPlan(account, "plan_full")
	full.Name, full.Description, full.Features = awkward, new(awkward), []string{"", awkward, "a", "a"}
	full.Limit, full.Period, full.Inactive = core.MaxLimit, core.Year, true
	full.CreatedAt = noon.In(time.FixedZone("somewhere", 3600))
	bare := newPlan(account, "plan_bare")
	bare.Limit, bare.Period = 1, core.Day
	e.put(full, bare)
	e.wantPlan(full)
	e.wantPlan(bare)

	got, err := e.Store.Plan(e.ctx, account, full.ID)
	e.ok("Plan", err)
	e.utc(got.CreatedAt, got.UpdatedAt)
	got, err = e.Store.Plan(e.ctx, account, bare.ID)
	e.ok("Plan", err)
	if got.Description != nil {
		e.Errorf("a description that was never set: got %q, want nil", *got.Description)
	}
}

// wantPlan fails unless the plan is stored: by id, in a transaction and in the list.
func (e *env) wantPlan(want *core.Plan) {
	e.Helper()
	got, err := e.Store.Plan(e.ctx, want.AccountID, want.ID)
	e.ok("Plan", err)
	e.same("Plan", want, got)
	e.update(want.AccountID, func(tx core.Tx) (err error) {
		got, err = tx.Plan(want.ID)
		return err
	})
	e.same("Plan in a transaction", want, got)
	for _, p := range all(e, e.plans(want.AccountID)) {
		if p.ID == want.ID {
			e.same("plan in the list", want, p)
			return
		}
	}
	e.Errorf("plan %s is not in the list", want.ID)
}

func planReplace(e *env) {
	account := e.account()
	p, other := newPlan(account, "plan_1"), newPlan(account, "plan_10")
	p.Description, p.Features = new("before"), []string{"a", "b"}
	e.put(p, other)

	p.Name, p.Description, p.Limit, p.Period, p.Inactive, p.Features = "after", new(""), 7, core.Week, true, []string{"c"}
	p.UpdatedAt = noon.Add(time.Hour)
	e.put(p)
	e.wantPlan(p)
	p.Description, p.Inactive, p.Features = nil, false, nil
	e.put(p)
	e.wantPlan(p)
	e.wantPlan(other)
	e.wantPlans(account, p.ID, other.ID)
}

func planList(e *env) {
	account := e.account()
	var want []string
	var last int64
	create := func(n int) {
		for range n { // not in the order of ids or times
			p := newPlan(account, fmt.Sprintf("plan_%d", 100-len(want)*7%12))
			p.CreatedAt = noon.Add(-time.Duration(len(want)) * time.Hour)
			e.put(p)
			if p.Seq <= last {
				e.Errorf("Seq of a new plan: got %d, want more than %d", p.Seq, last)
			}
			want, last = append(want, p.ID), p.Seq
		}
	}
	remove := func(i int) {
		e.update(account, func(tx core.Tx) error { return tx.DeletePlan(want[i]) })
		_, err := e.Store.Plan(e.ctx, account, want[i])
		e.isErr("the deleted plan", err, core.ErrPlanNotFound)
		want = append(want[:i:i], want[i+1:]...)
	}
	create(12)
	e.wantPlans(account, want...)
	remove(11)
	remove(5)
	remove(0)
	e.wantPlans(account, want...)
	e.put(newPlan(account, "plan_a"), newPlan(account, "plan_Z"))
	want = append(want, "plan_a", "plan_Z")
	e.wantPlans(account, want...)
	for range 11 {
		remove(len(want) - 1)
	}
	e.reopen()
	p := newPlan(account, "plan_last")
	e.put(p)
	if p.Seq <= last+2 {
		e.Errorf("Seq after deletions and reopening: got %d, want more than %d", p.Seq, last+2)
	}
	e.wantPlans(account, p.ID)
}

var planTotalsCases = []testCase{
	{name: "plan totals/of the plan", run: planTotalsOfPlan,
		promise: "PlanTotals adds up the counters of exactly the keys and users that have the plan as PlanID now"},
	{name: "plan totals/top", run: planTotalsTop,
		promise: "Top has the n counters with the highest usage above 0, highest first; of equal usage users by id, then keys by Seq"},
	{name: "plan totals/window", run: planTotalsWindow,
		promise: "the usage is that of the window of the period at the given time, or of a later window that the counter has seen"},
	{name: "plan totals/many", run: planTotalsMany,
		promise: "PlanTotals includes each of many counters once, also after reopening"},
	{name: "plan totals/seen at once", run: planTotalsSeenAtOnce,
		promise: "PlanTotals includes every Consume that has returned"},
}

// wantPlanTotals fails unless the totals of a plan are used, and the top counters are top, each
// written as the id of a key or user and its usage.
func (e *env) wantPlanTotals(account, plan string, p core.Period, at time.Time, n int, used int64, most ...string) {
	e.Helper()
	d, err := e.Store.PlanTotals(e.ctx, account, plan, p, at, n)
	e.ok("PlanTotals", err)
	var got []string
	for _, u := range d.Top {
		name := u.KeyID
		if name == "" {
			name = fmt.Sprint(u.UserID)
		}
		got = append(got, fmt.Sprint(name, " ", u.Used))
		seq := int64(0)
		if u.KeyID != "" {
			k, err := e.Store.Key(e.ctx, account, u.KeyID)
			e.ok("Key", err)
			seq = k.Seq
		}
		if u.Account != account || u.Seq != seq || u.KeyID != "" && u.UserID != 0 {
			e.Errorf("a counter that draws on %s: got %+v, want the account %s and the Seq %d", plan, u, account, seq)
		}
	}
	what := fmt.Sprintf("totals of %s of %s in the %v of %v", plan, account, p, at)
	e.same(what, used, d.Used)
	e.same(what+": the most", strings.Join(most, ", "), strings.Join(got, ", "))
}

// twoPlans creates two users in a new account. The first has plan_1, a key that shares it, and a
// key of its own on plan_2. The second has plan_2 and a key that shares it.
func (e *env) twoPlans() (second *core.User, shared, own, other *core.Key) {
	e.Helper()
	account := e.account()
	first := newUser(account, "first")
	second = newUser(account, "second")
	first.PlanID, second.PlanID = "plan_1", "plan_2"
	e.put(first, second, newPlan(account, "plan_1"), newPlan(account, "plan_2"))
	shared, own, other = newKey(account, "key_shared", 1, ""), newKey(account, "key_own", 1, "plan_2"), newKey(account, "key_other", 2, "")
	e.put(shared, own, other)
	return second, shared, own, other
}

func planTotalsOfPlan(e *env) {
	second, shared, own, other := e.twoPlans()
	account := second.AccountID
	e.wantPlanTotals(account, "plan_2", core.Month, noon, 10, 0)
	e.allowed(cost(under(request(shared, noon), "plan_1", core.Month, 100), 1))
	e.allowed(cost(under(request(own, noon), "plan_2", core.Month, 100), 2))
	e.allowed(cost(under(request(other, noon), "plan_2", core.Month, 100), 4))
	e.denied(cost(under(request(other, noon), "plan_2", core.Month, 10), 7))
	for range 2 {
		e.wantPlanTotals(account, "plan_1", core.Month, noon, 10, 1, "1 1")
		e.wantPlanTotals(account, "plan_2", core.Month, noon, 10, 6, "2 4", "key_own 2")
		e.wantPlanTotals(account, "plan_never", core.Month, noon, 10, 0)
		e.wantPlanTotals("acct_never", "plan_1", core.Month, noon, 10, 0)
		e.reopen()
	}
	own.PlanID, second.PlanID = "plan_1", ""
	e.put(own, second)
	e.wantPlanTotals(account, "plan_1", core.Month, noon, 10, 3, "key_own 2", "1 1")
	e.wantPlanTotals(account, "plan_2", core.Month, noon, 10, 0)
	own.UserID = 2 // a key keeps its counter
	e.put(own)
	e.wantPlanTotals(account, "plan_1", core.Month, noon, 10, 3, "key_own 2", "1 1")
	e.deleteKeys(account, own.ID)
	e.wantPlanTotals(account, "plan_1", core.Month, noon, 10, 1, "1 1")
	e.deleteUsers(account, 1)
	e.wantPlanTotals(account, "plan_1", core.Month, noon, 10, 0)
}

func planTotalsTop(e *env) {
	account := e.account()
	var users, keys []any
	for i := range 4 {
		u := newUser(account, fmt.Sprint("user ", i+1))
		u.PlanID = "plan_1"
		users = append(users, u)
	}
	e.put(append(users, newPlan(account, "plan_1"))...)
	for i := range 6 { // the first two keys have no plan of their own
		plan := ""
		if i >= 2 {
			plan = "plan_1"
		}
		keys = append(keys, newKey(account, fmt.Sprintf("key_%d", 9-i), int64(i%4)+1, plan))
	}
	e.put(keys...)
	for i, n := range []int64{5, 3, 5, 0, 8, 3} {
		if n > 0 {
			e.allowed(cost(request(keys[i].(*core.Key), noon), n))
		}
	}
	all := []string{"key_5 8", "1 5", "key_7 5", "2 3", "key_4 3"}
	for range 2 {
		for n := range len(all) + 2 {
			e.wantPlanTotals(account, "plan_1", core.Month, noon, n, 24, all[:min(n, len(all))]...)
		}
		e.reopen()
	}
}

func planTotalsWindow(e *env) {
	keys := e.user1("key_1", "key_2")
	account := keys[0].AccountID
	e.allowed(cost(request(keys[0], noon), 5))
	e.allowed(cost(request(keys[1], noon), 2))
	later := noon.AddDate(0, 0, 1)
	e.allowed(cost(request(keys[0], later), 3))
	for range 2 {
		e.wantPlanTotals(account, "plan_1", core.Year, later, 9, 10, "key_1 8", "key_2 2")
		e.wantPlanTotals(account, "plan_1", core.Day, later, 9, 3, "key_1 3")
		e.wantPlanTotals(account, "plan_1", core.Day, noon, 9, 5, "key_1 3", "key_2 2")
		e.wantPlanTotals(account, "plan_1", core.Month, noon.AddDate(0, 2, 0), 9, 0)
		e.reopen()
	}
	d, err := e.Store.PlanTotals(e.ctx, account, "plan_1", core.Day, noon, 9)
	e.ok("PlanTotals", err)
	e.same("the windows of the most", []core.Window{core.Day.Window(later), core.Day.Window(noon)}, []core.Window{d.Top[0].Window, d.Top[1].Window})
}

func planTotalsMany(e *env) {
	const many = 1100
	account := e.account()
	pl, keys := Fill(e, e.Store, account, many)
	for i, k := range keys {
		if i%2 == 0 {
			e.allowed(cost(limit(request(k, noon), core.Month, 10*many), int64(i+1)))
		}
	}
	for range 2 {
		e.wantPlanTotals(account, pl.ID, core.Month, noon, 2, many/2*many/2, fmt.Sprintf("%s %d", keys[many-2].ID, many-1), fmt.Sprintf("%s %d", keys[many-4].ID, many-3))
		e.reopen()
	}
	e.allowed(cost(limit(request(keys[1], noon), core.Month, 10*many), many))
	e.wantPlanTotals(account, pl.ID, core.Month, noon, 1, many/2*many/2+many, fmt.Sprintf("%s %d", keys[1].ID, many))
}

func planTotalsSeenAtOnce(e *env) {
	const callers, times = 4, 10
	keys := e.user1("key_1", "key_2")
	account := keys[0].AccountID
	e.parallel(callers, func(i int) {
		for n := range int64(times) {
			c := limit(request(keys[i%2], noon), core.Month, callers*times)
			v, err := e.Store.Consume(e.ctx, &c)
			d, totalsErr := e.Store.PlanTotals(e.ctx, account, "plan_1", core.Month, noon, 2)
			if err != nil || totalsErr != nil || !v.Allowed || d.Used < v.Usage.Used || d.Used < n+1 {
				e.Errorf("after a request: got %+v, %+v, %v, %v, want all that was counted", v, d, err, totalsErr)
				return
			}
		}
	})
	e.wantPlanTotals(account, "plan_1", core.Month, noon, 2, callers*times, "key_1 20", "key_2 20")
}
