package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// resources are the users, plans and keys of an account, and the ways to sign in.
type resources struct {
	users  *table[int64, core.User]
	plans  *table[string, core.Plan]
	keys   *table[string, core.Key]
	prices *core.Prices

	webhooks *table[string, core.Webhook]
	events   *table[string, core.Event]
	attempts *table[string, core.Attempt]

	access *core.Access // nil if the account is missing
}

func newResources() *resources {
	return &resources{
		users: newTable(core.ErrUserNotFound, func(u *core.User) int64 { return u.ID }, func(u *core.User) *int64 { return &u.ID }),
		plans: newTable(core.ErrPlanNotFound, func(p *core.Plan) string { return p.ID }, func(p *core.Plan) *int64 { return &p.Seq }),
		keys:  newTable(core.ErrKeyNotFound, func(k *core.Key) string { return k.ID }, func(k *core.Key) *int64 { return &k.Seq }),

		prices: new(core.Prices),

		webhooks: newTable(core.ErrWebhookNotFound, func(w *core.Webhook) string { return w.ID }, func(w *core.Webhook) *int64 { return &w.Seq }),
		events:   newTable(core.ErrEventNotFound, func(e *core.Event) string { return e.ID }, func(e *core.Event) *int64 { return &e.Seq }),
		attempts: newTable(core.ErrEventNotFound, func(a *core.Attempt) string { return a.ID }, func(a *core.Attempt) *int64 { return &a.Seq }),
	}
}

// of returns the resources of an account, empty if it is missing.
func (s *Store) of(account string) *resources {
	if r := s.resources[account]; r != nil {
		return r
	}
	return newResources()
}

// clone returns a copy that shares the rows of the tables, the prices and the access.
func (r *resources) clone() *resources {
	return &resources{r.users.clone(), r.plans.clone(), r.keys.clone(), r.prices, r.webhooks.clone(), r.events.clone(), r.attempts.clone(), r.access}
}

// table has the resources of a kind by id. They are replaced, never changed.
type table[K comparable, T any] struct {
	rows    map[K]*T
	last    int64 // the largest number given so far
	missing error
	id      func(*T) K
	number  func(*T) *int64 // lists are sorted by it
}

func newTable[K comparable, T any](missing error, id func(*T) K, number func(*T) *int64) *table[K, T] {
	return &table[K, T]{map[K]*T{}, 0, missing, id, number}
}

func (t *table[K, T]) clone() *table[K, T] {
	c := *t
	c.rows = maps.Clone(t.rows)
	return &c
}

// get returns a copy of the resource with an id.
func (t *table[K, T]) get(id K) (*T, error) {
	v := t.rows[id]
	if v == nil {
		return nil, t.missing
	}
	return copyOf(v), nil
}

// matching returns the resources that match, by their numbers.
func (t *table[K, T]) matching(matches func(*T) bool) []*T {
	found := filter(maps.Values(t.rows), matches)
	slices.SortFunc(found, func(a, b *T) int { return cmp.Compare(*t.number(a), *t.number(b)) })
	return found
}

// put stores a copy of a resource. It gives a new one the number after last, and marks the number of another one as used.
func (t *table[K, T]) put(v *T) {
	n := t.number(v)
	if *n == 0 {
		*n = t.last + 1
	}
	t.last = max(t.last, *n)
	t.rows[t.id(v)] = copyOf(v)
}

// remove deletes the resource with an id.
func (t *table[K, T]) remove(id K) error {
	if t.rows[id] == nil {
		return t.missing
	}
	delete(t.rows, id)
	return nil
}

// User implements [core.Store].
func (s *Store) User(_ context.Context, account string, id int64) (*core.User, error) {
	return get(s, core.ErrUserNotFound, func() *core.User { return s.of(account).users.rows[id] })
}

// Plan implements [core.Store].
func (s *Store) Plan(_ context.Context, account, id string) (*core.Plan, error) {
	return get(s, core.ErrPlanNotFound, func() *core.Plan { return s.of(account).plans.rows[id] })
}

// Key implements [core.Store].
func (s *Store) Key(_ context.Context, account, id string) (*core.Key, error) {
	return get(s, core.ErrKeyNotFound, func() *core.Key { return s.of(account).keys.rows[id] })
}

// KeyByDigest implements [core.Store].
func (s *Store) KeyByDigest(_ context.Context, d secrets.Digest) (*core.Key, error) {
	return get(s, core.ErrKeyNotFound, func() *core.Key {
		for _, r := range s.resources {
			for _, k := range r.keys.rows {
				if slices.Contains(k.Digests(), d) {
					return k
				}
			}
		}
		return nil
	})
}

// Users implements [core.Store].
func (s *Store) Users(_ context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	return list(s, p, func() []*core.User { return s.of(account).matchingUsers(f) })
}

// Plans implements [core.Store].
func (s *Store) Plans(_ context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	return list(s, p, func() []*core.Plan { return s.of(account).allPlans() })
}

// Keys implements [core.Store].
func (s *Store) Keys(_ context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	return list(s, p, func() []*core.Key { return s.of(account).matchingKeys(f) })
}

// Prices implements [core.Store].
func (s *Store) Prices(_ context.Context, account string) (*core.Prices, error) {
	return get(s, nil, func() *core.Prices { return s.of(account).prices })
}

// LastNumbers implements [core.Importer].
func (s *Store) LastNumbers(_ context.Context, account string) (n core.Numbers, err error) {
	err = s.locked(func() error {
		r := s.of(account)
		n = core.Numbers{User: r.users.last, Plan: r.plans.last, Key: r.keys.last}
		return nil
	})
	return n, err
}

// RaiseNumbers implements [core.Importer].
func (s *Store) RaiseNumbers(_ context.Context, account string, n core.Numbers) error {
	return s.locked(func() error {
		r := s.resources[account]
		if s.isMissing(account) {
			return core.ErrAccountNotFound
		}
		r.users.last, r.plans.last, r.keys.last = max(r.users.last, n.User), max(r.plans.last, n.Plan), max(r.keys.last, n.Key)
		return nil
	})
}

// allPlans returns the plans, by Seq.
func (r *resources) allPlans() []*core.Plan {
	return r.plans.matching(func(*core.Plan) bool { return true })
}

// matchingUsers returns the users that match, by ID.
func (r *resources) matchingUsers(f core.UserFilter) []*core.User {
	holders := map[int64]bool{} // the users of the keys on f.OnPlan
	if f.OnPlan != "" {
		for _, k := range r.matchingKeys(core.KeyFilter{PlanID: &f.OnPlan}) {
			holders[k.UserID] = true
		}
	}
	return r.users.matching(func(u *core.User) bool {
		switch {
		case f.Email != "":
			return u.Email != nil && core.FoldEmail(*u.Email) == core.FoldEmail(f.Email)
		case f.ExternalID != "":
			return u.ExternalID == f.ExternalID
		case f.PlanID != "":
			return u.PlanID == f.PlanID
		case f.OnPlan != "":
			return u.PlanID == f.OnPlan || holders[u.ID]
		case f.Anchored:
			return len(u.Anchors) > 0
		}
		return true
	})
}

// planOf returns the plan that limits a key, "" for none.
func (r *resources) planOf(k *core.Key) string {
	if u := r.users.rows[k.UserID]; k.PlanID == "" && u != nil {
		return u.PlanID
	}
	return k.PlanID
}

// matchingKeys returns the keys that match, by Seq.
func (r *resources) matchingKeys(f core.KeyFilter) []*core.Key {
	return r.keys.matching(func(k *core.Key) bool {
		return (f.UserID == 0 || k.UserID == f.UserID) &&
			(f.PlanID == nil || k.PlanID == *f.PlanID) &&
			(f.Status == "" || k.Status == f.Status) &&
			(f.UnderPlan == "" || r.planOf(k) == f.UnderPlan) &&
			(f.HintTail == "" || len(k.Hint) >= core.HintTailLength && strings.HasSuffix(k.Hint, f.HintTail))
	})
}
