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

// brokenPurges break a promise of PurgeAccount.
var brokenPurges = []defect{
	{name: "keeps the users of a removed account", caughtBy: "purge/nothing is left",
		open: wrapped(func(s core.Store) core.Store { return &keepsUsers{Store: s, had: usersOfRemoved} })},
	{name: "keeps the usage of a removed account", caughtBy: "purge/nothing is left",
		open: wrapped(func(s core.Store) core.Store { return &keepsUsage{Store: s, removed: map[string]bool{}} })},
	{name: "removes an account without Deleting", caughtBy: "purge/not without Deleting",
		open: wrapped(func(s core.Store) core.Store { return purgesAnything{s} })},
	{name: "keeps the name of an account with Deleting", caughtBy: "purge/takes no writes",
		open: wrapped(func(s core.Store) core.Store { return findsDeleting{s} })},
	{name: "lets an account with Deleting change", caughtBy: "purge/takes no writes",
		open: wrapped(func(s core.Store) core.Store { return changesDeleting{s} })},
	{name: "removes the keys of another account", caughtBy: "purge/nothing is left",
		open: wrapped(func(s core.Store) core.Store { return purgesNeighbours{s} })},
}

// usersOfRemoved has the users of removed accounts, also after reopening.
var usersOfRemoved = map[string][]*core.User{}

// keepsUsers finds the users of removed accounts.
type keepsUsers struct {
	core.Store
	had map[string][]*core.User
}

func (s *keepsUsers) PurgeAccount(ctx context.Context, id string) (bool, error) {
	if users, _, _ := s.Users(ctx, id, core.UserFilter{}, core.Page{Number: 1, Size: 10}); len(users) > 0 {
		s.had[id] = users
	}
	return s.Store.PurgeAccount(ctx, id)
}

func (s *keepsUsers) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	if had := s.had[account]; had != nil {
		return had, len(had), nil
	}
	return s.Store.Users(ctx, account, f, p)
}

// keepsUsage shows a counter of a removed account.
type keepsUsage struct {
	core.Store
	removed map[string]bool
}

func (s *keepsUsage) PurgeAccount(ctx context.Context, id string) (bool, error) {
	s.removed[id] = true
	return s.Store.PurgeAccount(ctx, id)
}

func (s *keepsUsage) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	list, err := s.Store.Counters(ctx, ids)
	for i, id := range ids {
		if s.removed[id.Account] {
			list[i].At = 1
		}
	}
	return list, err
}

// purgesAnything removes any account.
type purgesAnything struct{ core.Store }

func (s purgesAnything) PurgeAccount(ctx context.Context, id string) (bool, error) {
	_, _ = s.Store.UpdateAccount(ctx, id, func(a *core.Account) error { a.Deleting = true; return nil })
	return s.Store.PurgeAccount(ctx, id)
}

// findsDeleting finds an account with Deleting by its name.
type findsDeleting struct{ core.Store }

func (s findsDeleting) AccountByName(ctx context.Context, name string) (*core.Account, error) {
	a, err := s.Store.AccountByName(ctx, name)
	if errors.Is(err, core.ErrAccountNotFound) {
		all, _, _ := s.Accounts(ctx, core.Page{Number: 1, Size: 1 << 20})
		if i := slices.IndexFunc(all, func(a *core.Account) bool { return a.Name == name }); i >= 0 {
			return all[i], nil
		}
	}
	return a, err
}

// changesDeleting answers a change of an account with Deleting as if it was stored.
type changesDeleting struct{ core.Store }

func (s changesDeleting) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (*core.Account, error) {
	a, err := s.Store.UpdateAccount(ctx, id, fn)
	if errors.Is(err, core.ErrAccountNotFound) {
		return s.Account(ctx, id)
	}
	return a, err
}

// purgesNeighbours removes a user of another account, too.
type purgesNeighbours struct{ core.Store }

func (s purgesNeighbours) PurgeAccount(ctx context.Context, id string) (bool, error) {
	accounts, _, _ := s.Accounts(ctx, core.Page{Number: 1, Size: 1 << 20})
	for _, a := range accounts {
		if !a.Deleting {
			_ = s.Update(ctx, a.ID, func(tx core.Tx) error { return tx.DeleteUser(1) })
		}
	}
	return s.Store.PurgeAccount(ctx, id)
}
