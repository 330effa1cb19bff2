package service

import (
	"cmp"
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// Prices returns the prices of the account.
func (s *Service) Prices(ctx context.Context, account string) (*core.Prices, error) {
	return s.store.Prices(ctx, account)
}

// SetPrices replaces the prices of the account, and returns them. The next request is decided under the new prices.
func (s *Service) SetPrices(ctx context.Context, account string, rules []core.PriceRule) (p *core.Prices, err error) {
	err = s.runQuery(ctx, account, wholeAccount, func() error { // a large query: checkMeters reads all plans
		p, err = changeOne(ctx, s, account, func(b *Transaction) (*core.Prices, error) { return b.SetPrices(rules) })
		return err
	})
	return p, err
}

// Prices returns the prices of the account, with the changes of the transaction. They are shared: do not change them.
func (b *Transaction) Prices() (*core.Prices, error) {
	if b.prices != nil {
		return b.prices, nil
	}
	return b.tx.Prices()
}

// SetPrices is [Service.SetPrices] in a transaction.
func (b *Transaction) SetPrices(rules []core.PriceRule) (*core.Prices, error) {
	if err := (&core.Prices{Rules: rules}).Check(); err != nil {
		return nil, err
	}
	before, err := b.Prices()
	if err != nil {
		return nil, err
	}
	p := before.Replace(rules, b.s.after(before.UpdatedAt))
	b.prices = p
	return p, b.tx.PutPrices(p)
}

// Quote returns the price of a request of the account, as [Service.Validate] would find it. It counts nothing. An invalid member
// is a validation error.
func (s *Service) Quote(ctx context.Context, account string, p core.PricedRequest) (q core.Quote, err error) {
	p.StrictUsage = true
	if err = cmp.Or(checkTarget(p.Path, p.Method), p.Check()); err == nil {
		var list *core.PriceList
		if list, err = s.prices.get(ctx, account); err == nil {
			q, err = list.Quote(&p)
		}
	}
	return q, asInvalid(err)
}

// loadPrices reads the prices of an account for the cache.
func (s *Service) loadPrices(ctx context.Context, account string) (*core.PriceList, error) {
	p, err := s.store.Prices(ctx, account)
	if err != nil {
		return nil, err
	}
	return p.Compiled(), nil
}

// price sets the costs of a request on each meter, and the meters that are charged afterwards. A meter that the request does not
// name gets the price of the account. unknown is a meter that the request names and the account does not have, "" for none.
func (s *Service) price(ctx context.Context, pl *cachedPlan, r *Request, c *core.Consumption) (unknown string, err error) {
	var hits uint64 // not added to the statistics, which count look-ups of keys, users and plans
	list, err := pl.prices.getOrFind(ctx, s.prices, pl.AccountID, &hits)
	if err != nil {
		return "", err
	}
	costs, unknown, err := s.charged(ctx, pl.AccountID, &c.Terms, r.named())
	if err != nil {
		return "", err
	}
	quote := core.Quote{Requests: 1}
	if !list.Empty() && !r.looks() {
		if quote, err = list.Quote(&core.PricedRequest{Method: r.Method, Path: r.pricedPath(), Model: r.Model, Usage: r.Usage, StrictUsage: true}); err != nil {
			return "", err
		}
	}
	if r.AnyModel && !list.Empty() && !r.looks() && !list.ByModel(&quote) {
		quote.Later = list.LaterOfAnyModel(&core.PricedRequest{Method: r.Method, Path: r.pricedPath()})
	}
	given := func(meter string) bool {
		return meter == core.MeterRequests && !r.CostByPrice || slices.ContainsFunc(r.Costs, func(m core.MeterCost) bool { return m.Meter == meter })
	}
	c.Cost, c.Costs, c.Later, c.Free = r.Cost, costs, r.Later, !r.looks()
	if r.CostByPrice {
		c.Cost = quote.Requests
	}
	switch {
	case len(r.Costs) == 0:
		c.Costs = quote.Costs
	case len(quote.Costs) > 0:
		byPrice := slices.DeleteFunc(slices.Clone(quote.Costs), func(m core.MeterCost) bool { return given(m.Meter) })
		c.Costs = slices.Concat(byPrice, costs) // nil for none
		core.SortCosts(c.Costs)
	}
	if later := slices.DeleteFunc(slices.Clone(quote.Later), given); len(later) > 0 {
		c.Later = append(later, r.Later...)
		slices.Sort(c.Later)
	}
	c.Entry.Cost, c.Entry.Costs = c.Cost, c.Costs
	lasts := r.HoldFor
	if lasts == 0 && (c.Concurrency > 0 || c.Own.Concurrency > 0) {
		lasts = r.InFlight
	}
	if lasts > 0 {
		c.Hold, c.Free = r.newHold(c, list.UpdatedAt, lasts), true
	}
	return unknown, nil
}
