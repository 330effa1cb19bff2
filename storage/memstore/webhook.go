package memstore

import (
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// Webhook implements [core.Store].
func (s *Store) Webhook(_ context.Context, account, id string) (*core.Webhook, error) {
	return get(s, core.ErrWebhookNotFound, func() *core.Webhook { return s.of(account).webhooks.rows[id] })
}

// Webhooks implements [core.Store].
func (s *Store) Webhooks(_ context.Context, account string, p core.Page) ([]*core.Webhook, int, error) {
	return list(s, p, func() []*core.Webhook { return s.of(account).allWebhooks() })
}

// Event implements [core.Store].
func (s *Store) Event(_ context.Context, account, id string) (*core.Event, error) {
	return get(s, core.ErrEventNotFound, func() *core.Event { return s.of(account).events.rows[id] })
}

// Events implements [core.Store].
func (s *Store) Events(_ context.Context, account string, f core.EventFilter, after int64, n int) (found []*core.Event, total int, err error) {
	err = s.locked(func() error {
		all := s.of(account).events.matching(func(e *core.Event) bool { return slices.Contains(e.Filters(), f) })
		total = len(all)
		for _, e := range all {
			if e.Seq > after && len(found) < n {
				found = append(found, copyOf(e))
			}
		}
		return nil
	})
	return found, total, err
}

// Attempts implements [core.Store].
func (s *Store) Attempts(_ context.Context, account, webhook string, p core.Page) ([]*core.Attempt, int, error) {
	return list(s, p, func() []*core.Attempt { return s.of(account).attemptsOf(webhook) })
}

// allWebhooks returns the webhooks, by Seq.
func (r *resources) allWebhooks() []*core.Webhook {
	return r.webhooks.matching(func(*core.Webhook) bool { return true })
}

// attemptsOf returns the attempts of a webhook, by Seq.
func (r *resources) attemptsOf(webhook string) []*core.Attempt {
	return r.attempts.matching(func(a *core.Attempt) bool { return a.Webhook == webhook })
}

// Webhook implements [core.Tx].
func (t *tx) Webhook(id string) (*core.Webhook, error) { return t.before.webhooks.get(id) }

// Webhooks implements [core.Tx].
func (t *tx) Webhooks(p core.Page) ([]*core.Webhook, int, error) {
	list, total := page(t.before.allWebhooks(), p)
	return list, total, nil
}

// Events implements [core.Tx].
func (t *tx) Events(ids ...string) ([]*core.Event, error) {
	list := make([]*core.Event, len(ids))
	for i, id := range ids {
		if e := t.before.events.rows[id]; e != nil {
			list[i] = copyOf(e)
		}
	}
	return list, nil
}

// Attempts implements [core.Tx].
func (t *tx) Attempts(webhook string, p core.Page) ([]*core.Attempt, int, error) {
	list, total := page(t.before.attemptsOf(webhook), p)
	return list, total, nil
}

// PutWebhook implements [core.Tx].
func (t *tx) PutWebhook(w *core.Webhook) error { return put(t, t.after.webhooks, w) }

// PutEvent implements [core.Tx].
func (t *tx) PutEvent(e *core.Event) error { return put(t, t.after.events, e) }

// PutAttempt implements [core.Tx].
func (t *tx) PutAttempt(a *core.Attempt) error { return put(t, t.after.attempts, a) }

// DeleteWebhook implements [core.Tx].
func (t *tx) DeleteWebhook(id string) error {
	if err := t.after.webhooks.remove(id); err != nil {
		return err
	}
	for _, a := range t.after.attemptsOf(id) {
		if err := t.after.attempts.remove(a.ID); err != nil {
			return err
		}
	}
	return nil
}

// DeleteEvent implements [core.Tx].
func (t *tx) DeleteEvent(id string) error { return t.after.events.remove(id) }
