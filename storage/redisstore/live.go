package redisstore

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// UsersAfter implements [core.LiveStore].
func (s *Store) UsersAfter(ctx context.Context, account string, id int64, n int) ([]*core.User, error) {
	return listAfter[core.User](ctx, s, account, resource.User, resource.UserSet(core.UserFilter{}), id, n)
}

// PlansAfter implements [core.LiveStore].
func (s *Store) PlansAfter(ctx context.Context, account string, seq int64, n int) ([]*core.Plan, error) {
	return listAfter[core.Plan](ctx, s, account, resource.Plan, resource.PlanSet, seq, n)
}

// KeysAfter implements [core.LiveStore].
func (s *Store) KeysAfter(ctx context.Context, account string, seq int64, n int) ([]*core.Key, error) {
	return listAfter[core.Key](ctx, s, account, resource.Key, resource.KeySet(core.KeyFilter{}), seq, n)
}

// listAfter returns at most n of the resources in a set that follow a number.
func listAfter[T any](ctx context.Context, s *Store, account string, kind resource.Kind, set string, number int64, n int) ([]*T, error) {
	records, _, err := s.newReader(ctx, resource.Scope{Account: account}).After(kind, set, number, n)
	if err != nil {
		return nil, err
	}
	return resource.Decode[T](records)
}
