package service_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// twice is a store that runs each transaction twice, as a store does when another process has changed the account meanwhile.
type twice struct {
	core.Store
	fails error // the error of every transaction
}

func (s *twice) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	stale := errors.New("stale")
	_ = s.Store.Update(ctx, account, func(tx core.Tx) error { return errors.Join(fn(tx), stale) })
	if s.fails != nil {
		return s.fails
	}
	return s.Store.Update(ctx, account, fn)
}

// An event is reported and stored once for each change that ends the use of a key or of all keys of a user, and for no other change.
func TestKeyDisabled(t *testing.T) {
	var got []string
	store := &twice{Store: memstore.New()}
	svc := service.New(store, service.Config{OnEvent: func(_ string, e *core.Event) {
		if e.Type == core.EventKeyDisabled {
			got = append(got, string(e.Data))
		}
	}})
	c := newTenant(t, svc, "acme")
	ctx := t.Context()
	plan, err := svc.CreatePlan(ctx, c.id, core.PlanPatch{Name: new("p"), Limit: core.Some(int64(5)), Period: new("day")})
	c.ok(err)
	users := make([]*core.User, 3)
	keys := map[string]*core.Key{}
	for i := range users {
		u, err := svc.CreateUser(ctx, c.id, core.UserPatch{Name: new("user"), PlanID: core.Some(plan.ID)})
		c.ok(err)
		users[i] = u
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		k, _, err := svc.CreateKey(ctx, c.id, core.KeyPatch{Name: &name, UserID: &users[0].ID})
		c.ok(err)
		keys[name] = k
	}
	status := func(b *service.Transaction, key string, s core.KeyStatus) error {
		_, err := b.UpdateKey(keys[key].ID, core.KeyPatch{Status: new(string(s))})
		return err
	}
	disable := func(b *service.Transaction, user int, disabled bool) error {
		_, err := b.UpdateUser(users[user].ID, core.UserPatch{Disabled: &disabled})
		return err
	}
	stop := errors.New("stop")
	of := func(key string, how core.DisabledHow) string {
		return fmt.Sprintf(`{"user_id":%d,"key_id":%q,"how":%q}`, users[0].ID, keys[key].ID, how)
	}
	ofUser := func(user int, how core.DisabledHow) string {
		return fmt.Sprintf(`{"user_id":%d,"key_id":null,"how":%q}`, users[user].ID, how)
	}
	for _, tc := range []struct {
		name  string
		do    func(b *service.Transaction) error
		fails error // of the store
		want  []string
	}{
		{"inactive", func(b *service.Transaction) error { return status(b, "a", core.KeyInactive) }, nil, []string{of("a", core.HowInactive)}},
		{"inactive again", func(b *service.Transaction) error { return status(b, "a", core.KeyInactive) }, nil, nil},
		{"active again", func(b *service.Transaction) error { return status(b, "a", core.KeyActive) }, nil, nil},
		{"renamed", func(b *service.Transaction) error {
			_, err := b.UpdateKey(keys["a"].ID, core.KeyPatch{Name: new("new name")})
			return err
		}, nil, nil},
		{"refused", func(b *service.Transaction) error { return errors.Join(status(b, "a", core.KeyInactive), stop) }, nil, nil},
		{"not stored", func(b *service.Transaction) error { return status(b, "a", core.KeyInactive) }, core.Unavailable(stop), nil},
		{"two in a batch", func(b *service.Transaction) error {
			return errors.Join(status(b, "b", core.KeyInactive), b.DeleteKey(keys["c"].ID))
		}, nil, []string{of("b", core.HowInactive), of("c", core.HowDeleted)}},
		{"an inactive one deleted", func(b *service.Transaction) error { return b.DeleteKey(keys["b"].ID) }, nil, nil},
		{"a user disabled", func(b *service.Transaction) error { return disable(b, 0, true) }, nil, []string{ofUser(0, core.HowUserDisabled)}},
		{"a key of a disabled user", func(b *service.Transaction) error { return status(b, "d", core.KeyInactive) }, nil, []string{of("d", core.HowInactive)}},
		{"a disabled user deleted", func(b *service.Transaction) error { return b.DeleteUser(users[0].ID) }, nil, nil},
		{"a user disabled and enabled", func(b *service.Transaction) error { return disable(b, 1, false) }, nil, nil},
		{"a user deleted", func(b *service.Transaction) error { return b.DeleteUser(users[1].ID) }, nil, []string{ofUser(1, core.HowUserDeleted)}},
		{"created inactive", func(b *service.Transaction) error {
			_, _, err := b.CreateKey(core.KeyPatch{Name: new("off"), UserID: &users[2].ID, Status: new(string(core.KeyInactive))})
			return err
		}, nil, nil},
	} {
		got, store.fails = nil, tc.fails
		err := svc.Transact(ctx, c.id, nil, tc.do)
		if want := tc.name == "refused" || tc.fails != nil; (err != nil) != want {
			t.Fatalf("%s: got error %v", tc.name, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.name, diff)
		}
	}
}
