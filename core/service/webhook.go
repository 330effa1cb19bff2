package service

import (
	"context"
	"fmt"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// CreateWebhook creates a webhook with a new secret. The URL is required. An account has at most [core.MaxWebhooks].
func (s *Service) CreateWebhook(ctx context.Context, account string, p core.WebhookPatch) (*core.Webhook, error) {
	return changeOne(ctx, s, account, func(b *Transaction) (*core.Webhook, error) { return b.CreateWebhook(p) })
}

// CreateWebhook is [Service.CreateWebhook] in a transaction.
func (b *Transaction) CreateWebhook(p core.WebhookPatch) (*core.Webhook, error) {
	if err := core.WebhookMembers.Required(p); err != nil {
		return nil, err
	}
	_, n, err := b.tx.Webhooks(core.Page{Number: 1, Size: 1})
	if err != nil {
		return nil, err
	}
	if n+b.newHooks >= core.MaxWebhooks {
		return nil, core.Invalid("webhooks", fmt.Sprintf("An account has at most %d webhooks: delete one that nobody uses", core.MaxWebhooks))
	}
	now := b.s.now()
	w := &core.Webhook{AccountID: b.account, ID: secrets.NewID("wh_"), Secrets: []core.WebhookSecret{{Value: secrets.NewSigningSecret()}}, CreatedAt: now, UpdatedAt: now}
	if err := b.applyWebhook(p, w); err != nil {
		return nil, err
	}
	b.newHooks++
	return w, b.putWebhook(w)
}

// applyWebhook checks and sets the members of a patch.
func (b *Transaction) applyWebhook(p core.WebhookPatch, w *core.Webhook) error {
	if err := core.WebhookMembers.Apply(&p, w); err != nil {
		return err
	}
	if p.URL != nil && !b.s.tunables.Load().WebhookAllowPrivate {
		return core.CheckPublicURL(w.URL)
	}
	return nil
}

func (b *Transaction) putWebhook(w *core.Webhook) error {
	b.hooks[w.ID], b.changesWebhooks = w, true
	return b.tx.PutWebhook(w)
}

// Webhook returns a webhook, or [core.ErrWebhookNotFound].
func (s *Service) Webhook(ctx context.Context, account, id string) (*core.Webhook, error) {
	return s.store.Webhook(ctx, account, id)
}

// Webhook returns a webhook with the changes of the transaction, or [core.ErrWebhookNotFound]. The webhook is shared: do not change it.
func (b *Transaction) Webhook(id string) (*core.Webhook, error) {
	return written(b.hooks, id, b.tx.Webhook, core.ErrWebhookNotFound)
}

// Webhooks returns a page of the webhooks of the account, oldest first, and their total.
func (s *Service) Webhooks(ctx context.Context, account string, p core.Page) ([]*core.Webhook, int, error) {
	return s.store.Webhooks(ctx, account, p)
}

// UpdateWebhook sets the members that p names and returns the whole webhook. A disabled webhook loses the events that wait for it. After it is enabled again,
// it gets later events only.
func (s *Service) UpdateWebhook(ctx context.Context, account, id string, p core.WebhookPatch) (*core.Webhook, error) {
	before, err := s.store.Webhook(ctx, account, id)
	if err == nil && before.Inactive && core.OrZero(p.Active) {
		err = s.endDeliveries(ctx, account, id) // of events that were put before a crash
	}
	if err != nil {
		return nil, err
	}
	w, err := changeOne(ctx, s, account, func(b *Transaction) (*core.Webhook, error) { return b.UpdateWebhook(id, p) })
	if err == nil && w.Inactive {
		err = s.endDeliveries(ctx, account, id)
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// UpdateWebhook is [Service.UpdateWebhook] in a transaction. The caller calls EndUnwanted afterwards.
func (b *Transaction) UpdateWebhook(id string, p core.WebhookPatch) (*core.Webhook, error) {
	return b.changeWebhook(id, func(w *core.Webhook) error { return b.applyWebhook(p, w) })
}

// RotateWebhook gives a webhook a new secret. For [core.WebhookRotation], the former secret signs each delivery, too.
func (s *Service) RotateWebhook(ctx context.Context, account, id string) (*core.Webhook, error) {
	return changeOne(ctx, s, account, func(b *Transaction) (*core.Webhook, error) { return b.RotateWebhook(id) })
}

// RotateWebhook is [Service.RotateWebhook] in a transaction.
func (b *Transaction) RotateWebhook(id string) (*core.Webhook, error) {
	return b.changeWebhook(id, func(w *core.Webhook) error {
		w.Rotate(secrets.NewSigningSecret(), b.s.now())
		return nil
	})
}

// changeWebhook changes a copy of a webhook by fn, and stores it.
func (b *Transaction) changeWebhook(id string, fn func(*core.Webhook) error) (*core.Webhook, error) {
	before, err := b.Webhook(id)
	if err != nil {
		return nil, err
	}
	w := *before
	w.Secrets = slices.Clone(w.Secrets)
	if err := fn(&w); err != nil {
		return nil, err
	}
	w.UpdatedAt = b.s.after(w.UpdatedAt)
	return &w, b.putWebhook(&w)
}

// DeleteWebhook deletes a webhook with its delivery log and the events that wait for it.
func (s *Service) DeleteWebhook(ctx context.Context, account, id string) error {
	err := s.transact(ctx, account, nil, func(b *Transaction) error { return b.DeleteWebhook(id) })
	if err != nil {
		return err
	}
	return s.endDeliveries(ctx, account, id)
}

// DeleteWebhook is [Service.DeleteWebhook] in a transaction. The caller calls EndUnwanted afterwards.
func (b *Transaction) DeleteWebhook(id string) error {
	if _, err := b.Webhook(id); err != nil {
		return err
	}
	b.hooks[id], b.changesWebhooks = nil, true
	b.newHooks--
	return b.tx.DeleteWebhook(id)
}

// Attempts returns a page of the delivery log of a webhook, newest first, and the number of attempts in the log.
func (s *Service) Attempts(ctx context.Context, account, webhook string, p core.Page) ([]*core.Attempt, int, error) {
	all, _, err := s.store.Attempts(ctx, account, webhook, core.Page{Number: 1, Size: core.MaxAttempts})
	slices.Reverse(all)
	first := min(p.Offset(), len(all))
	return all[first:min(first+p.Size, len(all))], len(all), err
}
