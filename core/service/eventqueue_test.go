package service_test

import (
	"context"
	"errors"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// refusing is a store that refuses transactions with an error, if it has one.
type refusing struct {
	core.Store
	err error
}

func (s *refusing) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if s.err != nil {
		return s.err
	}
	return s.Store.Update(ctx, account, fn)
}

// Events wait while the store is unavailable. Events that the store will never take leave the queue: of an account that was deleted, and invalid ones.
func TestEventsThatTheStoreRefuses(t *testing.T) {
	for _, tc := range []struct {
		err   error
		waits bool
	}{{core.Unavailable(errors.New("no answer")), true}, {core.ErrAccountNotFound, false}, {core.ErrTooLarge, false}} {
		store := &refusing{Store: memstore.New()}
		e := newEvents(t, store)
		_, _, secret := e.customer("ann", e.plan(100), core.KeyPatch{})
		e.use(secret, 90)
		store.err = tc.err
		first := e.svc.WriteEvents(t.Context())
		if second := e.svc.WriteEvents(t.Context()); (second != nil) != tc.waits {
			t.Errorf("%v: got %v, and then %v, want that the event waits: %v", tc.err, first, second, tc.waits)
		}
	}
}
