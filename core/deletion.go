package core

import (
	"context"
	"errors"
)

// DeleteUser deletes a user with its keys. The next request with such a key is refused as unknown. A user with more than 1,000 keys (batchSize)
// is disabled first, and its keys are deleted in several transactions: one of 240,000 keys takes 700 MB, and stalls others for 2 s. If such a
// deletion is interrupted, the user is disabled; repeat it.
func (s *Service) DeleteUser(ctx context.Context, account string, id int64) error {
	if err := s.deleteManyKeys(ctx, account, id); err != nil {
		return err
	}
	return s.batch(ctx, account, batchNeeds{}, func(b *Batch) error { return b.DeleteUser(id) })
}

// deleteManyKeys disables a user with more than batchSize keys, and deletes keys until batchSize are left.
func (s *Service) deleteManyKeys(ctx context.Context, account string, id int64) error {
	for {
		keys, total, err := s.store.Keys(ctx, account, KeyFilter{UserID: id}, Page{1, batchSize})
		if err != nil || total <= batchSize {
			return err
		}
		err = s.batch(ctx, account, batchNeeds{}, func(b *Batch) error {
			if _, err := b.UpdateUser(id, UserPatch{Disabled: new(true)}); err != nil {
				return err
			}
			disabled := b.disabled
			for _, k := range keys {
				now, err := b.Key(k.ID)
				if errors.Is(err, ErrKeyNotFound) || err == nil && now.UserID != id {
					continue // it was deleted, or moved, since it was listed
				}
				if err != nil {
					return err
				}
				if err := b.putKey(now, nil); err != nil {
					return err
				}
			}
			b.disabled = disabled // one event for the user, and none for each key
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// DeleteUser is [Service.DeleteUser] in a batch.
func (b *Batch) DeleteUser(id int64) error { return remove(id, b.User, b.putUser) }
