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

// metersOf are the meters that the plans and prices of an account name, besides requests.
type metersOf map[string]bool

// addPlan adds the meters of a plan.
func (m metersOf) addPlan(p *core.Plan) {
	for _, l := range p.Limits {
		if l.Meter != core.MeterRequests {
			m[l.Meter] = true
		}
	}
}

// addPrices adds the meters of prices.
func (m metersOf) addPrices(p *core.Prices) {
	for _, meter := range p.Meters() {
		m[meter] = true
	}
}

// loadMeters reads the meters of an account for the cache.
func (s *Service) loadMeters(ctx context.Context, account string) (*metersOf, error) {
	meters := metersOf{}
	list := func(p core.Page) ([]*core.Plan, int, error) { return s.store.Plans(ctx, account, p) }
	err := core.Each(ctx, core.ReadSize, list, func(p *core.Plan) error {
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

// Meters returns requests and the meters that the plans and prices of an account name, sorted.
func (s *Service) Meters(ctx context.Context, account string) ([]string, error) {
	meters, err := s.meters.get(ctx, account)
	if err != nil {
		return nil, err
	}
	return append([]string{core.MeterRequests}, slices.Sorted(maps.Keys(*meters))...), nil
}

// checkMeters returns an error when the transaction gives limits to plans, or sets prices, and its account would have more than MaxMeters meters, or
// would have had more than MaxMetersEver. It sets newMeters if the account has never had one of the meters.
func (b *Transaction) checkMeters(ctx context.Context) error {
	if !b.setsLimits && b.prices == nil {
		return nil
	}
	field := "limits"
	if b.prices != nil && !b.setsLimits {
		field = "rules"
	}
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
		return err
	}
	prices, err := b.Prices()
	if err != nil {
		return err
	}
	meters.addPrices(prices)
	if len(meters) > core.MaxMeters {
		return core.Invalid(field, fmt.Sprintf("An account has at most %d meters besides requests; with this change it would have %d", core.MaxMeters, len(meters)))
	}
	err = meters.addTo(&core.Account{Meters: slices.Clone(b.before.Meters)}, field)
	if errors.Is(err, errUnchanged) {
		return nil
	}
	b.newMeters = meters
	return err
}

// addTo adds the meters to [core.Account.Meters]. It returns errUnchanged if the account has had each of them, and an error of the field if it would
// have had too many.
func (m metersOf) addTo(a *core.Account, field string) error {
	had := len(a.Meters)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(a.Meters, name) {
			a.Meters = append(a.Meters, name)
		}
	}
	switch {
	case len(a.Meters) == had:
		return errUnchanged
	case len(a.Meters) > core.MaxMetersEver:
		return core.Invalid(field, fmt.Sprintf("The plans and prices of an account name at most %d different meters in its lifetime. Use one of these again: %s",
			core.MaxMetersEver, strings.Join(a.Meters[:had], " ")))
	}
	return nil
}

// charged returns the costs that are not 0. unknown is the first meter that neither a plan nor a price of the account
// names, "" for none.
func (s *Service) charged(ctx context.Context, pl *core.Plan, costs []core.MeterCost) (list []core.MeterCost, unknown string, err error) {
	named := func(m core.MeterCost) bool { // by the plan in force: the cache of the account may not know it yet
		return slices.ContainsFunc(pl.Limits, func(l core.Limit) bool { return l.Meter == m.Meter })
	}
	if !slices.ContainsFunc(costs, func(m core.MeterCost) bool { return m.Cost == 0 || !named(m) }) {
		return costs, "", nil
	}
	meters, err := s.meters.get(ctx, pl.AccountID)
	if err != nil {
		return nil, "", err
	}
	for _, m := range costs {
		switch {
		case !(*meters)[m.Meter] && !named(m):
			unknown = cmp.Or(unknown, m.Meter)
		case m.Cost > 0:
			list = append(list, m)
		}
	}
	return list, unknown, nil
}
