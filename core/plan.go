package core

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	OnExceed    OnExceed  `json:"on_exceed,omitempty"`   // of Limit
	Limits      []Limit   `json:"limits,omitempty"`      // further limits, none of them of requests in Period
	Rate        *Rate     `json:"rate,omitempty"`        // nil for none
	Concurrency int64     `json:"concurrency,omitempty"` // 0 for no bound: see [Terms.Concurrency]
	Inactive    bool      `json:"inactive,omitempty"`    // existing keys and users keep the plan; new assignments are refused
	Features    []string  `json:"features,omitempty"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// Terms returns the terms of a decision under the plan.
func (p *Plan) Terms() Terms {
	return Terms{PlanID: p.ID, PlanName: p.Name, Period: p.Period, OnExceed: p.OnExceed, Limit: p.Limit, Further: p.Limits, Rate: p.Rate, Concurrency: p.Concurrency}
}

// Primary returns the primary limit, which is [Limit.Unlimited] if the plan has none.
func (p *Plan) Primary() Limit { return Limit{MeterRequests, p.Limit, p.Period, p.OnExceed} }

// PlanPatch holds the members of a plan to set. A nil pointer and an unset
// [Optional] leave the member alone; on creation they leave it empty.
type PlanPatch struct {
	Name        *string
	Description Optional[string]
	Limit       Optional[int64] // cleared: no primary limit
	Period      *string         // day, week, month or year
	OnExceed    *string         // deny or allow
	Limits      Optional[[]Limit]
	Rate        Optional[Rate]
	Concurrency Optional[int64]
	Active      *bool
	Features    Optional[[]string]
}

// PlanMembers describe plans.
var PlanMembers = Members[Plan, PlanPatch]{
	List: []Member[Plan, PlanPatch]{
		nameMember(func(p *PlanPatch) **string { return &p.Name }, func(pl *Plan) *string { return &pl.Name }),
		nullable("description", TypeText, func(p *PlanPatch) *Optional[string] { return &p.Description }, func(pl *Plan) *string { return pl.Description },
			unchecked(func(pl *Plan, v *string) { pl.Description = v })),
		nullable("max_requests", TypeWhole, func(p *PlanPatch) *Optional[int64] { return &p.Limit }, (*Plan).limit,
			func(pl *Plan, v *int64) error {
				if pl.Limit = Unlimited; v == nil {
					return nil
				}
				if pl.Limit = *v; *v < 1 || *v > MaxLimit {
					return Invalid("max_requests", "Max requests must be greater than 0 and at most 9007199254740991")
				}
				return nil
			}).required(),
		word("request_period", namesOf(PlanPeriods()), "Request period must be one of "+PeriodNames(PlanPeriods()),
			func(p *PlanPatch) **string { return &p.Period }, func(pl *Plan) string { return pl.Period.String() },
			func(pl *Plan, v string) { pl.Period, _ = ParsePeriod(v) }).required(),
		word("on_exceed", exceedWords, "On exceed must be deny or allow", func(p *PlanPatch) **string { return &p.OnExceed },
			func(pl *Plan) string { return pl.OnExceed.String() }, func(pl *Plan, v string) { pl.OnExceed, _ = ParseOnExceed(v) }),
		nullable("limits", TypeLimits, func(p *PlanPatch) *Optional[[]Limit] { return &p.Limits }, func(pl *Plan) *[]Limit { return notNil(pl.Limits) },
			unchecked(func(pl *Plan, v *[]Limit) { pl.Limits = OrZero(v) })),
		nullable("rate", TypeRate, func(p *PlanPatch) *Optional[Rate] { return &p.Rate }, func(pl *Plan) *Rate { return pl.Rate },
			unchecked(func(pl *Plan, v *Rate) { pl.Rate = v })),
		concurrencyMember(func(p *PlanPatch) *Optional[int64] { return &p.Concurrency }, func(pl *Plan) int64 { return pl.Concurrency },
			func(pl *Plan, n int64) { pl.Concurrency = n }),
		plain("is_active", TypeFlag, func(p *PlanPatch) **bool { return &p.Active }, func(pl *Plan) bool { return !pl.Inactive },
			unchecked(func(pl *Plan, v bool) { pl.Inactive = !v })),
		nullable("features", TypeTexts, func(p *PlanPatch) *Optional[[]string] { return &p.Features }, func(pl *Plan) *[]string { return notNil(pl.Features) },
			unchecked(func(pl *Plan, v *[]string) { pl.Features = OrZero(v) })),
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
	if err := (OwnLimits{p.Limits, p.Rate, p.Concurrency}).check(); err != nil {
		return err
	}
	for i, l := range p.Limits {
		if p.Limit != Unlimited && l.Meter == MeterRequests && l.Period == p.Period {
			return Invalid("limits", fmt.Sprintf("Limit %d repeats max_requests and request_period", i+1))
		}
	}
	return p.checkTexts()
}

// Check returns a validation error unless the members of the plan are valid.
func (p *Plan) Check() error { return PlanMembers.check(p) }

// checkTexts returns an error unless the description and the features are within their bounds, and the plan within maxPlanBytes.
func (p *Plan) checkTexts() error {
	if p.Description != nil && utf8.RuneCountInString(*p.Description) > maxDescriptionLength {
		return Invalid("description", "Description must be at most 4096 characters long")
	}
	if len(p.Features) > maxFeatures {
		return Invalid("features", "Features must be at most 100")
	}
	for _, f := range p.Features {
		if utf8.RuneCountInString(f) > maxNameLength {
			return Invalid("features", "Each feature must be at most 255 characters long")
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
		err = Invalid(field, fmt.Sprintf("A plan must be at most %d bytes of JSON, and is %d: shorten its description or its features", maxPlanBytes, text.Len()))
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
