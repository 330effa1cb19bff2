package redisstore

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Plan implements [core.Store].
func (s *Store) Plan(ctx context.Context, account, id string) (*core.Plan, error) {
	return get[core.Plan](ctx, s, s.o.account(account).plan(id), core.ErrPlanNotFound)
}

// Plans implements [core.Store].
func (s *Store) Plans(ctx context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	n := s.o.account(account)
	return list[core.Plan](ctx, s, n.key("plans"), n.key("p:"), p)
}

// PlansAfter implements [core.LiveStore].
func (s *Store) PlansAfter(ctx context.Context, account string, seq int64, n int) ([]*core.Plan, error) {
	of := s.o.account(account)
	return listAfter[core.Plan](ctx, s, of.key("plans"), of.key("p:"), seq, n)
}

func (t *tx) plan(id string) (*change[core.Plan], error) {
	return loadChange(t, t.plans, id, t.slot.plan(id))
}

// Plan implements [core.Tx].
func (t *tx) Plan(id string) (*core.Plan, error) {
	c, err := t.plan(id)
	if err != nil {
		return nil, err
	}
	if c.before == nil {
		return nil, core.ErrPlanNotFound
	}
	return clone(c.before)
}

// Plans implements [core.Tx].
func (t *tx) Plans(p core.Page) (list []*core.Plan, total int, err error) {
	if total, err = t.countIndex("ZCARD", t.slot.key("plans")); err != nil || p.Offset() >= total {
		return nil, total, err
	}
	ids, err := t.indexIDs(t.slot.key("plans"), p.Offset(), p.Offset()+p.Size-1)
	if err != nil {
		return nil, 0, err
	}
	b := newBatch(t.slot)
	for _, id := range ids {
		b.add("GET", t.slot.plan(id))
	}
	answers := t.readBatch(b)
	if answers == nil {
		return nil, 0, t.readErr
	}
	for _, a := range answers {
		if r, ok := text(a); ok {
			plan, err := record.Decode[core.Plan]([]byte(r))
			if err != nil {
				return nil, 0, err
			}
			list = append(list, plan)
		}
	}
	return list, total, nil
}

// PutPlan implements [core.Tx].
func (t *tx) PutPlan(p *core.Plan) error {
	if t.noAccount {
		return core.ErrAccountNotFound
	}
	c, err := t.plan(p.ID)
	if err != nil {
		return err
	}
	if _, err := t.assign("plan", &p.Seq); err != nil {
		return err
	}
	after, err := clone(p)
	if err != nil {
		return err
	}
	c.write(after)
	return nil
}

// DeletePlan implements [core.Tx].
func (t *tx) DeletePlan(id string) error {
	c, err := t.plan(id)
	if err != nil {
		return err
	}
	if c.current() == nil {
		return core.ErrPlanNotFound
	}
	c.write(nil)
	return nil
}
