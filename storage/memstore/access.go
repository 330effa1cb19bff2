package memstore

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
)

// Access implements [core.Store].
func (s *Store) Access(_ context.Context, account string) (ac *core.Access, err error) {
	err = s.locked(func() error {
		if s.resources[account] == nil {
			return core.ErrAccountNotFound
		}
		ac = copyOf(s.access[account])
		return nil
	})
	return ac, err
}

// UpdateAccess implements [core.Store].
func (s *Store) UpdateAccess(_ context.Context, account string, fn func(*core.Access) error) (updated *core.Access, err error) {
	err = s.locked(func() error {
		if s.resources[account] == nil {
			return core.ErrAccountNotFound
		}
		ac := copyOf(s.access[account])
		if err := fn(ac); err != nil {
			return err
		}
		s.access[account], updated = copyOf(ac), copyOf(ac)
		return nil
	})
	return updated, err
}
