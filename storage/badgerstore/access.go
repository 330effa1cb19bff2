package badgerstore

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Access implements [core.Store].
func (s *Store) Access(_ context.Context, account string) (ac *core.Access, err error) {
	err = s.read("", func(r snapshot) error {
		ac, err = r.access(account)
		return err
	})
	return ac, err
}

// access returns how an account is signed in to.
func (r snapshot) access(account string) (*core.Access, error) {
	if _, err := r.accountNumber(account); err != nil {
		return nil, err
	}
	value, err := r.get(accessPath(account))
	if err != nil || value == nil {
		return new(core.Access), err
	}
	return record.Decode[core.Access](value)
}

// UpdateAccess implements [core.Store].
func (s *Store) UpdateAccess(_ context.Context, account string, fn func(*core.Access) error) (ac *core.Access, err error) {
	var refused error // by fn: it is returned as it is
	err = s.register(func(r snapshot, w *writes) error {
		if ac, err = r.access(account); err != nil {
			return err
		}
		if refused = fn(ac); refused != nil {
			return refused
		}
		value, err := record.Encode(ac)
		if err != nil {
			return err
		}
		w.put(accessPath(account), value)
		ac, err = record.Decode[core.Access](value) // what fn had, it may have kept
		return err
	})
	if err = firstOf(refused, err); err != nil {
		return nil, err
	}
	return ac, nil
}
