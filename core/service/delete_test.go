package service_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// steppedStore counts the keys that each transaction deletes, and runs between after the first.
type steppedStore struct {
	*memstore.Store
	deleted []int
	between func()
}

type steppedTx struct {
	core.Tx
	deleted *int
}

func (t steppedTx) DeleteKey(id string) error {
	*t.deleted++
	return t.Tx.DeleteKey(id)
}

func (s *steppedStore) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	n := 0
	err := s.Store.Update(ctx, account, func(tx core.Tx) error { return fn(steppedTx{tx, &n}) })
	s.deleted = append(s.deleted, n)
	if s.between != nil && n > 0 {
		between := s.between
		s.between = nil
		between()
	}
	return err
}

// The deletion of a user with many keys takes several transactions. All its keys stop with the first one, and a key that moves to another
// user meanwhile stays.
func TestDeleteUserWithManyKeys(t *testing.T) {
	store := &steppedStore{Store: memstore.New()}
	var events []string
	svc := service.New(store, service.Config{OnEvent: func(_ string, e *core.Event) {
		if e.Type == core.EventKeyDisabled {
			events = append(events, string(e.Data))
		}
	}})
	c := newTenant(t, svc, "acme")
	other, err := svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("other")})
	c.ok(err)
	const keys = 2500
	c.ok(svc.Transact(t.Context(), c.id, nil, func(b *service.Transaction) error {
		for i := range keys - 1 {
			if _, _, err := b.CreateKey(core.KeyPatch{Name: new(fmt.Sprint(i)), UserID: new(int64(1))}); err != nil {
				return err
			}
		}
		return nil
	}))
	last, secret := c.newKey("last")
	list, _, err := svc.Keys(t.Context(), c.id, core.KeyFilter{UserID: 1}, core.Page{Number: 3, Size: 1000})
	c.ok(err)
	moving := list[0].ID
	plan, _, err := svc.Plans(t.Context(), c.id, core.Page{Number: 1, Size: 1})
	c.ok(err)
	store.deleted = nil
	store.between = func() {
		d, err := svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/x", Method: "GET", Cost: 1})
		c.ok(err)
		if d.Outcome != service.Disabled {
			t.Errorf("key %s after the first step: got %s, want disabled", last.ID, d.Outcome)
		}
		_, err = svc.UpdateKey(t.Context(), c.id, moving, core.KeyPatch{UserID: &other.ID, PlanID: core.Some(plan[0].ID)})
		c.ok(err)
	}
	c.ok(svc.DeleteUser(t.Context(), c.id, 1))
	if slices.Max(store.deleted) != 1000 {
		t.Errorf("the transactions have deleted %v keys, want at most 1000 each", store.deleted)
	}
	if _, total, err := svc.Keys(t.Context(), c.id, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || total != 1 {
		t.Errorf("%d keys are left, %v, want the one that moved", total, err)
	}
	if want := []string{`{"user_id":1,"key_id":null,"how":"user_disabled"}`}; !slices.Equal(events, want) {
		t.Errorf("got %d events, first %s, want %s", len(events), events[0], want)
	}
}
