package badgerstore

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
)

// Plan implements [core.Store].
func (s *Store) Plan(_ context.Context, account, id string) (p *core.Plan, err error) {
	err = s.read(account, func(r snapshot) error {
		p, err = r.plan(account, id)
		return err
	})
	return p, err
}

// Plans implements [core.Store].
func (s *Store) Plans(_ context.Context, account string, p core.Page) (list []*core.Plan, total int, err error) {
	err = s.read(account, func(r snapshot) error {
		list, total, err = r.plans(account, p)
		return err
	})
	return list, total, err
}

// plans returns a page of the plans of an account, and their total.
func (r snapshot) plans(account string, p core.Page) (list []*core.Plan, total int, err error) {
	numbers, total, err := r.page(allPlans(account), p)
	if err == nil {
		list, err = listed[core.Plan](r, numbers, func(seq int64) path { return planPath(account, seq) })
	}
	return list, total, err
}

// plan returns a plan, or core.ErrPlanNotFound.
func (r snapshot) plan(account, id string) (*core.Plan, error) {
	seq, err := r.number(planIDPath(account, id))
	if err != nil || seq == 0 {
		return nil, firstOf(err, core.ErrPlanNotFound)
	}
	return named[core.Plan](r, planPath(account, seq))
}

// Plan implements [core.Tx].
func (t *tx) Plan(id string) (*core.Plan, error) {
	p, err := t.before.plan(t.account, id)
	return p, fault(err)
}

// Plans implements [core.Tx].
func (t *tx) Plans(p core.Page) ([]*core.Plan, int, error) {
	list, total, err := t.before.plans(t.account, p)
	return list, total, fault(err)
}

// PutPlan implements [core.Tx].
func (t *tx) PutPlan(p *core.Plan) error {
	if err := t.writable(); err != nil {
		return err
	}
	old, err := t.seqNow(planIDPath(t.account, p.ID))
	if err != nil {
		return t.keepError(err)
	}
	if err := t.assign(kindPlan, &p.Seq); err != nil {
		return t.keepError(err)
	}
	if old != p.Seq && old != 0 {
		err = t.removePlan(old)
	}
	return t.keepError(firstOf(err,
		t.putJSON(planPath(t.account, p.Seq), p),
		t.put(planIDPath(t.account, p.ID), encodeNumber(p.Seq)),
		t.include(allPlans(t.account), p.Seq)))
}

// DeletePlan implements [core.Tx].
func (t *tx) DeletePlan(id string) error {
	seq, err := t.seqNow(planIDPath(t.account, id))
	if err == nil && seq == 0 {
		return core.ErrPlanNotFound
	}
	if err != nil {
		return t.keepError(err)
	}
	return t.keepError(firstOf(t.removePlan(seq), t.put(planIDPath(t.account, id), nil)))
}

// removePlan removes the record of a plan and its index entry.
func (t *tx) removePlan(seq int64) error {
	return firstOf(t.put(planPath(t.account, seq), nil), t.exclude(allPlans(t.account), seq))
}

// seqNow returns the number at a path including the writes of the transaction, 0 without a record.
func (t *tx) seqNow(p path) (int64, error) {
	value, err := t.get(p)
	if err != nil {
		return 0, err
	}
	return decodeNumber(value)
}
