package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// Plan implements [core.Store].
func (s *Store) Plan(_ context.Context, account, id string) (pl *core.Plan, err error) {
	err = s.locked(func() error {
		pl, err = s.of(account).plan(id)
		return err
	})
	return pl, err
}

// Plans implements [core.Store].
func (s *Store) Plans(_ context.Context, account string, p core.Page) (list []*core.Plan, total int, err error) {
	err = s.locked(func() error {
		list, total = s.of(account).listPlans(p)
		return nil
	})
	return list, total, err
}

// listPlans returns a page of the plans by Seq, and their total.
func (r *resources) listPlans(p core.Page) (list []*core.Plan, total int) {
	all := slices.SortedFunc(maps.Values(r.plans), func(a, b *core.Plan) int { return cmp.Compare(a.Seq, b.Seq) })
	return page(all, p, copyOf), len(all)
}

func (r *resources) plan(id string) (*core.Plan, error) {
	pl, ok := r.plans[id]
	if !ok {
		return nil, core.ErrPlanNotFound
	}
	return copyOf(pl), nil
}
