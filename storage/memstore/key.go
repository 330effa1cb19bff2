package memstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// Key implements [core.Store].
func (s *Store) Key(_ context.Context, account, id string) (k *core.Key, err error) {
	err = s.locked(func() error {
		k, err = s.of(account).key(id)
		return err
	})
	return k, err
}

// KeyByDigest implements [core.Store].
func (s *Store) KeyByDigest(_ context.Context, d core.Digest) (found *core.Key, err error) {
	err = s.locked(func() error {
		for _, r := range s.resources {
			for _, k := range r.keys {
				if slices.Contains(k.Digests(), d) {
					found = copyOf(k)
					return nil
				}
			}
		}
		return core.ErrKeyNotFound
	})
	return found, err
}

// Keys implements [core.Store].
func (s *Store) Keys(_ context.Context, account string, f core.KeyFilter, p core.Page) (list []*core.Key, total int, err error) {
	err = s.locked(func() error {
		all := s.of(account).matchingKeys(f)
		list, total = page(all, p, copyOf), len(all)
		return nil
	})
	return list, total, err
}

func (r *resources) key(id string) (*core.Key, error) {
	k, ok := r.keys[id]
	if !ok {
		return nil, core.ErrKeyNotFound
	}
	return copyOf(k), nil
}

// matchingKeys returns the keys that match, by Seq.
func (r *resources) matchingKeys(f core.KeyFilter) []*core.Key {
	var all []*core.Key
	for _, k := range r.keys {
		if keyMatches(k, f) {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b *core.Key) int { return cmp.Compare(a.Seq, b.Seq) })
	return all
}

func keyMatches(k *core.Key, f core.KeyFilter) bool {
	return (f.UserID == 0 || k.UserID == f.UserID) &&
		(f.PlanID == nil || k.PlanID == *f.PlanID) &&
		(f.Status == "" || k.Status == f.Status)
}
