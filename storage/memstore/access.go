package memstore

import (
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// Access implements [core.Store].
func (s *Store) Access(_ context.Context, account string) (ac *core.Access, err error) {
	err = s.locked(func() error {
		if s.resources[account] == nil {
			return core.ErrAccountNotFound
		}
		ac = copyAccess(s.access[account])
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
		ac := copyAccess(s.access[account])
		if err := fn(ac); err != nil {
			return err
		}
		s.access[account], updated = copyAccess(ac), copyAccess(ac)
		return nil
	})
	return updated, err
}

// copyAccess returns a deep copy, or the zero Access for nil.
func copyAccess(ac *core.Access) *core.Access {
	if ac == nil {
		return &core.Access{}
	}
	c := core.Access{Password: ac.Password, Links: slices.Clone(ac.Links), Sessions: slices.Clone(ac.Sessions), Browsers: slices.Clone(ac.Browsers)}
	for i := range c.Links {
		c.Links[i].ExpiresAt = normalTime(c.Links[i].ExpiresAt)
	}
	for i := range c.Sessions {
		se := &c.Sessions[i]
		se.CreatedAt, se.SeenAt, se.FormsAfter = normalTime(se.CreatedAt), normalTime(se.SeenAt), normalTime(se.FormsAfter)
		se.SpentForms = slices.Clone(se.SpentForms)
		for j := range se.SpentForms {
			se.SpentForms[j].At = normalTime(se.SpentForms[j].At)
		}
	}
	for i := range c.Browsers {
		c.Browsers[i].SeenAt = normalTime(c.Browsers[i].SeenAt)
	}
	return &c
}
