package storetest

import (
	"fmt"
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
