package service

import (
	"context"
	"math"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// CreatePlan creates a plan. Name, limit and period are required. It is a validation error if the
// account has reached max_plans.
func (s *Service) CreatePlan(ctx context.Context, account string, p core.PlanPatch) (*core.Plan, error) {
	return s.changePlan(ctx, account, p, func(b *Transaction) (*core.Plan, error) { return b.CreatePlan(p) })
}

// changePlan runs a transaction that changes one plan. A change of limits reads all plans of the account, see checkMeters: up to 160 MB.
func (s *Service) changePlan(ctx context.Context, account string, p core.PlanPatch, fn func(*Transaction) (*core.Plan, error)) (pl *core.Plan, err error) {
	if !p.Limits.Set {
		return changeOne(ctx, s, account, fn)
	}
	err = s.runQuery(ctx, account, wholeAccount, func() error {
		pl, err = changeOne(ctx, s, account, fn)
		return err
	})
	return pl, err
}

// CreatePlan is [Service.CreatePlan] in a transaction.
func (b *Transaction) CreatePlan(p core.PlanPatch) (*core.Plan, error) {
	if missing := p.Missing(); len(missing) > 0 {
		return nil, missing[0]
	}
	now := b.s.now()
	pl := &core.Plan{AccountID: b.account, ID: secrets.NewID("plan_"), Period: core.Month, CreatedAt: now, UpdatedAt: now}
	if err := core.PlanMembers.Apply(&p, pl); err != nil {
		return nil, err
	}
	_, n, err := b.tx.Plans(core.Page{Number: 1, Size: 1})
	if err != nil {
		return nil, err
	}
	if err := checkCap("plan", b.s.tunables.Load().MaxPlans, n+b.newPlans); err != nil {
		return nil, err
	}
	b.setsLimits = b.setsLimits || len(pl.Limits) > 0
	return pl, b.putPlan(nil, pl)
}

// Plan returns a plan, or [core.ErrPlanNotFound].
func (s *Service) Plan(ctx context.Context, account, id string) (*core.Plan, error) {
	return s.store.Plan(ctx, account, id)
}

// Plans returns a page of the plans of the account, oldest first, and their total.
func (s *Service) Plans(ctx context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	return s.store.Plans(ctx, account, p)
}

// UpdatePlan sets the members that p names and returns the whole plan. The next request is decided
// under the changed plan.
func (s *Service) UpdatePlan(ctx context.Context, account, id string, p core.PlanPatch) (*core.Plan, error) {
	return s.changePlan(ctx, account, p, func(b *Transaction) (*core.Plan, error) { return b.UpdatePlan(id, p) })
}

// UpdatePlan is [Service.UpdatePlan] in a transaction.
func (b *Transaction) UpdatePlan(id string, p core.PlanPatch) (*core.Plan, error) {
	before, err := b.Plan(id)
	if err != nil {
		return nil, err
	}
	pl := *before
	if err := core.PlanMembers.Apply(&p, &pl); err != nil {
		return nil, err
	}
	pl.UpdatedAt = b.s.after(pl.UpdatedAt)
	b.setsLimits = b.setsLimits || p.Limits.Value != nil
	return &pl, b.putPlan(before, &pl)
}

// DeletePlan deletes a plan that no key and no user has.
func (s *Service) DeletePlan(ctx context.Context, account, id string) error {
	return s.transact(ctx, account, nil, func(b *Transaction) error { return b.DeletePlan(id) })
}

// DeletePlan is [Service.DeletePlan] in a transaction. It counts the keys of a deleted user, unless the transaction has deleted them
// before the user.
func (b *Transaction) DeletePlan(id string) error {
	pl, err := b.Plan(id)
	if err != nil {
		return err
	}
	keys, err := b.tx.CountKeys(core.KeyFilter{PlanID: &id})
	if err != nil {
		return err
	}
	users, err := b.tx.CountUsers(core.UserFilter{PlanID: id})
	if err != nil {
		return err
	}
	keys, users = keys+b.moreKeys[keysOf{0, id}], users+b.moreUsers[id]
	if keys+users > 0 {
		return core.Invalid("id", "The plan is in use: "+countNoun(keys, "key")+" and "+countNoun(users, "user")+" have it")
	}
	return b.putPlan(pl, nil)
}

// checkPlanAssignable returns an error unless the plan exists and is active. An inactive plan is
// accepted if it is the present plan, had.
func (b *Transaction) checkPlanAssignable(id, had string) error {
	pl, err := b.Plan(id)
	if err != nil {
		return err
	}
	if pl.Inactive && id != had {
		return core.Invalid("plan_id", "The plan is inactive and can be given to nobody else")
	}
	return nil
}

// PlanUsage is the usage of a plan in the current window.
type PlanUsage struct {
	Plan  *core.Plan
	Users int   // users with the plan, or with a key that has it
	Used  int64 // the sum of the counters
}

// Average returns the mean usage of a user with two decimals, 0 without users.
func (u *PlanUsage) Average() float64 {
	if u.Users == 0 {
		return 0
	}
	return math.Round(float64(u.Used)/float64(u.Users)*100) / 100
}

// PlanUsage returns the usage of a plan. It reads the counters of all keys and users with the plan.
// Above 1,000 of them it is a large query: an account runs one at a time, see [ErrTooManyRequests].
func (s *Service) PlanUsage(ctx context.Context, account, id string) (*PlanUsage, error) {
	pl, err := s.store.Plan(ctx, account, id)
	if err != nil {
		return nil, err
	}
	_, users, err := s.store.Users(ctx, account, core.UserFilter{OnPlan: id}, core.Page{Number: 1, Size: 1})
	if err != nil {
		return nil, err
	}
	_, keys, err := s.store.Keys(ctx, account, core.KeyFilter{PlanID: &id}, core.Page{Number: 1, Size: 1})
	if err != nil {
		return nil, err
	}
	var used int64
	err = s.runQuery(ctx, account, users+keys, func() error {
		used, err = s.planUsed(ctx, pl)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &PlanUsage{Plan: pl, Users: users, Used: used}, nil
}

// planUsed is [core.Store.PlanUsed] for the period of a plan. It counts users with anchors in the windows of their anchors.
func (s *Service) planUsed(ctx context.Context, pl *core.Plan) (int64, error) {
	at := s.now()
	anchored, err := s.anchoredCounters(ctx, pl)
	if err != nil {
		return 0, err
	}
	used, err := s.store.PlanUsed(ctx, pl.AccountID, pl.ID, pl.Period, at)
	if err != nil {
		return 0, err
	}
	for part := range slices.Chunk(anchored, core.ReadSize) {
		counters, err := countersOf(s.counters(ctx), part, limitedCounter.id)
		if err != nil {
			return 0, err
		}
		for i := range counters {
			used -= counters[i].Usage(core.MeterRequests, pl.Period, nil, at).Used // PlanUsed has counted the window of the calendar
			used = core.AddSaturating(max(0, used), counters[i].Usage(core.MeterRequests, pl.Period, part[i].anchors, at).Used)
		}
	}
	return used, nil
}

// anchoredCounters returns the counters that a plan limits and whose windows begin with anchors.
func (s *Service) anchoredCounters(ctx context.Context, pl *core.Plan) (list []limitedCounter, err error) {
	return list, s.eachUser(ctx, pl.AccountID, core.UserFilter{Anchored: true}, func(u *core.User) error {
		if u.PlanID == pl.ID {
			list = append(list, limitedCounter{core.CounterID{Account: pl.AccountID, UserID: u.ID}, 0, pl.ID, u.Anchors, nil})
		}
		return s.eachKey(ctx, pl.AccountID, core.KeyFilter{UserID: u.ID, PlanID: &pl.ID}, func(k *core.Key) error {
			list = append(list, limitedCounter{core.CounterID{Account: pl.AccountID, KeyID: k.ID}, k.Seq, pl.ID, u.Anchors, k})
			return nil
		})
	})
}
