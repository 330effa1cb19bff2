package service

import (
	"context"
	"errors"

	"github.com/limitkeeper/limitkeeper/core"
)

// Recognizes reports whether a decision on the request would read the quota of a user, or would create the user: the request has a key in
// force, or the external id of a user, or the plan of a new user.
func (s *Service) Recognizes(ctx context.Context, account string, r *Request) (bool, error) {
	d := s.pendingDecisions.Get().(*pendingDecision)
	defer s.pendingDecisions.Put(d)
	d.Decision = Decision{Account: account, At: s.clock()}
	if r.External != "" {
		_, err := s.userByExternalID(ctx, d, externalRef{account, r.External})
		if errors.Is(err, core.ErrUserNotFound) {
			return r.PlanName != "", nil
		}
		return err == nil, err
	}
	_, _, err := s.identify(ctx, d, r.Secret)
	return err == nil && d.Outcome == "", err
}

// Look returns the limits of a request with their usage. The list is nil if a decision would not read the quota. Look counts nothing, and no
// metric shows it as a decision.
func (s *Service) Look(ctx context.Context, account string, r Request) ([]core.LimitUsage, error) {
	d := s.pendingDecisions.Get().(*pendingDecision)
	defer s.pendingDecisions.Put(d)
	d.Decision = Decision{Account: account, At: s.clock()}
	r.Cost, r.CostByPrice, r.Costs, r.Later, r.AnyModel, r.HoldFor, r.InFlight, r.RequestID = 0, false, nil, nil, false, 0, 0, ""
	if err := s.decide(ctx, d, &r); err != nil || !d.HasUsage() {
		return nil, err
	}
	if d.Limits == nil {
		return []core.LimitUsage{d.LimitUsage}, nil
	}
	return d.Limits, nil
}
