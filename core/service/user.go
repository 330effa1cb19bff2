package service

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// applyUser checks and sets the members of a user.
func (b *Transaction) applyUser(p core.UserPatch, u *core.User) error {
	if err := p.Apply(u, b.s.now()); err != nil || !p.PlanID.Set {
		return err
	}
	return b.applyPlan(p, u)
}

func (b *Transaction) applyPlan(p core.UserPatch, u *core.User) error {
	plan := p.PlanID.OrZero()
	if p.PlanID.Value != nil {
		if err := b.checkPlanAssignable(plan, u.PlanID); err != nil {
			return err
		}
	} else if u.ID != 0 && u.PlanID != "" {
		n, err := b.tx.CountKeys(core.KeyFilter{UserID: u.ID, PlanID: new("")})
		if err != nil {
			return err
		}
		if n += b.moreKeys[keysOf{u.ID, ""}]; n > 0 {
			return core.Invalid("plan_id", "The plan cannot be removed while keys without a plan of their own draw on it: "+countNoun(n, "key"))
		}
	}
	u.PlanID = plan
	return nil
}

// CreateUser creates a user. The name is required. It is a validation error if the account has
// reached max_users.
func (s *Service) CreateUser(ctx context.Context, account string, p core.UserPatch) (*core.User, error) {
	if err := s.checkNoKey(ctx, account, p); err != nil {
		return nil, err
	}
	return changeOne(ctx, s, account, func(b *Transaction) (*core.User, error) { return b.CreateUser(p) })
}

// checkNoKey returns [core.ErrSecretExternalID] if an external id is the value of a key of the account. Only a look-up tells an imported key
// from another text.
func (s *Service) checkNoKey(ctx context.Context, account string, p core.UserPatch) error {
	if p.ExternalID.Value == nil {
		return nil
	}
	secret, err := s.AreKeys(ctx, account, []string{*p.ExternalID.Value}, nil)
	if err == nil && secret[0] {
		err = core.ErrSecretExternalID
	}
	return err
}

// AreKeys reports for each text, without the space around it, whether it is the value of a key of the account, or has one of the digests.
func (s *Service) AreKeys(ctx context.Context, account string, texts []string, digests []secrets.Digest) ([]bool, error) {
	given := map[secrets.Digest]bool{}
	for _, d := range digests {
		given[d] = true
	}
	var of []int // the indexes of the texts that may be keys
	var look []secrets.Digest
	for i, text := range texts {
		if text = strings.TrimSpace(text); secrets.HasKeyCharacters(text) {
			of, look = append(of, i), append(look, secrets.DigestOf(text))
		}
	}
	found, err := s.KeysByDigest(ctx, look)
	are := make([]bool, len(texts))
	for i, k := range found {
		are[of[i]] = k != nil && k.AccountID == account || given[look[i]]
	}
	return are, err
}

// EachKeyLikeExternalID calls fn with each user of the account whose external id may be the value of a key, and the digest of the external
// id. No store finds external ids by digest, so it reads all users.
func (s *Service) EachKeyLikeExternalID(ctx context.Context, account string, fn func(secrets.Digest, *core.User)) error {
	return s.eachUser(ctx, account, core.UserFilter{}, func(u *core.User) error {
		if secrets.HasKeyCharacters(u.ExternalID) {
			fn(secrets.DigestOf(u.ExternalID), u)
		}
		return nil
	})
}

// CreateUser is [Service.CreateUser] in a transaction.
func (b *Transaction) CreateUser(p core.UserPatch) (*core.User, error) {
	if err := core.UserMembers.Required(p); err != nil {
		return nil, err
	}
	n, err := b.tx.CountUsers(core.UserFilter{})
	if err != nil {
		return nil, err
	}
	if err := checkCap("user", b.s.tunables.Load().MaxUsers, n+b.newUsers); err != nil {
		return nil, err
	}
	now := b.s.now()
	u := &core.User{AccountID: b.account, CreatedAt: now, UpdatedAt: now}
	if p.CustomStart.Value != nil {
		u.Anchors = core.Anchors{{Start: p.CustomStart.Value.UTC().Truncate(time.Second)}}
	}
	if err := b.applyUser(p, u); err != nil {
		return nil, err
	}
	return u, b.putUser(nil, u)
}

// User returns a user, or [core.ErrUserNotFound].
func (s *Service) User(ctx context.Context, account string, id int64) (*core.User, error) {
	return s.store.User(ctx, account, id)
}

// Users returns a page of the users of the account that match, oldest first, and their total. Unlike
// the filter of a [core.Store], f may have both an email and an external id: a user then matches both.
func (s *Service) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	if f.Email == "" || f.ExternalID == "" {
		return s.store.Users(ctx, account, f, p)
	}
	list, _, err := s.store.Users(ctx, account, core.UserFilter{ExternalID: f.ExternalID}, core.Page{Number: 1, Size: 1})
	if err != nil || len(list) == 0 || list[0].Email == nil || core.FoldEmail(*list[0].Email) != core.FoldEmail(f.Email) {
		return nil, 0, err
	}
	if p.Offset() > 0 {
		return nil, 1, nil
	}
	return list, 1, nil
}

// UpdateUser sets the members that p names and returns the whole user.
func (s *Service) UpdateUser(ctx context.Context, account string, id int64, p core.UserPatch) (*core.User, error) {
	if err := s.checkNoKey(ctx, account, p); err != nil {
		return nil, err
	}
	return changeOne(ctx, s, account, func(b *Transaction) (*core.User, error) { return b.UpdateUser(id, p) })
}

// UpdateUser is [Service.UpdateUser] in a transaction.
func (b *Transaction) UpdateUser(id int64, p core.UserPatch) (*core.User, error) {
	before, err := b.User(id)
	if err != nil {
		return nil, err
	}
	u := *before
	if p.CustomStart.Set {
		if u.Anchors, err = u.Anchors.Moved(p.CustomStart.OrZero(), b.s.now()); err != nil {
			return nil, err
		}
	}
	if err := b.applyUser(p, &u); err != nil {
		return nil, err
	}
	u.UpdatedAt = b.s.after(u.UpdatedAt)
	return &u, b.putUser(before, &u)
}

// DeleteUser deletes a user with its keys. The next request with such a key is refused as unknown. A user with more than 1,000 keys (ReadSize)
// is disabled first, and its keys are deleted in several transactions: one of 240,000 keys takes 700 MB, and stalls others for 2 s. If such a
// deletion is interrupted, the user is disabled; repeat it.
func (s *Service) DeleteUser(ctx context.Context, account string, id int64) error {
	if err := s.deleteManyKeys(ctx, account, id); err != nil {
		return err
	}
	return s.transact(ctx, account, nil, func(b *Transaction) error { return b.DeleteUser(id) })
}

// deleteManyKeys disables a user with more than ReadSize keys, and deletes keys until ReadSize are left.
func (s *Service) deleteManyKeys(ctx context.Context, account string, id int64) error {
	for {
		keys, total, err := s.store.Keys(ctx, account, core.KeyFilter{UserID: id}, core.Page{Number: 1, Size: core.ReadSize})
		if err != nil || total <= core.ReadSize {
			return err
		}
		err = s.transact(ctx, account, nil, func(b *Transaction) error {
			if _, err := b.UpdateUser(id, core.UserPatch{Disabled: new(true)}); err != nil {
				return err
			}
			events := b.keyEvents
			for _, k := range keys {
				now, err := b.Key(k.ID)
				if errors.Is(err, core.ErrKeyNotFound) || err == nil && now.UserID != id {
					continue // it was deleted, or moved, since it was listed
				}
				if err != nil {
					return err
				}
				if err := b.putKey(now, nil); err != nil {
					return err
				}
			}
			b.keyEvents = events // one event for the user, and none for each key
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// DeleteUser is [Service.DeleteUser] in a transaction.
func (b *Transaction) DeleteUser(id int64) error { return remove(id, b.User, b.putUser) }
