package service

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// OperatorAccount returns the account with the name, disabled or not, for the operator of the server. A missing account is [core.ErrAccountNotFound]; the
// error names the account that had the name before.
func (s *Service) OperatorAccount(ctx context.Context, name string) (*core.Account, error) {
	a, err := s.store.AccountByName(ctx, strings.TrimSpace(name))
	if !errors.Is(err, core.ErrAccountNotFound) {
		return a, err
	}
	now, fault := s.RenamedAccount(ctx, name)
	switch {
	case fault != nil:
		return nil, fault
	case now != nil:
		return nil, fmt.Errorf("%w: the account %q has been renamed to %q", err, strings.TrimSpace(name), now.Name)
	}
	return nil, err
}

// RenamedAccount returns the account with a former name, the newest of several. It returns nil for none, and while an account has the name now. It reads
// all accounts.
func (s *Service) RenamedAccount(ctx context.Context, name string) (found *core.Account, err error) {
	name = strings.TrimSpace(name)
	taken := false
	err = s.EachAccount(ctx, func(a *core.Account) error {
		if !a.Deleting && a.HadName(name) {
			found = a
		}
		taken = taken || !a.Deleting && a.Name == name
		return nil
	})
	if taken || err != nil {
		return nil, err
	}
	return found, nil
}

// RenameAccount gives an account another name. A name that another account has is [core.ErrAccountExists].
func (s *Service) RenameAccount(ctx context.Context, id, name string) (*core.Account, error) {
	return s.changeState(ctx, id, func(a *core.Account) error {
		before := a.Name
		if err := a.Rename(name); err != nil {
			return err
		}
		if a.Name == before {
			return errUnchanged
		}
		return nil
	})
}

// SetAccountDisabled disables an account, or enables it again. From the next request on, the owner's keys, users' keys, sessions, links and passwords of a
// disabled account answer as if they did not exist. Nothing is lost.
func (s *Service) SetAccountDisabled(ctx context.Context, id string, disabled bool) (*core.Account, error) {
	return s.changeState(ctx, id, func(a *core.Account) error {
		if a.Disabled == disabled {
			return errUnchanged
		}
		a.Disabled = disabled
		return nil
	})
}

// changeState changes the name or the state of an account, disabled or not.
func (s *Service) changeState(ctx context.Context, id string, fn func(*core.Account) error) (*core.Account, error) {
	var before *core.Account // the account that fn was called with
	a, err := s.store.UpdateAccount(s.acting(ctx), id, func(a *core.Account) error {
		before = a
		return fn(a)
	})
	if errors.Is(err, errUnchanged) {
		return before, nil
	}
	s.ForgetAll() // also after an error: the store may have stored a change that it answers with ErrUnavailable
	s.webhookChanges.note(id)
	return a, err
}

// isClosed reports whether the account is closed or missing. It reads the state from a cache.
func (s *Service) isClosed(ctx context.Context, account string) (bool, error) {
	_, err := s.accounts.get(ctx, account)
	if errors.Is(err, core.ErrAccountNotFound) {
		return true, nil
	}
	return false, err
}

// IsOpen reports whether an account exists and is not closed. It reads the state from a cache.
func (s *Service) IsOpen(ctx context.Context, account string) bool {
	closed, err := s.isClosed(ctx, account)
	return !closed && err == nil
}

// IsDeleted reports whether an account does not exist, or is being deleted. It reads the store.
func (s *Service) IsDeleted(ctx context.Context, account string) (bool, error) {
	a, err := s.store.Account(ctx, account)
	if errors.Is(err, core.ErrAccountNotFound) {
		return true, nil
	}
	return err == nil && a.Deleting, err
}

// loadAccount reads an account for the cache. A closed account is [core.ErrAccountNotFound]. An account that is being imported is cached, so that
// its keys do not delay the requests of other accounts.
func (s *Service) loadAccount(ctx context.Context, id string) (*core.Account, error) {
	a, err := s.store.Account(ctx, id)
	if err == nil && a.Closed() {
		err = core.ErrAccountNotFound
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// ofOpenAccount returns v and err, or the error missing if the account of v is closed.
func ofOpenAccount[T any](ctx context.Context, s *Service, v *T, err error, account func(*T) string, missing error) (*T, error) {
	if err != nil {
		return nil, err
	}
	closed, err := s.isClosed(ctx, account(v))
	switch {
	case err != nil:
		return nil, err
	case closed:
		return nil, missing
	}
	return v, nil
}
