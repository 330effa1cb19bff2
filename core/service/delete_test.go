package service_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// The deletion of a user with many keys leaves a few entries in the audit log: an entry for each key would drop all others from the log.
func TestDeleteUserWithManyKeysInAudit(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	c := newTenant(t, svc, "acme")
	c.ok(svc.Transact(core.WithoutAudit(t.Context()), c.id, nil, func(b *service.Transaction) error {
		for i := range 2500 {
			if _, _, err := b.CreateKey(core.KeyPatch{Name: new(fmt.Sprint(i)), UserID: new(int64(1))}); err != nil {
				return err
			}
		}
		return nil
	}))
	before, err := svc.Audit(t.Context(), c.id, service.AuditFilter{}, core.Page{Number: 1, Size: 1})
	c.ok(err)
	c.ok(svc.DeleteUser(t.Context(), c.id, 1))
	page, err := svc.Audit(t.Context(), c.id, service.AuditFilter{}, core.Page{Number: 1, Size: 100})
	c.ok(err)
	var got []string
	for _, e := range page.Entries[:min(len(page.Entries), page.Found-before.Found)] {
		got = append(got, fmt.Sprintf("%s of %s %s %s", e.Action, e.Target.Kind, e.Target.ID, e.Before))
	}
	if len(got) != 4 || !strings.Contains(got[0], `"keys":500}`) || !strings.HasPrefix(got[0], "user.delete of user 1") || !strings.HasPrefix(got[3], "user.update of user 1") ||
		got[1] != `key.delete of user 1 {"keys":1000}` || got[2] != got[1] {
		t.Errorf("got %d entries, first %q, want the user, 1,000 keys, 1,000 keys, and the user with 500 keys", page.Found-before.Found, got[:min(len(got), 5)])
	}
}
