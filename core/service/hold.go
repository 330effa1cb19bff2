package service

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// newHold returns the hold that the request opens, which lasts for a duration. pricedAt is the UpdatedAt of the prices in force.
func (r *Request) newHold(c *core.Consumption, pricedAt time.Time, lasts time.Duration) *core.NewHold {
	h := &core.NewHold{ID: core.NewHoldID(c.UserID), ExpiresAt: c.Entry.At.Truncate(time.Millisecond).Add(lasts), OnExpiry: r.OnExpiry, PricedAt: pricedAt}
	if path := secrets.Sanitize(r.mask(r.pricedPath()), maxEndpointLength); path != c.Entry.Endpoint {
		h.Path = path
	}
	return h
}

// Final has the final cost of a request. The prices of the hold set the cost of Usage. Requests and Costs override that cost, meter by meter. A
// meter that the price, Requests and Costs do not name keeps its held cost.
type Final struct {
	Requests *int64           // the cost on the meter requests; nil keeps the held or priced cost
	Costs    []core.MeterCost // the costs on the other meters, sorted by name
	Model    string           // "" if it is unknown
	Usage    core.Quantities  // nil if it is unknown
	IP       string           // of the caller, for the history

	AtLeastHeld bool // a meter costs no less than was held
	// IgnoreUnknownMeters says that a meter which no limit and no price of the account names costs nothing, as does a usage whose quantities the
	// price does not use. Otherwise both are errors.
	IgnoreUnknownMeters bool
}

// Check returns a validation error if a member is out of its bounds.
func (f *Final) Check() error {
	err := core.CheckCosts(f.Costs)
	if err == nil && f.Requests != nil {
		if core.CheckCost(*f.Requests) != nil {
			err = core.BadRequest("costs", "The cost of requests must be a whole number from 0 to 1000000")
		}
	}
	if err == nil {
		err = (&core.PricedRequest{Model: f.Model, Usage: f.Usage}).Check()
	}
	switch {
	case err != nil:
		return asInvalid(err)
	case f.Requests == nil && len(f.Costs) == 0 && f.Usage == nil:
		return core.Invalid("costs", "Costs or usage is required: the final cost of the request, such as {\"costs\": {\"tokens\": 812}}; to give everything back, DELETE the hold")
	case f.Usage == nil && f.Model != "":
		return core.Invalid("usage", "Usage is required with a model")
	}
	return nil
}

// asInvalid returns an error with the code INVALID_REQUEST as a validation error.
func asInvalid(err error) error {
	if e, ok := errors.AsType[*core.Error](err); ok && e.Code == core.CodeInvalidRequest {
		return core.Invalid(e.Field, e.Detail)
	}
	return err
}

// Settled is the result of the end of a hold.
type Settled struct {
	core.Hold
	Repeated bool // the hold was ended before
}

// Hold returns a hold of the account.
func (s *Service) Hold(ctx context.Context, account, id string) (*core.Hold, error) {
	h, err := s.store.Hold(ctx, account, id)
	if err == nil && h.Expired(s.clock()) {
		h.Status = core.HoldExpired
	}
	return h, err
}

// Settle ends a hold with final costs.
func (s *Service) Settle(ctx context.Context, account, id string, f *Final) (*Settled, error) {
	h, err := s.Hold(ctx, account, id)
	if err == nil {
		err = f.Check()
	}
	if err != nil {
		return nil, err
	}
	cost, costs := h.Cost, h.Costs
	if h.Status == core.HoldOpen { // otherwise the first result counts
		if cost, costs, err = s.final(ctx, account, h, f); err != nil {
			return nil, err
		}
	}
	return s.endHold(ctx, account, h, h.Settle(account, core.HoldSettled, cost, costs, s.now(), s.retention()), f.IP)
}

// Keep settles a hold with its held costs.
func (s *Service) Keep(ctx context.Context, account, id string) (*Settled, error) {
	h, err := s.Hold(ctx, account, id)
	if err != nil {
		return nil, err
	}
	return s.endHold(ctx, account, h, h.Settle(account, core.HoldSettled, h.Cost, h.Costs, s.now(), s.retention()), "")
}

// Release ends a hold and gives all held costs back.
func (s *Service) Release(ctx context.Context, account, id, ip string) (*Settled, error) {
	h, err := s.Hold(ctx, account, id)
	if err != nil {
		return nil, err
	}
	return s.endHold(ctx, account, h, h.Settle(account, core.HoldReleased, 0, nil, s.now(), s.retention()), ip)
}

// ExtendHold moves the end of an open hold. The hold then lasts for a duration from now.
func (s *Service) ExtendHold(ctx context.Context, account, id string, lasts time.Duration) error {
	now := s.clock()
	return s.store.ExtendHold(ctx, account, id, now, now.UTC().Truncate(time.Millisecond).Add(lasts))
}

// ExpireHolds ends the expired holds of all accounts, disabled or not, except accounts that are being deleted. After an error of one account it continues
// with the others, and returns the first error.
func (s *Service) ExpireHolds(ctx context.Context) error {
	var first error
	err := s.EachAccount(ctx, func(a *core.Account) error {
		if a.Deleting {
			return nil
		}
		first = cmp.Or(first, s.store.ExpireHolds(ctx, a.ID, s.now(), s.retention()))
		return ctx.Err()
	})
	return cmp.Or(first, err)
}

// final returns the final costs of a hold. The price of the usage replaces the held costs, meter by meter. The costs of f then replace both.
func (s *Service) final(ctx context.Context, account string, h *core.Hold, f *Final) (requests int64, costs []core.MeterCost, err error) {
	var priced []core.MeterCost
	if f.Usage != nil {
		if priced, err = s.priceOf(ctx, account, h, f); err != nil {
			return 0, nil, err
		}
	}
	meters, err := s.meters.get(ctx, account)
	if err != nil {
		return 0, nil, err
	}
	requests = h.Cost
	byMeter := map[string]int64{}
	for _, list := range [][]core.MeterCost{h.Costs, priced, f.Costs} {
		for _, m := range list {
			byMeter[m.Meter] = m.Cost
		}
	}
	for _, m := range f.Costs {
		switch {
		case meters.has(m.Meter):
		case f.IgnoreUnknownMeters:
			delete(byMeter, m.Meter)
		default:
			return 0, nil, core.Invalid("costs."+m.Meter, "No limit and no price of the account names this meter: correct its name, or give a plan a limit of it")
		}
	}
	if n, named := byMeter[core.MeterRequests]; named {
		requests = n
		delete(byMeter, core.MeterRequests)
	}
	if f.Requests != nil {
		requests = *f.Requests
	}
	if f.AtLeastHeld {
		requests = max(requests, h.Cost)
		for _, m := range h.Costs {
			byMeter[m.Meter] = max(byMeter[m.Meter], m.Cost)
		}
	}
	for meter, n := range byMeter {
		if n > 0 {
			costs = append(costs, core.MeterCost{Meter: meter, Cost: n})
		}
	}
	core.SortCosts(costs)
	return requests, costs, nil
}

// priceOf returns the price of the usage of f by the prices of the hold: a cost for each meter that the matching rule names.
func (s *Service) priceOf(ctx context.Context, account string, h *core.Hold, f *Final) ([]core.MeterCost, error) {
	list, err := s.prices.get(ctx, account)
	if err == nil && !list.UpdatedAt.Equal(h.PricedAt) {
		var p *core.Prices
		if p, err = s.store.Prices(ctx, account); err == nil {
			list = p.VersionOf(h.PricedAt)
		}
	}
	if err != nil {
		return nil, err
	}
	if list == nil {
		return nil, errPricesGone
	}
	costs, ok, err := list.FinalCosts(&core.PricedRequest{Method: h.Method, Path: h.Path, Model: f.Model, Usage: f.Usage, StrictUsage: !f.IgnoreUnknownMeters})
	if err == nil && !ok {
		err = noPrice(h, f.Model)
	}
	return costs, asInvalid(err)
}

// errPricesGone means that the prices have changed too often since the hold was opened.
var errPricesGone = core.Invalid("usage", "The prices under which the hold was opened are no longer kept after many changes: settle with costs")

// noPrice returns the error of a usage when no price of the account matches the endpoint of the hold and the model.
func noPrice(h *core.Hold, model string) error {
	endpoint := h.Method + " " + h.Path
	if model == "" {
		return core.Invalid("usage", "No price of the account matches "+endpoint+" without a model: add the member model if the price has one, add a rule to the prices, or settle with costs")
	}
	return core.Invalid("usage", "No price of the account matches "+endpoint+" and the model "+model+": correct the model, add a rule to the prices, or settle with costs")
}

// endHold ends a hold in the store.
func (s *Service) endHold(ctx context.Context, account string, h *core.Hold, c *core.Consumption, ip string) (*Settled, error) {
	if h.Status == core.HoldExpired {
		return nil, h.ExpiredError()
	}
	anchors, err := s.anchorsOf(ctx, account, h.UserID)
	if err != nil {
		return nil, asHold(err)
	}
	c.Anchors, c.Entry.IP = anchors, secrets.Sanitize(ip, core.MaxEntryAddress)
	after, repeated, err := s.store.Settle(context.WithoutCancel(ctx), c)
	if errors.Is(err, core.ErrUnavailable) { // the final costs may be counted
		s.addDue(account, h.UserID, h.KeyID, h.Shared)
	}
	switch requested := c.Settlement.Status; {
	case errors.Is(err, core.ErrHoldExpired):
		return nil, h.ExpiredError()
	case err != nil:
		return nil, asHold(err)
	case requested == after.Status:
	case after.Status == core.HoldSettled:
		return nil, errHoldSettled
	default:
		return nil, errHoldReleased
	}
	s.addDueAfter(account, after)
	s.noteOverrun(account, after)
	return &Settled{*after, repeated}, nil
}

// anchorsOf returns the anchors of a user, also of a closed account: requests in flight at the closing still settle.
func (s *Service) anchorsOf(ctx context.Context, account string, user int64) (core.Anchors, error) {
	u, err := s.users.get(ctx, userRef{account, user})
	if err == nil {
		return u.Anchors, nil
	}
	if errors.Is(err, core.ErrUserNotFound) {
		var stored *core.User
		if stored, err = s.store.User(ctx, account, user); err == nil {
			return stored.Anchors, nil
		}
	}
	return nil, err
}

var (
	errHoldSettled  = &core.Error{Code: core.CodeHoldSettled, Message: "The hold was settled before: it cannot be released"}
	errHoldReleased = &core.Error{Code: core.CodeHoldReleased, Message: "The hold was released before: it cannot be settled"}
)

// asHold returns ErrHoldNotFound for the error of a deleted key or user, and any other error unchanged.
func asHold(err error) error {
	if errors.Is(err, core.ErrKeyNotFound) || errors.Is(err, core.ErrUserNotFound) {
		return core.ErrHoldNotFound
	}
	return err
}

// HoldUsage returns the present usage of the deciding counter of a hold, in the form of a decision. The decision has no plan if the key, the
// user or the plan was deleted.
func (s *Service) HoldUsage(ctx context.Context, account string, h *core.Hold) (d Decision, err error) {
	var u *KeyUsage
	if h.KeyID != "" {
		u, _, err = s.presentKeyUsage(ctx, account, h.KeyID)
	} else {
		u, err = s.sharedUsage(ctx, account, h.UserID)
	}
	if errors.Is(err, core.ErrKeyNotFound) || errors.Is(err, core.ErrUserNotFound) || errors.Is(err, core.ErrPlanNotFound) {
		return Decision{}, nil // deleted after the hold was opened
	}
	if err != nil {
		return Decision{}, err
	}
	d = Decision{Outcome: Allowed, Account: account, At: s.clock(), Plan: u.Plan, LimitUsage: u.LimitUsage}
	if len(u.Limits) > 1 {
		d.Limits = slices.Clone(u.Limits)
	}
	return d, nil
}

// sharedUsage returns the usage of the counter of a user.
func (s *Service) sharedUsage(ctx context.Context, account string, user int64) (usage *KeyUsage, err error) {
	err = s.store.View(ctx, account, func(v core.View) error {
		u, err := v.User(user)
		if err != nil {
			return err
		}
		pl, err := v.Plan(u.PlanID)
		if err != nil {
			return err
		}
		cs, err := v.Counters([]core.CounterID{{Account: account, UserID: user}})
		if err != nil {
			return err
		}
		terms := termsOf(pl, u, nil, s.now())
		limits := terms.Usages(&cs[0], &cs[0], u.Anchors, s.now())
		usage = &KeyUsage{LimitUsage: limits[0], Limits: limits, Plan: pl, LastUsedAt: cs[0].LastUsedAt}
		return nil
	})
	return usage, err
}
