package service_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// late is a store that makes each change, and answers that it is unavailable while fails is set.
type late struct {
	*memstore.Store
	fails bool
}

func (s *late) answer(err error) error {
	if err == nil && s.fails {
		return core.ErrUnavailable
	}
	return err
}

func (s *late) UpdateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (*core.OwnerKey, error) {
	k, err := s.Store.UpdateOwnerKey(ctx, account, id, fn)
	if err = s.answer(err); err != nil {
		return nil, err
	}
	return k, nil
}

func (s *late) CreateAccount(ctx context.Context, a *core.Account, k *core.OwnerKey) error {
	return s.answer(s.Store.CreateAccount(ctx, a, k))
}

func (s *late) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (*core.Account, error) {
	a, err := s.Store.UpdateAccount(ctx, id, fn)
	if err = s.answer(err); err != nil {
		return nil, err
	}
	return a, nil
}

func (s *late) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return s.answer(s.Store.Update(ctx, account, fn))
}

// Promise 3: a change that the store has made, and answered as unavailable, applies to the next request.
func TestForgetAfterUnavailable(t *testing.T) {
	store := &late{Store: memstore.New()}
	svc := service.New(store, service.Config{})
	c := newTenant(t, svc, "acme")
	k, secret := c.newKey("k")
	ctx := t.Context()
	change := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("%s: got %v, want unavailable", what, err)
		}
	}
	owner := func() (*core.OwnerKey, string) {
		t.Helper()
		store.fails = false
		o, s, err := svc.CreateOwnerKey(ctx, c.id, core.OwnerKeySpec{Name: "o"})
		c.ok(err)
		_, err = svc.Authenticate(ctx, s)
		c.ok(err)
		store.fails = true
		return o, s
	}

	o, s := owner()
	_, err := svc.RevokeOwnerKey(ctx, c.id, o.ID)
	change("revoke an owner's key", err)
	if _, err := svc.Authenticate(ctx, s); !errors.Is(err, service.ErrInvalidOwnerKey) {
		t.Errorf("a revoked owner's key: got %v", err)
	}
	o, s = owner()
	_, _, err = svc.RegenerateOwnerKey(ctx, c.id, o.ID, 0)
	change("regenerate an owner's key", err)
	if _, err := svc.Authenticate(ctx, s); !errors.Is(err, service.ErrInvalidOwnerKey) {
		t.Errorf("a regenerated owner's key: got %v", err)
	}

	for _, tt := range []struct {
		what   string
		change func() error
		want   service.Outcome
	}{
		{"disable a key", func() error {
			_, err := svc.UpdateKey(ctx, c.id, k.ID, core.KeyPatch{Status: new("inactive")})
			return err
		}, service.Disabled},
		{"enable a key", func() error {
			_, err := svc.UpdateKey(ctx, c.id, k.ID, core.KeyPatch{Status: new("active")})
			return err
		}, service.Allowed},
		{"disable a user", func() error {
			_, err := svc.UpdateUser(ctx, c.id, 1, core.UserPatch{Disabled: new(true)})
			return err
		}, service.Disabled},
		{"enable a user", func() error {
			_, err := svc.UpdateUser(ctx, c.id, 1, core.UserPatch{Disabled: new(false)})
			return err
		}, service.Allowed},
		{"expire a key", func() error {
			at := time.Now().Add(50 * time.Millisecond)
			_, err := svc.UpdateKey(ctx, c.id, k.ID, core.KeyPatch{ExpiresAt: core.Some(at)})
			time.Sleep(time.Until(at))
			return err
		}, service.Expired},
		{"regenerate a key", func() error {
			_, _, err := svc.RegenerateKey(ctx, c.id, k.ID, 0)
			return err
		}, service.Unknown},
	} {
		c.outcome(secret) // fills the caches
		change(tt.what, tt.change())
		if got := c.outcome(secret); got != tt.want {
			t.Errorf("%s: the next request is %s, want %s", tt.what, got, tt.want)
		}
	}
}
