package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// Caller returns a text that is the same for all requests of a user: of its keys in force, and with its external id. It is "" if a decision would not
// read the quota of a user, nor create the user.
func (s *Service) Caller(ctx context.Context, account string, r *Request) (string, error) {
	d := s.pendingDecisions.Get().(*pendingDecision)
	defer s.pendingDecisions.Put(d)
	d.Decision = Decision{Account: account, At: s.clock()}
	if r.External != "" {
		u, err := s.userByExternalID(ctx, d, externalRef{account, r.External})
		switch {
		case errors.Is(err, core.ErrUserNotFound) && r.PlanName != "":
			return account + " new " + r.External, nil
		case errors.Is(err, core.ErrUserNotFound):
			return "", nil
		case err != nil:
			return "", err
		}
		return fmt.Sprint(account, " ", u.ID), nil
	}
	_, u, err := s.identify(ctx, d, r.Secret)
	if err != nil || d.Outcome != "" {
		return "", err
	}
	return fmt.Sprint(account, " ", u.ID), nil
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
