package resource

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
)

// Webhook implements [core.Store].
func (r Resources) Webhook(ctx context.Context, account, id string) (*core.Webhook, error) {
	return get(ctx, r.db, Scope{Account: account}, webhooks, id)
}

// Webhooks implements [core.Store].
func (r Resources) Webhooks(ctx context.Context, account string, p core.Page) ([]*core.Webhook, int, error) {
	return list(ctx, r.db, Scope{Account: account}, webhooks, webhookSet, p)
}

// Event implements [core.Store].
func (r Resources) Event(ctx context.Context, account, id string) (*core.Event, error) {
	return get(ctx, r.db, Scope{Account: account}, events, id)
}

// Events implements [core.Store].
func (r Resources) Events(ctx context.Context, account string, f core.EventFilter, after int64, n int) (page []*core.Event, total int, err error) {
	err = r.db.View(ctx, Scope{Account: account}, func(rd Reader) error {
		var records [][]byte
		if records, total, err = rd.After(Event, eventSet(f), after, n); err != nil {
			return err
		}
		page, err = Decode[core.Event](records)
		return err
	})
	return page, total, err
}

// Attempts implements [core.Store].
func (r Resources) Attempts(ctx context.Context, account, webhook string, p core.Page) ([]*core.Attempt, int, error) {
	return list(ctx, r.db, Scope{Account: account}, attempts, attemptSet(webhook), p)
}

// Webhook implements [core.Tx].
func (t *tx) Webhook(id string) (*core.Webhook, error) { return before(t, &t.webhooks, id) }

// Webhooks implements [core.Tx].
func (t *tx) Webhooks(p core.Page) ([]*core.Webhook, int, error) {
	list, total, err := readPage(t.r, webhooks, webhookSet, p)
	return list, total, t.keep(err)
}

// Events implements [core.Tx].
func (t *tx) Events(ids ...string) ([]*core.Event, error) {
	changes, err := load(t, &t.events, ids...)
	if err != nil {
		return nil, err
	}
	list := make([]*core.Event, len(ids))
	for i, c := range changes {
		if c.Before == nil {
			continue
		}
		if list[i], err = decode[core.Event](c.record); err != nil {
			return nil, t.keep(err)
		}
	}
	return list, nil
}

// Attempts implements [core.Tx].
func (t *tx) Attempts(webhook string, p core.Page) ([]*core.Attempt, int, error) {
	list, total, err := readPage(t.r, attempts, attemptSet(webhook), p)
	return list, total, t.keep(err)
}

// PutWebhook implements [core.Tx].
func (t *tx) PutWebhook(w *core.Webhook) error { return put(t, &t.webhooks, w) }

// PutEvent implements [core.Tx].
func (t *tx) PutEvent(e *core.Event) error { return put(t, &t.events, e) }

// PutAttempt implements [core.Tx].
func (t *tx) PutAttempt(a *core.Attempt) error { return put(t, &t.attempts, a) }

// DeleteEvent implements [core.Tx].
func (t *tx) DeleteEvent(id string) error { return remove(t, &t.events, id) }

// DeleteWebhook implements [core.Tx].
func (t *tx) DeleteWebhook(id string) error {
	if err := remove(t, &t.webhooks, id); err != nil {
		return err
	}
	log, _, err := t.Attempts(id, core.Page{Number: 1, Size: 10 * core.MaxAttempts})
	for _, a := range log {
		if err == nil {
			err = remove(t, &t.attempts, a.ID)
		}
	}
	return t.keep(err)
}
