package redisstore_test

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// A change of one account does not make a change of another account run again: form tokens, uses of owner's keys, and members
// of the account. A change of the same account does.
func TestAccountsChangeIndependently(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := redisstore.Options{Addresses: []string{server.Addr()}}
	s, other := openFaulty(t, o), openFaulty(t, o)
	mine, theirs := newWorld(t, s, 0).account, newWorld(t, s, 0).account
	changes := map[string]func(s *redisstore.Store, account string, fn func() error) error{
		"access": func(s *redisstore.Store, account string, fn func() error) error {
			_, err := s.UpdateAccess(t.Context(), account, func(*core.Access) error { return fn() })
			return err
		},
		"owner's key": func(s *redisstore.Store, account string, fn func() error) error {
			_, err := s.UpdateOwnerKey(t.Context(), account, "okey_1", func(*core.OwnerKey) error { return fn() })
			return err
		},
		"account": func(s *redisstore.Store, account string, fn func() error) error {
			_, err := s.UpdateAccount(t.Context(), account, func(*core.Account) error { return fn() })
			return err
		},
	}
	for name, change := range changes {
		for meanwhile, changeOther := range changes {
			runs := 0
			err := change(s, mine, func() error {
				runs++
				return changeOther(other, theirs, func() error { return nil })
			})
			if err != nil || runs != 1 {
				t.Errorf("%s of one account, %s of another: %d runs, %v, want 1 run", name, meanwhile, runs, err)
			}
			runs = 0
			err = change(s, mine, func() error {
				if runs++; runs > 1 {
					return nil
				}
				return changeOther(other, mine, func() error { return nil })
			})
			if err != nil || runs != 2 {
				t.Errorf("%s and %s of one account: %d runs, %v, want 2 runs", name, meanwhile, runs, err)
			}
		}
	}
}
