package caddytest

import (
	"context"
	"errors"

	"github.com/limitkeeper/limitkeeper/core"
)

// Tenant is an account with a plan, a user and a key.
type Tenant struct {
	Account, Owner string // the id of the account, and an owner's key
	Plan           *core.Plan
	User           *core.User
	Key            *core.Key
	Secret         string // the value of the key
}

// Tenant makes an account called name with a quota a year.
func (s *Server) Tenant(name string, quota int64) *Tenant {
	s.T.Helper()
	ctx, svc, t := context.Background(), s.Service(), &Tenant{}
	a, _, owner, err := svc.CreateAccount(ctx, name)
	s.Must(err)
	t.Account, t.Owner = a.ID, owner
	t.Plan, err = svc.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("Größe M"), Limit: core.Some(quota), Period: new("year")})
	s.Must(err)
	t.User, err = svc.CreateUser(ctx, a.ID, core.UserPatch{Name: new("Ann")})
	s.Must(err)
	t.Key, t.Secret, err = svc.CreateKey(ctx, a.ID, core.KeyPatch{
		Name: new("laptop"), UserID: &t.User.ID, PlanID: core.Some(t.Plan.ID)})
	s.Must(err)
	return t
}

// NewKey creates another key of a tenant and returns its value.
func (s *Server) NewKey(ten *Tenant) string {
	s.T.Helper()
	_, secret, err := s.Service().CreateKey(s.T.Context(), ten.Account, core.KeyPatch{Name: new("another"), UserID: &ten.User.ID, PlanID: core.Some(ten.Plan.ID)})
	s.Must(err)
	return secret
}

// Exists reports whether the running service has the account.
func (s *Server) Exists(name string) bool {
	s.T.Helper()
	_, err := s.Service().AccountByName(context.Background(), name)
	if err != nil && !errors.Is(err, core.ErrAccountNotFound) {
		s.T.Fatal(err)
	}
	return err == nil
}
