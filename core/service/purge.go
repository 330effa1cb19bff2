package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// DeleteAccount begins the deletion of an account. From the next request on, everything of the account answers like something that does not exist, on
// other nodes within a second, and its name is free. PurgeAccounts then removes everything of it. The deletion cannot be undone.
func (s *Service) DeleteAccount(ctx context.Context, id string) (*core.Account, error) {
	return s.changeState(ctx, id, func(a *core.Account) error {
		a.Deleting = true
		return nil
	})
}

// Purge is the progress of the deletion of an account.
type Purge struct {
	Account *core.Account
	Left    int  // keys and users that are left
	Done    bool // nothing of the account is left
}

// PurgeAccounts removes the accounts that are being deleted, a bounded part at a time. After each part it pauses as long as the part took, and calls
// progress. Call it every few seconds, on any number of nodes. After an error of one account it continues with the others, and the next call
// repeats that account.
func (s *Service) PurgeAccounts(ctx context.Context, progress func(Purge)) error {
	var deleting []*core.Account
	err := s.EachAccount(ctx, func(a *core.Account) error {
		if a.Deleting {
			deleting = append(deleting, a)
		}
		return nil
	})
	for _, a := range deleting {
		if failed := s.purgeAccount(ctx, a, progress); failed != nil {
			err = errors.Join(err, fmt.Errorf("deleting the account %s: %w", a.ID, failed))
		}
	}
	return err
}

func (s *Service) purgeAccount(ctx context.Context, a *core.Account, progress func(Purge)) error {
	for {
		start := time.Now()
		more, err := s.store.PurgeAccount(ctx, a.ID)
		if err != nil {
			return err
		}
		if !more {
			s.ForgetAll() // the digests of its keys are free
			s.due.forget(a.ID)
			progress(Purge{Account: a, Done: true})
			return nil
		}
		left, err := s.AccountSize(ctx, a.ID)
		if err != nil {
			return err
		}
		progress(Purge{Account: a, Left: left})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Since(start)):
		}
	}
}

// AccountSize returns the number of keys and users of an account.
func (s *Service) AccountSize(ctx context.Context, account string) (int, error) {
	one := core.Page{Number: 1, Size: 1}
	_, keys, err := s.store.Keys(ctx, account, core.KeyFilter{}, one)
	_, users, failed := s.store.Users(ctx, account, core.UserFilter{}, one)
	return keys + users, cmp.Or(err, failed)
}
