package service_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A transaction creates a plan, a user on the plan and a key of the user, and reads them before they are stored. An error in
// the middle leaves nothing behind.
func TestBatch(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	c := newTenant(t, svc, "acme")
	secret, stop := "", errors.New("stop")
	fill := func(end error) func(b *service.Transaction) error {
		return func(b *service.Transaction) error {
			pl, err := b.CreatePlan(core.PlanPatch{Name: new("pro"), Limit: core.Some(int64(5)), Period: new("day")})
			c.ok(err)
			u, err := b.CreateUser(core.UserPatch{Name: new("ann"), PlanID: core.Some(pl.ID), Email: core.Some("ann@example.com")})
			c.ok(err)
			k, value, err := b.CreateKey(core.KeyPatch{Name: new("ci"), UserID: &u.ID})
			c.ok(err)
			secret = value
			if got, err := b.Key(k.ID); err != nil || got.UserID != u.ID {
				t.Errorf("read back %+v, %v", got, err)
			}
			if _, err := b.UpdateKey(k.ID, core.KeyPatch{PlanID: core.Some("plan_none")}); !errors.Is(err, core.ErrPlanNotFound) {
				t.Errorf("an unknown plan: %v, want %v", err, core.ErrPlanNotFound)
			}
			if err := b.DeletePlan(pl.ID); fieldOf(err) != "id" {
				t.Errorf("deleting a plan of a new user: %v, want it refused", err)
			}
			return end
		}
	}
	if err := svc.Transact(t.Context(), c.id, nil, fill(stop)); err != stop {
		t.Fatalf("got %v, want the error of fn", err)
	}
	counts := func() string {
		_, plans, _ := svc.Plans(t.Context(), c.id, core.Page{Number: 1, Size: 1})
		_, users, _ := svc.Users(t.Context(), c.id, core.UserFilter{}, core.Page{Number: 1, Size: 1})
		_, keys, _ := svc.Keys(t.Context(), c.id, core.KeyFilter{}, core.Page{Number: 1, Size: 1})
		return fmt.Sprint(plans, users, keys)
	}
	if got := counts(); got != "1 1 0" {
		t.Errorf("after an error: %s plans, users and keys, want 1 1 0", got)
	}
	c.ok(svc.Transact(t.Context(), c.id, nil, fill(nil)))
	if got := counts(); got != "2 2 1" {
		t.Errorf("%s plans, users and keys, want 2 2 1", got)
	}
	if got := c.outcome(secret); got != service.Allowed {
		t.Errorf("the new key: %v, want it allowed", got)
	}
}

// The caps of an account and the number of its meters hold for all changes of a batch together.
func TestBatchCounts(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	c := newTenant(t, svc, "acme")
	svc.Tune(service.Tunables{MaxPlans: 3, MaxUsers: 2, MaxKeys: 2})
	create := map[string]func(*service.Transaction) error{
		"plans": func(b *service.Transaction) error {
			_, err := b.CreatePlan(core.PlanPatch{Name: new("p"), Limit: core.Some(int64(5)), Period: new("day")})
			return err
		},
		"users": func(b *service.Transaction) error {
			_, err := b.CreateUser(core.UserPatch{Name: new("u")})
			return err
		},
		"keys": func(b *service.Transaction) error {
			_, _, err := b.CreateKey(core.KeyPatch{Name: new("k"), UserID: new(int64(1))})
			return err
		},
	}
	for kind, n := range map[string]int{"plans": 3, "users": 2, "keys": 3} { // one more than there is room for
		err := svc.Transact(t.Context(), c.id, nil, func(b *service.Transaction) error {
			for i := range n {
				if err := create[kind](b); err != nil {
					if i != n-1 {
						t.Errorf("%s: refused number %d, want %d", kind, i+1, n)
					}
					return err
				}
			}
			return nil
		})
		if fieldOf(err) != kind {
			t.Errorf("%s: %v, want it refused", kind, err)
		}
	}

	meters := func(from, to int) (limits []core.Limit) {
		for i := from; i < to; i++ {
			limits = append(limits, core.Limit{Meter: fmt.Sprintf("m%d", i), Max: 1, Period: core.Day})
		}
		return limits
	}
	pl, err := svc.CreatePlan(t.Context(), c.id, core.PlanPatch{Name: new("a"), Limit: core.Null[int64](), Limits: core.Some(meters(0, core.MaxMeters))})
	c.ok(err)
	other := core.PlanPatch{Name: new("b"), Limit: core.Null[int64](), Limits: core.Some(meters(50, 51))}
	if _, err := svc.CreatePlan(t.Context(), c.id, other); fieldOf(err) != "limits" {
		t.Errorf("one meter too many: %v, want it refused", err)
	}
	c.ok(svc.Transact(t.Context(), c.id, nil, func(b *service.Transaction) error { // the order does not matter
		if _, err := b.CreatePlan(other); err != nil {
			return err
		}
		_, err := b.UpdatePlan(pl.ID, core.PlanPatch{Limits: core.Some(meters(1, core.MaxMeters))})
		return err
	}))
}

// A key gets a value by its digest. No two keys, of any accounts, have one value, and a changed digest takes effect at
// once.
func TestGivenDigests(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	batch := func(c *tenant, d secrets.Digest, fn func(*service.Transaction) (*core.Key, error)) (k *core.Key, err error) {
		err = svc.Transact(t.Context(), c.id, []secrets.Digest{d}, func(b *service.Transaction) error {
			k, err = fn(b)
			return err
		})
		return k, err
	}
	a, b := newTenant(t, svc, "acme"), newTenant(t, svc, "other")
	one, two := secrets.NewUserSecret(secrets.DefaultKeyPrefix), secrets.NewUserSecret(secrets.DefaultKeyPrefix)
	give := func(c *tenant, secret, name string) (*core.Key, error) {
		d := secrets.DigestOf(secret)
		return batch(c, d, func(b *service.Transaction) (*core.Key, error) {
			k, value, err := b.CreateKey(core.KeyPatch{Name: &name, UserID: new(int64(1)), Digest: &d})
			if value != "" {
				t.Error("got a value for a given digest")
			}
			return k, err
		})
	}
	k, err := give(a, one, "first")
	a.ok(err)
	if want := "sha256_…"; len(k.Hint) != len(want)+4 || k.Hint[:len(want)] != want {
		t.Errorf("got the hint %q, want %s and four digits", k.Hint, want)
	}
	if got := a.outcome(one); got != service.Allowed {
		t.Errorf("the given value: %v, want it allowed", got)
	}
	for _, c := range []*tenant{a, b} {
		if _, err := give(c, one, "second"); fieldOf(err) != "key_sha256" {
			t.Errorf("the value of another key: %v, want it refused", err)
		}
	}
	change := func(secret string) error {
		d := secrets.DigestOf(secret)
		_, err := batch(a, d, func(b *service.Transaction) (*core.Key, error) { return b.UpdateKey(k.ID, core.KeyPatch{Digest: &d}) })
		return err
	}
	a.ok(change(two))
	if got := []service.Outcome{a.outcome(one), a.outcome(two)}; got[0] != service.Unknown || got[1] != service.Allowed {
		t.Errorf("the old and the new value: %v, want not found and allowed", got)
	}
	_, err = give(b, one, "second")
	b.ok(err)
	if err := change(one); fieldOf(err) != "key_sha256" {
		t.Errorf("a value that another account has: %v, want it refused", err)
	}

	d := secrets.DigestOf("lk_user_third")
	if _, err := svc.UpdateKey(t.Context(), a.id, k.ID, core.KeyPatch{Digest: &d}); fieldOf(err) != "key_sha256" {
		t.Errorf("a digest outside a batch: %v, want it refused", err)
	}
	err = svc.Transact(t.Context(), a.id, []secrets.Digest{d}, func(b *service.Transaction) error {
		for _, name := range []string{"x", "y"} {
			if _, _, err := b.CreateKey(core.KeyPatch{Name: &name, UserID: new(int64(1)), Digest: &d}); err != nil {
				return err
			}
		}
		return nil
	})
	if fieldOf(err) != "key_sha256" {
		t.Errorf("one digest for two keys: %v, want it refused", err)
	}
	a.ok(svc.Transact(t.Context(), a.id, []secrets.Digest{secrets.DigestOf(two)}, func(b *service.Transaction) error { // a digest moves to another key
		if err := b.DeleteKey(k.ID); err != nil {
			return err
		}
		_, _, err := b.CreateKey(core.KeyPatch{Name: new("z"), UserID: new(int64(1)), Digest: new(secrets.DigestOf(two))})
		return err
	}))
	if got := a.outcome(two); got != service.Allowed {
		t.Errorf("the value of another key now: %v, want it allowed", got)
	}
}
