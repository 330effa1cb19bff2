package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// metersOf are the meters that limits and prices of an account name, besides requests. The value is true if a limit of a key or
// an override has named the meter.
type metersOf map[string]bool

// add adds a meter. own is true for a meter of a limit of a key or of an override.
func (m metersOf) add(meter string, own bool) {
	if meter != core.MeterRequests {
		m[meter] = m[meter] || own
	}
}

// addPlan adds the meters of the limits of a plan.
func (m metersOf) addPlan(p *core.Plan) {
	for _, l := range p.Limits {
		m.add(l.Meter, false)
	}
}

// addPrices adds the meters of prices.
func (m metersOf) addPrices(p *core.Prices) {
	for _, meter := range p.Meters() {
		m.add(meter, false)
	}
}

// has reports whether a meter is one of them.
func (m metersOf) has(meter string) bool {
	_, has := m[meter]
	return has
}

// loadMeters reads the meters of an account for the cache.
func (s *Service) loadMeters(ctx context.Context, account string) (*metersOf, error) {
	a, err := s.store.Account(ctx, account)
	if errors.Is(err, core.ErrAccountNotFound) {
		return new(metersOf), nil
	}
	if err != nil {
		return nil, err
	}
	meters := metersOf{}
	for _, name := range a.OwnMeters {
		meters.add(name, true)
	}
	list := func(p core.Page) ([]*core.Plan, int, error) { return s.store.Plans(ctx, account, p) }
	err = core.Each(ctx, core.ReadSize, list, func(p *core.Plan) error {
		meters.addPlan(p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	p, err := s.store.Prices(ctx, account)
	if err == nil {
		meters.addPrices(p)
	}
	return &meters, err
}

// Meters returns the meters of an account: first [core.MeterRequests], then the others, sorted. The others are the meters that plans
// and prices name now, and the meters that a limit of a key or an override has ever named.
func (s *Service) Meters(ctx context.Context, account string) ([]string, error) {
	meters, err := s.meters.get(ctx, account)
	if err != nil {
		return nil, err
	}
	return append([]string{core.MeterRequests}, slices.Sorted(maps.Keys(*meters))...), nil
}

// CheckMeter returns an error unless the account has the meter or has had it. No meter, "", is right, too.
func (s *Service) CheckMeter(ctx context.Context, account, meter string) error {
	if meter == "" || meter == core.MeterRequests {
		return nil
	}
	meters, err := s.meters.get(ctx, account)
	if err != nil || meters.has(meter) {
		return err
	}
	a, err := s.store.Account(ctx, account)
	if err == nil && !slices.Contains(a.Meters, meter) {
		err = core.Invalid("meter", "No limit and no price of the account has ever named this meter")
	}
	return err
}

// checkMeters returns an error when the transaction sets limits or prices, and the plans and prices of its account would name more than MaxMeters
// meters, or the account would have had more than MaxMetersEver. It sets newMeters if the account has never had one of the meters, or a key or user
// names one for the first time. The meters of keys and users count to MaxMetersEver only: no store finds the keys that name a meter.
func (b *Transaction) checkMeters(ctx context.Context) error {
	meters, field := maps.Clone(b.ownMeters), "limits"
	if b.setsLimits || b.prices != nil {
		if !b.setsLimits {
			field = "rules"
		}
		named, err := b.namedMeters(ctx)
		if err != nil {
			return err
		}
		if len(named) > core.MaxMeters {
			return core.Invalid(field, fmt.Sprintf("The plans and prices of an account name at most %d meters besides requests; with this change they would name %d",
				core.MaxMeters, len(named)))
		}
		for name := range named {
			meters.add(name, false)
		}
	}
	err := meters.addTo(&core.Account{Meters: slices.Clone(b.before.Meters), OwnMeters: slices.Clone(b.before.OwnMeters)}, field)
	if errors.Is(err, errUnchanged) {
		return nil
	}
	b.newMeters = meters
	return err
}

// namedMeters returns the meters that plans and prices name after the transaction.
func (b *Transaction) namedMeters(ctx context.Context) (metersOf, error) {
	meters := metersOf{}
	for _, p := range b.plans {
		if p != nil {
			meters.addPlan(p)
		}
	}
	err := core.Each(ctx, core.ReadSize, b.tx.Plans, func(p *core.Plan) error {
		if _, changed := b.plans[p.ID]; !changed {
			meters.addPlan(p)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	prices, err := b.Prices()
	if err == nil {
		meters.addPrices(prices)
	}
	return meters, err
}

// addTo adds the meters to [core.Account.Meters] and OwnMeters. It returns errUnchanged if both have them already, and an error
// of the field if the account would have had too many.
func (m metersOf) addTo(a *core.Account, field string) error {
	had, hadOwn := len(a.Meters), len(a.OwnMeters)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(a.Meters, name) {
			a.Meters = append(a.Meters, name)
		}
		if m[name] && !slices.Contains(a.OwnMeters, name) {
			a.OwnMeters = append(a.OwnMeters, name)
		}
	}
	switch {
	case len(a.Meters) == had && len(a.OwnMeters) == hadOwn:
		return errUnchanged
	case len(a.Meters) > core.MaxMetersEver:
		return core.Invalid(field, fmt.Sprintf("The limits and prices of an account name at most %d different meters in its lifetime. Use one of these again: %s",
			core.MaxMetersEver, strings.Join(a.Meters[:had], " ")))
	}
	return nil
}

// charged returns the costs that are not 0. unknown is the first meter that neither a limit nor a price of the account names, "" for
// none.
func (s *Service) charged(ctx context.Context, account string, terms *core.Terms, costs []core.MeterCost) (list []core.MeterCost, unknown string, err error) {
	named := func(m core.MeterCost) bool { // by the limits of the request: the cache of the account may not know them yet
		for i := 1; i < terms.Limits(); i++ {
			if terms.LimitAt(i).Meter == m.Meter {
				return true
			}
		}
		return false
	}
	if !slices.ContainsFunc(costs, func(m core.MeterCost) bool { return m.Cost == 0 || !named(m) }) {
		return costs, "", nil
	}
	meters, err := s.meters.get(ctx, account)
	if err != nil {
		return nil, "", err
	}
	for _, m := range costs {
		switch {
		case !meters.has(m.Meter) && !named(m):
			unknown = cmp.Or(unknown, m.Meter)
		case m.Cost > 0:
			list = append(list, m)
		}
	}
	return list, unknown, nil
}
