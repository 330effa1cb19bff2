package storetest

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenLimits = []defect{
	{name: "checks the primary limit only", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Further = nil })},
	{name: "checks the last limit only", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if len(c.Further) > 0 {
				c.Limit = core.Unlimited
			}
		})},
	{name: "counts tokens of refused requests", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return countsRefused{s} })},
	{name: "decides before it counts", caughtBy: "exact/limits",
		open: wrapped(func(s core.Store) core.Store { return decidesFirst{s} })},
	{name: "counts a meter only with a limit", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if len(c.Further) == 0 {
				c.Costs = nil
			}
		})},
	{name: "forgets the lifetime", caughtBy: "machine",
		open: counting(func(_ core.CounterID, c *core.Counter) { c.Requests[core.Lifetime] = c.Requests[core.Year] })},
	{name: "forgets the usages of a first answer", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return forgetsLimits{s} })},
	{name: "keeps no costs in the history", caughtBy: "machine",
		open: remembering(func(_ core.CounterID, es []core.Entry) []core.Entry {
			for i := range es {
				es[i].Costs = nil
			}
			return es
		})},
	{name: "takes no primary limit for none left", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if c.Limit == core.Unlimited {
				c.Limit = 0
			}
		})},
	{name: "ignores the limits of the key", caughtBy: "exact/own limits",
		open: altered(func(c *core.Consumption) { c.Own.Limits = nil })},
	{name: "takes the limits of the key for limits of the deciding counter", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Further, c.Own.Limits = slices.Concat(c.Further, c.Own.Limits), nil })},
	{name: "has no rate of the key", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Own.Rate = nil })},
	{name: "has one bucket for both rates", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if c.Rate == nil && !c.Shared {
				c.Rate, c.Own.Rate = c.Own.Rate, nil
			}
		})},
	{name: "denies what a limit only watches", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.OnExceed = core.DenyExceed })},
	{name: "allows what a limit denies", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			c.Further = slices.Clone(c.Further)
			for i := range c.Further {
				c.Further[i].OnExceed = core.AllowExceed
			}
		})},
	{name: "takes a free request for a look", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Free = false })},
	{name: "charges later without a look", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Later = nil })},
	{name: "forgets which limits are overrides", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.OfUser = 0 })},
	{name: "counts no request without a key", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if c.KeyID == "" && c.Adjustment == nil {
				c.Cost, c.Costs = 0, nil
			}
		})},
	{name: "has no rate", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Rate = nil })},
	{name: "ignores the burst", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if c.Rate != nil {
				c.Rate = &core.Rate{Requests: c.Rate.Requests, Per: c.Rate.Per, Burst: 1}
			}
		})},
	{name: "takes a token for a request that a limit denies", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return takesAnyway{s} })},
	{name: "returns no RetryAfter", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return noRetry{s} })},
	{name: "takes tokens in a second step", caughtBy: "exact/rate",
		open: wrapped(func(s core.Store) core.Store { return &checksThenCounts{Store: s} })},
	{name: "adds one more", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if c.Adjustment != nil {
				c.Adjustment = new(*c.Adjustment)
				c.Adjustment.Value++
			}
		})},
	{name: "adjusts the user instead of the key", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Shared = c.Shared || c.Adjustment != nil })},
	{name: "forgets the reason of an adjustment", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if c.Adjustment != nil {
				c.Adjustment = new(*c.Adjustment)
				c.Adjustment.Reason = ""
			}
		})},
	{name: "adjusts again", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if c.Adjustment != nil {
				c.RequestID = ""
			}
		})},
	{name: "allows the adjustment of a missing key or user", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return adjustsMissing{s} })},
	{name: "sets only the requests of a counter", caughtBy: "import/machine",
		open: setting(func(was, c core.Counter) core.Counter {
			c.Meters = was.Meters
			return c
		})},
	{name: "counts all windows with the calendar", caughtBy: "machine",
		open: altered(func(c *core.Consumption) { c.Anchors = nil })},
	{name: "grants a quota to whoever moves the anchor", caughtBy: "machine",
		open: altered(func(c *core.Consumption) {
			if n := len(c.Anchors); n > 0 {
				c.Anchors = core.Anchors{{Start: c.Anchors[n-1].Start}}
			}
		})},
}

// countsRefused counts the other meters of refused requests.
type countsRefused struct{ core.Store }

func (s countsRefused) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if err == nil && !v.Allowed && len(c.Costs) > 0 {
		refused := *c
		refused.Cost, refused.Limit, refused.Further, refused.RequestID = 0, core.Unlimited, nil, ""
		_, err = s.Store.Consume(ctx, &refused)
	}
	return v, err
}

// decidesFirst looks at all limits, and counts in a second step.
type decidesFirst struct{ core.Store }

func (s decidesFirst) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	look := *c
	look.Cost, look.Costs, look.Free, look.RequestID = 0, nil, false, ""
	v, err := s.Store.Consume(ctx, &look)
	if err != nil || !v.Allowed {
		return v, err
	}
	runtime.Gosched() // other goroutines may run the same steps here
	unlimited := *c
	unlimited.Limit, unlimited.Further = core.Unlimited, nil
	return s.Store.Consume(ctx, &unlimited)
}

// takesAnyway takes a token also for a request that a limit denies.
type takesAnyway struct{ core.Store }

func (s takesAnyway) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if err == nil && v.Reason == core.ReasonQuota && c.Rate != nil {
		again := *c
		again.Limit, again.Further, again.Cost, again.RequestID = core.Unlimited, nil, 1, ""
		_, err = s.Store.Consume(ctx, &again)
	}
	return v, err
}

// noRetry does not say when there is a token.
type noRetry struct{ core.Store }

func (s noRetry) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	v.RetryAfter = 0
	return v, err
}

// checksThenCounts compares its own count of requests with the burst, and then counts the request without a rate.
type checksThenCounts struct {
	core.Store
	passed atomic.Int64
}

func (s *checksThenCounts) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if c.Rate == nil || s.passed.Load() < c.Rate.Burst {
		runtime.Gosched()
		s.passed.Add(1)
		free := *c
		free.Rate = nil
		return s.Store.Consume(ctx, &free)
	}
	return s.Store.Consume(ctx, c)
}

// adjustsMissing answers an adjustment of a missing key or user with success.
type adjustsMissing struct{ core.Store }

func (s adjustsMissing) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if c.Adjustment != nil && err != nil {
		return core.ConsumeResult{Allowed: true}, nil
	}
	return v, err
}

// forgetsLimits repeats a first answer without the usages of its limits.
type forgetsLimits struct{ core.Store }

func (s forgetsLimits) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if v.FirstTerms != nil {
		v.Limits = nil
	}
	return v, err
}
