package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// externalRef names a user by its external id.
type externalRef struct{ account, id string }

// identifyUser finds the user with the external id of a request, and makes the user if the request names a plan. It sets the outcome if the request is
// refused before its quota is read, and NotMade if the user could not be made.
func (s *Service) identifyUser(ctx context.Context, d *pendingDecision, r *Request) (*cachedUser, error) {
	u, err := s.userByExternalID(ctx, d, externalRef{d.Account, r.External})
	if errors.Is(err, core.ErrUserNotFound) && r.PlanName != "" {
		fault := s.makeUser(ctx, d.Account, r)
		s.externals.forget(externalRef{d.Account, r.External}) // its absence: another request may have made it meanwhile
		u, err = s.userByExternalID(ctx, d, externalRef{d.Account, r.External})
		if fault != nil && errors.Is(err, core.ErrUserNotFound) {
			err = fault
		}
	}
	invalid, ok := errors.AsType[*core.Error](err)
	switch {
	case errors.Is(err, core.ErrUserNotFound):
		d.Outcome = Unknown
		return nil, nil
	case errors.Is(err, core.ErrPlanNotFound):
		d.Outcome, d.NotMade = Unknown, fmt.Errorf("no active plan has the name %q", r.PlanName)
		return nil, nil
	case ok && invalid.Code == core.CodeValidation && invalid.Field == "users":
		d.Outcome, d.NotMade, d.restriction = Restricted, err, restrictedUser("The account has as many users as it may have")
		return nil, nil
	case ok && invalid.Code == core.CodeValidation: // it cannot be an external id
		d.Outcome = Malformed
		return nil, nil
	case err != nil:
		return nil, err
	}
	d.User = &u.User
	switch {
	case u.Disabled:
		d.Outcome = Disabled
	case u.PlanID == "":
		d.Outcome, d.restriction = Restricted, restrictedUser("The user has no plan")
	}
	d.special = u.special()
	return u, nil
}

func restrictedUser(message string) *core.Error {
	return &core.Error{Code: core.CodeKeyRestricted, Reason: core.ReasonRestricted, Message: message, Field: "external_id"}
}

// userByExternalID returns the user with an external id. The cache has the number of the user; the user itself tells whether that still holds.
func (s *Service) userByExternalID(ctx context.Context, d *pendingDecision, ref externalRef) (*cachedUser, error) {
	for range maxStaleReads {
		id, err := s.externals.find(ctx, ref, &d.hits)
		if err != nil {
			return nil, err
		}
		u, err := s.users.find(ctx, userRef{ref.account, *id}, &d.hits)
		if err == nil && u.ExternalID == ref.id {
			return u, nil
		}
		if err != nil && !errors.Is(err, core.ErrUserNotFound) {
			return nil, err
		}
		s.externals.forget(ref)
	}
	return nil, errStaleRead
}

// loadExternal reads the number of the user with an external id for the cache.
func (s *Service) loadExternal(ctx context.Context, ref externalRef) (*int64, error) {
	list, _, err := s.store.Users(ctx, ref.account, core.UserFilter{ExternalID: ref.id}, core.Page{Number: 1, Size: 1})
	closed := false
	if err == nil && len(list) > 0 {
		closed, err = s.isClosed(ctx, ref.account)
	}
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || closed {
		return nil, core.ErrUserNotFound
	}
	return &list[0].ID, nil
}

// makeUser makes the user of a request, with its external id as its name. A closed account has no plan for it.
func (s *Service) makeUser(ctx context.Context, account string, r *Request) error {
	if closed, err := s.isClosed(ctx, account); closed || err != nil {
		return cmp.Or[error](err, core.ErrPlanNotFound)
	}
	plan := ""
	list := func(p core.Page) ([]*core.Plan, int, error) { return s.store.Plans(ctx, account, p) }
	err := core.Each(ctx, core.ReadSize, list, func(p *core.Plan) error {
		if plan == "" && p.Name == r.PlanName && !p.Inactive {
			plan = p.ID
		}
		return nil
	})
	if err != nil {
		return err
	}
	if plan == "" {
		return core.ErrPlanNotFound
	}
	name := r.External // with a pointer into r, the request of every decision would be on the heap
	_, err = s.CreateUser(core.WithoutAudit(ctx), account, core.UserPatch{Name: &name, ExternalID: core.Some(name), PlanID: core.Some(plan)})
	return err
}
