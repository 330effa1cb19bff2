package storetest

import (
	"context"
	"errors"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenAccounts = []defect{
	{name: "gives two accounts one name", caughtBy: "account/rename at once",
		open: wrapped(func(s core.Store) core.Store { return sharesNames{s} })},
	{name: "renames onto a taken name", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return sharesNames{s} })},
	{name: "finds an account by its former name", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return findsFormer{s} })},
	{name: "forgets that an account is disabled", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return forgetsDisabled{s} })},
}

// sharesNames answers a rename onto a taken name as if it was stored.
type sharesNames struct{ core.Store }

func (s sharesNames) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (*core.Account, error) {
	a, err := s.Store.UpdateAccount(ctx, id, fn)
	if errors.Is(err, core.ErrAccountExists) {
		return s.Store.Account(ctx, id)
	}
	return a, err
}

// findsFormer finds an account by its former names, too.
type findsFormer struct{ core.Store }

func (s findsFormer) AccountByName(ctx context.Context, name string) (*core.Account, error) {
	a, err := s.Store.AccountByName(ctx, name)
	if errors.Is(err, core.ErrAccountNotFound) {
		all, _, _ := s.Store.Accounts(ctx, core.Page{Number: 1, Size: 1 << 20})
		if i := slices.IndexFunc(all, func(a *core.Account) bool { return a.HadName(name) }); i >= 0 {
			return all[i], nil
		}
	}
	return a, err
}

// forgetsDisabled stores every account as enabled.
type forgetsDisabled struct{ core.Store }

func (s forgetsDisabled) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (*core.Account, error) {
	return s.Store.UpdateAccount(ctx, id, func(a *core.Account) error {
		err := fn(a)
		a.Disabled = false
		return err
	})
}
