package core

import (
	"fmt"
	"slices"
	"time"
)

// Override is a limit for one user. It replaces the limit of its meter and period in the plan of the user, and in the plans that
// keys of the user have of their own. If a plan has no such limit, the override is one more limit.
type Override struct {
	Meter  string     `json:"meter"`
	Max    int64      `json:"max"`
	Period Period     `json:"period"`
	Until  *time.Time `json:"until,omitempty"` // from then on the plan applies again; nil: no end
}

// Overrides are the overrides of a user. [User] has a pointer to them: it is 16 bytes smaller in a cache than a slice.
type Overrides []Override

// List returns the overrides, none for nil.
func (o *Overrides) List() []Override {
	if o == nil {
		return nil
	}
	return *o
}

// Override replaces limits of the terms by the overrides that are in force at a time.
func (t *Terms) Override(o *Overrides, at time.Time) {
	if o == nil {
		return
	}
	t.Further = slices.Clone(t.Further) // other terms share it
	for _, by := range *o {
		if by.ended(at) {
			continue
		}
		if by.Meter == MeterRequests && by.Period == t.Period && t.Limit != Unlimited {
			t.Limit, t.OfUser = by.Max, t.OfUser|1
			continue
		}
		i := slices.IndexFunc(t.Further, func(l Limit) bool { return l.Meter == by.Meter && l.Period == by.Period })
		if i < 0 {
			i, t.Further = len(t.Further), append(t.Further, Limit{Meter: by.Meter, Period: by.Period})
		}
		t.Further[i].Max, t.OfUser = by.Max, t.OfUser|2<<i
	}
}

// checkOverrides returns an error unless the overrides of a user are valid.
func checkOverrides(list []Override) error {
	limits := make([]Limit, len(list))
	for i, o := range list {
		limits[i] = Limit{Meter: o.Meter, Max: o.Max, Period: o.Period}
	}
	return checkLimits("overrides", limits)
}

// checkEnds returns an error if an override has ended that is not among the earlier ones: it would change nothing.
func checkEnds(list, earlier []Override, now time.Time) error {
	for i, o := range list {
		if o.ended(now) && !slices.ContainsFunc(earlier, o.equal) {
			return Invalid("overrides", fmt.Sprintf("The until of override %d must be in the future", i+1))
		}
	}
	return nil
}

// ended reports whether the plan applies again at a time.
func (o Override) ended(at time.Time) bool { return o.Until != nil && !at.Before(*o.Until) }

func (o Override) equal(p Override) bool {
	return o.Meter == p.Meter && o.Max == p.Max && o.Period == p.Period && (o.Until == nil) == (p.Until == nil) && OrZero(o.Until).Equal(OrZero(p.Until))
}
