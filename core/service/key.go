package service

import (
	"context"
	"errors"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// MaxGrace bounds the time for which an earlier value of a key works.
const MaxGrace = 604800 * time.Second // a week

// applyKey checks and sets the members of a key.
func (b *Transaction) applyKey(p core.KeyPatch, k *core.Key) error {
	if err := p.Apply(k, b.s.now()); err != nil {
		return err
	}
	if err := b.applyDigest(p, k); err != nil {
		return err
	}
	return b.applyReferences(p, k)
}

// applyDigest sets the digest of the value.
func (b *Transaction) applyDigest(p core.KeyPatch, k *core.Key) error {
	if p.Digest == nil || *p.Digest == k.Digest {
		return nil
	}
	if err := b.claimDigest(*p.Digest, k.ID); err != nil {
		return err
	}
	k.Digest, k.Hint, k.Previous = *p.Digest, p.Hint, nil
	if p.Hint == "" {
		k.Hint = secrets.HintOfDigest(*p.Digest)
	}
	return nil
}

// applyReferences sets user and plan. It refuses a key without any plan: neither its own nor that
// of its user.
func (b *Transaction) applyReferences(p core.KeyPatch, k *core.Key) error {
	if p.UserID == nil && !p.PlanID.Set {
		return nil
	}
	if p.UserID != nil {
		k.UserID = *p.UserID
	}
	u, err := b.User(k.UserID)
	if err != nil {
		return err
	}
	if p.PlanID.Value != nil {
		if err := b.checkPlanAssignable(*p.PlanID.Value, k.PlanID); err != nil {
			return err
		}
	}
	if p.PlanID.Set {
		k.PlanID = p.PlanID.OrZero()
	}
	if k.PlanID == "" && u.PlanID == "" {
		return core.Invalid("plan_id", "Plan id is required: the user has no plan of its own")
	}
	return nil
}

// CreateKey creates a key and returns it with its secret, which is shown only once. Name and user
// are required, and a plan unless the user has one. It is a validation error if the account has
// reached max_keys.
func (s *Service) CreateKey(ctx context.Context, account string, p core.KeyPatch) (k *core.Key, secret string, err error) {
	if err := core.KeyMembers.Required(p); err != nil {
		return nil, "", err
	}
	err = s.transact(ctx, account, nil, func(b *Transaction) error {
		k, secret, err = b.CreateKey(p)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return k, secret, nil
}

// CreateKey is [Service.CreateKey] in a transaction. The secret is "" for a key with a given digest.
func (b *Transaction) CreateKey(p core.KeyPatch) (k *core.Key, secret string, err error) {
	if err := core.KeyMembers.Required(p); err != nil {
		return nil, "", err
	}
	n, err := b.tx.CountKeys(core.KeyFilter{})
	if err != nil {
		return nil, "", err
	}
	if err := checkCap("key", b.s.tunables.Load().MaxKeys, n+b.moreKeys[keysOf{}]); err != nil {
		return nil, "", err
	}
	now := b.s.now()
	k = &core.Key{AccountID: b.account, ID: secrets.NewID("key_"), Status: core.KeyActive, CreatedAt: now, UpdatedAt: now}
	if p.Digest == nil {
		secret = secrets.NewUserSecret(b.before.PrefixOfNewKeys())
		k.Digest, k.Hint = secrets.DigestOf(secret), secrets.HintOf(secret, b.before.PrefixOfNewKeys())
	}
	if err := b.applyKey(p, k); err != nil {
		return nil, "", err
	}
	return k, secret, b.putKey(nil, k)
}

// Key returns a key, or [core.ErrKeyNotFound].
func (s *Service) Key(ctx context.Context, account, id string) (*core.Key, error) {
	return s.store.Key(ctx, account, id)
}

// Keys returns a page of the account's keys that match, oldest first, and how
// many match.
func (s *Service) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	return s.store.Keys(ctx, account, f, p)
}

// KeysUnderPlan returns a page of the account's keys that a plan limits and that match the filter, oldest first, and how
// many there are. A plan limits a key that has it, and a key without a plan of its own whose user has it. The PlanID of the
// filter is not used. An index lists the keys, so the time of a page does not grow with their number. There is one exception: the filter has a user
// with the plan, and this user has both keys with the plan and keys without a plan of their own. KeysUnderPlan then reads all keys of the user. With more
// than 1,000 keys, this is a large query: an account runs one at a time.
func (s *Service) KeysUnderPlan(ctx context.Context, account, plan string, f core.KeyFilter, p core.Page) (list []*core.Key, total int, err error) {
	f.PlanID = &plan
	f, under, err := s.underPlan(ctx, account, f)
	if err != nil {
		return nil, 0, err
	}
	if under == nil {
		return s.store.Keys(ctx, account, f, p)
	}
	_, n, err := s.store.Keys(ctx, account, f, core.Page{Number: 1, Size: 1})
	if err != nil {
		return nil, 0, err
	}
	err = s.runQuery(ctx, account, n, func() error {
		return s.eachKey(ctx, account, f, func(k *core.Key) error {
			if !under(k) {
				return nil
			}
			if total++; total > p.Offset() && len(list) < p.Size {
				list = append(list, k)
			}
			return nil
		})
	})
	return list, total, err
}

// underPlan returns a filter for the store in place of a filter whose PlanID selects the keys that the plan limits. If under is not nil, the filter matches
// other keys, too: use only the keys for which under returns true.
func (s *Service) underPlan(ctx context.Context, account string, f core.KeyFilter) (of core.KeyFilter, under func(*core.Key) bool, err error) {
	if f.PlanID == nil || *f.PlanID == "" {
		return f, nil, nil
	}
	plan := *f.PlanID
	if f.UserID == 0 {
		return core.KeyFilter{UnderPlan: plan, Status: f.Status}, nil, nil
	}
	u, err := s.store.User(ctx, account, f.UserID)
	if errors.Is(err, core.ErrUserNotFound) || err == nil && u.PlanID != plan {
		return f, nil, nil
	}
	if err != nil {
		return f, nil, err
	}
	own, shared, one := f, f, core.Page{Number: 1, Size: 1}
	shared.PlanID = new("")
	if _, n, err := s.store.Keys(ctx, account, own, one); err != nil || n == 0 {
		return shared, nil, err
	}
	if _, n, err := s.store.Keys(ctx, account, shared, one); err != nil || n == 0 {
		return own, nil, err
	}
	f.PlanID = nil
	return f, func(k *core.Key) bool { return k.PlanID == "" || k.PlanID == plan }, nil
}

// UpdateKey sets the members that p names and returns the whole key.
func (s *Service) UpdateKey(ctx context.Context, account, id string, p core.KeyPatch) (*core.Key, error) {
	return changeOne(ctx, s, account, func(b *Transaction) (*core.Key, error) { return b.UpdateKey(id, p) })
}

// UpdateKey is [Service.UpdateKey] in a transaction.
func (b *Transaction) UpdateKey(id string, p core.KeyPatch) (*core.Key, error) {
	return b.changeKey(id, func(k *core.Key) error { return b.applyKey(p, k) })
}

// RegenerateKey gives a key a new secret, which is shown only once. The key keeps its id and its
// usage. With a grace above zero the old value works for that time. Otherwise the old value and
// every earlier one stop working at once.
func (s *Service) RegenerateKey(ctx context.Context, account, id string, grace time.Duration) (k *core.Key, secret string, err error) {
	if grace < 0 || grace > MaxGrace {
		return nil, "", core.Invalid("grace_seconds", "Grace seconds must be from 0 to 604800")
	}
	err = s.transact(ctx, account, nil, func(b *Transaction) error {
		secret = secrets.NewUserSecret(b.before.PrefixOfNewKeys())
		k, err = b.changeKey(id, func(k *core.Key) error {
			if grace == 0 {
				k.Previous = nil
			} else if k.Previous = append(k.Previous, core.GraceValue{Digest: k.Digest, Until: s.now().Add(grace)}); len(k.Previous) > core.MaxGraceValues {
				return core.Invalid("grace_seconds", "Too many earlier values of this key still work: regenerate it without grace, or later")
			}
			k.Digest, k.Hint = secrets.DigestOf(secret), secrets.HintOf(secret, b.before.PrefixOfNewKeys())
			return nil
		})
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return k, secret, nil
}

// changeKey runs fn on a copy of a key, and stores the copy.
func (b *Transaction) changeKey(id string, fn func(*core.Key) error) (*core.Key, error) {
	before, err := b.Key(id)
	if err != nil {
		return nil, err
	}
	k := *before
	k.DropExpiredValues(b.s.now())
	if err := fn(&k); err != nil {
		return nil, err
	}
	k.UpdatedAt = b.s.after(k.UpdatedAt)
	return &k, b.putKey(before, &k)
}

// DeleteKey deletes a key. The next request with it is refused as unknown.
func (s *Service) DeleteKey(ctx context.Context, account, id string) error {
	return s.transact(ctx, account, nil, func(b *Transaction) error { return b.DeleteKey(id) })
}

// DeleteKey is [Service.DeleteKey] in a transaction.
func (b *Transaction) DeleteKey(id string) error { return remove(id, b.Key, b.putKey) }
