package core

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"
)

// MaxLimit is the largest max_requests of a plan: the largest integer that every
// JSON reader keeps exactly (RFC 8259 section 6).
const MaxLimit = 1<<53 - 1

// The bounds of a plan's members.
const (
	maxDescriptionLength = 4096 // characters
	maxFeatures          = 100
	maxPlanBytes         = 16 << 10 // of a plan as JSON: an account has up to 10,000 plans, and some calls read all of them
)

// Plan is a set of limits, each a maximum of one meter in one period, with an optional rate.
type Plan struct {
	AccountID   string    `json:"account_id"`
	ID          string    `json:"id"`  // plan_…
	Seq         int64     `json:"seq"` // from 1, in the order of creation within the account
	Name        string    `json:"name"`
	Description *string   `json:"description,omitempty"`
	Limit       int64     `json:"limit"` // requests in a period, 1…MaxLimit, or Unlimited
	Period      Period    `json:"period"`
	Limits      []Limit   `json:"limits,omitempty"`   // further limits, none of them of requests in Period
	Rate        *Rate     `json:"rate,omitempty"`     // nil for none
	Inactive    bool      `json:"inactive,omitempty"` // existing keys and users keep the plan; new assignments are refused
	Features    []string  `json:"features,omitempty"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// Terms returns the terms of a decision under the plan.
func (p *Plan) Terms() Terms {
	return Terms{PlanID: p.ID, PlanName: p.Name, Period: p.Period, Limit: p.Limit, Further: p.Limits, Rate: p.Rate}
}

// Primary returns the primary limit, which is [Limit.Unlimited] if the plan has none.
func (p *Plan) Primary() Limit { return Limit{MeterRequests, p.Limit, p.Period} }

// limitAt returns the limit at an index, see [Terms.LimitAt].
func (p *Plan) limitAt(i int) Limit {
	if i == 0 {
		return p.Primary()
	}
	return p.Limits[i-1]
}

// LimitUsages returns the usage of a counter under each limit of the plan, the primary one first. Without any limit it
// returns the usage of the requests in the period, and the limit is [Limit.Unlimited].
func (p *Plan) LimitUsages(c *Counter, anchors Anchors, at time.Time) []LimitUsage {
	var list []LimitUsage
	for i := range 1 + len(p.Limits) {
		if l := p.limitAt(i); !l.Unlimited() || len(p.Limits) == 0 {
			list = append(list, LimitUsage{l, c.Usage(l.Meter, l.Period, anchors, at)})
		}
	}
	return list
}

// PlanPatch holds the members of a plan to set. A nil pointer and an unset
// [Optional] leave the member alone; on creation they leave it empty.
type PlanPatch struct {
	Name        *string
	Description Optional[string]
	Limit       Optional[int64] // cleared: no primary limit
	Period      *string         // day, week, month or year
	Limits      Optional[[]Limit]
	Rate        Optional[Rate]
	Active      *bool
	Features    Optional[[]string]
}

// PlanMembers describe plans.
var PlanMembers = Members[Plan, PlanPatch]{
	List: []Member[Plan, PlanPatch]{
		nameMember(func(p *PlanPatch) **string { return &p.Name }, func(pl *Plan) *string { return &pl.Name }),
		nullable("description", TypeText, func(p *PlanPatch) *Optional[string] { return &p.Description }, func(pl *Plan) *string { return pl.Description },
			func(pl *Plan, v *string) error {
				pl.Description = v
				return nil
			}),
		nullable("max_requests", TypeWhole, func(p *PlanPatch) *Optional[int64] { return &p.Limit }, (*Plan).limit,
			func(pl *Plan, v *int64) error {
				if pl.Limit = Unlimited; v == nil {
					return nil
				}
				if pl.Limit = *v; *v < 1 || *v > MaxLimit {
					return invalid("max_requests", "Max requests must be greater than 0 and at most 9007199254740991")
				}
				return nil
			}).required(),
		plain("request_period", TypeText, func(p *PlanPatch) **string { return &p.Period }, func(pl *Plan) string { return pl.Period.String() },
			func(pl *Plan, v string) (err error) {
				if pl.Period, err = ParsePeriod(v); err != nil || !slices.Contains(PlanPeriods(), pl.Period) {
					return invalid("request_period", "Request period must be one of "+PeriodNames(PlanPeriods()))
				}
				return nil
			}).required(),
		nullable("limits", TypeLimits, func(p *PlanPatch) *Optional[[]Limit] { return &p.Limits }, func(pl *Plan) *[]Limit { return notNil(pl.Limits) },
			func(pl *Plan, v *[]Limit) error {
				pl.Limits = orZero(v)
				return nil
			}),
		nullable("rate", TypeRate, func(p *PlanPatch) *Optional[Rate] { return &p.Rate }, func(pl *Plan) *Rate { return pl.Rate },
			func(pl *Plan, v *Rate) error {
				pl.Rate = v
				return nil
			}),
		plain("is_active", TypeFlag, func(p *PlanPatch) **bool { return &p.Active }, func(pl *Plan) bool { return !pl.Inactive },
			func(pl *Plan, v bool) error {
				pl.Inactive = !v
				return nil
			}),
		nullable("features", TypeTexts, func(p *PlanPatch) *Optional[[]string] { return &p.Features }, func(pl *Plan) *[]string { return notNil(pl.Features) },
			func(pl *Plan, v *[]string) error {
				pl.Features = orZero(v)
				return nil
			}),
	},
	fresh: func() *Plan { return &Plan{Limit: Unlimited, Period: Month} },
	rule:  (*Plan).check,
}

// limit returns the primary limit, nil for none.
func (p *Plan) limit() *int64 {
	if p.Limit == Unlimited {
		return nil
	}
	return &p.Limit
}

// check returns an error unless the limits are valid, and the texts within their bounds.
func (p *Plan) check() error {
	if err := p.checkLimits(); err != nil {
		return err
	}
	return p.checkTexts()
}

// Check returns a validation error unless the members of the plan are valid.
func (p *Plan) Check() error { return PlanMembers.check(p) }

// checkTexts returns an error unless the description and the features are within their bounds, and the plan within maxPlanBytes.
func (p *Plan) checkTexts() error {
	if p.Description != nil && utf8.RuneCountInString(*p.Description) > maxDescriptionLength {
		return invalid("description", "Description must be at most 4096 characters long")
	}
	if len(p.Features) > maxFeatures {
		return invalid("features", "Features must be at most 100")
	}
	for _, f := range p.Features {
		if utf8.RuneCountInString(f) > maxNameLength {
			return invalid("features", "Each feature must be at most 255 characters long")
		}
	}
	given := *p
	given.Seq, given.CreatedAt, given.UpdatedAt = 0, time.Time{}, time.Time{} // a plan that was accepted stays within the bound
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	err := enc.Encode(&given)
	if err == nil && text.Len() > maxPlanBytes {
		field := "features"
		if p.Description != nil && 2*len(*p.Description) > maxPlanBytes {
			field = "description"
		}
		err = invalid(field, fmt.Sprintf("A plan must be at most %d bytes of JSON, and is %d: shorten its description or its features", maxPlanBytes, text.Len()))
	}
	return err
}

// Missing returns an error for each member that a new plan requires and the patch lacks. A plan without a primary limit needs no period.
func (p PlanPatch) Missing() []error {
	if p.Limit.Set && p.Limit.Value == nil {
		p.Period = new("")
	}
	return PlanMembers.Missing(p)
}

// CreatePlan creates a plan. Name, limit and period are required. It is a validation error if the
// account has reached max_plans.
func (s *Service) CreatePlan(ctx context.Context, account string, p PlanPatch) (*Plan, error) {
	return s.planBatch(ctx, account, p, func(b *Batch) (*Plan, error) { return b.CreatePlan(p) })
}

// planBatch runs a batch that changes one plan. A change of limits reads all plans of the account, see checkMeters: up to 160 MB.
func (s *Service) planBatch(ctx context.Context, account string, p PlanPatch, fn func(*Batch) (*Plan, error)) (pl *Plan, err error) {
	if !p.Limits.Set {
		return batchOf(ctx, s, account, false, fn)
	}
	err = s.runQuery(ctx, account, wholeAccount, func() error {
		pl, err = batchOf(ctx, s, account, true, fn)
		return err
	})
	return pl, err
}

// CreatePlan is [Service.CreatePlan] in a batch.
func (b *Batch) CreatePlan(p PlanPatch) (*Plan, error) {
	if missing := p.Missing(); len(missing) > 0 {
		return nil, missing[0]
	}
	now := b.s.now()
	pl := &Plan{AccountID: b.account, ID: newID("plan_"), Period: Month, CreatedAt: now, UpdatedAt: now}
	if err := PlanMembers.apply(&p, pl); err != nil {
		return nil, err
	}
	_, n, err := b.tx.Plans(Page{1, 1})
	if err != nil {
		return nil, err
	}
	if err := checkCap("plan", b.s.caps.plans.Load(), n+b.newPlans); err != nil {
		return nil, err
	}
	b.setsLimits = b.setsLimits || len(pl.Limits) > 0
	return pl, b.putPlan(nil, pl)
}

// Plan returns a plan, or [ErrPlanNotFound].
func (s *Service) Plan(ctx context.Context, account, id string) (*Plan, error) {
	return s.store.Plan(ctx, account, id)
}

// Plans returns a page of the plans of the account, oldest first, and their total.
func (s *Service) Plans(ctx context.Context, account string, p Page) ([]*Plan, int, error) {
	return s.store.Plans(ctx, account, p)
}

// UpdatePlan sets the members that p names and returns the whole plan. The next request is decided
// under the changed plan.
func (s *Service) UpdatePlan(ctx context.Context, account, id string, p PlanPatch) (*Plan, error) {
	return s.planBatch(ctx, account, p, func(b *Batch) (*Plan, error) { return b.UpdatePlan(id, p) })
}

// UpdatePlan is [Service.UpdatePlan] in a batch.
func (b *Batch) UpdatePlan(id string, p PlanPatch) (*Plan, error) {
	before, err := b.Plan(id)
	if err != nil {
		return nil, err
	}
	pl := *before
	if err := PlanMembers.apply(&p, &pl); err != nil {
		return nil, err
	}
	pl.UpdatedAt = b.s.after(pl.UpdatedAt)
	b.setsLimits = b.setsLimits || p.Limits.Value != nil
	return &pl, b.putPlan(before, &pl)
}

// DeletePlan deletes a plan that no key and no user has.
func (s *Service) DeletePlan(ctx context.Context, account, id string) error {
	return s.batch(ctx, account, batchNeeds{}, func(b *Batch) error { return b.DeletePlan(id) })
}

// DeletePlan is [Service.DeletePlan] in a batch. It counts the keys of a deleted user, unless the batch has deleted them
// before the user.
func (b *Batch) DeletePlan(id string) error {
	pl, err := b.Plan(id)
	if err != nil {
		return err
	}
	keys, err := b.tx.CountKeys(KeyFilter{PlanID: &id})
	if err != nil {
		return err
	}
	users, err := b.tx.CountUsers(UserFilter{PlanID: id})
	if err != nil {
		return err
	}
	keys, users = keys+b.moreKeys[keysOf{0, id}], users+b.moreUsers[id]
	if keys+users > 0 {
		return invalid("id", "The plan is in use: "+countNoun(keys, "key")+" and "+countNoun(users, "user")+" have it")
	}
	return b.putPlan(pl, nil)
}

// checkPlanAssignable returns an error unless the plan exists and is active. An inactive plan is
// accepted if it is the present plan, had.
func (b *Batch) checkPlanAssignable(id, had string) error {
	pl, err := b.Plan(id)
	if err != nil {
		return err
	}
	if pl.Inactive && id != had {
		return invalid("plan_id", "The plan is inactive and can be given to nobody else")
	}
	return nil
}

// PlanUsage is the usage of a plan in the current window.
type PlanUsage struct {
	Plan  *Plan
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
	_, users, err := s.store.Users(ctx, account, UserFilter{OnPlan: id}, Page{1, 1})
	if err != nil {
		return nil, err
	}
	_, keys, err := s.store.Keys(ctx, account, KeyFilter{PlanID: &id}, Page{1, 1})
	if err != nil {
		return nil, err
	}
	var totals PlanTotals
	err = s.runQuery(ctx, account, users+keys, func() error {
		anchored, err := s.anchoredCounters(ctx, account)
		if err == nil {
			totals, err = s.planTotals(ctx, pl, anchored[id], s.now(), 0)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &PlanUsage{Plan: pl, Users: users, Used: totals.Used}, nil
}
